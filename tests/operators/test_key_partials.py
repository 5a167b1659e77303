"""Aggregates whose rows are combined before the exchange: the step behind it must not notice."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.dataflow.aggregation import aggregate_codec
from headrace.dataflow.site import call_site
from headrace.errors import FunctionFailed
from headrace.model.keyspec import KeySpec
from headrace.model.rows import codec_of
from headrace.operators import combine
from headrace.operators.key_partials import combine_by_key
from headrace.operators.rolling import AggregateOperator
from headrace.testing.rig import OperatorRig, values
from tests.operators.combined import CombinedStep


class Sale(hr.Record):
    shop: str
    till: int | None
    at: hr.Timestamp
    cents: int | None = 1
    rate: float | None = None
    item: str | None = None


SALES = codec_of(Sale)
AGGS: dict[str, Any] = {
    "rows": hr.count(),
    "dear": hr.count(where="cents > 2"),
    "total": hr.sum("cents"),
    "least": hr.min("cents"),
    "greatest": hr.max("item"),
    "mean": hr.avg("till"),
    "most": hr.max("rate"),
    "items": hr.count_distinct("item"),
    "few": hr.count_distinct("rate", where="cents < 2"),
    "half": hr.quantile("rate", 0.5),
}


def step(aggs: dict[str, Any]) -> AggregateOperator:
    key = KeySpec(("shop", "till"), None, tuple[str, int | None])
    codec = aggregate_codec(SALES, key, None, aggs, call_site())
    return AggregateOperator("totals", aggs, SALES, codec, key_fields=("shop", "till"), key_type=tuple[str, int | None])


def combined(aggs: dict[str, Any]) -> CombinedStep:
    before = combine_by_key("totals", aggs, SALES)
    assert before is not None
    return CombinedStep(step(aggs), before.build())


def rig_of(operator: Any, **more: Any) -> OperatorRig:
    return OperatorRig(operator, Sale, lambda sale: (sale.shop, sale.till), time=lambda sale: int(sale.at), **more)


ROWS = st.builds(
    Sale, st.sampled_from(["a", "ä\0"]), st.none() | st.integers(0, 1), st.integers(0, 9).map(hr.Timestamp),
    st.none() | st.integers(-3, 3) | st.just(2**57),
    st.sampled_from([None, 0.5, 0.0, 1e300, math.inf, math.nan]), st.sampled_from([None, "", "x", "日"]),
)  # fmt: skip


@given(st.lists(st.lists(ROWS, max_size=8), min_size=1, max_size=4), st.integers(1, 4), st.sampled_from([1, 1 << 40]))
def test_results_are_the_same_with_and_without_combining(epochs: list[list[Sale]], at_once: int, limit: int) -> None:
    plain, other = rig_of(step(AGGS)), rig_of(combined(AGGS), overlay_limit_bytes=limit)
    names = ("SAMPLE_ROWS", "LOOK_AGAIN_ROWS", "MERGE_ROWS", "HELD_ROWS")
    before = {name: getattr(combine, name) for name in names}
    try:
        for name in names:
            setattr(combine, name, at_once)
        for number, rows in enumerate(epochs):
            outcomes = []
            for rig in (plain, other):
                out = rig.epoch(rows[:3], rows[3:], watermark=number * 3)
                shown = sorted(repr((each.value, each.at)) for each in out)
                outcomes.append((shown, rig.report.rows_in, rig.report.late))
            assert outcomes[0] == outcomes[1]
    finally:
        for name, value in before.items():
            setattr(combine, name, value)


def test_of_many_rows_of_few_keys_few_cross_the_exchange() -> None:
    operator = combined(AGGS)
    rig = rig_of(operator)
    rows = [Sale("a" if i % 2 else "b", i % 5, hr.Timestamp(i), i % 7) for i in range(20_000)]
    out = values(rig.epoch(rows, watermark=5))
    assert operator.sent <= 20
    assert sum(row.rows for row in out) == rig.report.rows_in == 20_000


def test_late_rows_are_counted_where_they_are_combined() -> None:
    rig = rig_of(combined(AGGS))
    rig.epoch([Sale("a", 1, hr.Timestamp(50))], watermark=40)
    (row,) = values(rig.epoch([Sale("a", 1, hr.Timestamp(at)) for at in (10, 40, 41)], watermark=60))
    assert (row.rows, rig.report.late, rig.report.rows_in) == (4, 2, 3)


@pytest.mark.parametrize(
    "agg",
    [
        hr.first("cents"),
        hr.last("cents"),
        hr.collect("cents"),
        hr.top("cents", 2),
        hr.max("cents", by="at"),
    ],
)
def test_what_depends_on_the_order_of_rows_travels_row_by_row(agg: Any) -> None:
    assert combine_by_key("totals", {"rows": hr.count(), "it": agg}, SALES) is None


def test_a_sum_beyond_64_bits_is_an_error_of_its_step_and_key() -> None:
    rig = rig_of(combined({"total": hr.sum("cents")}))
    rows = [Sale("a", 1, hr.Timestamp(1), 2**62) for _ in range(2)]
    with pytest.raises(FunctionFailed) as caught:
        rig.epoch(rows, watermark=5)
    assert caught.value.where == "step totals"
    assert caught.value.found == 'key ["a", 1]'


def test_the_plan_says_that_rows_are_combined() -> None:
    app = hr.App("shops")
    sales = app.read("sales", hr.source.items([]), Sale)
    sales.key_by(Sale.shop).aggregate(rows=hr.count()).named("totals").write(hr.sink.discard())
    sales.key_by(Sale.till).aggregate(newest=hr.last("cents")).named("newest").write(hr.sink.discard())
    combining = [line for line in app.explain().splitlines() if "exchange" in line]
    assert sorted("rows combined before it" in line for line in combining) == [False, True]


def test_sets_that_have_become_large_are_not_merged_again_with_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = combined({"items": hr.count_distinct("cents")})
    rig = rig_of(operator)
    rows = [Sale("a", 1, hr.Timestamp(1), i % 30_000) for i in range(4 * combine.SAMPLE_ROWS)]
    monkeypatch.setattr(combine, "HELD_BYTES", 8 * combine.SAMPLE_ROWS)
    (row,) = values(rig.epoch(rows))
    assert row.items == 30_000
    assert operator.sent == 4
