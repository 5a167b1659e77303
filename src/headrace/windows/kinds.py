"""Which windows a row belongs to, computed for whole batches.

A window is ``[start, end)`` in microseconds; its last instant is ``end - 1``. Windows of one size lie side by side from
1970 on, moved by the offset; times before 1970 lie in windows like any other. Sessions begin as ``[time, time + gap)``
and are merged by the operator; unbounded windows and windows of rows have neither start nor end in time.

What this module deliberately does not do: lateness, merging, firing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal, NamedTuple

import numpy as np

from headrace.model.batch import Int64s
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.window import Window as Window

Clock = Literal["event", "wall"]

_FAR: Final = 1 << 61
"""Times beyond this (about 73 000 years) have no windows: their bounds could not be computed in 64 bits."""


class AssignedWindows(NamedTuple):
    """Pairs of a row and a window it belongs to; of one row, windows in the order of their starts and ends."""

    rows: Int64s | None
    """Position of each pair's row, rising; None: every row has exactly one window."""
    starts: Int64s
    ends: Int64s


class Assigner:
    """What rows are put together by; made by `tumbling`, `sliding`, `cumulating`, `session`, `unbounded`, `rows`."""

    clock: Clock = "event"
    timed: ClassVar[bool] = True
    """Whether windows have a start and an end."""
    merges: ClassVar[bool] = False
    """Whether windows of one key that touch become one."""

    @property
    def overlaps(self) -> bool:
        """Whether a row may belong to several windows."""
        return False

    @property
    def per_row(self) -> int:
        """How many windows a row may belong to at most."""
        return 1

    def assign(self, times: Int64s) -> AssignedWindows:
        """The windows of rows with these times; only for kinds whose windows depend on nothing else."""
        raise NotImplementedError

    def last_ends(self, times: Int64s) -> Int64s:
        """For each time the end of the last window that holds it, and of one that none holds the last before it."""
        raise NotImplementedError

    def makes(self, start: int, end: int) -> bool:
        """Whether such a window is one of these: an open one may be left from a program that had others."""
        return True


@dataclass(frozen=True)
class Tumbling(Assigner):
    """Windows of one size, side by side."""

    size_us: int
    offset_us: int = 0
    clock: Clock = "event"

    def assign(self, times: Int64s) -> AssignedWindows:
        starts = aligned(times, self.size_us, self.offset_us)
        return AssignedWindows(None, starts, starts + self.size_us)

    def last_ends(self, times: Int64s) -> Int64s:
        return aligned(times, self.size_us, self.offset_us) + self.size_us

    def makes(self, start: int, end: int) -> bool:
        return end - start == self.size_us and (start - self.offset_us) % self.size_us == 0


@dataclass(frozen=True)
class Sliding(Assigner):
    """Windows of one size that begin every so often; where they begin less often than they are long, rows in between
    belong to none."""

    size_us: int
    every_us: int
    offset_us: int = 0
    clock: Clock = "event"

    @property
    def overlaps(self) -> bool:
        return self.every_us < self.size_us

    @property
    def per_row(self) -> int:
        return -(-self.size_us // self.every_us)

    def assign(self, times: Int64s) -> AssignedWindows:
        last = aligned(times, self.every_us, self.offset_us)
        # Windows that begin at last, last - every, … as long as they reach beyond the time.
        counts = np.maximum((last - (times - self.size_us) + self.every_us - 1) // self.every_us, 0)
        rows, back = _spread(counts)
        starts = last[rows] - back * self.every_us
        return AssignedWindows(rows, starts, starts + self.size_us)

    def last_ends(self, times: Int64s) -> Int64s:
        return aligned(times, self.every_us, self.offset_us) + self.size_us

    def makes(self, start: int, end: int) -> bool:
        return end - start == self.size_us and (start - self.offset_us) % self.every_us == 0


@dataclass(frozen=True)
class Cumulating(Assigner):
    """Windows of one start that grow in steps up to a size, then start anew."""

    size_us: int
    every_us: int
    offset_us: int = 0
    clock: Clock = "event"

    @property
    def overlaps(self) -> bool:
        return self.every_us < self.size_us

    @property
    def per_row(self) -> int:
        return self.size_us // self.every_us

    def assign(self, times: Int64s) -> AssignedWindows:
        base = aligned(times, self.size_us, self.offset_us)
        first = (times - base) // self.every_us + 1
        rows, back = _spread(self.size_us // self.every_us - first + 1)
        ends = base[rows] + self.size_us - back * self.every_us
        return AssignedWindows(rows, base[rows], ends)

    def last_ends(self, times: Int64s) -> Int64s:
        return aligned(times, self.size_us, self.offset_us) + self.size_us

    def makes(self, start: int, end: int) -> bool:
        whole = (start - self.offset_us) % self.size_us == 0 and (end - start) % self.every_us == 0
        return whole and end - start <= self.size_us


@dataclass(frozen=True)
class SettledWindows(Assigner):
    """Windows of rows that were given once for each window they belong to, at its last instant: so each is in one."""

    windows: Sliding | Cumulating

    def assign(self, times: Int64s) -> AssignedWindows:
        ends = times + 1
        if isinstance(self.windows, Sliding):
            return AssignedWindows(None, ends - self.windows.size_us, ends)
        return AssignedWindows(None, aligned(times, self.windows.size_us, self.windows.offset_us), ends)

    def last_ends(self, times: Int64s) -> Int64s:
        return times + 1

    def makes(self, start: int, end: int) -> bool:
        return self.windows.makes(start, end)


@dataclass(frozen=True)
class Session(Assigner):
    """Rows of a key that follow each other within a gap; exactly one of the two fields is given."""

    gap_us: int | None = None
    gap_sql: str | None = None
    """SQL text over the columns of a row that gives its own gap in microseconds."""
    clock: Clock = "event"
    merges: ClassVar[bool] = True


@dataclass(frozen=True)
class Unbounded(Assigner):
    """All rows of a key, for ever."""

    timed: ClassVar[bool] = False


@dataclass(frozen=True)
class RowCount(Assigner):
    """``n`` rows of a key, in the order they come; anew every ``every`` rows."""

    n: int
    every: int
    timed: ClassVar[bool] = False

    @property
    def slides(self) -> bool:
        return self.every != self.n


def aligned(times: Int64s, size_us: int, offset_us: int = 0) -> Int64s:
    """The start of the window of this size that each time lies in. Floors, so it is right before 1970 too."""
    if len(times):
        # Most batches lie in one window, and looking for the ends of a column is much cheaper than dividing it.
        first = aligned_us(int(times.min()), size_us, offset_us)
        if first > -_FAR and int(times.max()) < first + size_us:
            return np.full(len(times), first, np.int64)
    # The remainder of numpy has the sign of the divisor, which rounds down for negative times as well.
    return times - np.remainder(times - offset_us, size_us)


def aligned_us(time_us: int, size_us: int, offset_us: int = 0) -> int:
    """The same for one time."""
    return time_us - (time_us - offset_us) % size_us


def has_window(times: Int64s) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which rows have a time that windows can be computed for: not those without any, or at the ends of time."""
    return (times > -_FAR) & (times < _FAR)


def last_instant(end_us: int, allow_late_us: int = 0) -> int:
    """When a window that ends there is over, lateness included; never beyond the end of time."""
    return max(min(end_us - 1 + allow_late_us, MAX_TIME), MIN_TIME)


def _spread(counts: Int64s) -> tuple[Int64s, Int64s]:
    """For each row as many pairs as its count: the row's position, and a number that falls to 0 within the row."""
    rows = np.repeat(np.arange(len(counts)), counts)
    ends = np.cumsum(counts)
    back: Int64s = np.repeat(ends, counts) - 1 - np.arange(len(rows))
    return rows, back
