"""Which windows times lie in, for whole batches, against the definition for one time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.windows.kinds import Cumulating, Sliding, Tumbling, has_window, last_instant
from tests.windows.model import Kind

TIMES = st.lists(st.integers(-(10**6), 10**6) | st.integers(-40, 40), min_size=1, max_size=8)
SPAN = st.integers(1, 30)


def pairs(assigner: Tumbling | Sliding | Cumulating, times: list[int]) -> list[tuple[int, int, int]]:
    found = assigner.assign(np.array(times))
    rows = np.arange(len(times)) if found.rows is None else found.rows
    return list(zip(rows.tolist(), found.starts.tolist(), found.ends.tolist(), strict=True))


def expected(kind: Kind, times: list[int]) -> list[tuple[int, int, int]]:
    return [(row, *bounds) for row, time in enumerate(times) for bounds in kind.bounds(time)]


@given(TIMES, SPAN, st.integers(0, 29))
def test_tumbling_windows_hold_their_times(times: list[int], size: int, offset: int) -> None:
    assert pairs(Tumbling(size, offset), times) == expected(Kind("tumbling", size, 0, offset), times)


@given(TIMES, SPAN, SPAN, st.integers(0, 29))
def test_sliding_windows_hold_their_times_whatever_the_slide(
    times: list[int], size: int, every: int, offset: int
) -> None:
    assert pairs(Sliding(size, every, offset), times) == expected(Kind("sliding", size, every, offset), times)


@given(TIMES, SPAN, st.integers(1, 5), st.integers(0, 29))
def test_cumulating_windows_hold_their_times(times: list[int], every: int, steps: int, offset: int) -> None:
    kind = Kind("cumulating", every * steps, every, offset)
    assert pairs(Cumulating(every * steps, every, offset), times) == expected(kind, times)


def test_only_windows_that_share_rows_overlap() -> None:
    assert not Tumbling(10).overlaps
    assert Sliding(10, 4).overlaps and not Sliding(10, 10).overlaps and not Sliding(3, 10).overlaps
    assert Cumulating(10, 5).overlaps and not Cumulating(10, 10).overlaps


def test_the_ends_of_time_have_no_windows() -> None:
    assert has_window(np.array([MIN_TIME, 0, MAX_TIME, -(10**18)])).tolist() == [False, True, False, True]
    assert last_instant(10, 5) == 14
    assert last_instant(MAX_TIME, MAX_TIME) == MAX_TIME
