"""Regular joins in programs: behind steps whose rows replace each other, under any cut, crash and number of shards."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.testing import Harness
from tests.testing.test_changelogs import check_pairs, fold


class Order(hr.Record):
    id: int
    customer: str
    cents: int


class Customer(hr.Record):
    name: str
    city: str
    phone: int = 0


class Line(hr.Record):
    id: int | None
    customer: str | None
    cents: int | None
    city: str | None


class Shop:
    """Orders and customers, whose rows replace each other; orders are joined by who bought, not by their own key."""

    def __init__(self) -> None:
        self.app = hr.App("shop")
        self.orders = self.app.read("orders", hr.source.items([]), Order)
        self.customers = self.app.read("customers", hr.source.items([]), Customer)
        self.newest_orders = self.orders.key_by("id").latest().named("newest_orders")
        self.newest_customers = self.customers.key_by("name").latest().named("newest_customers")

    def sides(self) -> tuple[Any, Any]:
        return self.newest_orders.where("cents > 0").key_by("customer"), self.newest_customers.key_by("name")

    def joined(self, how: Any, on: str | None = None) -> hr.Stream[Any]:
        left, right = self.sides()
        made = left.join(right, within=None, how=how, on=on).named("lines")
        if how in ("semi", "anti"):
            return made.select(Line, city="''")
        city, order = "right.city", ("left.id", "left.customer", "left.cents")
        return made.select(Line, id=order[0], customer=order[1], cents=order[2], city=city)


def plainly(orders: dict[int, Order], customers: dict[str, Customer], how: str, least: int) -> Counter[Line]:
    """What the join of the rows that hold has. ``least``: the further condition on what an order costs."""
    rows: Counter[Line] = Counter()
    met: set[str] = set()
    for order in (each for each in orders.values() if each.cents > 0):
        customer = customers.get(order.customer)
        pairs = customer is not None and order.cents >= least
        if how in ("semi", "anti"):
            rows[Line(order.id, order.customer, order.cents, "")] += pairs is (how == "semi")
        elif pairs and customer is not None:
            rows[Line(order.id, order.customer, order.cents, customer.city)] += 1
            met.add(customer.name)
        elif how in ("left", "full"):
            rows[Line(order.id, order.customer, order.cents, None)] += 1
    if how in ("right", "full"):
        for customer in customers.values():
            rows[Line(None, None, None, customer.city)] += customer.name not in met
    return +rows


HOWS = ("inner", "left", "right", "full", "semi", "anti")


def random_rows(rng: random.Random, count: int) -> list[Any]:
    return [
        Order(rng.randrange(6), rng.choice("abc"), rng.randrange(-20, 40))
        if rng.random() < 0.6
        else Customer(rng.choice("abc"), rng.choice(["rome", "oslo"]), rng.randrange(3))
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("how", HOWS)
def test_joins_of_rows_that_replace_each_other_come_to_what_the_newest_rows_come_to(
    tmp_path: Path, how: str, seed: int
) -> None:
    rng = random.Random(f"{how}-{seed}")
    least = rng.choice([0, 15])
    shop = Shop()
    lines = shop.joined(how, f"left.cents >= {least}" if least else None)
    rows, held = random_rows(rng, 40), Counter[Any]()
    orders: dict[int, Order] = {}
    customers: dict[str, Customer] = {}
    with Harness(shop.app, parallelism=rng.choice([1, 3])) as h:
        while rows:
            part, rows = rows[: (size := rng.randrange(1, 12))], rows[size:]
            for row in part:
                if isinstance(row, Order):
                    h.push(shop.orders, row)
                    orders[row.id] = row
                else:
                    h.push(shop.customers, row)
                    customers[row.name] = row
            if rng.random() < 0.3:
                h.crash(at=rng.choice(["before_publish", "outputs_staged"]))
            h.epoch()
            for sign, row in h.take_changes(lines):
                held[row] += -1 if sign.startswith("-") else 1
            assert all(count >= 0 for count in held.values())
            assert +held == plainly(orders, customers, how, least)


def test_a_row_that_moves_to_another_key_leaves_the_one_and_comes_to_the_other() -> None:
    shop = Shop()
    lines = shop.joined("inner")
    with Harness(shop.app, parallelism=3) as h:
        h.push(shop.customers, Customer("a", "rome"), Customer("b", "oslo"))
        h.push(shop.orders, Order(1, "a", 5))
        h.epoch()
        assert h.take(lines) == [Line(1, "a", 5, "rome")]
        h.push(shop.orders, Order(1, "b", 5))
        h.epoch()
        changes = h.take_changes(lines)
    assert sorted((sign[0], row.city) for sign, row in changes) == [("+", "oslo"), ("-", "rome")]


def test_a_change_that_nothing_selected_shows_leaves_no_task() -> None:
    shop = Shop()
    lines = shop.joined("left")
    with Harness(shop.app) as h:
        h.push(shop.customers, Customer("a", "rome", 1))
        h.push(shop.orders, Order(1, "a", 5))
        h.epoch()
        h.take_changes(lines)
        h.push(shop.customers, Customer("a", "rome", 2))
        h.epoch()
        assert h.take_changes(lines) == []


def test_what_is_joined_can_be_counted_and_joined_again() -> None:
    shop = Shop()
    lines = shop.joined("left")
    cities = (
        lines.where("city is not null").key_by("city").aggregate(n=hr.count(), cents=hr.sum("cents")).named("cities")
    )
    named = cities.key_by("city").join(
        shop.newest_customers.key_by("city"), within=None, how="left", on="right.phone > 0"
    ).named("named").select(city="left.city", n="left.n", name="right.name")  # fmt: skip
    with Harness(shop.app) as h:
        h.push(shop.customers, Customer("a", "rome", 1), Customer("b", "rome"))
        h.push(shop.orders, Order(1, "a", 5), Order(2, "b", 7))
        h.epoch()
        h.push(shop.orders, Order(1, "a", -1))
        h.epoch()
        held = fold([(sign, (row.city, row.n, row.cents)) for sign, row in h.take_changes(cities)])
        assert held == Counter([("rome", 1, 7)])
        held = fold([(sign, (row.city, row.n, row.name)) for sign, row in h.take_changes(named)])
        assert held == Counter([("rome", 1, "a")])


def unique_key(how: str, right_key: str = "name") -> str:
    shop = Shop()
    left, _ = shop.sides()
    right = shop.newest_customers.key_by(right_key)
    pairs = left.join(right, within=None, how=how).named("lines")
    return str(pairs.select(id="left.id", city="right.name").node.kind)


def test_the_unique_key_of_pairs_follows_from_those_of_their_sides() -> None:
    assert unique_key("inner") == "changelog by id, from several shards"
    assert unique_key("left") == "changelog by id, from several shards"
    assert unique_key("full") == "changelog by id, city, from several shards"
    shop = Shop()
    by_id = shop.newest_orders.key_by("id").join(shop.newest_orders.key_by("id"), within=None, how="full").named("x")
    assert str(by_id.select(a="left.id", b="right.id").node.kind) == "changelog by a, b"
    assert str(by_id.select(a="left.id").node.kind) == "changelog, no unique key is known"
    plain = shop.orders.key_by("customer").join(shop.newest_customers.key_by("name"), within=None).named("y")
    assert str(plain.select(a="left.id").node.kind) == "changelog, no unique key is known"
    there = shop.orders.key_by("customer").join(shop.customers.key_by("name"), within=None, how="semi").named("z")
    assert str(there.node.kind) == "append"


def test_rows_of_one_key_go_before_what_stands_in_their_place() -> None:
    shop = Shop()
    totals = shop.orders.key_by("customer").aggregate(cents=hr.sum("cents")).named("totals")
    pairs = totals.key_by("customer").join(shop.newest_customers.key_by("name"), within=None, how="left").named("pairs")
    rows = pairs.select(name="left.customer", cents="left.cents", city="right.city")
    assert str(rows.node.kind) == "changelog by name"
    rng = random.Random(5)
    with Harness(shop.app, parallelism=2) as h:
        for _ in range(8):
            for row in random_rows(rng, 6):
                h.push(shop.orders if isinstance(row, Order) else shop.customers, row)
            h.epoch()
        check_pairs(h.take_changes(rows), lambda row: row.name)


def test_explain_says_what_a_join_keeps_and_what_it_gives() -> None:
    shop = Shop()
    shop.joined("full", "left.cents > 3").show()
    text = shop.app.explain()
    for words in (
        "full join without a window",
        "where left.cents > 3",
        "keeps all rows of either side and who has partners, for ever",
        "changelog by left.id, right.name, from several shards",
        "newest_orders_normalised: normalise",
    ):
        assert words in text


def test_what_is_kept_moves_with_the_number_of_shards(tmp_path: Path) -> None:
    held = Counter[Any]()
    for parallelism in (1, 3, 2):
        shop = Shop()
        lines = shop.joined("full")
        with Harness(shop.app, store=tmp_path, parallelism=parallelism) as h:
            rows: Sequence[Any] = random_rows(random.Random(parallelism), 20)
            for row in rows:
                h.push(shop.orders if isinstance(row, Order) else shop.customers, row)
            h.epoch()
            for sign, row in h.take_changes(lines):
                held[row] += -1 if sign.startswith("-") else 1
        assert all(count >= 0 for count in held.values())


def test_a_join_that_comes_back_with_another_condition_is_refused(tmp_path: Path) -> None:
    for on, refused in (("left.cents > 1", False), ("left.cents > 2", True)):
        shop = Shop()
        shop.joined("left", on).show()
        if refused:
            with pytest.raises(hr.HeadraceError, match="was something else"), Harness(shop.app, store=tmp_path):
                pass
        else:
            with Harness(shop.app, store=tmp_path) as h:
                h.push(shop.orders, Order(1, "a", 5))
                h.epoch()
