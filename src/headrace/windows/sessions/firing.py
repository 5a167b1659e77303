"""The end of an epoch for sessions: which of them fire, which go, and what goes on with those that stay.

Looked at are the keys of which something may happen: those with a fragment whose end the clock has passed, and where
results come early those with rows that wait for it. Of such a key all live fragments are put together; that tells where
its sessions end. A session that is over fires, and goes if no late row may come any more. A fragment that is over while
its session goes on is written again, with the end that the session has now: so whatever has come to its end is of no
more use afterwards, and every reader and every fold may leave it out.

Keys are taken in chunks. What is done costs a pass over the hashes of live fragments, and beyond that only what those
keys have that are looked at; nothing is done key by key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.aggregates.rules import MAX, merge_field, nothing
from headrace.model.batch import Int64s, UInt64s
from headrace.state.panes.fragments import START, WAS_LATE, Sessions, ending_at, find_hashes, find_sessions
from headrace.state.panes.lookup import PaneRows
from headrace.state.panes.table import compact_rows, concat_rows, merge_rows
from headrace.windows.columnar import EARLY, LATE_PANE, ON_TIME, Mask
from headrace.windows.sliced.plan import MARK

if TYPE_CHECKING:
    from headrace.state.panes.column import PaneColumn
    from headrace.windows.sessions.plan import SessionPlan

CHUNK_ROWS: Final = 1 << 18
"""About how many fragments are put together at once."""
_FIRES: Final = merge_field("!fires.max", pa.int8(), MAX)


@dataclass(frozen=True)
class Closing:
    """What the clocks say at the end of an epoch."""

    past_upto: int
    """Sessions that end here or earlier were over when the epoch began …"""
    over_upto: int
    """… those that end here are over now …"""
    gone_upto: int
    """… and those that end here go, because no late row may come any more."""
    at_end: bool
    """Whether sessions fire at their end; otherwise they do with every epoch that changes them."""
    early: bool
    """Whether sessions fire now that have rows since the last time; such rows have this mark or a later."""
    mark: int
    finals: bool
    """Whether somebody wants to know what sessions come to that go."""


class ClosedSessions(NamedTuple):
    """Sessions that give a result: a row for each, its end in the place of the slice, in the order of ends."""

    rows: pa.RecordBatch
    fires: Mask
    """Which of them fire; of the others somebody wants to know what they came to as they go."""
    labels: pa.Array
    """Whether results come early, on time or late."""
    goes: Mask


class SessionCloser:
    """Puts the sessions of one task together at the end of its epoch."""

    def __init__(self, plan: SessionPlan, column: PaneColumn, closing: Closing) -> None:
        self._plan = plan
        self._column = column
        self._closing = closing

    def close(self, held: Sequence[PaneRows], added: Sequence[PaneRows]) -> Iterator[ClosedSessions]:
        """Everything that gives a result. Adds to the column what has to be written for sessions that stay.

        ``held``: live fragments of earlier epochs. ``added``: all of this one.
        """
        wanted = self._asked_about(held, added)
        if not len(wanted):
            return
        for chunk in _chunks([*held, *added], len(held), wanted):
            closed = self._close_chunk(chunk)
            if closed is not None:
                yield closed

    def _asked_about(self, held: Sequence[PaneRows], added: Sequence[PaneRows]) -> UInt64s:
        """Hashes of the keys of which something may happen, in order."""
        closing = self._closing
        found: list[UInt64s] = [np.zeros(0, np.uint64)]
        for number, piece in enumerate((*held, *added)):
            fresh = number >= len(held)
            if fresh and not closing.at_end:
                found.append(piece.hashes)
                continue
            # Those between the two were over before, and are looked at again only if rows came.
            first = 0 if fresh else int(np.searchsorted(piece.panes, closing.past_upto, "right"))
            gone = int(np.searchsorted(piece.panes, closing.gone_upto, "right"))
            over = int(np.searchsorted(piece.panes, closing.over_upto, "right")) if closing.at_end else 0
            found.append(piece.hashes[:gone])
            if max(first, gone) < over:
                found.append(piece.hashes[max(first, gone) : over])
            if closing.early:
                found.append(piece.hashes[is_waiting(piece.rows, closing.mark)])
        return np.unique(np.concatenate(found))

    def _close_chunk(self, chunk: _Chunk) -> ClosedSessions | None:
        closing = self._closing
        sessions = find_sessions(chunk.hashes, chunk.keys, chunk.starts, chunk.ends)
        ends = sessions.ends
        over, past, goes = (ends <= upto for upto in (closing.over_upto, closing.past_upto, closing.gone_upto))
        changed = _any_of(sessions, chunk.fresh)
        fires = np.where(past, changed, over) if closing.at_end else changed
        if closing.early:
            fires |= ~over & _any_of(sessions, chunk.waiting(closing.mark))
        self._carry(chunk, sessions, goes)
        wanted = fires | goes if closing.finals else fires
        if not wanted.any():
            return None
        rows = np.flatnonzero(wanted[sessions.of_row])
        merged = self._merge(chunk, rows, sessions, fires)
        fires = merged.column(_FIRES.name).to_numpy(zero_copy_only=False) == 1
        merged = merged.select(self._plan.schema.names)
        ends = merged.column(0).to_numpy()
        past, goes = ends <= closing.past_upto, ends <= closing.gone_upto
        self._note_late(merged, fires & past & ~goes)
        labels = pc.if_else(pa.array(ends <= closing.over_upto), ON_TIME, EARLY)
        return ClosedSessions(merged, fires, pc.if_else(pa.array(past), LATE_PANE, labels), goes)

    def _merge(self, chunk: _Chunk, rows: Int64s, sessions: Sessions, fires: Mask) -> pa.RecordBatch:
        """Whole sessions from these fragments, all of theirs."""
        schema = self._plan.schema
        of_row = sessions.of_row[rows]
        taken = ending_at(chunk.take(rows, schema), sessions.ends[of_row])
        flags = pa.array(fires[of_row].astype(np.int8))
        return merge_rows(pa.RecordBatch.from_arrays([*taken.columns, flags], schema=schema.append(_FIRES)))

    def _carry(self, chunk: _Chunk, sessions: Sessions, goes: Mask) -> None:
        """Writes fragments again that are over while their session goes on."""
        rows = np.flatnonzero((chunk.ends <= self._closing.gone_upto) & ~goes[sessions.of_row])
        if len(rows):
            taken = chunk.take(rows, self._plan.schema)
            self._column.add(compact_rows(ending_at(taken, sessions.ends[sessions.of_row[rows]])))

    def _note_late(self, merged: pa.RecordBatch, late: Mask) -> None:
        """Notes of sessions that they gave a result after their end, in fragments that say nothing else."""
        if not late.any():
            return
        some = merged.filter(pa.array(late))
        told = {START: some.column(START), WAS_LATE: pa.array(np.ones(some.num_rows, np.int8))}
        columns = list(some.columns[:3])
        columns += [
            told[field.name] if field.name in told else nothing(field, some.num_rows)
            for field in list(self._plan.schema)[3:]
        ]
        self._column.add(pa.RecordBatch.from_arrays(columns, schema=self._plan.schema))


def is_waiting(rows: pa.RecordBatch, mark: int) -> Mask:
    """Which fragments have rows that came since the last early results."""
    if MARK not in rows.schema.names:
        # Written by a program without early firing: nobody knows, so they count as waiting.
        return np.ones(rows.num_rows, bool)
    marks = rows.column(MARK)
    waiting: Mask = (marks.fill_null(mark) if marks.null_count else marks).to_numpy(zero_copy_only=False) >= mark
    return waiting


def _any_of(sessions: Sessions, rows: Mask) -> Mask:
    """Which sessions have one of these fragments."""
    found = np.zeros(len(sessions.ends), bool)
    found[sessions.of_row[rows]] = True
    return found


class _Chunk:
    """All live fragments of some keys; what they hold is fetched where it is wanted."""

    def __init__(self, parts: Sequence[tuple[PaneRows, Int64s, bool]]) -> None:
        """Pieces, which of their rows, and whether these are of this epoch."""
        self._parts = parts
        self.hashes: UInt64s = np.concatenate([piece.hashes[rows] for piece, rows, _ in parts])
        self.ends: Int64s = np.concatenate([piece.panes[rows] for piece, rows, _ in parts])
        self.starts: Int64s = np.concatenate([piece.rows.column(START).to_numpy()[rows] for piece, rows, _ in parts])
        self.keys = pa.concat_arrays([piece.rows.column(2).take(pa.array(rows)) for piece, rows, _ in parts])
        self.fresh: Mask = np.repeat([fresh for _, _, fresh in parts], [len(rows) for _, rows, _ in parts])
        self._bounds = np.cumsum([0, *(len(rows) for _, rows, _ in parts)])

    def waiting(self, mark: int) -> Mask:
        return np.concatenate([is_waiting(piece.rows, mark)[rows] for piece, rows, _ in self._parts])

    def take(self, places: Int64s, schema: pa.Schema) -> pa.RecordBatch:
        """Some of the fragments, whole; places rise."""
        cuts = np.searchsorted(places, self._bounds)
        found = []
        for number, (piece, rows, _) in enumerate(self._parts):
            mine = places[cuts[number] : cuts[number + 1]] - self._bounds[number]
            if len(mine):
                found.append(piece.rows.take(pa.array(rows[mine])))
        return concat_rows(found, schema)


def _chunks(pieces: Sequence[PaneRows], held: int, wanted: UInt64s) -> Iterator[_Chunk]:
    """The fragments of keys with these hashes, so many keys at a time that their fragments are not too many."""
    found = [find_hashes(piece.hashes, wanted) for piece in pieces]
    count = max(1, -(-sum(len(rows) for rows, _ in found) // CHUNK_ROWS))
    each = -(-len(wanted) // count)
    sorted_rows: list[tuple[Int64s, Int64s]] = []
    for rows, places in found:
        numbers = places // each
        order = np.argsort(numbers, kind="stable") if count > 1 else np.arange(len(rows))
        sorted_rows.append((rows[order], np.searchsorted(numbers[order], np.arange(count + 1))))
    for number in range(count):
        parts = [
            (piece, rows[cuts[number] : cuts[number + 1]], at >= held)
            for at, (piece, (rows, cuts)) in enumerate(zip(pieces, sorted_rows))
        ]
        parts = [part for part in parts if len(part[1])]
        if parts:
            yield _Chunk(parts)
