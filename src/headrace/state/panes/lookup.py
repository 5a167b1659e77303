"""Reading partial aggregates of runs: the slices between two times, cut to a range of hashes or to some keys.

Rows of a run lie by slice and then by hash, so what is wanted is a range of rows in each batch; batches that hold
nothing of it are not opened. Nothing is merged here and nothing is copied that does not have to be: the answer is
pieces of runs, oldest first, for `headrace.state.panes.table.merge_rows`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.batch import Int64s, UInt64s
from headrace.model.ids import MAX_TIME
from headrace.state.block import Block
from headrace.state.view import TableView

_SPARSE: Final = 8
"""Keys are looked up one by one where a piece has this many times as many rows as there are keys."""


class PaneRange(NamedTuple):
    """Slices that start at ``first`` or later, and before ``end``."""

    first: int
    end: int


class PaneRows(NamedTuple):
    """Rows of one batch, in the order of their table."""

    panes: Int64s
    hashes: UInt64s
    rows: pa.RecordBatch

    def cut(self, low: int, high: int) -> pa.RecordBatch:
        """Rows with hashes from ``low`` to ``high``, both included."""
        if len(self.panes) and self.panes[0] == self.panes[-1]:
            start = int(np.searchsorted(self.hashes, np.uint64(low), "left"))
            return self.rows.slice(start, int(np.searchsorted(self.hashes, np.uint64(high), "right")) - start)
        mask = (self.hashes >= np.uint64(low)) & (self.hashes <= np.uint64(high))
        return self.rows if bool(mask.all()) else self.rows.filter(pa.array(mask))

    def only(self, wanted: UInt64s) -> pa.RecordBatch:
        """Rows whose hash is one of these, which are distinct and in order."""
        if len(wanted) == 0 or len(self.panes) == 0:
            return self.rows.slice(0, 0)
        if self.panes[0] == self.panes[-1] and len(wanted) * _SPARSE < len(self.hashes):
            return self.rows.take(pa.array(self._rows_of(wanted)))
        places = np.minimum(np.searchsorted(wanted, self.hashes), len(wanted) - 1)
        mask = wanted[places] == self.hashes
        return self.rows if bool(mask.all()) else self.rows.filter(pa.array(mask))

    def _rows_of(self, wanted: UInt64s) -> Int64s:
        start = np.searchsorted(self.hashes, wanted, "left")
        counts = np.searchsorted(self.hashes, wanted, "right") - start
        # Nearly always one row or none; several where keys collide.
        before = np.cumsum(counts) - counts
        rows: Int64s = np.arange(int(counts.sum())) + np.repeat(start - before, counts)
        return rows


def find_pieces(views: Sequence[TableView], panes: PaneRange) -> list[PaneRows]:
    """What runs, newest first given, hold of these slices; oldest first."""
    return [piece for view in reversed(views) for piece in _pieces_of(view, panes)]


def piece_of(rows: pa.RecordBatch) -> PaneRows:
    """Sorted rows that are in no run yet."""
    return PaneRows(rows.column(0).to_numpy(), rows.column(1).to_numpy(), rows)


def cut_piece(piece: PaneRows, panes: PaneRange) -> PaneRows:
    """The part of a piece in these slices."""
    start = int(np.searchsorted(piece.panes, panes.first, "left"))
    end = int(np.searchsorted(piece.panes, panes.end, "left"))
    if start == 0 and end == len(piece.panes):
        return piece
    return PaneRows(piece.panes[start:end], piece.hashes[start:end], piece.rows.slice(start, end - start))


def distinct_panes(views: Sequence[TableView], panes: PaneRange) -> Int64s:
    """Which slices in the range have rows in these runs, in order."""
    found: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]
    for view in views:
        entries = view.table.entries
        for index in _batches_in(view, panes):
            entry = entries[index]
            if entry.first == entry.last:
                found.append(np.array([entry.first], np.int64))
                continue
            block = view.table.block(index)
            start, end = _bounds(block, panes)
            found.append(np.unique(block.sort[start:end]))
    return np.unique(np.concatenate(found))


def first_pane(views: Sequence[TableView], first: int) -> int | None:
    """The earliest slice from ``first`` on that has rows in these runs."""
    found: list[int] = []
    for view in views:
        for index in _batches_in(view, PaneRange(first, MAX_TIME)):
            if (starts := view.table.entries[index].first) < first:
                sort = view.table.block(index).sort
                place = int(np.searchsorted(sort, first, "left"))
                if place == len(sort):
                    continue
                starts = int(sort[place])
            found.append(starts)
            break
    return min(found, default=None)


def _pieces_of(view: TableView, panes: PaneRange) -> Iterator[PaneRows]:
    for index in _batches_in(view, panes):
        block = view.table.block(index)
        start, end = _bounds(block, panes)
        if start == end:
            continue
        piece = PaneRows(block.sort[start:end], block.hash[start:end], block.batch.slice(start, end - start))
        if view.in_range(piece.hashes).all():
            yield piece
        elif (rows := piece.cut(view.low, view.high)).num_rows:
            yield piece_of(rows)


def _batches_in(view: TableView, panes: PaneRange) -> Iterator[int]:
    """Batches that may have rows of these slices."""
    firsts, entries = view.table.firsts, view.table.entries
    for index in range(max(0, bisect_left(firsts, panes.first) - 1), bisect_left(firsts, panes.end)):
        last = entries[index].last
        if last is None or last >= panes.first:
            yield index


def _bounds(block: Block, panes: PaneRange) -> tuple[int, int]:
    start, end = np.searchsorted(block.sort, [panes.first, panes.end], "left")
    return int(start), int(end)
