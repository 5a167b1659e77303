"""The rows of one side of a regular join, as an epoch finds and leaves them.

Rows with the same cells and time are one row with a number. `NetSide` has, for every row that an epoch concerns, its
number and its partners before and after the epoch. Rows stand in the order of (key, hash of the row), whatever run or
batch they came from, so results do not depend on how rows lie.

What this module deliberately does not do: pairs, and what is given out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.batch import Int64s
from headrace.model.pairs import NONE
from headrace.model.row_hash import hash_rows
from headrace.operators.matching import Mask, PartnerRanges
from headrace.state.rows.find import GatheredRows
from headrace.state.rows.netting import COUNT, MET

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TIME: Final = "event_time"
"""The column with the event time of a row: ``at`` is its hash."""


class NetSide:
    """Distinct rows of one side, sorted by (code, hash)."""

    def __init__(self, rows: GatheredRows, old: int) -> None:
        """``old``: so many of the rows are of earlier epochs; the others came with this one."""
        self.rows = rows
        order = np.lexsort((rows.at, rows.codes))
        codes, hashes = rows.codes[order], rows.at[order]
        differ = (codes[1:] != codes[:-1]) | (hashes[1:] != hashes[:-1])
        begins = np.append(0, np.flatnonzero(differ) + 1) if len(order) else np.empty(0, np.int64)
        is_old = order < old
        counts, met = rows.numbers(COUNT)[order], rows.numbers(MET)[order]
        before, delta = _sums(np.where(is_old, counts, 0), begins), _sums(np.where(is_old, 0, counts), begins)
        concerned = np.flatnonzero((before != 0) | (delta != 0))
        starts = begins[concerned]
        self.codes: Int64s = codes[starts]
        self.hashes: Int64s = hashes[starts]
        self.first: Int64s = order[starts]
        """The position of each row among those it was made of."""
        self.before: Int64s = before[concerned]
        self.after: Int64s = self.before + delta[concerned]
        self.met: Int64s = _sums(met, begins)[concerned]
        """How many partners each had before."""
        self.delta: Int64s = delta[concerned]

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def changed(self) -> Mask:
        changed: Mask = self.before != self.after
        return changed

    def times(self) -> Int64s:
        return self.rows.numbers(TIME)[self.first]

    def expires(self) -> Int64s:
        return self.rows.expires()[self.first]

    def slots(self, unique: Sequence[int] | None) -> Int64s:
        """Rows that stand in each other's place have one number: one that goes, and one of its unique key that comes.

        ``unique``: positions of the columns of the unique key. Without one, any row of the same join key will do.
        """
        slots = np.arange(len(self))
        goes, comes = (self.before > 0) & (self.after == 0), (self.before == 0) & (self.after > 0)
        some = np.flatnonzero(goes | comes)
        if not len(some) or not goes.any() or not comes.any():
            return slots
        identity = np.zeros(len(some), np.int64)
        if unique is not None:
            columns = [self.rows.column(index).take(pa.array(self.first[some])) for index in unique]
            identity = hash_rows(columns, identity)
        codes, coming = self.codes[some], comes[some]
        order = np.lexsort((coming, identity, codes))
        ranks = np.empty(len(some), np.int64)
        ranks[order] = _ranks(codes[order], identity[order], coming[order])
        order = np.lexsort((coming, ranks, identity, codes))
        mine, following = order[:-1], order[1:]
        pairs = ~coming[mine] & coming[following] & (ranks[mine] == ranks[following])
        pairs &= (codes[mine] == codes[following]) & (identity[mine] == identity[following])
        slots[some[following[pairs]]] = some[mine[pairs]]
        return slots


def candidate_pairs(left: NetSide, right: NetSide) -> tuple[int, Iterator[tuple[Int64s, Int64s]]]:
    """How many pairs of one key an epoch concerns, and their positions, some at a time.

    Each pair comes once: rows of the left side that changed with all right ones, then the others with those that did.
    """
    changed, others = np.flatnonzero(left.changed), np.flatnonzero(~left.changed)
    new_right = np.flatnonzero(right.changed)
    by_changed = _partners(left.codes[changed], right.codes)
    by_others = _partners(left.codes[others], right.codes[new_right])

    def pairs() -> Iterator[tuple[Int64s, Int64s]]:
        for asks, places in by_changed.pairs():
            yield changed[asks], places
        for asks, places in by_others.pairs():
            yield others[asks], new_right[places]

    return int(by_changed.counts.sum() + by_others.counts.sum()), pairs()


def _partners(codes: Int64s, line: Int64s) -> PartnerRanges:
    return PartnerRanges(np.searchsorted(line, codes, "left"), np.searchsorted(line, codes, "right"))


def _sums(values: Int64s, starts: Int64s) -> Int64s:
    return np.add.reduceat(values, starts) if len(starts) else np.empty(0, np.int64)


def _ranks(*sorted_by: npt.NDArray[np.generic]) -> Int64s:
    """The place of each element among those that are equal to it; they stand side by side."""
    count = len(sorted_by[0])
    differ = np.zeros(count, np.bool_)
    differ[0] = True
    for values in sorted_by:
        differ[1:] |= values[1:] != values[:-1]
    starts = np.flatnonzero(differ)
    return np.arange(count) - np.repeat(starts, np.diff(np.append(starts, count)))


def take_times(times: Int64s, at: Int64s, nobody: int) -> Int64s:
    """Times by position; that of nobody where there is no row."""
    taken: Int64s = np.where(at == NONE, nobody, np.append(times, nobody)[at])
    return taken
