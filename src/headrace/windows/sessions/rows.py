"""Rows on their way into sessions: put together among themselves before they are added to the state.

Rows wait here until there are many, or the epoch ends; then those of a key that lie close together become one fragment.
Nothing of what is stored is read for that, with one exception: a row that is late by itself counts only if a session
that is open when it comes reaches it. For keys that have such a row all that is known of them is looked up, once for
many rows, and their rows are taken in the order in which they came.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.model.batch import Int64s, Rows
from headrace.state.panes.column import PaneColumn
from headrace.state.panes.fragments import START, ending_at, find_hashes, join_fragments
from headrace.state.panes.lookup import PaneRange
from headrace.state.panes.table import concat_rows
from headrace.windows.columnar import Mask

_FIRST_LIMIT: Final = 1 << 17
"""Rows that are put together when so many wait …"""
_LAST_LIMIT: Final = 1 << 20
"""… and more, up to so many, where most of them are left then."""
_LIMIT_BYTES: Final = 1 << 26
"""Rows that are this large together do not wait any longer, however few they are."""

GiveLate = Callable[[Rows], None]


class _Undecided(NamedTuple):
    """Rows that are late by themselves."""

    places: Int64s
    """Where they stand among all that wait."""
    rows: Rows


class WaitingRows:
    """The rows of one task that are in no state yet."""

    def __init__(self, column: PaneColumn, live: PaneRange, give_late: GiveLate) -> None:
        """``live``: fragments that were not over when the epoch began. ``give_late``: where rows go that count for
        nothing."""
        self._column = column
        self._live = live
        self._give_late = give_late
        self._parts: list[pa.RecordBatch] = []
        self._count = self._bytes = 0
        self._limit = _FIRST_LIMIT
        self._undecided: list[_Undecided] = []

    def add(self, fragments: pa.RecordBatch, rows: Rows, late: Mask) -> None:
        """Rows as fragments of their own, in the order in which they came, and which of them are late by themselves."""
        if late.any():
            places = np.flatnonzero(late)
            self._undecided.append(_Undecided(places + self._count, rows.take(places)))
        self._parts.append(fragments)
        self._count += fragments.num_rows
        self._bytes += fragments.nbytes
        if self._count >= self._limit or self._bytes >= _LIMIT_BYTES:
            self._relieve()

    def _relieve(self) -> None:
        """Puts together what waits; where that leaves much, more at once may leave less, up to a limit."""
        joined = self._join()
        if 2 * joined.num_rows > self._limit:
            self._limit *= 2
        if self._limit > _LAST_LIMIT or 2 * joined.nbytes > _LIMIT_BYTES:
            self._limit = min(self._limit, _LAST_LIMIT)
            self._column.add(joined)
        else:
            self._parts, self._count, self._bytes = [joined], joined.num_rows, joined.nbytes

    def flush(self) -> None:
        """Adds everything to the state."""
        if self._parts:
            self._column.add(self._join())

    def _join(self) -> pa.RecordBatch:
        rows = concat_rows(self._parts, self._column.schema)
        self._parts, self._count, self._bytes = [], 0, 0
        if self._undecided:
            rows = self._decided(rows)
        return join_fragments(rows)

    # --- rows that are late by themselves

    def _decided(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Without those that no session took; the others end with the session that took them."""
        undecided, self._undecided = self._undecided, []
        late = np.zeros(rows.num_rows, bool)
        for each in undecided:
            late[each.places] = True
        ends = rows.column(0).to_numpy().copy()
        refused = self._find_refused(rows, late, ends)
        for each in undecided:
            lost = np.flatnonzero(refused[each.places])
            if len(lost):
                self._give_late(each.rows.take(lost))
        return ending_at(rows, ends).filter(pa.array(~refused))

    def _find_refused(self, rows: pa.RecordBatch, late: Mask, ends: Int64s) -> Mask:
        """Which late rows no session takes; moves the ends of the others."""
        hashes = rows.column(1).to_numpy()
        wanted = np.unique(hashes[late])
        stored = [piece.only(wanted) for piece in self._column.all(self._live)]
        known = _OpenSessions(_stretches(stored))
        places, _ = find_hashes(hashes, wanted)
        keys = rows.column(2).take(pa.array(places)).to_pylist()
        starts = rows.column(START).to_numpy()[places].tolist()
        own_ends, is_late = ends[places].tolist(), late[places].tolist()
        refused = np.zeros(rows.num_rows, bool)
        for place, key, start, end, behind in zip(places.tolist(), keys, starts, own_ends, is_late):
            taken = known.take(key, start, end, only_if_reached=behind)
            if taken is None:
                refused[place] = True
            elif behind:
                ends[place] = taken
        return refused


def _stretches(stored: Sequence[pa.RecordBatch]) -> Iterable[tuple[bytes, int, int]]:
    for rows in stored:
        yield from zip(rows.column(2).to_pylist(), rows.column(START).to_pylist(), rows.column(0).to_pylist())


class _OpenSessions:
    """The open sessions of some keys, as they become one row after the other."""

    def __init__(self, stretches: Iterable[tuple[bytes, int, int]]) -> None:
        self._of_key: dict[bytes, list[tuple[int, int]]] = {}
        for key, start, end in stretches:
            self.take(key, start, end, only_if_reached=False)

    def take(self, key: bytes, start: int, end: int, *, only_if_reached: bool) -> int | None:
        """The end of the session that a stretch is in then; None: it would have to be one of its own, and may not."""
        mine = self._of_key.setdefault(key, [])
        # They neither overlap nor touch, so they are in the order of their ends too.
        first = bisect_left(mine, start, key=_end)
        last = first
        while last < len(mine) and mine[last][0] <= end:
            last += 1
        if first == last and only_if_reached:
            return None
        met: list[Any] = [(start, end), *mine[first:last]]
        start, end = min(each[0] for each in met), max(each[1] for each in met)
        mine[first:last] = [(start, end)]
        return end


def _end(stretch: tuple[int, int]) -> int:
    return stretch[1]
