"""Windows whose rows are kept themselves: for functions that see all of them, and for evictors.

A row is stored once, under its time and the place at which it came, however many windows it belongs to; a window's rows
are those within its bounds. Appending reads nothing. What a window alone throws away, by purging or evicting, is
deleted where no other window can want it, and otherwise noted in the window. A row goes with the last of its windows.

Windows of one kind overlap or they do not. But a program may come back with windows of another size while some are
open; those are strangers here, and as long as a key has one, none of its rows goes that another window holds.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from headrace.errors import FunctionFailed
from headrace.model.batch import Rows
from headrace.model.values import value_codec
from headrace.state.subs import SubCodec, first_place
from headrace.windows.by_row.contents import (
    PURGE,
    Accumulated,
    Contents,
    Fired,
    Pairs,
    Pieces,
    Reduced,
    StopAdding,
    Verdicts,
    join_counts,
)
from headrace.windows.by_row.window_state import OpenWindow, OpenWindows, WindowName
from headrace.windows.evictors import Evictor
from headrace.windows.kinds import Assigner, Cumulating, Sliding, aligned_us

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.state.shard import ShardState


ROWS_TABLE: Final = "!rows"

TellFailure = Callable[[Exception, Any, Any, int, WindowName], None]
"""Takes the error, the function, the row if it is one's fault, the key's slot and the window; may raise."""

PlaceError = Callable[[FunctionFailed, int], FunctionFailed]
"""Names the step and the key in the error of an aggregate."""


class StoredRow(NamedTuple):
    place: int
    """Rises with every row that comes."""
    time: int
    row: Any


_NAME: Final = struct.Struct(">QQQ")
"""Time as the name of a timer has it, then the place, as that of a list's element."""
_BIAS: Final = 1 << 63
_LOW: Final = (1 << 64) - 1


def _encode_row_name(name: tuple[int, int]) -> bytes:
    time, place = name
    return _NAME.pack(time + _BIAS, place >> 64, place & _LOW)


def _decode_row_name(sub: bytes) -> tuple[int, int]:
    time, epoch, number = _NAME.unpack(sub)
    return time - _BIAS, epoch << 64 | number


ROW_SUB: Final = SubCodec(_encode_row_name, _decode_row_name)


class StoredRows:
    """The rows of all keys during one task; remembers those of the key it was asked about last, by time."""

    def __init__(self, state: ShardState, codec: RowCodec, epoch: int) -> None:
        self._column = state.entries(ROWS_TABLE, value_codec(codec.type), ROW_SUB)
        self.next_place = first_place(epoch)
        self._slot = -1
        self._rows: list[StoredRow] = []

    def append(self, slots: Sequence[int], times: Sequence[int], rows: Sequence[Any]) -> int:
        """Takes rows in the order they came; returns the place of the first, the others follow it."""
        self.forget()
        put, first = self._column.put, self.next_place
        for place, (slot, time, row) in enumerate(zip(slots, times, rows), first):
            put(slot, (time, place), row)
        self.next_place = first + len(rows)
        return first

    def within(self, slot: int, start: int, end: int) -> list[StoredRow]:
        """Rows of a key from ``start`` up to but not including ``end``, in the order of their times."""
        rows = self._of_key(slot)
        return rows[bisect_left(rows, start, key=_time) : bisect_left(rows, end, key=_time)]

    def until(self, slot: int, end: int) -> list[StoredRow]:
        """Rows of a key before ``end``, in the order of their times."""
        rows = self._of_key(slot)
        return rows[: bisect_left(rows, end, key=_time)]

    def _of_key(self, slot: int) -> list[StoredRow]:
        if slot != self._slot:
            found = [StoredRow(place, time, row) for (time, place), row in self._column.entries(slot)]
            found.sort(key=_moment)
            self._slot, self._rows = slot, found
        return self._rows

    def remove(self, slot: int, rows: Sequence[StoredRow]) -> None:
        """Removes rows that `within` or `until` gave."""
        if not rows:
            return
        kept = self._of_key(slot)
        first = bisect_left(kept, min(map(_time, rows)), key=_time)
        last = bisect_right(kept, max(map(_time, rows)), key=_time)
        gone = {row.place for row in rows}
        # Only among rows of those times; a window's rows stand together, so that what is behind them moves up once.
        kept[first:last] = [row for row in kept[first:last] if row.place not in gone]
        if not kept:
            # One marker instead of a tombstone for each.
            self._column.clear_key(slot)
            return
        for row in rows:
            self._column.remove(slot, (row.time, row.place))

    def forget(self) -> None:
        self._slot, self._rows = -1, []


class RowContents(Contents):
    """All rows of a window, after eviction; or what they come to, where an aggregate or a reduction is asked for."""

    commutes = True
    kept: StoredRows
    tell_failure: TellFailure
    """Where it is told that a function of the user's raised; the window then gives no result."""

    def __init__(
        self, taken: RowCodec, assigner: Assigner, evict: Evictor | None, inner: Accumulated | Reduced | None
    ) -> None:
        self.taken = taken
        self.kinds = {}
        self._assigner = assigner
        self._evict = evict
        self._inner = inner
        self._looked_at = -1
        self._strangers: list[WindowName] = []

    def begin(
        self, state: ShardState, windows: OpenWindows, epoch: int, tell_failure: TellFailure, place: PlaceError
    ) -> None:
        """A task begins."""
        self.kept = StoredRows(state, self.taken, epoch)
        self._windows = windows
        self.tell_failure = tell_failure
        self._place_error = place
        self._looked_at = -1

    def add(self, pairs: Pairs, helds: Sequence[OpenWindow], verdicts: Verdicts | None) -> list[Fired]:
        pieces = Pieces.of(pairs, verdicts, self.stamps)
        first, positions = self._append(pairs)
        places = (np.searchsorted(positions, pairs.positions)).tolist()
        fired = []
        for piece, stretch in enumerate(pieces.stretches):
            held = helds[stretch]
            pieces.take_in(piece, held)
            if pieces.verdicts[piece]:
                fired.append(pieces.fired(pairs, piece, held, first + places[pieces.bounds[piece + 1] - 1]))
                if pieces.verdicts[piece] & PURGE:
                    held.newest = None
        return fired

    def _append(self, pairs: Pairs) -> tuple[int, Any]:
        """Stores each row once; returns the place of the first, and the positions that the places stand for."""
        positions, pair = np.unique(pairs.positions, return_index=True)
        rows = pairs.rows if len(pair) == len(pairs.positions) and bool((np.diff(pair) > 0).all()) else None
        rows = pairs.rows.take(pair) if rows is None else rows
        slots = np.array(pairs.slots, dtype=np.int64)[pairs.stretch_of()[pair]].tolist()
        times = [0] * len(pair) if rows.times is None else rows.times.tolist()
        return self.kept.append(slots, times, rows.objects), positions

    def merge(self, older: OpenWindow, newer: OpenWindow) -> None:
        join_counts(older, newer)

    def resolve(self, fired: Fired) -> Any:
        content = self._read(fired.slot, fired.name, fired.held, fired.content)
        if fired.verdict & PURGE:
            self._purge(fired.slot, fired.name, fired.held, fired.content)
        return content

    def read(self, slot: int, name: WindowName, held: OpenWindow) -> Any:
        return self._read(slot, name, held, self.kept.next_place - 1)

    def purge(self, slot: int, name: WindowName, held: OpenWindow) -> None:
        self._purge(slot, name, held, self.kept.next_place - 1)
        held.newest = None

    def drop(self, slot: int, name: WindowName, held: OpenWindow) -> None:
        """Rows go with the last of their windows, and windows go in the order of their ends."""
        if self._assigner.overlaps:
            rows = self.kept.until(slot, _kept_from(self._assigner, name[1]))
        else:
            rows = self._within(slot, name, held, self.kept.next_place - 1)
        strangers = self._strangers_of(slot)
        if strangers:
            others = strangers
            if name in strangers:
                others = [each for each, _ in self._windows.of_key(slot)]
                strangers.remove(name)
            others = [each for each in others if each != name]
            rows = [row for row in rows if not any(start <= row.time < end for start, end in others)]
        self.kept.remove(slot, rows)

    def forget(self) -> None:
        self.kept.forget()
        self._looked_at = -1

    def _strangers_of(self, slot: int) -> list[WindowName]:
        """Open windows of a key that are not of the kind that is asked for now."""
        if slot != self._looked_at:
            makes = self._assigner.makes
            self._strangers = [name for name, _ in self._windows.of_key(slot) if not makes(*name)]
            self._looked_at = slot
        return self._strangers

    def _shares_rows(self, slot: int) -> bool:
        """Whether rows of this key may be in several windows, so that none of them may throw one away for all."""
        return self._assigner.overlaps or bool(self._strangers_of(slot))

    # --- what a window alone sees and throws away

    def _within(self, slot: int, name: WindowName, held: OpenWindow, upto: int) -> list[StoredRow]:
        """A window's rows in the order they came."""
        since, gone = held.since, set(held.gone)
        within = self.kept.within(slot, *name)
        found = [row for row in within if since <= row.place <= upto and row.place not in gone]
        found.sort(key=_place)
        return found

    def _read(self, slot: int, name: WindowName, held: OpenWindow, upto: int) -> Any:
        rows = self._within(slot, name, held, upto)
        seen = rows
        if self._evict is not None and rows:
            try:
                kept = _kept_by(self._evict, rows)
            except Exception as error:
                self.tell_failure(error, self._evict.keep, None, slot, name)
                return None
            seen = rows if self._evict.after else kept
            self._throw_away(slot, held, rows, kept)
        if self._inner is None:
            return [row.row for row in seen]
        return self._come_to(self._inner, seen, slot, name) if seen else None

    def _come_to(self, inner: Accumulated | Reduced, seen: list[StoredRow], slot: int, name: WindowName) -> Any:
        times = np.array([row.time for row in seen], dtype=np.int64)
        objects = [row.row for row in seen]
        try:
            return inner.of_rows(Rows.of_objects(self.taken, objects, times))
        except FunctionFailed as error:
            raise self._place_error(error, slot) from None
        except StopAdding as stop:
            self.tell_failure(stop.refusal.error, stop.refusal.function, objects[stop.refusal.pair], slot, name)
            return None

    def _throw_away(self, slot: int, held: OpenWindow, rows: list[StoredRow], kept: list[StoredRow]) -> None:
        if len(kept) == len(rows):
            return
        stays = {row.place for row in kept}
        gone = [row for row in rows if row.place not in stays]
        held.size -= len(gone)
        if self._shares_rows(slot):
            held.gone = [*held.gone, *(row.place for row in gone)]
        else:
            self.kept.remove(slot, gone)

    def _purge(self, slot: int, name: WindowName, held: OpenWindow, upto: int) -> None:
        rows = self._within(slot, name, held, upto)
        if self._shares_rows(slot):
            held.since, held.gone = upto + 1, []
        else:
            self.kept.remove(slot, rows)
        held.size = max(held.size - len(rows), 0)


def _kept_by(evict: Evictor, rows: list[StoredRow]) -> list[StoredRow]:
    stays = evict.keep([row.row for row in rows], [row.time for row in rows])
    return [row for row, stay in zip(rows, stays, strict=True) if stay]


def _kept_from(assigner: Assigner, end: int) -> int:
    """Rows before this belong to no window that ends later."""
    if isinstance(assigner, Sliding):
        # Where the next window begins.
        return end - assigner.size_us + assigner.every_us
    assert isinstance(assigner, Cumulating)
    return aligned_us(end, assigner.size_us, assigner.offset_us)


def _place(row: StoredRow) -> int:
    return row.place


def _time(row: StoredRow) -> int:
    return row.time


def _moment(row: StoredRow) -> tuple[int, int]:
    return row.time, row.place
