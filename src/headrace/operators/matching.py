"""Which rows belong together, by key and time: arrays in, positions out.

A key is a small number here, its code. The rows of a side are put on one line, sorted by (code, time): then the
partners of a row are one stretch of the line, and all stretches are found by two searches.

What this module deliberately does not do: state, rows, columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.aggregates.numbers import order_of
from headrace.model.batch import Int64s
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.state.rows.find import spread_ranges

Mask = npt.NDArray[np.bool_]

PAIRS: Final = 131_072
"""About how many pairs are given out at once."""
_WIDE: Final = 1 << 62


class PartnerRanges(NamedTuple):
    """For each row that asks, the partners it has: positions [start, end) of a line."""

    starts: Int64s
    ends: Int64s

    @property
    def counts(self) -> Int64s:
        return self.ends - self.starts

    def covered(self, length: int) -> Mask:
        """Which positions of the line are anybody's partner."""
        some = self.starts < self.ends
        begun = np.bincount(self.starts[some], minlength=length + 1)
        over = np.bincount(self.ends[some], minlength=length + 1)
        mask: Mask = np.cumsum(begun - over)[:length] > 0
        return mask

    def pairs(self, limit: int = PAIRS) -> Iterator[tuple[Int64s, Int64s]]:
        """(Who asks, position of the partner) for every pair, some at a time, in the order of both."""
        counts = self.counts
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        for low in range(0, total, limit):
            high = min(low + limit, total)
            first = int(np.searchsorted(ends, low, "right"))
            last = int(np.searchsorted(ends, high - 1, "right"))
            part = counts[first : last + 1].copy()
            starts = self.starts[first : last + 1].copy()
            skipped = low - int(ends[first] - counts[first])
            starts[0] += skipped
            part[0] -= skipped
            part[-1] -= int(ends[last]) - high
            yield np.repeat(np.arange(first, last + 1), part), spread_ranges(starts, part)


class RowLine:
    """The rows of one side in the order of (code, time); rows that tie stay as they came."""

    def __init__(self, codes: Int64s, at: Int64s, keys: int) -> None:
        """``keys``: how many codes there are, on this side or not."""
        self._base, self._top = (int(at.min()), int(at.max())) if len(at) else (0, 0)
        self._span = self._top - self._base + 1
        self._times: Int64s | None = None
        if (keys + 1) * self._span >= _WIDE or self._top >= MAX_TIME:
            # Codes and times do not fit into one number; the ranks of the times do.
            self._times = np.unique(at)
            self._span = len(self._times)
        places = self._place(codes, at)
        self.order: Int64s | None = None
        """Positions of the rows in the order of the line; None: they came in it."""
        if bool((places[1:] < places[:-1]).any()):
            self.order = order_of(places, int(places.max()).bit_length())
            places = places[self.order]
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def between(self, codes: Int64s, low: Int64s, high: Int64s) -> PartnerRanges:
        """For each code and times from low to high, both included, the rows on the line."""
        if not len(self):
            nothing = np.zeros(len(codes), np.int64)
            return PartnerRanges(nothing, nothing)
        starts = np.searchsorted(self._places, self._place_from(codes, low), "left")
        ends = np.searchsorted(self._places, self._place_upto(codes, high), "right")
        return PartnerRanges(starts, np.maximum(starts, ends))

    def last_upto(self, codes: Int64s, high: Int64s) -> Int64s:
        """For each code the position of its last row at or before a time; −1 where there is none."""
        found = self.between(codes, np.full(len(codes), MIN_TIME), high)
        return np.where(found.ends > found.starts, found.ends - 1, -1)

    def rows(self, positions: Int64s) -> Int64s:
        """Rows, by where they stand on the line."""
        return positions if self.order is None else self.order[positions]

    def mask(self, covered: Mask) -> Mask:
        """The same for each row that was said for each place of the line."""
        if self.order is None:
            return covered
        by_row = np.empty(len(covered), np.bool_)
        by_row[self.order] = covered
        return by_row

    def _place(self, codes: Int64s, at: Int64s) -> Int64s:
        ranks = at - self._base if self._times is None else np.searchsorted(self._times, at)
        return codes * self._span + ranks

    def _place_from(self, codes: Int64s, low: Int64s) -> Int64s:
        if self._times is not None:
            return codes * self._span + np.searchsorted(self._times, low, "left")
        return codes * self._span + (np.clip(low, self._base, self._top + 1) - self._base)

    def _place_upto(self, codes: Int64s, high: Int64s) -> Int64s:
        if self._times is not None:
            return codes * self._span + np.searchsorted(self._times, high, "right") - 1
        return codes * self._span + (np.clip(high, self._base - 1, self._top) - self._base)


def shifted(at: Int64s, by_us: int) -> Int64s:
    """Times moved by a span; at the ends of time they stop."""
    if by_us >= 0:
        return np.where(at > MAX_TIME - by_us, MAX_TIME, at + by_us)
    return np.where(at < MIN_TIME - by_us, MIN_TIME, at + by_us)


def shifted_us(at_us: int, by_us: int) -> int:
    """The same for one time."""
    return max(MIN_TIME, min(MAX_TIME, at_us + by_us))


def without(codes: Int64s, seq: Int64s, gone_codes: Int64s, gone_seq: Int64s, keys: int) -> Mask:
    """Which rows are not among others; a row is known by the code of its key and when it came."""
    # When a row came is as good a line as its time.
    mask: Mask = RowLine(gone_codes, gone_seq, keys).between(codes, seq, seq).counts == 0
    return mask
