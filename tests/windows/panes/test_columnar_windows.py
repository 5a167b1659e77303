"""The columnar windows against the general ones, and against all rows computed one by one."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.aggregates.declare import count, sum
from headrace.errors import FunctionFailed, StoreError
from headrace.state.panes.about import cut_of
from headrace.testing.operators import verify_operator
from headrace.testing.rig import OperatorRig, row_time
from headrace.windows.by_row.operator import WindowOperator
from headrace.windows.kinds import Cumulating, Sliding, Tumbling
from headrace.windows.sliced.operator import PaneOperator
from headrace.windows.sliced.plan import PanePlan
from headrace.windows.triggers import PerEpoch, Periodic
from tests.windows.panes.steps import AGGS, TRIED, Sale, info_of, naive, results, spec_of, told

ASSIGNERS = [
    Tumbling(10),
    Tumbling(10, 3),
    Sliding(10, 5),
    Sliding(10, 4),
    Sliding(10, 3, 2),
    Sliding(4, 10),
    Cumulating(12, 4),
    Cumulating(12, 4, 5),
]


def rig_of(spec: Any, **more: Any) -> OperatorRig:
    operator = PaneOperator(spec, info_of(spec.aggs))
    return OperatorRig(operator, Sale, lambda sale: sale.shop, outlets=("late", "finals"), **more)


def sales() -> st.SearchStrategy[Sale]:
    return st.builds(
        Sale,
        st.sampled_from(["a", "b", "c", "ß"]),
        st.integers(-30, 60),
        st.integers(-3, 6),
        st.none() | st.sampled_from([0.5, -1.25, 3.0]),
        st.none() | st.sampled_from(["x", "y", ""]),
    )


EPOCHS = st.lists(
    st.tuples(st.lists(sales(), max_size=8), st.integers(-20, 70), st.integers(0, 3)), min_size=1, max_size=6
)


# --- one by one


def test_a_window_fires_once_with_the_epoch_whose_watermark_closes_it() -> None:
    rig = rig_of(spec_of(Tumbling(10)))
    rig.epoch([Sale("a", 1), Sale("a", 9, 2), Sale("b", 10, 5)], watermark=8)
    assert results(rig, "shop") == []
    rig.epoch([Sale("a", 4, 7)], watermark=9)
    assert results(rig, "shop", "window_start", "window_end", "rows", "total") == [("a", 0, 10, 3, 10)]
    assert results(rig, "pane") == [("on_time",)]
    assert [row.at for row in rig.out["main"]] == [9]
    rig.epoch(watermark=30)
    assert results(rig, "shop", "window_start", "total") == [("b", 10, 5)]
    rig.epoch(watermark=40)
    assert results(rig, "shop") == []


def test_a_row_behind_the_watermark_counts_while_its_window_is_open() -> None:
    rig = rig_of(spec_of(Tumbling(10)))
    rig.epoch([Sale("a", 8)], watermark=8)
    rig.epoch([Sale("a", 2)], watermark=9)
    assert results(rig, "rows") == [(2,)]
    assert rig.report.late == 0


def test_a_row_of_a_window_that_is_over_is_late() -> None:
    rig = rig_of(spec_of(Tumbling(10)))
    rig.epoch([Sale("a", 8)], watermark=9)
    rig.epoch([Sale("a", 9, 2), Sale("a", 10)], watermark=9)
    assert (rig.report.late, results(rig, "at", "cents", outlet="late")) == (1, [(9, 2)])


def test_an_allowed_late_row_gives_a_new_result_of_its_key_only() -> None:
    rig = rig_of(spec_of(Tumbling(10), allow_late_us=5))
    rig.epoch([Sale("a", 1, 1), Sale("b", 2, 10)], watermark=9)
    rig.epoch([Sale("a", 3, 4), Sale("c", 3, 100)], watermark=12)
    assert results(rig, "shop", "total", "pane") == [("a", 5, "late"), ("c", 100, "late")]
    rig.epoch([Sale("a", 3, 8)], watermark=14)
    assert results(rig, "shop", "total", "pane") == [("a", 13, "late")]
    assert results(rig, "shop", "total", "pane", outlet="finals") == [
        ("a", 13, "late"), ("b", 10, "on_time"), ("c", 100, "late"),
    ]  # fmt: skip
    rig.epoch([Sale("a", 3, 8)], watermark=14)
    assert (results(rig, "shop"), rig.report.late) == ([], 1)


def test_sliding_windows_that_do_not_divide_count_each_row_in_each_of_their_windows() -> None:
    rig = rig_of(spec_of(Sliding(10, 4)))
    rig.epoch([Sale("a", 1, 1), Sale("a", 9, 2), Sale("a", 12, 4)], watermark=2**40)
    assert results(rig, "window_start", "window_end", "total") == [
        (-8, 2, 1), (-4, 6, 1), (0, 10, 3), (4, 14, 6), (8, 18, 6), (12, 22, 4),
    ]  # fmt: skip


def test_rows_between_windows_belong_to_none() -> None:
    rig = rig_of(spec_of(Sliding(4, 10)))
    rig.epoch([Sale("a", 3, 1), Sale("a", 4, 2), Sale("a", 9, 4), Sale("a", 10, 8)], watermark=100)
    assert results(rig, "window_start", "total") == [(0, 1), (10, 8)]
    assert rig.report.late == 0


def test_cumulating_windows_grow_in_steps() -> None:
    rig = rig_of(spec_of(Cumulating(12, 4)))
    rig.epoch([Sale("a", 1, 1), Sale("a", 5, 2), Sale("a", 13, 4)], watermark=100)
    assert results(rig, "window_start", "window_end", "total") == [
        (0, 4, 1), (0, 8, 3), (0, 12, 3), (12, 16, 4), (12, 20, 4), (12, 24, 4),
    ]  # fmt: skip


def test_early_results_come_at_round_times_for_what_changed_since() -> None:
    rig = rig_of(spec_of(Tumbling(100), fire=Periodic(10, "wall")))
    rig.epoch([Sale("a", 1), Sale("b", 1)], watermark=1, clock=1001)
    assert (results(rig, "shop"), rig.report.next_due_us) == ([], 1010)
    rig.epoch([Sale("a", 2)], watermark=1, clock=1010)
    assert results(rig, "shop", "rows", "pane") == [("a", 2, "early"), ("b", 1, "early")]
    assert rig.report.next_due_us is None
    rig.epoch([Sale("b", 3)], watermark=1, clock=1019)
    assert (results(rig, "shop"), rig.report.next_due_us) == ([], 1020)
    rig.epoch([], watermark=1, clock=1019)
    assert rig.report.next_due_us == 1020
    rig.fold()
    rig.epoch([], watermark=1, clock=1035)
    assert results(rig, "shop", "rows") == [("b", 2)]
    rig.epoch([], watermark=1, clock=1055)
    assert results(rig, "shop") == []
    rig.epoch([], watermark=99, clock=1056)
    assert results(rig, "shop", "rows", "pane") == [("a", 2, "on_time"), ("b", 2, "on_time")]


def test_early_results_by_event_time_come_when_the_watermark_passes_a_round_time() -> None:
    rig = rig_of(spec_of(Tumbling(100), fire=Periodic(10, "event")))
    rig.epoch([], watermark=1)
    rig.epoch([Sale("a", 1), Sale("a", 15)], watermark=9)
    assert results(rig, "shop") == []
    rig.epoch([Sale("b", 12)], watermark=10)
    assert results(rig, "shop", "rows", "pane") == [("a", 2, "early"), ("b", 1, "early")]
    rig.epoch([Sale("b", 12)], watermark=300)
    assert results(rig, "shop", "rows", "pane") == [("a", 2, "on_time"), ("b", 2, "on_time")]


def test_discarding_windows_give_each_row_once() -> None:
    rig = rig_of(spec_of(Tumbling(100), fire=Periodic(10, "wall"), discard=True, allow_late_us=50))
    rig.epoch([Sale("a", 1, 1)], watermark=1, clock=1001)
    rig.epoch([Sale("a", 2, 2)], watermark=1, clock=1010)
    assert results(rig, "total") == [(3,)]
    rig.epoch([Sale("a", 2, 4)], watermark=1, clock=1012)
    rig.fold()
    rig.epoch([Sale("a", 2, 8)], watermark=99, clock=1013)
    assert results(rig, "total", "pane") == [(12, "on_time")]
    rig.fold()
    rig.epoch([Sale("a", 3, 16)], watermark=100, clock=1014)
    assert results(rig, "total", "pane") == [(16, "late")]


def test_windows_by_the_wall_clock_hold_what_came_while_they_were_open() -> None:
    spec = spec_of(Tumbling(10, clock="wall"), {"rows": count(), "total": sum("cents")})
    rig = OperatorRig(PaneOperator(spec, info_of(spec.aggs)), Sale, lambda sale: sale.shop, time=None)
    rig.epoch([Sale("a", 0), Sale("b", 0)], clock=1003)
    assert (results(rig, "shop"), rig.report.next_due_us) == ([], 1009)
    rig.epoch([Sale("a", 0)], clock=1008)
    rig.epoch([Sale("a", 0)], clock=1012)
    assert results(rig, "shop", "window_start", "rows") == [("a", 1000, 2), ("b", 1000, 1)]
    assert rig.report.next_due_us == 1019
    rig.epoch([], clock=1019)
    assert results(rig, "shop", "window_start", "rows") == [("a", 1010, 1)]
    rig.epoch([Sale("a", 0)], clock=1019)
    assert results(rig, "shop", "window_start", "rows") == [("a", 1010, 1)]


def test_a_sum_that_leaves_64_bits_stops_the_step_and_names_it() -> None:
    rig = rig_of(spec_of(Tumbling(10), {"total": sum("cents")}))
    with pytest.raises(FunctionFailed, match="step sales: the sum 'total' leaves 64 bits"):
        rig.epoch([Sale("a", 1, 2**62), Sale("a", 1, 2**62)], watermark=10)


def test_an_aggregate_that_came_later_has_seen_nothing_of_open_windows() -> None:
    spec = spec_of(Tumbling(10), {"rows": count()})
    rig = rig_of(spec)
    rig.epoch([Sale("a", 1)], watermark=1)
    rig.take_over(PaneOperator(spec_of(Tumbling(10)), info_of(AGGS)))
    rig.epoch([Sale("a", 2, 7)], watermark=9)
    assert results(rig, "rows", "total", "least") == [(2, 7, 7)]


def test_state_that_was_kept_row_by_row_is_refused() -> None:
    spec = spec_of(Tumbling(10), {"rows": count()})
    rig = OperatorRig(WindowOperator(spec, info_of(spec.aggs)), Sale, lambda sale: sale.shop)
    rig.epoch([Sale("a", 1)], watermark=1)
    rig.take_over(PaneOperator(spec, info_of(spec.aggs)))
    with pytest.raises(StoreError, match="another kind of state"):
        rig.epoch([Sale("a", 1)], watermark=1)


def test_windows_that_are_over_leave_nothing_to_those_of_another_size() -> None:
    aggs = {"rows": count()}
    rig = rig_of(spec_of(Tumbling(10), aggs))
    rig.epoch([Sale("a", 1)], watermark=9)
    assert results(rig, "rows") == [(1,)]
    rig.take_over(PaneOperator(spec_of(Tumbling(20), aggs), info_of(aggs)))
    rig.epoch([Sale("a", 11)], watermark=12)
    rig.fold()
    rig.epoch([Sale("a", 12)], watermark=20)
    assert results(rig, "window_start", "rows") == [(0, 2)]


EMPTIED = [Periodic(60, "wall"), Periodic(10, "wall"), Periodic(60, "event"), PerEpoch(), None]


@pytest.mark.parametrize(("before", "after"), [pair for pair in product(EMPTIED, EMPTIED) if pair[0] != pair[1]])
def test_when_windows_are_emptied_is_part_of_their_cut(before: Any, after: Any) -> None:
    aggs = {"total": sum("cents")}
    specs = [spec_of(Tumbling(1000), aggs, fire=fire, discard=True) for fire in (before, after)]
    old, new = (cut_of(PanePlan(spec, info_of(aggs)).schema) for spec in specs)
    assert old != new


# --- against the general operator, and against all rows


FIRES = st.sampled_from([None, PerEpoch(), Periodic(7, "event"), Periodic(7, "wall")])


@given(st.sampled_from(ASSIGNERS), EPOCHS, st.sampled_from([0, 4, 25]), st.booleans(), st.data())
def test_the_columnar_windows_give_what_the_general_ones_give(
    assigner: Any, epochs: list[Any], late_us: int, discard: bool, data: st.DataObject
) -> None:
    spec = spec_of(assigner, allow_late_us=late_us, discard=discard, fire=data.draw(FIRES))
    wanted = OperatorRig(WindowOperator(spec, info_of(AGGS)), Sale, lambda s: s.shop, outlets=("late", "finals"))
    limit = data.draw(st.sampled_from([1, 2000, 1 << 40]))
    rig = rig_of(spec, overlay_limit_bytes=limit)
    reached, clock = -40, 1000
    for rows, moved, cuts in epochs:
        reached, clock = max(reached, moved), clock + data.draw(st.integers(0, 12))
        batches = [rows[i :: cuts + 1] for i in range(cuts + 1)] if cuts else [rows]
        rig.parallelism = data.draw(st.integers(1, 4))
        if data.draw(st.booleans()):
            rig.attempt(*batches, watermark=reached, clock=clock, finish=data.draw(st.booleans()))
        wanted.epoch(*batches, watermark=reached, clock=clock)
        rig.epoch(*batches, watermark=reached, clock=clock)
        # Windows that are emptied have no last result, so nobody can ask for it.
        for outlet in ("main", "late") if discard else ("main", "late", "finals"):
            assert told(rig, outlet) == told(wanted, outlet), outlet
        assert (rig.report.rows_in, rig.report.late, rig.report.fired) == (
            wanted.report.rows_in, wanted.report.late, wanted.report.fired,
        )  # fmt: skip
        if data.draw(st.booleans()):
            rig.fold(newest=data.draw(st.none() | st.integers(1, 3)))


@given(st.sampled_from(ASSIGNERS), EPOCHS)
def test_drained_windows_hold_all_their_rows(assigner: Any, epochs: list[Any]) -> None:
    rig = rig_of(spec_of(assigner))
    rows: list[Sale] = []
    for batch, _, _ in epochs:
        rig.epoch(batch, watermark=-50)
        rows += batch
    rig.epoch(watermark=2**63 - 1, final=True)
    expected: Counter[Any] = Counter()
    for shop in {row.shop for row in rows}:
        mine = [row for row in rows if row.shop == shop]
        for start, end in _windows(assigner, [row.at for row in mine]):
            inside = [row for row in mine if start <= row.at < end]
            expected[end - 1, shop, start, end, "on_time", *naive(inside)] += 1
    assert told(rig, "main") == expected


def _windows(assigner: Any, times: list[int]) -> set[tuple[int, int]]:
    """Every window that holds one of the times, found by trying."""
    found = set()
    size, offset = assigner.size_us, assigner.offset_us
    every = getattr(assigner, "every_us", size)
    for start in range(-120 + offset, 140 + offset):
        ends = range(start + every, start + size + 1, every) if isinstance(assigner, Cumulating) else [start + size]
        step = size if isinstance(assigner, Cumulating) else every
        if (start - offset) % step == 0:
            found |= {(start, end) for end in ends if any(start <= time < end for time in times)}
    return found


CASES = [
    ("tumbling", spec_of(Tumbling(10))),
    ("late", spec_of(Sliding(10, 4), allow_late_us=6)),
    ("early", spec_of(Tumbling(20), fire=Periodic(5, "event"), allow_late_us=6)),
    ("early by the clock", spec_of(Sliding(20, 10), fire=Periodic(5, "wall"))),
    ("discarding", spec_of(Cumulating(20, 10), fire=Periodic(5, "wall"), discard=True, allow_late_us=6)),
    ("per epoch", spec_of(Tumbling(20), fire=PerEpoch(), allow_late_us=10)),
    ("per epoch, discarding", spec_of(Tumbling(20), fire=PerEpoch(), discard=True, allow_late_us=10)),
]


@pytest.mark.parametrize(("spec"), [pytest.param(spec, id=name) for name, spec in CASES])
def test_however_the_engine_runs_it_the_step_gives_the_same(spec: Any) -> None:
    verify_operator(
        lambda: PaneOperator(spec, info_of(spec.aggs)),
        TRIED,
        row_type=Sale,
        key=lambda sale: sale.shop,
        time=row_time,
        outlets=("late", "finals"),
    )
