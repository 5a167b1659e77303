"""Declared aggregates over every type whose values have an order, in every kind of step that computes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any, Final
from uuid import UUID

import pytest

import headrace as hr
from headrace.model.record import row_type


class Level(IntEnum):
    LOW = 1
    HIGH = 2
    HIGHEST = 3


class Colour(StrEnum):
    BLUE = "blue"
    GREEN = "green"
    RED = "red"


class Shape(Enum):
    ROUND = "round"
    SQUARE = "square"


class Point(hr.Record):
    x: int


class Ranked(hr.Record, order=True):
    rank: int


class Tagged(hr.Record):
    tags: list[str]


VALUES: Final[Mapping[Any, tuple[Any, Any, Any]]] = {
    int: (1, 2, 3),
    float: (0.5, 2.0, 3.5),
    bool: (False, True, True),
    str: ("a", "b", "c"),
    bytes: (b"a", b"b", b"c"),
    Decimal: (Decimal("1.5"), Decimal(2), Decimal("3.25")),
    UUID: (UUID(int=1), UUID(int=2), UUID(int=3)),
    Level: (Level.LOW, Level.HIGH, Level.HIGHEST),
    Colour: (Colour.BLUE, Colour.GREEN, Colour.RED),
    list[int]: ([1], [1, 2], [3]),
    tuple[int, str]: ((1, "b"), (2, "a"), (2, "b")),
    Ranked: (Ranked(1), Ranked(2), Ranked(3)),
    date: (date(2020, 1, 1), date(2021, 1, 1), date(2022, 1, 1)),
    time: (time(1), time(2), time(3)),
    datetime: (datetime(1960, 1, 1, tzinfo=UTC), datetime(2021, 1, 1, tzinfo=UTC), datetime(2022, 1, 1, tzinfo=UTC)),
    timedelta: (timedelta(-1), timedelta(1), timedelta(2, 3, 4)),
    hr.Timestamp: (hr.Timestamp(-1), hr.Timestamp(1), hr.Timestamp(2)),
    hr.Duration: (1_000_000, 2_000_000, 3_000_000),
}
"""Three values of each type that rise."""
STEPS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "rolling": lambda keyed: keyed,
    "tumbling": lambda keyed: keyed.window(hr.tumbling("1h")),
    "tumbling, counting rows": lambda keyed: keyed.window(hr.tumbling("1h"), fire=hr.every(rows=4)),
    "session": lambda keyed: keyed.window(hr.session("1h")),
    "unbounded": lambda keyed: keyed.window(hr.unbounded(), fire=hr.per_epoch()),
}


def aggregates(**options: Any) -> dict[str, Any]:
    return {
        "least": hr.min("x", **options),
        "most": hr.max("x", **options),
        "oldest": hr.first("x", **options),
        "newest": hr.last("x", **options),
        "where_least": hr.min("n", by="x", **options),
        "where_most": hr.max("n", by="x", **options),
    }


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_every_type_with_an_order_has_a_least_and_a_greatest_in_every_step(kind: Any) -> None:
    low, middle, high = VALUES[kind]
    row = row_type("Reading", {"k": str, "at": hr.Timestamp, "n": int, "x": kind | None})
    app = hr.App("types")
    readings = app.read("readings", hr.source.items([]), row, time="at")
    keyed = readings.key_by("k")
    made = {name: step(keyed).aggregate(**aggregates()) for name, step in STEPS.items()}
    made["over an hour"] = keyed.aggregate(**aggregates(over="1h"))
    for number, stream in enumerate(made.values()):
        stream.named(f"step_{number}").show()
    with hr.testing.Harness(app, start="2024-01-01T12:00", parallelism=1) as harness:
        # In two epochs, so that values are stored and read again before they are compared.
        for minutes, values in ((0, (middle, high)), (2, (low, None))):
            rows = [row("a", harness.at(f"12:0{minutes + i}"), minutes + i, x) for i, x in enumerate(values)]
            harness.push(readings, *rows)
            harness.epoch()
        harness.drain()
        for name, stream in made.items():
            last = harness.take(stream)[-1]
            found = [(type(value), value) for value in (last.least, last.most, last.oldest, last.newest)]
            assert found == [(type(value), value) for value in (low, high, middle, low)], name
            assert (last.where_least, last.where_most) == (2, 0 if middle == high else 1), name


def step_of(kind: Any, agg: hr.types.Agg[Any]) -> Any:
    row = row_type("Reading", {"k": str, "at": hr.Timestamp, "n": int, "x": kind})
    readings = hr.App("types").read("readings", hr.source.items([]), row, time="at")
    return readings.key_by("k").window(hr.tumbling("1h")).aggregate(found=agg)


UNORDERED: Final[Mapping[Any, str]] = {
    Shape: "Shape is an Enum whose members have no order",
    dict[str, int]: "dict has no order",
    set[int]: "set has no order",
    frozenset[int]: "frozenset has no order",
    Point: "Point has no order",
    list[Shape]: "Shape is an Enum",
    tuple[int, Point]: "Point has no order",
    list[int | None]: "it may be None",
    int | str: "a number and text have no order among each other",
}


@pytest.mark.parametrize("kind", UNORDERED, ids=str)
@pytest.mark.parametrize(
    "agg",
    [hr.min("x"), hr.max("x"), hr.max("n", by="x"), hr.top("x", 2), hr.top("n", 2, by="x")],
    ids=["min", "max", "max by", "top", "top by"],
)
def test_values_without_an_order_are_refused_while_building(kind: Any, agg: hr.types.Agg[Any]) -> None:
    with pytest.raises(hr.ProgramError, match="cannot compare these values") as refused:
        step_of(kind, agg)
    assert "test_types_of_aggregates.py" in refused.value.where
    assert UNORDERED[kind] in refused.value.found


@pytest.mark.parametrize("kind", [Any, int | float, Decimal | None, Ranked | None], ids=str)
def test_values_that_may_have_an_order_are_taken(kind: Any) -> None:
    for agg in (hr.min("x"), hr.top("n", 2, by="x"), hr.count_distinct("x")):
        step_of(kind, agg)


@pytest.mark.parametrize("kind", [list[int], dict[str, int], set[int], tuple[int, list[int]], Tagged], ids=str)
def test_values_that_cannot_be_told_apart_are_refused_while_building(kind: Any) -> None:
    with pytest.raises(hr.ProgramError, match="count_distinct cannot compare these values"):
        step_of(kind, hr.count_distinct("x"))


@pytest.mark.parametrize("kind", [Shape, Point, tuple[int, str], frozenset[int]], ids=str)
def test_values_without_an_order_can_be_told_apart(kind: Any) -> None:
    step_of(kind, hr.count_distinct("x"))
    step_of(kind, hr.first("x"))
    step_of(kind, hr.max("x", by="n"))


@pytest.mark.parametrize("n", [0, -1, 2.5, "3", True, None])
def test_top_takes_a_whole_number(n: Any) -> None:
    with pytest.raises(hr.ProgramError, match="n of top must be a whole number, 1 or more") as refused:
        hr.top("x", n)
    assert refused.value.found == repr(n)


@pytest.mark.parametrize("q", [-0.1, 1.1, "0.5", True, None, float("nan")])
def test_quantile_takes_a_share(q: Any) -> None:
    with pytest.raises(hr.ProgramError, match="q of quantile must be a number from 0 to 1") as refused:
        hr.quantile("x", q)
    assert refused.value.found == repr(q)
