"""``lookup``: one request per key, answers that serve for a while, nothing found, failures, and the way out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import FunctionFailed, ProgramError
from headrace.model.requests import CachePlan
from headrace.operators.lookups import AnswerCache
from headrace.testing import Harness
from tests.effort import examples

MINUTE = 60_000_000


class Order(hr.Record):
    n: int
    shop: str | None = None
    at: hr.Timestamp = hr.Timestamp(0)


class Shop(hr.Record):
    id: str
    city: str


class Rich(hr.Record):
    n: int
    city: str | None


class Registry:
    """A service: what it knows, and what it was asked."""

    known: dict[str, str] = {}
    asked: list[Any] = []


@pytest.fixture(autouse=True)
def registry() -> type[Registry]:
    Registry.known = {"s1": "Basel", "s2": "Ulm"}
    Registry.asked = []
    return Registry


async def find(shop: str) -> Shop | None:
    Registry.asked.append(shop)
    await asyncio.sleep(0)
    if shop == "broken":
        raise ConnectionError("no such wire")
    city = Registry.known.get(shop)
    return None if city is None else Shop(shop, city)


class Find(hr.AsyncFunction[str, Shop]):
    async def call(self, row: str) -> Shop:
        found = await find(row)
        assert found is not None
        return found


class Program:
    def __init__(self, fn: Any = find, *, by: Any = Order.shop, **options: Any) -> None:
        self.app = hr.App("shop")
        self.orders = self.app.read("orders", hr.source.items([]), Order, time=Order.at)
        self.joined: Any = self.orders.lookup(fn, by=by, **options)
        self.rich = self.joined.select(Rich, n="left.n", city="right.city")
        self.rich.show()

    def play(self, h: Harness, *orders: Order, **clock: Any) -> list[Rich]:
        h.push(self.orders, *orders)
        h.epoch(**clock)
        return h.take(self.rich)


def test_each_row_comes_out_in_its_order_beside_what_was_found() -> None:
    program = Program()
    with Harness(program.app) as h:
        came = program.play(h, Order(1, "s2"), Order(2, "s9"), Order(3, "s1"), Order(4, None), Order(5, "s2"))
    assert came == [Rich(1, "Ulm"), Rich(2, None), Rich(3, "Basel"), Rich(4, None), Rich(5, "Ulm")]
    assert sorted(Registry.asked) == ["s1", "s2", "s9"], "one request per key, and none for null"


def test_pairs_can_be_mapped_by_a_function_of_both() -> None:
    app = hr.App("shop")
    orders = app.read("orders", hr.source.items([]), Order)
    cities = orders.lookup(find, by="shop").map(lambda o, s: f"{o.n} {s and s.city}", output=str)
    cities.show()
    with Harness(app) as h:
        h.push(orders, Order(1, "s1"), Order(2, "s9"))
        h.epoch()
        assert h.take(cities) == ["1 Basel", "2 None"]


def test_a_class_can_look_up_and_a_function_of_the_row_can_give_the_key() -> None:
    program = Program(Find(), by=lambda order: f"s{order.n}")
    with Harness(program.app) as h:
        assert program.play(h, Order(1), Order(2)) == [Rich(1, "Basel"), Rich(2, "Ulm")]


def test_without_a_cache_every_epoch_asks_again() -> None:
    program = Program()
    with Harness(program.app) as h:
        program.play(h, Order(1, "s1"))
        program.play(h, Order(2, "s1"))
    assert Registry.asked == ["s1", "s1"]


def test_with_a_cache_an_answer_serves_for_a_while_by_the_clock_of_epochs() -> None:
    program = Program(cache="10m")
    with Harness(program.app) as h:
        assert program.play(h, Order(1, "s1"), clock="12:00:00") == [Rich(1, "Basel")]
        Registry.known["s1"] = "Bern"
        assert program.play(h, Order(2, "s1"), clock="12:09:59") == [Rich(2, "Basel")]
        assert program.play(h, Order(3, "s1"), clock="12:10:00") == [Rich(3, "Bern")]
    assert Registry.asked == ["s1", "s1"]


@pytest.mark.parametrize(("cache_none", "asked"), [(True, 1), (False, 2)])
def test_that_there_is_nothing_is_remembered_or_not(cache_none: bool, asked: int) -> None:
    program = Program(cache="10m", cache_none=cache_none)
    with Harness(program.app) as h:
        program.play(h, Order(1, "s9"))
        program.play(h, Order(2, "s9"))
    assert len(Registry.asked) == asked


def test_a_cache_keeps_no_more_than_its_size_and_drops_what_was_used_longest_ago() -> None:
    cache = AnswerCache(CachePlan(10 * MINUTE, 2, True))
    for key in ("a", "b"):
        cache.put(key, key, 0)
    assert cache.get("a", 1) is not None
    cache.put("c", "c", 0)
    assert [cache.get(key, 1) is not None for key in "abc"] == [True, False, True]
    assert len(cache) == 2


def test_an_answer_that_has_expired_leaves_the_cache() -> None:
    cache = AnswerCache(CachePlan(10 * MINUTE, 2, True))
    cache.put("a", "a", 0)
    assert cache.get("a", 10 * MINUTE) is None
    assert len(cache) == 0


def test_a_failing_lookup_stops_the_job_with_the_row() -> None:
    program = Program()
    with Harness(program.app) as h, pytest.raises(FunctionFailed) as caught:
        program.play(h, Order(1, "s1"), Order(7, "broken"))
    for words in ("find", "no such wire", '"n":7'):
        assert words in str(caught.value)


def test_where_errors_are_read_every_row_of_the_failing_key_goes_there() -> None:
    program = Program(cache="10m")
    program.joined.errors.show()
    with Harness(program.app) as h:
        came = program.play(h, Order(1, "broken"), Order(2, "s1"), Order(3, "broken"))
        assert came == [Rich(2, "Basel")]
        assert [b'"n":1' in failed.row or b'"n":3' in failed.row for failed in h.take(program.joined.errors)] == [
            True
        ] * 2
        assert program.play(h, Order(4, "broken")) == []
    assert Registry.asked.count("broken") == 2, "a failure is not remembered"


def test_a_key_function_that_raises_is_told_with_its_row() -> None:
    program = Program(by=lambda order: 1 // order.n)
    with Harness(program.app) as h, pytest.raises(FunctionFailed, match="ZeroDivisionError"):
        program.play(h, Order(0, "s1"))


def test_an_answer_of_another_type_is_told_with_the_step() -> None:
    async def wrong(shop: str) -> Shop | None:
        return "Basel"  # type: ignore[return-value]

    program = Program(wrong)
    with Harness(program.app) as h, pytest.raises(hr.HeadraceError, match="lookup at"):
        program.play(h, Order(1, "s1"))


def test_a_crash_looks_up_again_and_every_row_comes_out_once() -> None:
    program = Program(cache="10m")
    with Harness(program.app) as h:
        h.push(program.orders, Order(1, "s1"))
        h.crash(at="before_publish")
        assert program.play(h, Order(2, "s1")) == [Rich(1, "Basel"), Rich(2, "Basel")]
    assert Registry.asked == ["s1", "s1"], "a new process remembers nothing"


@settings(max_examples=examples(20))
@given(st.lists(st.lists(st.sampled_from(["s1", "s2", "s9", None]), max_size=6), max_size=5), st.booleans())
def test_any_input_comes_out_once_in_order_with_its_answer(epochs: list[list[str | None]], cached: bool) -> None:
    Registry.known = {"s1": "Basel", "s2": "Ulm"}
    program = Program(cache="10m" if cached else None, capacity=1)
    with Harness(program.app) as h:
        for shops in epochs:
            came = program.play(h, *(Order(n, shop) for n, shop in enumerate(shops)))
            assert came == [Rich(n, Registry.known.get(shop or "")) for n, shop in enumerate(shops)]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"by": "nobody"}, "nobody"),
        ({"cache": "0s"}, "cache"),
        ({"cache": "1m", "cache_size": 0}, "cache_size"),
        ({"capacity": 0}, "capacity"),
        ({"fn": lambda shop: None}, "output="),
    ],
)
def test_mistakes_are_found_while_the_program_is_built(given: dict[str, Any], words: str) -> None:
    orders = hr.App("shop").read("orders", hr.source.items([]), Order)
    with pytest.raises(ProgramError) as caught:
        orders.lookup(given.pop("fn", find), **{"by": Order.shop, **given})
    assert words in str(caught.value)


def test_a_field_that_must_have_a_value_cannot_come_from_what_may_not_be_found() -> None:
    class Strict(hr.Record):
        city: str

    orders = hr.App("shop").read("orders", hr.source.items([]), Order)
    with pytest.raises(ProgramError, match="may have no row"):
        orders.lookup(find, by=Order.shop).select(Strict, city="right.city")
