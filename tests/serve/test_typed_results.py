"""Values of odd types as results: read by key, all at once, typed and by the harness, they are what the rows held."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.model.column_numbers import spans_and_datetimes_of
from headrace.testing import Harness
from tests.serve.served import Served

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


class Part(hr.Record):
    since: datetime
    price: Decimal
    day: date


class Odd(hr.Record):
    key: str
    at: hr.Timestamp
    span: timedelta
    maybe: timedelta | None
    part: Part
    spans: list[timedelta]
    pair: tuple[datetime, ...]
    numbers: dict[str, float]
    times: dict[str, datetime]
    prices: dict[str, list[Decimal]]
    day: date


class Size(Enum):
    SMALL = 1


class Sale(hr.Record):
    size: Size
    shop: str
    at: hr.Timestamp


class Node(msgspec.Struct):
    since: datetime
    under: list[Node]


TYPES = {field.name: field.type for field in msgspec.structs.fields(Odd) if field.name not in ("key", "at")}
ROW = Odd(
    "a", hr.Timestamp(0), timedelta(seconds=3), timedelta(-1), Part(NOON, Decimal("1.5"), date(2000, 1, 1)),
    [timedelta(1)], (NOON, NOON), {"x": 1.5}, {"x": NOON}, {"x": [Decimal("2.5")]}, date(1, 1, 1),
)  # fmt: skip
Ask = Callable[[Any, Any, Any], Any]
WAYS: dict[str, Ask] = {
    "rolling": lambda keyed, into, agg: keyed.aggregate(into, x=agg),
    "tumbling": lambda keyed, into, agg: keyed.window(hr.tumbling("1h")).aggregate(into, x=agg),
    "session": lambda keyed, into, agg: keyed.window(hr.session("1h")).aggregate(into, x=agg),
    "row by row": lambda keyed, into, agg: keyed.window(hr.tumbling("1h"), fire=hr.per_row()).aggregate(into, x=agg),
}


def result_type(kind: Any) -> Any:
    return msgspec.defstruct("Result", [("key", str), ("x", kind)], bases=(hr.Row,), frozen=True, gc=False)


@pytest.mark.parametrize("way", WAYS)
def test_results_are_the_values_of_rows_however_they_are_read(way: str) -> None:
    app = hr.App("odd")
    rows = app.read("rows", hr.source.items([]), Odd, time=Odd.at)
    steps: dict[str, tuple[Any, Any, Any]] = {}
    for name, kind in TYPES.items():
        value = getattr(ROW, name)
        for verb, into, expected in (
            ("last", result_type(kind), value),
            ("collect", result_type(list[kind]), [value, value]),  # type: ignore[valid-type]
        ):
            step = WAYS[way](rows.key_by(Odd.key), into, getattr(hr, verb)(name)).named(f"{verb}_{name}").queryable()
            steps[f"{verb}_{name}"] = step, into, expected
    with Harness(app, start="2024-01-01T12:00") as h:
        for _ in range(2):
            h.push(rows, ROW.replace(at=h.at("12:00:01")))
            h.epoch(watermark="12:00:02")
        store = hr.Store(h.store)
        for address, (step, into, expected) in steps.items():
            typed = store.state(address, into)
            assert h.state(step, key="a").x == expected, address
            assert typed["a"].x == expected, address
            assert dict(typed.items())["a"].x == expected, address
            assert store.state(address)["a"] == dict(store.state(address).items())["a"], address


@pytest.mark.parametrize("way", WAYS)
def test_results_are_the_values_of_rows_for_clients_over_both_protocols(way: str) -> None:
    app = hr.App("odd")
    rows = app.read("rows", hr.source.items([]), Odd, time=Odd.at)
    names = [field.name for field in msgspec.structs.fields(Odd) if field.name in TYPES]
    into: Any = msgspec.defstruct(
        "Results", [("key", str), *((name, TYPES[name]) for name in names)], bases=(hr.Row,), frozen=True, gc=False
    )
    keyed = rows.key_by(Odd.key)
    aggs = {name: hr.last(name) for name in names}
    step = {
        "rolling": lambda: keyed.aggregate(into, **aggs),
        "tumbling": lambda: keyed.window(hr.tumbling("1h")).aggregate(into, **aggs),
        "session": lambda: keyed.window(hr.session("1h")).aggregate(into, **aggs),
        "row by row": lambda: keyed.window(hr.tumbling("1h"), fire=hr.per_row()).aggregate(into, **aggs),
    }[way]()
    step.named("asked").queryable()
    expected = into("a", *(getattr(ROW, name) for name in names))
    with Harness(app, start="2024-01-01T12:00") as h:
        h.push(rows, ROW.replace(at=h.at("12:00:01")))
        h.epoch(watermark="12:00:02")
        with Served(h.store) as served:
            served.wait_for(0)
            for url in (served.redis_url, served.url):
                with hr.Client(url) as client:
                    view = client.state("asked", into)
                    assert view["a"] == view.get_many(["a"])[0] == dict(view.scan())["a"] == expected


def test_a_record_inside_of_itself_is_left_as_it_is() -> None:
    convert = spans_and_datetimes_of(Node)
    assert convert is not None
    assert convert({"since": 0, "under": [{"since": 0}]}) == {
        "since": datetime(1970, 1, 1, tzinfo=UTC),
        "under": [{"since": 0}],
    }


@pytest.mark.parametrize("pair", [False, True], ids=["alone", "in a pair"])
@pytest.mark.parametrize("way", WAYS)
def test_a_member_of_an_enumeration_is_found_as_a_key_and_given_in_results(way: str, pair: bool) -> None:
    app = hr.App("sales")
    sales = app.read("sales", hr.source.items([]), Sale, time=Sale.at)
    keyed = sales.key_by(Sale.size, Sale.shop) if pair else sales.key_by(Sale.size)
    columns = [("size", Size), *([("shop", str)] if pair else []), ("x", int)]
    into: Any = msgspec.defstruct("Sold", columns, bases=(hr.Row,), frozen=True, gc=False)
    step = WAYS[way](keyed, into, hr.count()).named("sold").queryable()
    key: Any = (Size.SMALL, "a") if pair else Size.SMALL
    with Harness(app, start="2024-01-01T12:00") as h:
        h.push(sales, Sale(Size.SMALL, "a", h.at("12:00:01")))
        h.epoch(watermark="12:00:02")
        kind: Any = tuple[Size, str] if pair else Size
        view = hr.Store(h.store).state("sold", into, key=kind)
        expected = into(*key, 1) if pair else into(key, 1)
        assert h.state(step, key=key) == view[key] == expected
        assert dict(view.items()) == {key: expected}
        assert hr.Store(h.store).state("sold", key=kind).to_polars()["size"].to_list() == [1]
