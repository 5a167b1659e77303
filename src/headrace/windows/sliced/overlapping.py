"""Slices put into the windows that hold them, merged per window and key: in one of two ways, whichever costs less.

Written out, each row of a slice stands once for each window that holds it, and all that belongs together is merged at
once. That is right where few windows fire, and where keys have rows in few slices. Where many windows overlap that all
hold much the same, it would be the square of it: there windows are doubled up. From merged slices come merged pairs of
neighbours, from these fours, and so on; a window is put together from a few of such pieces, all windows at once.

Doubling merges neighbours in time before it merges what came earlier with what came later. So it is only for plans
whose columns come to the same in any order (`PanePlan.merges_in_any_order`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.model.batch import Int64s, UInt64s
from headrace.state.panes.table import concat_rows, merge_rows
from headrace.windows.kinds import Cumulating, aligned

if TYPE_CHECKING:
    from headrace.state.panes.lookup import PaneRows
    from headrace.windows.slices import Slices


class Ends(NamedTuple):
    """Windows that end from ``first`` to ``last``, both included."""

    first: int
    last: int


class Cost(NamedTuple):
    """How many rows are in memory at once when windows are put together."""

    rows: int
    doubles: bool
    """Whether windows are doubled up instead of written out."""


_MERGES: Final = 3
"""Merging a row costs about this much of writing one out and merging it with many others."""


class Survey:
    """What there is to put into windows, counted without doing it."""

    def __init__(self, slices: Slices, pieces: Sequence[PaneRows], *, may_double: bool) -> None:
        self._slices = slices
        self._may_double = may_double and slices.windows_each > 1
        found = [_slices_of(piece.panes) for piece in pieces if len(piece.panes)]
        self._panes: Int64s = np.concatenate([panes for panes, _ in found] or [np.zeros(0, np.int64)])
        self._counts: Int64s = np.concatenate([counts for _, counts in found] or [np.zeros(0, np.int64)])
        self._hashes = [piece.hashes for piece in pieces]
        self._keys: int | None = None

    def ends(self, within: Ends) -> Ends:
        """From the first to the last window in this range that holds anything."""
        if not len(self._panes):
            return within
        first = max(within.first, int(self._slices.first_ends(self._panes).min()))
        return Ends(self._slices.end_from(first), min(within.last, int(self._slices.last_ends(self._panes).max())))

    def cost(self, ends: Ends) -> Cost:
        """What these windows cost, put together in the better way."""
        if not len(self._panes):
            return Cost(0, doubles=False)
        written = int((self._slices.count_windows(self._panes, *ends) * self._counts).sum())
        each = self._slices.windows_each
        many = max((ends.last - ends.first) // self._slices.step_us + 1, 0)
        steps = 2 * _MERGES * max(each - 1, 1).bit_length()
        # A row is in no more windows than fire, nor in more than there are for each.
        if not self._may_double or min(many, each) <= steps:
            return Cost(written, doubles=False)
        doubled = self._count_keys() * (many + each)
        return Cost(doubled, doubles=True) if written > steps * doubled else Cost(written, doubles=False)

    def _count_keys(self) -> int:
        if self._keys is None:
            hashes: UInt64s = np.concatenate(self._hashes)
            self._keys = len(np.unique(hashes))
        return self._keys


def _slices_of(panes: Int64s) -> tuple[Int64s, Int64s]:
    """The slices of rows that are in order, and how many rows each has."""
    starts = np.append(0, np.flatnonzero(np.diff(panes)) + 1)
    return panes[starts], np.diff(np.append(starts, len(panes)))


def write_out(slices: Slices, parts: Sequence[pa.RecordBatch], ends: Ends, schema: pa.Schema) -> pa.RecordBatch:
    """Windows with each row written out for each of them; parts are in the order of their table, older first."""
    return merge_rows(concat_rows([_write_part(slices, part, ends) for part in parts], schema))


def _write_part(slices: Slices, rows: pa.RecordBatch, ends: Ends) -> pa.RecordBatch:
    panes = rows.column(0).to_numpy()
    if slices.one_window:
        return _labelled(rows, panes + slices.size_us)
    starts = np.append(0, np.flatnonzero(np.diff(panes)) + 1)
    lengths = np.diff(np.append(starts, len(panes)))
    found = slices.windows(panes[starts])
    firing = (found.ends >= ends.first) & (found.ends <= ends.last)
    which = np.flatnonzero(firing) if found.rows is None else found.rows[firing]
    counts = lengths[which]
    before = np.cumsum(counts) - counts
    places = np.arange(int(counts.sum())) + np.repeat(starts[which] - before, counts)
    return _labelled(rows.take(pa.array(places)), np.repeat(found.ends[firing], counts))


def double_up(slices: Slices, parts: Sequence[pa.RecordBatch], ends: Ends, schema: pa.Schema) -> pa.RecordBatch:
    """The same windows from slices that are merged with their neighbours, then with theirs, and so on."""
    rows = merge_rows(concat_rows(parts, schema))
    if isinstance(slices.assigner, Cumulating):
        return _grow(slices, rows, ends)
    return _slide(slices, rows, ends)


def _grow(slices: Slices, rows: pa.RecordBatch, ends: Ends) -> pa.RecordBatch:
    """Cumulating windows: each takes in what the one before it has come to, within one start."""
    step_us, size_us = slices.step_us, slices.size_us
    made = _labelled(rows, rows.column(0).to_numpy() + step_us)
    covers = 1
    while covers < slices.windows_each:
        before = made.column(0).to_numpy()
        after = before + covers * step_us
        same_start = slices.starts(before) == slices.starts(after)
        made = _joined(made, _filtered(_labelled(made, after), same_start & (after <= ends.last)))
        covers *= 2
    assert covers * step_us >= size_us
    return _firing(made, ends)


def _slide(slices: Slices, rows: pa.RecordBatch, ends: Ends) -> pa.RecordBatch:
    """Sliding windows, each under its start: so many whole steps, and what is left of the size beyond them."""
    step_us, size_us = slices.step_us, slices.size_us
    whole = size_us // step_us
    earliest = ends.first - size_us
    panes = rows.column(0).to_numpy()
    begins = aligned(panes, step_us, slices.assigner.offset_us)
    made: pa.RecordBatch | None = None
    piece, covers, done = merge_rows(_labelled(rows, begins)), 1, 0
    while True:
        if whole & covers:
            made = _joined(made, _moved(piece, done * step_us, earliest))
            done += covers
        if done == whole:
            break
        piece = _joined(piece, _moved(piece, covers * step_us, earliest))
        covers *= 2
    if size_us % step_us:
        # Of the last step the window holds only the slice with which it begins.
        heads = _filtered(_labelled(rows, begins), panes - begins < size_us % step_us)
        made = _joined(made, _moved(heads, whole * step_us, earliest))
    assert made is not None
    return _firing(_labelled(made, made.column(0).to_numpy() + size_us), ends)


def _moved(rows: pa.RecordBatch, back_us: int, earliest: int) -> pa.RecordBatch:
    """Rows for windows that start so much earlier, without those that nobody asks for."""
    labels = rows.column(0).to_numpy() - back_us
    return _filtered(_labelled(rows, labels), labels >= earliest)


def _joined(older: pa.RecordBatch | None, newer: pa.RecordBatch) -> pa.RecordBatch:
    return newer if older is None else merge_rows(concat_rows([older, newer], newer.schema))


def _firing(rows: pa.RecordBatch, ends: Ends) -> pa.RecordBatch:
    labels = rows.column(0).to_numpy()
    return _filtered(rows, (labels >= ends.first) & (labels <= ends.last))


def _filtered(rows: pa.RecordBatch, mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.RecordBatch:
    return rows if bool(mask.all()) else rows.filter(pa.array(mask))


def _labelled(rows: pa.RecordBatch, labels: Int64s) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(labels), *rows.columns[1:]], schema=rows.schema)
