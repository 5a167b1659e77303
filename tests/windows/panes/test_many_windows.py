"""Windows of which a row is in many: the two ways of putting them together, and how much of it is in memory at once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.aggregates.declare import max, sum
from headrace.errors import FunctionFailed
from headrace.model.batch import Keys
from headrace.model.keys import encode_key, hash_encoded
from headrace.model.rows import codec_of
from headrace.operators.keyed import MAX_PIECE_ROWS, KeyedBatch
from headrace.state.panes.lookup import piece_of
from headrace.state.panes.table import merge_rows
from headrace.testing.rig import OperatorRig
from headrace.windows.by_row.operator import WindowOperator
from headrace.windows.kinds import Cumulating, Sliding, Tumbling
from headrace.windows.sliced import firing as pane_firing
from headrace.windows.sliced import firing as pane_windows
from headrace.windows.sliced.firing import Ends, Survey, double_up, write_out
from headrace.windows.sliced.operator import PaneOperator
from headrace.windows.sliced.plan import PanePlan, Stamp
from headrace.windows.triggers import PerEpoch, Periodic
from tests.windows.panes.steps import AGGS, Sale, info_of, results, spec_of, text, told

ASSIGNERS = [
    Sliding(10, 5),
    Sliding(10, 1),
    Sliding(7, 1, 3),
    Sliding(10, 4),
    Sliding(10, 3, 2),
    Cumulating(12, 4),
    Cumulating(12, 1, 5),
    Cumulating(7, 1),
]
SALES = st.lists(
    st.builds(
        Sale,
        st.sampled_from(["a", "b"]),
        st.integers(-30, 40),
        st.integers(-3, 6),
        st.none() | st.sampled_from([0.5, -1.25, 3.0]),
        st.none() | st.sampled_from(["x", "y", ""]),
    ),
    min_size=1,
    max_size=12,
)


def rig_of(spec: Any, kind: Any = PaneOperator, **more: Any) -> OperatorRig:
    return OperatorRig(kind(spec, info_of(spec.aggs)), Sale, lambda sale: sale.shop, outlets=("late", "finals"), **more)


def table_of(plan: PanePlan, rows: list[Sale], epoch: int = 0) -> pa.RecordBatch:
    """Rows as slices, merged."""
    plan.begin(epoch)
    given, _ = rig_of(plan.spec).rows(rows)
    keys = pa.array([encode_key(row.shop) for row in rows], pa.binary())
    assert given.times is not None
    panes = plan.slices.of(given.times)
    return merge_rows(plan.table(panes, Keys(hash_encoded(keys), keys), plan.lift(given), Stamp()))


@given(st.sampled_from(ASSIGNERS), st.lists(SALES, min_size=1, max_size=3), st.integers(-40, 50), st.integers(0, 90))
def test_windows_that_are_doubled_up_are_those_that_are_written_out(
    assigner: Any, batches: list[list[Sale]], first: int, length: int
) -> None:
    plan = PanePlan(spec_of(assigner), info_of(AGGS))
    parts = [table_of(plan, batch, epoch) for epoch, batch in enumerate(batches)]
    ends = Ends(first, first + length)
    found = [put(plan.slices, parts, ends, plan.schema) for put in (write_out, double_up)]
    rows = [plan.rows(table, "early") for table in found]
    texts = [Counter(tuple(map(text, row)) for row in zip(*(each.to_pylist() for each in one.columns))) for one in rows]
    assert texts[0] == texts[1]
    counted = [plan.slices.count_windows(part.column(0).to_numpy(), *ends).sum() for part in parts]
    expected = [sum_of(_windows(assigner, int(pane), ends) for pane in part.column(0).to_numpy()) for part in parts]
    assert counted == expected


def _windows(assigner: Any, pane: int, ends: Ends) -> int:
    found = assigner.assign(np.array([pane], np.int64)).ends
    return int(((found >= ends.first) & (found <= ends.last)).sum())


def sum_of(numbers: Any) -> int:
    total = 0
    for number in numbers:
        total += number
    return total


@given(
    st.sampled_from(ASSIGNERS),
    st.lists(st.tuples(SALES, st.integers(-20, 60)), min_size=1, max_size=4),
    st.sampled_from([None, PerEpoch(), Periodic(7, "event")]),
    st.sampled_from([0, 5]),
    st.booleans(),
    st.integers(1, 6),
)
def test_results_are_the_same_however_windows_are_cut_and_put_together(
    assigner: Any, epochs: list[Any], fire: Any, late_us: int, discard: bool, chunk_rows: int
) -> None:
    spec = spec_of(assigner, fire=fire, allow_late_us=late_us, discard=discard)
    wanted, rig = rig_of(spec, WindowOperator), rig_of(spec)
    reached = -40
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pane_firing, "CHUNK_ROWS", chunk_rows)
        patch.setattr(pane_windows, "_MERGES", 0)
        for rows, moved in epochs:
            reached = moved if moved > reached else reached
            for each in (wanted, rig):
                each.epoch(rows, watermark=reached)
            for outlet in ("main", "late") if discard else ("main", "late", "finals"):
                assert told(rig, outlet) == told(wanted, outlet), outlet


@pytest.mark.parametrize("assigner", [Sliding(3600, 1), Cumulating(3600, 1)], ids=["sliding", "cumulating"])
def test_many_slices_of_one_key_in_many_windows_are_neither_written_out_nor_kept_at_once(assigner: Any) -> None:
    aggs = {"total": sum("cents")}
    spec = spec_of(assigner, aggs)
    plan = PanePlan(spec, info_of(aggs))
    rows = [Sale("a", at) for at in range(20_000)]
    piece = piece_of(table_of(plan, rows))
    survey = Survey(plan.slices, [piece], may_double=plan.merges_in_any_order)
    cost = survey.cost(survey.ends(Ends(-(2**63), 2**63 - 1)))
    assert cost.doubles
    assert cost.rows < 30_000
    rig = rig_of(spec)
    rig.epoch(rows, watermark=2**40)
    found = results(rig, "window_start", "window_end", "total")
    assert all(total == min_of(end, 20_000) - max_of(start, 0) for start, end, total in found)
    assert len(found) == (23_599 if isinstance(assigner, Sliding) else 6 * 3600)


def test_windows_that_give_each_row_once_are_cut_by_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    aggs = {"best": max("cents", by="weight")}
    written: list[int] = []

    def watched(*args: Any) -> pa.RecordBatch:
        merged = write_out(*args)
        written.append(sum_of(part.num_rows for part in args[1]))
        return merged

    monkeypatch.setattr(pane_firing, "write_out", watched)
    monkeypatch.setattr(pane_firing, "CHUNK_ROWS", 1000)
    rig = rig_of(spec_of(Sliding(100, 1), aggs, fire=Periodic(1 << 40, "wall"), discard=True))
    rig.epoch([Sale("a", at, at, float(at)) for at in range(500)], watermark=2**40)
    assert results(rig, "window_start", "best") == [(start, min_of(start + 99, 499)) for start in range(-99, 500)]
    assert len(written) >= 25
    assert sorted(written)[-1] < 130


def test_a_part_of_a_window_may_leave_64_bits_where_the_whole_does_not() -> None:
    aggs = {"total": sum("cents")}
    plan = PanePlan(spec_of(Sliding(4, 1), aggs), info_of(aggs))
    large = 2**62
    parts = [table_of(plan, [Sale("a", at, cents) for at, cents in enumerate((-large, large, large, -large))])]
    with pytest.raises(FunctionFailed):
        double_up(plan.slices, parts, Ends(4, 4), plan.schema)
    assert write_out(plan.slices, parts, Ends(4, 4), plan.schema).column("total.sum").to_pylist() == [0]


def test_rows_that_are_put_into_windows_one_by_one_are_few_at_once_where_windows_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pairs: list[int] = []
    handle = WindowOperator.handle

    def watched(self: WindowOperator, port: int, batch: KeyedBatch) -> None:
        pairs.append(len(batch.rows) * self.assigner.per_row)
        handle(self, port, batch)

    monkeypatch.setattr(WindowOperator, "handle", watched)
    spec = spec_of(Sliding(2000, 1), {}, reduce=lambda older, newer: older)
    operator = WindowOperator(spec, replace(info_of({}), codec=codec_of(Sale)))
    rig = OperatorRig(operator, Sale, lambda sale: sale.shop)
    rig.epoch([Sale(f"shop {i}", i) for i in range(30)], watermark=5)
    assert sum_of(pairs) == sum_of(2000 for _ in range(30))
    assert pairs[0] <= 16_384
    assert sorted(pairs)[-1] <= MAX_PIECE_ROWS


def test_tumbling_windows_are_cut_by_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pane_firing, "CHUNK_ROWS", 3)
    rig = rig_of(spec_of(Tumbling(10), {"total": sum("cents")}))
    rig.epoch([Sale(str(shop), at, 1) for shop in range(20) for at in (1, 2, 11)], watermark=100)
    assert results(rig, "total") == [(1,)] * 20 + [(2,)] * 20


def min_of(one: int, other: int) -> int:
    return one if one < other else other


def max_of(one: int, other: int) -> int:
    return one if one > other else other
