"""Windows put together from slices: which rows count, merged per window and key, a chunk of keys at a time.

All windows that fire for one reason are merged together, so the work per window does not count, only that per row. Keys
are taken by ranges of their hashes, and windows by ranges of their ends where those of one key are too many, so memory
is bounded however many there are. How windows are put together stands at the end of this file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.aggregates.rules import MAX, merge_field
from headrace.errors import FunctionFailed
from headrace.model.batch import Int64s, UInt64s
from headrace.state.panes.lookup import PaneRange, PaneRows, cut_piece, piece_of
from headrace.state.panes.table import concat_rows, fit_rows, merge_rows
from headrace.windows.kinds import Cumulating, aligned
from headrace.windows.sliced.plan import MARK, PanePlan

if TYPE_CHECKING:
    from headrace.state.panes.column import PaneColumn
    from headrace.state.panes.lookup import PaneRows
    from headrace.windows.slices import Slices

CHUNK_ROWS: Final = 1 << 17
"""About how many rows are merged at once, each counted once for every window it is written out for …"""
ROW_BYTES: Final = 256
"""… and as several, where rows have more bytes than this."""
_ASKED: Final = merge_field("!asked.max", pa.int8(), MAX)

Part = Literal["all", "added", "waiting"]
"""All rows; those of this epoch; or those that came since the last firing."""


@dataclass(frozen=True)
class Firing:
    """Windows that fire together: those that end from ``first_end`` to ``last_end``, both included."""

    first_end: int
    last_end: int
    label: str
    """``early``, ``on_time`` or ``late``, as results say it."""
    rows: Part = "all"
    """Which rows results are made of."""
    asked: Part = "all"
    """For which keys of a window there is a result: those that have such a row."""

    @property
    def ends(self) -> Ends:
        return Ends(self.first_end, self.last_end)


class WindowMerger:
    """Merges the slices of one task's state into windows."""

    def __init__(self, plan: PanePlan, column: PaneColumn, bounds: tuple[int, int], mark: int) -> None:
        """``bounds``: least and greatest hash. ``mark``: rows with this one or a later came since the last firing."""
        self._plan = plan
        self._column = column
        self._low, self._high = bounds
        self._mark = mark

    def merge(self, firing: Firing) -> Iterator[pa.RecordBatch]:
        """Rows of the plan's schema, one per window and key, with the window's end in the place of the slice."""
        if firing.first_end > firing.last_end:
            return
        span = self._plan.slices.range(firing.first_end, firing.last_end)
        added = self._column.added(span)
        if not added and "added" in (firing.rows, firing.asked):
            return
        held = [] if firing.rows == "added" else self._column.inherited(span)
        if firing.rows == "waiting":
            held, added = self._waiting(held), self._waiting(added)
        for older, newer in self._chunks(firing, held, added):
            for ends, doubles in self._parts(firing, older, newer):
                merged = self._merge_part(firing, ends, older, newer, doubles)
                if merged.num_rows:
                    yield merged

    def has_waiting(self, firing: Firing) -> bool:
        """Whether some row of these windows came since the last firing."""
        span = self._plan.slices.range(firing.first_end, firing.last_end)
        return bool(self._waiting(self._column.added(span)) or self._waiting(self._column.inherited(span)))

    def _chunks(
        self, firing: Firing, held: Sequence[PaneRows], added: Sequence[PaneRows]
    ) -> Iterator[tuple[list[PaneRows], list[PaneRows]]]:
        """The same pieces, cut into ranges of hashes, so that what is in memory at once is not too much."""
        if self._plan.slices.one_window:
            weight = sum(len(piece.hashes) for piece in (*held, *added))
        else:
            survey = self._survey(held, added)
            weight = survey.cost(survey.ends(firing.ends)).rows
        count = -(-weight * _heaviness((*held, *added)) // CHUNK_ROWS)
        if count <= 1:
            yield list(held), list(added)
            return
        # More ranges than there are keys would find nothing.
        count = min(count, sum(len(piece.hashes) for piece in (*held, *added)))
        width = -(-(self._high - self._low + 1) // count)
        for low in range(self._low, self._high + 1, width):
            high = min(low + width - 1, self._high)
            older, newer = _cut(held, low, high), _cut(added, low, high)
            if older or newer:
                yield older, newer

    def _parts(self, firing: Firing, older: list[PaneRows], newer: list[PaneRows]) -> Iterator[tuple[Ends, bool]]:
        """The windows that fire, cut where those of a few keys are too many already; and whether to double them up."""
        if self._plan.slices.one_window:
            yield firing.ends, False
            return
        survey = self._survey(older, newer)
        step_us = self._plan.slices.step_us
        waiting = [survey.ends(firing.ends)]
        heaviness = _heaviness((*older, *newer))
        while waiting:
            ends = waiting.pop()
            cost = survey.cost(ends)
            steps = (ends.last - ends.first) // step_us + 1
            # Windows that are doubled up are put together from slices before them too, so few of them cost as much.
            fewest = self._plan.slices.windows_each if cost.doubles else 1
            if cost.rows * heaviness <= 2 * CHUNK_ROWS or steps <= fewest:
                yield ends, cost.doubles
                continue
            middle = ends.first + steps // 2 * step_us
            waiting += [Ends(middle, ends.last), Ends(ends.first, middle - step_us)]

    def _survey(self, older: Sequence[PaneRows], newer: Sequence[PaneRows]) -> Survey:
        return Survey(self._plan.slices, (*older, *newer), may_double=self._plan.merges_in_any_order)

    def _merge_part(
        self, firing: Firing, ends: Ends, older: list[PaneRows], newer: list[PaneRows], doubles: bool
    ) -> pa.RecordBatch:
        schema = self._plan.schema
        span = self._plan.slices.range(*ends)
        older, newer = _cut_span(older, span), _cut_span(newer, span)
        if firing.asked == "added" and firing.rows != "added":
            older = _only(older, [piece.hashes for piece in newer])
            flagged = [(piece, 0) for piece in older] + [(piece, 1) for piece in newer]
            parts = [_flag(fit_rows(piece.rows, schema), flag) for piece, flag in flagged]
            merged = self._into_windows(parts, ends, doubles, schema.append(_ASKED))
            asked = merged.column(_ASKED.name).to_numpy(zero_copy_only=False) == 1
            return fit_rows(merged.filter(pa.array(asked)), schema)
        if firing.asked == "waiting":
            waiting = [piece.hashes[self._is_waiting(piece.rows)] for piece in (*older, *newer)]
            # Where most rows wait, merging the others in vain costs less than finding out which they are.
            if 2 * sum(map(len, waiting)) < sum(len(piece.hashes) for piece in (*older, *newer)):
                older = _only(older, waiting)
        parts = [fit_rows(piece.rows, schema) for piece in (*older, *newer)]
        merged = self._into_windows(parts, ends, doubles, schema)
        return self._waiting_rows(merged) if firing.asked == "waiting" else merged

    def _into_windows(
        self, parts: list[pa.RecordBatch], ends: Ends, doubles: bool, schema: pa.Schema
    ) -> pa.RecordBatch:
        if doubles:
            try:
                return double_up(self._plan.slices, parts, ends, schema)
            except FunctionFailed:
                # A part of a window may leave 64 bits where the whole does not; if that does too, it is told now.
                pass
        return write_out(self._plan.slices, parts, ends, schema)

    # --- rows that came since the last firing

    def _waiting(self, pieces: Sequence[PaneRows]) -> list[PaneRows]:
        found = [piece_of(self._waiting_rows(piece.rows)) for piece in pieces]
        return [piece for piece in found if len(piece.hashes)]

    def _waiting_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        mask = self._is_waiting(rows)
        return rows if bool(mask.all()) else rows.filter(pa.array(mask))

    def _is_waiting(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        if MARK not in rows.schema.names:
            # Written by a program without early firing: nobody knows, so they count as waiting.
            return np.ones(rows.num_rows, bool)
        marks = rows.column(MARK)
        if marks.null_count:
            marks = marks.fill_null(self._mark)
        waiting: npt.NDArray[np.bool_] = marks.to_numpy(zero_copy_only=False) >= self._mark
        return waiting


def _heaviness(pieces: Sequence[PaneRows]) -> int:
    """How many usual rows one of these counts for: cells may be lists of any length."""
    rows = sum(len(piece.hashes) for piece in pieces)
    return max(1, sum(piece.rows.nbytes for piece in pieces) // (rows * ROW_BYTES)) if rows else 1


def _cut(pieces: Sequence[PaneRows], low: int, high: int) -> list[PaneRows]:
    cut = [piece_of(piece.cut(low, high)) for piece in pieces]
    return [piece for piece in cut if len(piece.hashes)]


def _cut_span(pieces: Sequence[PaneRows], span: PaneRange) -> list[PaneRows]:
    cut = [cut_piece(piece, span) for piece in pieces]
    return [piece for piece in cut if len(piece.hashes)]


def _only(pieces: Sequence[PaneRows], hashes: Sequence[UInt64s]) -> list[PaneRows]:
    """Rows of keys that have one of these hashes."""
    if not hashes:
        return []
    wanted = np.unique(np.concatenate(hashes))
    found = [piece_of(piece.only(wanted)) for piece in pieces]
    return [piece for piece in found if len(piece.hashes)]


def _flag(rows: pa.RecordBatch, flag: int) -> pa.RecordBatch:
    flags = pa.array(np.full(rows.num_rows, flag, np.int8))
    return pa.RecordBatch.from_arrays([*rows.columns, flags], schema=rows.schema.append(_ASKED))


# --- slices put into the windows that hold them, merged per window and key: in one of two ways, whichever costs less
# Written out, each row of a slice stands once for each window that holds it, and all that belongs together is merged
# at once. That is right where few windows fire, and where keys have rows in few slices. Where many windows overlap
# that all hold much the same, it would be the square of it: there windows are doubled up. From merged slices come
# merged pairs of neighbours, from these fours, and so on; a window is put together from a few of such pieces, all
# windows at once.
#
# Doubling merges neighbours in time before it merges what came earlier with what came later. So it is only for plans
# whose columns come to the same in any order (`PanePlan.merges_in_any_order`).


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
        return _with_labels(rows, panes + slices.size_us)
    starts = np.append(0, np.flatnonzero(np.diff(panes)) + 1)
    lengths = np.diff(np.append(starts, len(panes)))
    found = slices.windows(panes[starts])
    firing = (found.ends >= ends.first) & (found.ends <= ends.last)
    which = np.flatnonzero(firing) if found.rows is None else found.rows[firing]
    counts = lengths[which]
    before = np.cumsum(counts) - counts
    places = np.arange(int(counts.sum())) + np.repeat(starts[which] - before, counts)
    return _with_labels(rows.take(pa.array(places)), np.repeat(found.ends[firing], counts))


def double_up(slices: Slices, parts: Sequence[pa.RecordBatch], ends: Ends, schema: pa.Schema) -> pa.RecordBatch:
    """The same windows from slices that are merged with their neighbours, then with theirs, and so on."""
    rows = merge_rows(concat_rows(parts, schema))
    if isinstance(slices.assigner, Cumulating):
        return _grow(slices, rows, ends)
    return _slide(slices, rows, ends)


def _grow(slices: Slices, rows: pa.RecordBatch, ends: Ends) -> pa.RecordBatch:
    """Cumulating windows: each takes in what the one before it has come to, within one start."""
    step_us, size_us = slices.step_us, slices.size_us
    made = _with_labels(rows, rows.column(0).to_numpy() + step_us)
    covers = 1
    while covers < slices.windows_each:
        before = made.column(0).to_numpy()
        after = before + covers * step_us
        same_start = slices.starts(before) == slices.starts(after)
        made = _merge_two(made, _filter_rows(_with_labels(made, after), same_start & (after <= ends.last)))
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
    piece, covers, done = merge_rows(_with_labels(rows, begins)), 1, 0
    while True:
        if whole & covers:
            made = _merge_two(made, _shift_starts(piece, done * step_us, earliest))
            done += covers
        if done == whole:
            break
        piece = _merge_two(piece, _shift_starts(piece, covers * step_us, earliest))
        covers *= 2
    if size_us % step_us:
        # Of the last step the window holds only the slice with which it begins.
        heads = _filter_rows(_with_labels(rows, begins), panes - begins < size_us % step_us)
        made = _merge_two(made, _shift_starts(heads, whole * step_us, earliest))
    assert made is not None
    return _firing(_with_labels(made, made.column(0).to_numpy() + size_us), ends)


def _shift_starts(rows: pa.RecordBatch, back_us: int, earliest: int) -> pa.RecordBatch:
    """Rows for windows that start so much earlier, without those that nobody asks for."""
    labels = rows.column(0).to_numpy() - back_us
    return _filter_rows(_with_labels(rows, labels), labels >= earliest)


def _merge_two(older: pa.RecordBatch | None, newer: pa.RecordBatch) -> pa.RecordBatch:
    return newer if older is None else merge_rows(concat_rows([older, newer], newer.schema))


def _firing(rows: pa.RecordBatch, ends: Ends) -> pa.RecordBatch:
    labels = rows.column(0).to_numpy()
    return _filter_rows(rows, (labels >= ends.first) & (labels <= ends.last))


def _filter_rows(rows: pa.RecordBatch, mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.RecordBatch:
    return rows if bool(mask.all()) else rows.filter(pa.array(mask))


def _with_labels(rows: pa.RecordBatch, labels: Int64s) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(labels), *rows.columns[1:]], schema=rows.schema)
