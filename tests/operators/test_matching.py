"""Which rows belong together: lines, stretches and shifts at the ends of time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.operators.matching import PartnerRanges, RowLine, shifted, shifted_us, without
from headrace.state.rows.find import bisect_within

ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5)), max_size=20)
FAR = st.sampled_from([MIN_TIME, MIN_TIME + 1, -7, 0, 3, 1 << 61, MAX_TIME - 1])


def ints(values: object) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(list(values), np.int64)  # type: ignore[call-overload,no-any-return]


@given(ROWS, ROWS, st.integers(-6, 6), st.integers(0, 6))
def test_a_line_finds_what_a_loop_finds(
    rows: list[tuple[int, int]], asks: list[tuple[int, int]], low: int, width: int
) -> None:
    line = RowLine(ints(code for code, _ in rows), ints(at for _, at in rows), 4)
    codes, at = ints(code for code, _ in asks), ints(at for _, at in asks)
    found = line.between(codes, at + low, at + low + width)
    for i, (code, time) in enumerate(asks):
        mine = line.rows(np.arange(found.starts[i], found.ends[i])).tolist()
        wanted = [j for j, row in enumerate(rows) if row[0] == code and low <= row[1] - time <= low + width]
        assert mine == sorted(wanted, key=lambda j: rows[j][1])


@given(st.lists(st.tuples(st.integers(0, 2), FAR), max_size=12), st.lists(st.tuples(st.integers(0, 2), FAR, FAR)))
def test_times_at_the_ends_of_time_are_compared_like_any_other(
    rows: list[tuple[int, int]], asks: list[tuple[int, int, int]]
) -> None:
    line = RowLine(ints(code for code, _ in rows), ints(at for _, at in rows), 3)
    found = line.between(*(ints(part) for part in zip(*asks))) if asks else line.between(ints([]), ints([]), ints([]))
    for i, (code, low, high) in enumerate(asks):
        wanted = [j for j, row in enumerate(rows) if row[0] == code and low <= row[1] <= high]
        assert sorted(line.rows(np.arange(found.starts[i], found.ends[i])).tolist()) == wanted


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 7)), max_size=8), st.integers(1, 5))
def test_pairs_come_all_once_whatever_is_given_out_at_once(stretches: list[tuple[int, int]], limit: int) -> None:
    starts, counts = ints(start for start, _ in stretches), ints(count for _, count in stretches)
    found = PartnerRanges(starts, starts + counts)
    pairs = [pair for asks, places in found.pairs(limit) for pair in zip(asks.tolist(), places.tolist())]
    assert pairs == [(i, start + j) for i, (start, count) in enumerate(stretches) for j in range(count)]
    covered = {place for _, place in pairs}
    assert np.flatnonzero(found.covered(20)).tolist() == sorted(covered)


@pytest.mark.parametrize("by", [-5, 0, 5])
def test_shifted_times_stop_at_the_ends_of_time(by: int) -> None:
    times = ints([MIN_TIME, MIN_TIME + 2, 0, MAX_TIME - 2, MAX_TIME])
    wanted = [max(MIN_TIME, min(MAX_TIME, time + by)) for time in times.tolist()]
    assert shifted(times, by).tolist() == wanted
    assert [shifted_us(time, by) for time in times.tolist()] == wanted


def test_rows_are_told_apart_by_key_and_arrival() -> None:
    kept = without(ints([0, 0, 1, 1]), ints([5, 6, 5, 6]), ints([0, 1, 2]), ints([6, 5, 6]), 3)
    assert kept.tolist() == [True, False, False, True]


@given(st.lists(st.lists(st.integers(0, 5), max_size=6).map(sorted), min_size=1, max_size=5), st.integers(-1, 6))
def test_many_stretches_are_bisected_at_once(stretches: list[list[int]], needle: int) -> None:
    values = ints(value for stretch in stretches for value in stretch)
    ends = np.cumsum([len(stretch) for stretch in stretches])
    starts = ends - np.array([len(stretch) for stretch in stretches])
    needles = np.full(len(stretches), needle)
    for after_equal in (False, True):
        found = bisect_within(values, starts, ends, needles, after_equal=after_equal) - starts
        wanted = [sum(v <= needle if after_equal else v < needle for v in stretch) for stretch in stretches]
        assert found.tolist() == wanted
