"""Windows put together from slices: which rows count, merged per window and key, a chunk of keys at a time.

All windows that fire for one reason are merged together, so the work per window does not count, only that per row. Keys
are taken by ranges of their hashes, so memory is bounded however many there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.batch import UInt64s
from headrace.operators.pane_plan import MARK, PanePlan
from headrace.state.pane_lookup import Piece, piece_of
from headrace.state.pane_rules import MAX, merge_field
from headrace.state.panes import concat_rows, fit_rows, merge_rows

if TYPE_CHECKING:
    from headrace.state.pane_column import PaneColumn

CHUNK_ROWS: Final = 1 << 17
"""About how many rows are merged at once."""
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
        held = [] if firing.rows == "added" else self._column.held(span)
        if firing.rows == "waiting":
            held, added = self._waiting(held), self._waiting(added)
        for older, newer in self._chunks(held, added):
            merged = self._merge_chunk(firing, older, newer)
            if merged.num_rows:
                yield merged

    def has_waiting(self, firing: Firing) -> bool:
        """Whether some row of these windows came since the last firing."""
        span = self._plan.slices.range(firing.first_end, firing.last_end)
        return bool(self._waiting(self._column.added(span)) or self._waiting(self._column.held(span)))

    def _chunks(self, held: Sequence[Piece], added: Sequence[Piece]) -> Iterator[tuple[list[Piece], list[Piece]]]:
        """The same pieces, cut into ranges of hashes."""
        count = -(-sum(len(piece.hashes) for piece in (*held, *added)) // CHUNK_ROWS)
        if count <= 1:
            yield list(held), list(added)
            return
        width = -(-(self._high - self._low + 1) // count)
        for low in range(self._low, self._high + 1, width):
            high = min(low + width - 1, self._high)
            yield _cut(held, low, high), _cut(added, low, high)

    def _merge_chunk(self, firing: Firing, older: list[Piece], newer: list[Piece]) -> pa.RecordBatch:
        schema = self._plan.schema
        if firing.asked == "added" and firing.rows != "added":
            older = _only(older, [piece.hashes for piece in newer])
            flagged = [(piece, 0) for piece in older] + [(piece, 1) for piece in newer]
            parts = [_flag(self._windows_of(piece, firing), flag) for piece, flag in flagged]
            merged = merge_rows(concat_rows(parts, schema.append(_ASKED)))
            asked = merged.column(_ASKED.name).to_numpy(zero_copy_only=False) == 1
            return fit_rows(merged.filter(pa.array(asked)), schema)
        if firing.asked == "waiting":
            waiting = [piece.hashes[self._is_waiting(piece.rows)] for piece in (*older, *newer)]
            # Where most rows wait, merging the others in vain costs less than finding out which they are.
            if 2 * sum(map(len, waiting)) < sum(len(piece.hashes) for piece in (*older, *newer)):
                older = _only(older, waiting)
        merged = merge_rows(concat_rows([self._windows_of(piece, firing) for piece in (*older, *newer)], schema))
        return self._waiting_rows(merged) if firing.asked == "waiting" else merged

    def _windows_of(self, piece: Piece, firing: Firing) -> pa.RecordBatch:
        """A piece's rows for each firing window that holds them."""
        rows = fit_rows(piece.rows, self._plan.schema)
        if self._plan.slices.one_window:
            return _with_ends(rows, piece.panes + self._plan.slices.size_us)
        starts = np.append(0, np.flatnonzero(np.diff(piece.panes)) + 1)
        lengths = np.diff(np.append(starts, len(piece.panes)))
        found = self._plan.slices.windows(piece.panes[starts])
        firing_now = (found.ends >= firing.first_end) & (found.ends <= firing.last_end)
        which = np.flatnonzero(firing_now) if found.rows is None else found.rows[firing_now]
        counts = lengths[which]
        before = np.cumsum(counts) - counts
        places = np.arange(int(counts.sum())) + np.repeat(starts[which] - before, counts)
        return _with_ends(rows.take(pa.array(places)), np.repeat(found.ends[firing_now], counts))

    # --- rows that came since the last firing

    def _waiting(self, pieces: Sequence[Piece]) -> list[Piece]:
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


def _cut(pieces: Sequence[Piece], low: int, high: int) -> list[Piece]:
    cut = [piece_of(piece.cut(low, high)) for piece in pieces]
    return [piece for piece in cut if len(piece.hashes)]


def _only(pieces: Sequence[Piece], hashes: Sequence[UInt64s]) -> list[Piece]:
    """Rows of keys that have one of these hashes."""
    if not hashes:
        return []
    wanted = np.unique(np.concatenate(hashes))
    found = [piece_of(piece.only(wanted)) for piece in pieces]
    return [piece for piece in found if len(piece.hashes)]


def _flag(rows: pa.RecordBatch, flag: int) -> pa.RecordBatch:
    flags = pa.array(np.full(rows.num_rows, flag, np.int8))
    return pa.RecordBatch.from_arrays([*rows.columns, flags], schema=rows.schema.append(_ASKED))


def _with_ends(rows: pa.RecordBatch, ends: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(ends), *rows.columns[1:]], schema=rows.schema)
