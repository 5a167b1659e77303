"""Numbers at their limits: an aggregate gives the same whichever way a program asks for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pytest

import headrace as hr
from headrace.errors import FunctionFailed
from headrace.testing import Harness

LARGEST = 2**63 - 1


class Reading(hr.Record):
    place: str
    at: hr.Timestamp
    n: int = 0
    real: float = 0.0
    price: Decimal = Decimal(0)


Ask = Callable[[Any, Any], Any]
ROLLING: dict[str, Ask] = {
    "rolling": lambda keyed, agg: keyed.aggregate(x=agg),
    "per row": lambda keyed, agg: keyed.aggregate(x=agg, fire=hr.per_row()),
    "unbounded": lambda keyed, agg: keyed.window(hr.unbounded(), fire=hr.per_row()).aggregate(x=agg),
    "rows": lambda keyed, agg: keyed.window(hr.rows(100, every=1)).aggregate(x=agg),
    "evicted": lambda keyed, agg: keyed.window(hr.unbounded(), fire=hr.per_row(), evict=hr.keep_rows(100)).aggregate(
        x=agg
    ),
}
WINDOWED: dict[str, Ask] = {
    "tumbling": lambda keyed, agg: keyed.window(hr.tumbling("1h")).aggregate(x=agg),
    "sliding": lambda keyed, agg: keyed.window(hr.sliding("2h", every="1h")).aggregate(x=agg),
    "session": lambda keyed, agg: keyed.window(hr.session("1h")).aggregate(x=agg),
    "window per row": lambda keyed, agg: keyed.window(hr.tumbling("1h"), fire=hr.per_row()).aggregate(x=agg),
}
WAYS = ROLLING | WINDOWED


def last_result(way: str, agg: Any, *epochs: Sequence[Reading]) -> Any:
    app = hr.App("numbers")
    rows = app.read("rows", hr.source.items([]), Reading, time=Reading.at)
    asked = WAYS[way](rows.key_by(Reading.place), agg).named("asked")
    asked.queryable()
    taken: list[Any] = []
    with Harness(app, start="2024-01-01T12:00") as h:
        for epoch in epochs:
            h.push(rows, *(row.replace(at=h.at("12:00:01")) for row in epoch))
            h.epoch(watermark="12:00:02")
            taken += h.take(asked)
        h.epoch(watermark="18:00:00")
        taken += h.take(asked)
    return taken[-1].x


def reading(**values: Any) -> Reading:
    return Reading("a", hr.Timestamp(0), **values)


@pytest.mark.parametrize("way", WAYS)
def test_sums_of_decimals_are_exact(way: str) -> None:
    huge, small = Decimal("12345678901234567890.123456789012345678"), Decimal("0.000000000000000001")
    total = last_result(way, hr.sum("price"), [reading(price=huge)], [reading(price=small), reading(price=small)])
    assert total == Decimal("12345678901234567890.123456789012345680")


@pytest.mark.parametrize("way", WAYS)
def test_the_mean_of_decimals_is_a_decimal_rounded_half_up(way: str) -> None:
    mean = last_result(way, hr.avg("price"), [reading(price=Decimal(1))], [reading(price=Decimal(1)), reading()])
    assert isinstance(mean, Decimal)
    assert mean == Decimal("0.666666666666666667")


@pytest.mark.parametrize("way", WAYS)
def test_a_mean_of_whole_numbers_beyond_floats_is_rounded(way: str) -> None:
    assert last_result(way, hr.avg("n"), [reading(n=2**53 + 1)], [reading(n=2**53 + 1)]) == float(2**53)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cut", [1, 2, 4])
def test_not_a_number_is_the_greatest_wherever_epochs_are_cut(way: str, cut: int) -> None:
    rows = [reading(real=real) for real in (1.0, math.nan, 5.0, 3.0, 4.0)]
    greatest = last_result(way, hr.top("real", 3), rows[:cut], rows[cut:])
    assert math.isnan(greatest[0])
    assert greatest[1:] == [5.0, 4.0]


@pytest.mark.parametrize("way", WAYS)
def test_not_a_number_is_left_out_of_quantiles(way: str) -> None:
    rows = [reading(real=real) for real in (math.nan, 2.0, math.nan)]
    assert last_result(way, hr.quantile("real", 0.5), rows[:1], rows[1:]) == pytest.approx(2.0, rel=0.01)
    assert math.isnan(last_result(way, hr.quantile("real", 0.5), rows[:1]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cut", [1, 2])
def test_a_sum_that_leaves_64_bits_is_refused_with_its_step_and_key(way: str, cut: int) -> None:
    rows = [reading(n=LARGEST), reading(n=1)]
    with pytest.raises(FunctionFailed, match="the sum 'x' leaves 64 bits") as refused:
        last_result(way, hr.sum("n"), rows[:cut], rows[cut:])
    assert refused.value.where == "step asked"
    assert str(LARGEST) in refused.value.expected
    assert refused.value.found == "key a"


def test_a_sum_of_a_whole_stream_that_leaves_64_bits_names_its_step_and_no_key() -> None:
    app = hr.App("numbers")
    rows = app.read("rows", hr.source.items([]), Reading, time=Reading.at)
    rows.window(hr.tumbling("1h")).aggregate(x=hr.sum("n")).named("asked").queryable()
    with Harness(app, start="2024-01-01T12:00") as h, pytest.raises(FunctionFailed) as refused:
        h.push(rows, *(reading(n=LARGEST).replace(at=h.at("12:00:01")) for _ in range(2)))
        h.epoch(watermark="18:00:00")
    assert (refused.value.where, refused.value.found) == ("step asked", "")


@pytest.mark.parametrize("cut", [1, 2])
@pytest.mark.parametrize("way", [*WAYS, "over a horizon"])
def test_a_mean_of_decimals_whose_sum_leaves_38_digits_is_refused_with_its_step_and_key(way: str, cut: int) -> None:
    rows = [reading(price=Decimal(6 * 10**19)), reading(price=Decimal(6 * 10**19))]
    over = way == "over a horizon"
    mean = hr.avg("price", over="1h") if over else hr.avg("price")
    with pytest.raises(FunctionFailed, match="the sum behind avg 'x' leaves 38 digits") as refused:
        last_result("rolling" if over else way, mean, rows[:cut], rows[cut:])
    assert (refused.value.where, refused.value.found) == ("step asked", "key a")


@pytest.mark.parametrize("way", ["rolling", "per row"])
def test_a_sum_over_a_horizon_that_leaves_64_bits_is_refused_with_step_and_key(way: str) -> None:
    rows = [reading(n=LARGEST), reading(n=1)]
    for cut in (1, 2):
        with pytest.raises(FunctionFailed, match="the sum 'x' leaves 64 bits") as refused:
            last_result(way, hr.sum("n", over="1h"), rows[:cut], rows[cut:])
        assert (refused.value.where, refused.value.found) == ("step asked", "key a")


@pytest.mark.parametrize("way", ["tumbling", "sliding", "session"])
def test_whoever_reads_an_open_window_is_refused_a_sum_that_leaves_64_bits(way: str) -> None:
    app = hr.App("numbers")
    rows = app.read("rows", hr.source.items([]), Reading, time=Reading.at)
    asked = WAYS[way](rows.key_by(Reading.place), hr.sum("n")).named("asked").queryable()
    with Harness(app, start="2024-01-01T12:00") as h:
        for n in (LARGEST, 1):
            h.push(rows, reading(n=n).replace(at=h.at("12:00:01")))
            h.epoch(watermark="12:00:02")
        with pytest.raises(FunctionFailed, match="the sum 'x' leaves 64 bits"):
            h.state(asked, key="a")


THERE_AND_BACK = [2**62] * 3 + [-(2**62)] * 3


@pytest.mark.parametrize("maintained", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("way", ["tumbling", "sliding", "session", "allowed late"])
def test_only_the_sum_of_a_whole_window_must_fit_wherever_epochs_are_cut_and_runs_folded(
    way: str, size: int, maintained: bool
) -> None:
    app = hr.App("numbers")
    rows = app.read("rows", hr.source.items([]), Reading, time=Reading.at)
    keyed = rows.key_by(Reading.place)
    aggs = {
        "n": hr.sum("n"), "price": hr.sum("price"), "rows": hr.count(), "last": hr.last("real"),
        "most": hr.max("n"), "all": hr.collect("real"),
    }  # fmt: skip
    windowed = {
        "tumbling": lambda: keyed.window(hr.tumbling("1h")),
        "sliding": lambda: keyed.window(hr.sliding("2h", every="1h")),
        "session": lambda: keyed.window(hr.session("1h")),
        "allowed late": lambda: keyed.window(hr.tumbling("1h"), allow_late="1h"),
    }[way]()
    asked = windowed.aggregate(**aggs).named("asked").queryable()
    given = [reading(n=n, price=Decimal(n) * 4, real=float(i)) for i, n in enumerate(THERE_AND_BACK)]
    finals = asked.finals()
    finals.write(hr.sink.discard())
    with Harness(app, start="2024-01-01T12:00") as h:
        for start in range(0, len(given), size):
            h.push(rows, *(row.replace(at=h.at("12:00:01")) for row in given[start : start + size]))
            h.epoch(watermark="12:00:02")
            if maintained:
                h.maintain()
        state = h.state(asked, key="a")
        assert (state.n, state.price, state.rows, state.last) == (0, 0, 6, 5.0)
        assert state.all == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
        h.restart()
        h.epoch(watermark="18:00:00")
        for result in h.take(finals):
            assert (result.n, result.price, result.rows, result.last, result.most) == (0, 0, 6, 5.0, 2**62)


@pytest.mark.parametrize("way", ["tumbling", "sliding", "session"])
def test_a_store_is_folded_and_swept_while_the_sum_of_an_open_window_does_not_fit(way: str) -> None:
    app = hr.App("numbers")
    rows = app.read("rows", hr.source.items([]), Reading, time=Reading.at)
    asked = WAYS[way](rows.key_by(Reading.place), hr.sum("n")).named("asked").queryable()
    with Harness(app, start="2024-01-01T12:00") as h:
        for n in [LARGEST] * 9:
            h.push(rows, reading(n=n).replace(at=h.at("12:00:01")), Reading("b", h.at("12:00:01"), n=1))
            h.epoch(watermark="12:00:02")
            h.maintain()
        small = h.state(asked, key="b")
        assert small.x == 9
        with pytest.raises(FunctionFailed, match="the sum 'x' leaves 64 bits"):
            h.state(asked, key="a")
