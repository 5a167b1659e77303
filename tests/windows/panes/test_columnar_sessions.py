"""Columnar sessions against the general ones, and against all rows computed one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.aggregates.declare import collect, count, first, last, sum
from headrace.errors import FunctionFailed, StoreError
from headrace.model.ids import MAX_TIME
from headrace.state.panes.about import cut_of
from headrace.testing.operators import verify_operator
from headrace.testing.rig import OperatorRig, row_time
from headrace.windows.by_row.operator import WindowOperator
from headrace.windows.kinds import Session
from headrace.windows.sessions import firing as session_firing
from headrace.windows.sessions import operator as session_rows
from headrace.windows.sessions.operator import SessionPaneOperator
from headrace.windows.sessions.plan import SessionPlan
from headrace.windows.triggers import PerEpoch, Periodic
from tests.windows.panes.steps import AGGS, TRIED, Sale, builtin_sum, info_of, naive, results, spec_of, told

BY_ARRIVAL = ("best", "all", "named", "dearest")
IN_ANY_ORDER = {name: agg for name, agg in AGGS.items() if name not in BY_ARRIVAL}
"""The others ask for the order in which rows came, which the general operator forgets where two sessions become one."""
COUNTS = {"rows": count(), "total": sum("cents")}


def rig_of(spec: Any, **more: Any) -> OperatorRig:
    operator = SessionPaneOperator(spec, info_of(spec.aggs))
    return OperatorRig(operator, Sale, lambda sale: sale.shop, **{"outlets": ("late", "finals"), **more})


def rows_stored(rig: OperatorRig) -> int:
    total: int = builtin_sum(table.rows for _, run in rig.runs for table in run.tables.values())
    return total


# --- one by one


def test_rows_of_several_epochs_are_one_session_that_fires_once() -> None:
    rig = rig_of(spec_of(Session(10), COUNTS))
    for at in range(0, 40, 8):
        rig.epoch([Sale("a", at), Sale("b", at, 5)] if at < 24 else [Sale("a", at)], watermark=at + 1)
        assert results(rig, "shop") == ([("b",)] if at == 24 else [])
    rig.epoch(watermark=41)
    assert results(rig, "shop", "window_start", "window_end", "rows", "pane") == [("a", 0, 42, 5, "on_time")]
    assert [row.at for row in rig.out["main"]] == [41]


def test_what_is_over_of_a_session_that_goes_on_is_written_again_and_counts_once() -> None:
    rig = rig_of(spec_of(Session(10), COUNTS))
    rig.epoch([Sale("a", 0, 1)], watermark=0)
    rig.epoch([Sale("a", 9, 2)], watermark=3)
    rig.epoch(watermark=9)
    rig.fold()
    assert rows_stored(rig) == 1, "the first fragment has moved to the end of the second"
    rig.epoch([Sale("a", 18, 4)], watermark=18)
    rig.epoch(watermark=27)
    assert results(rig, "window_start", "window_end", "rows", "total") == [(0, 28, 3, 7)]
    rig.fold()
    assert rig.runs == []


def test_a_late_row_between_two_sessions_that_have_fired_makes_them_one() -> None:
    rig = rig_of(spec_of(Session(10), COUNTS, allow_late_us=40))
    rig.epoch([Sale("a", 0, 1), Sale("a", 15, 2), Sale("b", 0, 8)], watermark=30)
    assert results(rig, "window_start", "total", "pane") == [(0, 1, "on_time"), (0, 8, "on_time"), (15, 2, "on_time")]
    rig.epoch([Sale("a", 8, 4)], watermark=31)
    assert results(rig, "shop", "window_start", "window_end", "total", "pane") == [("a", 0, 25, 7, "late")]
    rig.epoch(watermark=70)
    assert results(rig, "shop", "total", "pane", outlet="finals") == [("a", 7, "late"), ("b", 8, "on_time")]


def test_a_session_that_gave_a_late_result_says_so_even_if_it_goes_on() -> None:
    rig = rig_of(spec_of(Session(10), COUNTS, allow_late_us=40))
    rig.epoch([Sale("a", 0, 1)], watermark=12)
    rig.epoch([Sale("a", 1, 2)], watermark=12)
    assert results(rig, "window_end", "total", "pane") == [(11, 3, "late")]
    rig.epoch([Sale("a", 10, 4)], watermark=19)
    assert results(rig, "window_end", "total", "pane") == [(20, 7, "on_time")]
    rig.fold()
    rig.epoch(watermark=59)
    assert results(rig, "window_end", "total", "pane", outlet="finals") == [(20, 7, "late")]


def test_a_late_row_is_taken_only_by_what_came_before_it_however_rows_wait() -> None:
    with patch.object(session_rows, "_FIRST_LIMIT", 2), patch.object(session_rows, "_LAST_LIMIT", 4):
        rig = rig_of(spec_of(Session(10), COUNTS))
        rig.epoch([Sale("a", 20, 1)], watermark=25)
        rig.epoch([Sale("a", 2, 2), Sale("a", 11, 4)], [Sale("a", 1, 8), Sale("b", 3, 16)], watermark=25)
        assert results(rig, "shop", "cents", outlet="late") == [("a", 2), ("b", 16)]
        assert rig.report.late == 2
        rig.epoch(watermark=29)
        assert results(rig, "window_start", "window_end", "total") == [(1, 30, 13)]


def test_first_and_last_of_one_time_are_told_by_when_they_came_however_sessions_move() -> None:
    aggs = {"first": first("what"), "last": last("what"), "all": collect("what")}
    rig = rig_of(spec_of(Session(10), aggs))
    for number, name in enumerate("pqrs"):
        rig.epoch([Sale("a", 8 * number, what="-"), Sale("a", 30, what=name)], watermark=8 * number + 5)
        rig.fold(newest=2)
    rig.epoch(watermark=100)
    [(first_, last_, all_)] = results(rig, "first", "last", "all")
    assert (first_, last_, all_) == ("-", "s", ["-", "p", "-", "q", "-", "r", "-", "s"])


def test_sessions_by_the_wall_clock_end_when_nothing_has_come_for_the_gap() -> None:
    spec = spec_of(Session(10, clock="wall"), COUNTS)
    rig = rig_of(spec, time=None)
    rig.epoch([Sale("a", 0), Sale("b", 0)], clock=1000)
    assert rig.report.next_due_us == 1009
    rig.epoch([Sale("a", 0)], clock=1006)
    rig.epoch([], clock=1009)
    assert results(rig, "shop", "window_start", "window_end", "rows") == [("b", 1000, 1010, 1)]
    assert rig.report.next_due_us == 1015
    rig.epoch([], clock=1015)
    assert results(rig, "shop", "window_start", "window_end", "rows") == [("a", 1000, 1016, 2)]
    assert rig.report.next_due_us is None


def test_early_results_come_at_round_times_for_sessions_that_changed() -> None:
    rig = rig_of(spec_of(Session(50), COUNTS, fire=Periodic(10, "wall")))
    rig.epoch([Sale("a", 1), Sale("b", 1)], watermark=1, clock=1001)
    assert (results(rig, "shop"), rig.report.next_due_us) == ([], 1010)
    rig.epoch([Sale("a", 2)], watermark=1, clock=1010)
    assert results(rig, "shop", "rows", "pane") == [("a", 2, "early"), ("b", 1, "early")]
    rig.epoch([Sale("b", 3)], watermark=1, clock=1019)
    rig.fold()
    rig.epoch([], watermark=1, clock=1035)
    assert results(rig, "shop", "window_end", "rows") == [("b", 53, 2)]
    rig.epoch([], watermark=52, clock=1036)
    assert results(rig, "shop", "rows", "pane") == [("a", 2, "on_time"), ("b", 2, "on_time")]


def test_the_first_end_is_waited_for() -> None:
    rig = rig_of(spec_of(Session(10), COUNTS))
    rig.epoch([Sale("a", 1), Sale("b", 25)], watermark=3)
    assert (rig.report.waits_for_us, rig.report.next_due_us) == (10, None)
    rig.epoch([], watermark=10)
    assert rig.report.waits_for_us == 34
    rig.epoch([], watermark=MAX_TIME, final=True)
    assert rig.report.waits_for_us is None


def test_a_row_without_a_gap_stops_the_step_or_goes_to_its_errors() -> None:
    spec = spec_of(Session(None, "cents"), COUNTS)
    with pytest.raises(FunctionFailed, match="the gap of a session has to be above 0"):
        rig_of(spec).epoch([Sale("a", 1, 0)], watermark=1)
    rig = rig_of(spec, outlets=("late", "finals", "errors"))
    rig.epoch([Sale("a", 1, 0), Sale("a", 1, 5), Sale("b", 1, -3)], watermark=100)
    assert results(rig, "shop", "window_end", "rows") == [("a", 6, 1)]
    assert sorted(row.value.key for row in rig.out["errors"]) == ["a", "b"]


def test_keys_of_one_hash_have_sessions_of_their_own() -> None:
    rig = rig_of(spec_of(Session(10), COUNTS, allow_late_us=20), hash_of=lambda key: 7)
    rig.epoch([Sale("a", 0, 1), Sale("b", 9, 2)], watermark=1)
    rig.epoch([Sale("a", 8, 4), Sale("b", 30, 8)], watermark=10)
    rig.epoch([Sale("b", 1, 16)], watermark=20)
    assert results(rig, "shop", "window_start", "window_end", "total") == [("a", 0, 18, 5), ("b", 1, 19, 18)]
    rig.fold()
    rig.epoch([Sale("a", -15, 32), Sale("b", -9, 64)], watermark=20)
    assert results(rig, "shop", "window_start", "total", "pane") == [("b", -9, 82, "late")]
    assert results(rig, "shop", outlet="late") == [("a",)]


def test_rows_without_a_time_are_late() -> None:
    rig = rig_of(spec_of(Session(10), COUNTS), time=None)
    rig.epoch([Sale("a", 1)], watermark=0)
    assert (rig.report.late, results(rig, "shop", outlet="late")) == (1, [("a",)])


# --- programs that change


def test_another_gap_counts_for_rows_that_come_from_then_on() -> None:
    rig = rig_of(spec_of(Session(10), COUNTS))
    rig.epoch([Sale("a", 0), Sale("b", 0)], watermark=0)
    rig.take_over(SessionPaneOperator(spec_of(Session(3), COUNTS), info_of(COUNTS)))
    rig.epoch([Sale("a", 9)], watermark=9)
    assert results(rig, "shop", "window_end") == [("b", 10)]
    rig.fold()
    rig.epoch(watermark=12)
    assert results(rig, "shop", "window_start", "window_end", "rows") == [("a", 0, 12, 2)]


@pytest.mark.parametrize(
    "other", [spec_of(Session(10), COUNTS, allow_late_us=5), spec_of(Session(10, clock="wall"), COUNTS)]
)
def test_how_long_sessions_are_kept_and_by_which_clock_is_part_of_their_cut(other: Any) -> None:
    schemas = [SessionPlan(spec, info_of(COUNTS)).schema for spec in (spec_of(Session(10), COUNTS), other)]
    assert cut_of(schemas[0]) != cut_of(schemas[1])


def test_another_gap_is_the_same_cut() -> None:
    schemas = [SessionPlan(spec_of(Session(gap), COUNTS), info_of(COUNTS)).schema for gap in (10, 20)]
    assert cut_of(schemas[0]) == cut_of(schemas[1])


def test_sessions_that_were_kept_one_by_one_are_refused() -> None:
    spec = spec_of(Session(10), COUNTS)
    rig = OperatorRig(WindowOperator(spec, info_of(COUNTS)), Sale, lambda sale: sale.shop)
    rig.epoch([Sale("a", 1)], watermark=1)
    rig.take_over(SessionPaneOperator(spec, info_of(COUNTS)))
    with pytest.raises(StoreError, match="another kind of state"):
        rig.epoch([Sale("a", 1)], watermark=1)


def test_an_aggregate_that_came_later_has_seen_nothing_of_open_sessions() -> None:
    rig = rig_of(spec_of(Session(10), {"rows": count()}))
    rig.epoch([Sale("a", 1)], watermark=1)
    rig.take_over(SessionPaneOperator(spec_of(Session(10)), info_of(AGGS)))
    rig.epoch([Sale("a", 9, 7)], watermark=10)
    rig.epoch(watermark=18)
    assert results(rig, "rows", "total", "oldest", "all") == [(2, 7, 7, [7])]


# --- against the general operator, and against all rows


def sales(low: int, high: int) -> st.SearchStrategy[Sale]:
    return st.builds(
        Sale,
        st.sampled_from(["a", "b", "ß"]),
        st.integers(low, high).map(hr.Timestamp),
        st.integers(-3, 6),
        st.none() | st.sampled_from([0.5, -1.25, 3.0]),
        st.none() | st.sampled_from(["x", "y", ""]),
    )


EPOCHS = st.lists(st.tuples(st.lists(sales(-25, 30), max_size=8), st.integers(0, 15)), min_size=1, max_size=7)
SESSIONS = st.one_of(
    st.builds(Session, st.sampled_from([1, 3, 8, 20])),
    st.just(Session(None, "abs(cents) + 1")),
    st.just(Session(8, clock="wall")),
)
FIRES = st.sampled_from([None, None, PerEpoch(), Periodic(7, "event"), Periodic(7, "wall")])


@given(SESSIONS, EPOCHS, st.sampled_from([0, 4, 25]), FIRES, st.data())
def test_columnar_sessions_give_what_the_general_ones_give(
    assigner: Session, epochs: list[Any], late_us: int, fire: Any, data: st.DataObject
) -> None:
    late_us = late_us if assigner.clock == "event" else 0
    spec = spec_of(assigner, IN_ANY_ORDER, allow_late_us=late_us, fire=fire)
    general = WindowOperator(spec, info_of(IN_ANY_ORDER))
    wanted = OperatorRig(general, Sale, lambda sale: sale.shop, outlets=("late", "finals"))
    rig = rig_of(spec, overlay_limit_bytes=data.draw(st.sampled_from([1, 2000, 1 << 40])))
    reached, clock = -30, 1000
    few = data.draw(st.sampled_from([1, 3, 1 << 18]))
    with (
        patch.object(session_firing, "CHUNK_ROWS", few),
        patch.object(session_rows, "_FIRST_LIMIT", few),
        patch.object(session_rows, "_LAST_LIMIT", 2 * few),
    ):
        for rows, ahead in epochs:
            rows = [row.replace(at=hr.Timestamp(row.at + reached)) for row in rows]
            reached, clock = reached + ahead, clock + data.draw(st.integers(0, 12))
            cuts = data.draw(st.integers(1, 3))
            batches = [rows[i::cuts] for i in range(cuts)]
            rig.parallelism = data.draw(st.integers(1, 4))
            if data.draw(st.booleans()):
                rig.attempt(*batches, watermark=reached, clock=clock, finish=data.draw(st.booleans()))
            wanted.epoch(*batches, watermark=reached, clock=clock)
            rig.epoch(*batches, watermark=reached, clock=clock)
            for outlet in ("main", "late", "finals"):
                assert told(rig, outlet) == told(wanted, outlet), outlet
            assert (rig.report.rows_in, rig.report.late, rig.report.fired) == (
                wanted.report.rows_in, wanted.report.late, wanted.report.fired,
            )  # fmt: skip
            if data.draw(st.booleans()):
                rig.fold(newest=data.draw(st.none() | st.integers(1, 3)))


@given(st.sampled_from([1, 4, 11]), EPOCHS, st.data())
def test_sessions_hold_all_their_rows_in_the_order_they_came(gap: int, epochs: list[Any], data: st.DataObject) -> None:
    rig = rig_of(spec_of(Session(gap)))
    came: list[Sale] = []
    for rows, _ in epochs:
        # Nobody is late, and everything moves: watermarks follow the earliest row that is to come.
        rig.epoch(rows, watermark=-60)
        came += rows
        if data.draw(st.booleans()):
            rig.fold(newest=data.draw(st.none() | st.integers(1, 3)))
    found: Counter[Any] = Counter()
    for reached in range(-60, 60, data.draw(st.sampled_from([7, 20, 119]))):
        rig.epoch(watermark=reached)
        found += told(rig, "main")
    rig.epoch(watermark=MAX_TIME, final=True)
    found += told(rig, "main")
    expected: Counter[Any] = Counter()
    for shop in {row.shop for row in came}:
        for inside in _sessions([row for row in came if row.shop == shop], gap):
            start, end = inside_bounds(inside, gap)
            expected[end - 1, shop, start, end, "on_time", *naive(inside)] += 1
    assert found == expected


def inside_bounds(rows: list[Sale], gap: int) -> tuple[int, int]:
    times = sorted(int(row.at) for row in rows)
    return times[0], times[-1] + gap


def _sessions(rows: list[Sale], gap: int) -> Iterator[list[Sale]]:
    times = sorted({int(row.at) for row in rows})
    starts = [time for before, time in zip([times[0] - gap - 1, *times], times) if time - before > gap]
    for start, end in zip(starts, [*starts[1:], 10**9]):
        yield [row for row in rows if start <= row.at < end]


SOME = {name: AGGS[name] for name in ("rows", "total", "oldest", "newest", "all")}
CASES = [
    ("sessions", spec_of(Session(6))),
    ("late", spec_of(Session(6), SOME, allow_late_us=8)),
    ("early", spec_of(Session(6), SOME, fire=Periodic(5, "event"), allow_late_us=6)),
    ("early by the clock", spec_of(Session(9), SOME, fire=Periodic(5, "wall"))),
    ("per epoch", spec_of(Session(9), SOME, fire=PerEpoch(), allow_late_us=10)),
    ("own gaps", spec_of(Session(None, "cents"), SOME, allow_late_us=3)),
]


@pytest.mark.parametrize(("spec"), [pytest.param(spec, id=name) for name, spec in CASES])
def test_however_the_engine_runs_them_sessions_are_the_same(spec: Any) -> None:
    verify_operator(
        lambda: SessionPaneOperator(spec, info_of(spec.aggs)),
        TRIED,
        row_type=Sale,
        key=lambda sale: sale.shop,
        time=row_time,
        outlets=("late", "finals"),
    )
