"""Windows without an end: what is left of them when they are empty, and the times of what they give."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.aggregates.declare import collect, sum
from headrace.testing.rig import OperatorRig
from headrace.windows.by_row.operator import WindowOperator
from headrace.windows.kinds import RowCount, Unbounded
from headrace.windows.triggers import EveryRows, OnDelta, PerEpoch, Periodic, Timeout
from tests.windows.panes.steps import Sale, info_of, results, spec_of


class TwoRows(hr.Trigger):
    rows: hr.ReducingState[int] = hr.state(reduce=lambda a, b: a + b)

    def on_row(self, row: Any, ctx: hr.TriggerContext) -> hr.TriggerResult:
        self.rows.add(1)
        if self.rows.get() < 2:
            return hr.TriggerResult.CONTINUE
        self.rows.clear()
        return hr.TriggerResult.FIRE_AND_PURGE


AGGS = {"total": sum("cents"), "all": collect("cents")}
EMPTIED = {
    "rows": spec_of(RowCount(2, 2), AGGS),
    "every so many rows": spec_of(Unbounded(), AGGS, fire=EveryRows(2), discard=True),
    "per epoch": spec_of(Unbounded(), AGGS, fire=PerEpoch(), discard=True),
    "periodic": spec_of(Unbounded(), AGGS, fire=Periodic(10), discard=True),
    "timeout": spec_of(Unbounded(), AGGS, fire=Timeout(5, EveryRows(3)), discard=True),
}


def rig_of(spec: Any) -> OperatorRig:
    return OperatorRig(WindowOperator(spec, info_of(spec.aggs)), Sale, lambda sale: sale.shop, time=None)


@pytest.mark.parametrize("kind", EMPTIED)
def test_nothing_stays_of_an_endless_window_that_was_given_out_and_emptied(kind: str) -> None:
    rig = rig_of(EMPTIED[kind])
    given: list[tuple[Any, ...]] = []
    for epoch in range(4):
        shops = [f"{epoch} {i}" for i in range(3)]
        rig.epoch([Sale(shop, 0, cents) for shop in shops for cents in (1, 2)], clock=1000 + 20 * epoch)
        given += results(rig, "total")
        rig.epoch([], clock=1012 + 20 * epoch)
        given += results(rig, "total")
        rig.fold()
    assert given == [(3,)] * 12
    assert rig.runs == []


def test_a_trigger_of_ones_own_finds_its_states_again_when_its_window_was_emptied() -> None:
    app = hr.App("sales")
    sales = app.read("sales", hr.source.items([]), Sale)
    pairs = (
        sales.key_by(Sale.shop).window(hr.unbounded(), fire=TwoRows()).aggregate(total=hr.sum("cents")).named("pairs")
    )
    pairs.show()
    with hr.testing.Harness(app, start="2024-01-01T12:00", parallelism=1) as harness:
        for cents in (1, 2, 4, 8):
            harness.push(sales, Sale("a", hr.Timestamp(0), cents))
            harness.epoch()
        assert [row.total for row in harness.take(pairs)] == [3, 12]
        assert harness.state(pairs, None, "a") is None


def test_what_a_trigger_compares_with_outlives_the_rows_of_its_window() -> None:
    rig = rig_of(spec_of(Unbounded(), AGGS, fire=OnDelta(5, column="cents"), discard=True))
    rig.epoch([Sale("a", 0, 1), Sale("a", 0, 10)])
    assert results(rig, "total") == [(11,)]
    rig.epoch([Sale("a", 0, 12)])
    assert results(rig, "total") == []
    rig.epoch([Sale("a", 0, 3)])
    assert results(rig, "total") == [(15,)]


class Moment(hr.Record):
    shop: str
    at: hr.Timestamp
    cents: int = 1


@pytest.mark.parametrize("fire", [hr.per_epoch(), hr.every(rows=1)], ids=["per epoch", "every row"])
def test_an_endless_window_takes_keys_with_and_without_event_times(fire: Any) -> None:
    app = hr.App("sales")
    timed = app.read("timed", hr.source.items([]), Moment, time=Moment.at)
    untimed = app.read("untimed", hr.source.items([]), Moment)
    both = timed.union(untimed).key_by(Moment.shop)
    totals = both.window(hr.unbounded(), fire=fire).aggregate(total=hr.sum("cents")).named("totals")
    totals.show()
    with hr.testing.Harness(app, start="2024-01-01T12:00", parallelism=1) as harness:
        harness.push(timed, Moment("a", harness.at("12:00"), 1))
        harness.push(untimed, Moment("b", harness.at("12:00"), 2))
        harness.epoch()
        assert sorted((row.shop, row.total) for row in harness.take(totals)) == [("a", 1), ("b", 2)]
