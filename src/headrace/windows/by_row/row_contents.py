"""Windows whose rows are kept themselves: for functions that see all of them, and for evictors.

A row is stored once, under its time and the place at which it came, however many windows it belongs to; a window's rows
are those within its bounds. Appending reads nothing. What a window alone throws away, by purging or evicting, is
deleted where no other window can want it, and otherwise noted in the window. A row goes with the last of its windows.

Windows of one kind overlap or they do not. But a program may come back with windows of another size while some are
open; those are strangers here, and as long as a key has one, none of its rows goes that another window holds.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.errors import FunctionFailed
from headrace.model.batch import Rows
from headrace.model.values import value_codec
from headrace.state.subs import SubCodec, first_place
from headrace.windows.by_row.contents import Contents, RowRefused
from headrace.windows.by_row.window_state import OpenWindow, WindowName
from headrace.windows.evictors import Evictor
from headrace.windows.kinds import Assigner, Cumulating, Sliding, aligned_us

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.state.shard import ShardState
    from headrace.windows.by_row.key_windows import OpenWindows


ROWS_TABLE: Final = "!rows"

KeepRefused = Callable[[RowRefused, int, int | None], None]
"""Takes what a function raised, the key's slot, and the time of the window that gives no result; may raise."""

PlaceError = Callable[[FunctionFailed, int], FunctionFailed]
"""Names the step and the key in the error of an aggregate."""


class StoredRow(NamedTuple):
    place: int
    """Rises with every row that comes."""
    time: int
    row: Any


_place, _time, _moment = attrgetter("place"), attrgetter("time"), attrgetter("time", "place")

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
        """The place of the row that comes next."""
        self._slot = -1
        self._rows: list[StoredRow] = []

    def append(self, slot: int, time: int, row: Any) -> None:
        """Takes the row that came last."""
        place = self.next_place
        self._column.put(slot, (time, place), row)
        if slot == self._slot:
            insort(self._rows, StoredRow(place, time, row), key=_moment)
        self.next_place = place + 1

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
            rows = [StoredRow(place, time, row) for (time, place), row in self._column.entries(slot)]
            rows.sort(key=_moment)
            self._slot, self._rows = slot, rows
        return self._rows

    def remove(self, slot: int, rows: Sequence[StoredRow]) -> None:
        """Removes rows that `within` or `until` gave."""
        if not rows:
            return
        of_key = self._of_key(slot)
        first = bisect_left(of_key, min(map(_time, rows)), key=_time)
        last = bisect_right(of_key, max(map(_time, rows)), key=_time)
        gone = {row.place for row in rows}
        # Only among rows of those times; a window's rows stand together, so that what is behind them moves up once.
        of_key[first:last] = [row for row in of_key[first:last] if row.place not in gone]
        if not of_key:
            # One marker instead of a tombstone for each.
            self._column.clear_key(slot)
            return
        for row in rows:
            self._column.remove(slot, (row.time, row.place))

    def forget(self) -> None:
        """Slots are about to mean other keys."""
        self._slot, self._rows = -1, []


class RowContents(Contents):
    """All rows of a window, after eviction; or what they come to, where an aggregate or a reduction is asked for."""

    stored: StoredRows

    def __init__(self, taken: RowCodec, assigner: Assigner, evict: Evictor | None, inner: Contents | None) -> None:
        self.kinds = {}
        self._taken = taken
        self._assigner = assigner
        self._evict = evict
        self._inner = inner
        self._looked_at = -1
        self._strangers: list[WindowName] = []
        self._events: list[Any] = []
        self._times: list[int] = []
        self._last = -1

    def begin(
        self, state: ShardState, windows: OpenWindows, epoch: int, keep_refused: KeepRefused, place: PlaceError
    ) -> None:
        """A task begins. ``keep_refused``: keeps that a function refused a window, which then gives no result."""
        self.stored = StoredRows(state, self._taken, epoch)
        self._windows = windows
        self._keep_refused = keep_refused
        self._place_error = place
        self.forget()

    def begin_batch(self, rows: Rows, *, guarded: bool) -> None:
        self._events, self._last = rows.objects, -1
        self._times = [0] * len(rows) if rows.times is None else rows.times.tolist()

    def add(self, slot: int, window: OpenWindow, row: int) -> None:
        if row != self._last:
            # Its other windows come next.
            self._last = row
            self.stored.append(slot, self._times[row], self._events[row])

    def merge(self, older: OpenWindow, newer: OpenWindow) -> None:
        """Their rows lie beside each other already."""

    def come_to(self, rows: Rows) -> list[Any]:
        return rows.objects if self._inner is None else self._inner.come_to(rows)

    def drop(self, slot: int, name: WindowName, window: OpenWindow) -> None:
        """Rows go with the last of their windows, and windows go in the order of their ends."""
        if self._assigner.overlaps:
            rows = self.stored.until(slot, _kept_from(self._assigner, name[1]))
        else:
            rows = self._within(slot, name, window)
        strangers = self._strangers_of(slot)
        if strangers:
            others = strangers
            if name in strangers:
                others = self._windows.names_of_key(slot)
                strangers.remove(name)
            others = [each for each in others if each != name]
            rows = [row for row in rows if not any(start <= row.time < end for start, end in others)]
        self.stored.remove(slot, rows)

    def forget(self) -> None:
        """Slots are about to mean other keys."""
        self.stored.forget()
        self._looked_at = -1

    def _strangers_of(self, slot: int) -> list[WindowName]:
        """Open windows of a key that are not of the kind that is asked for now."""
        if slot != self._looked_at:
            makes = self._assigner.makes
            self._strangers = [name for name in self._windows.names_of_key(slot) if not makes(*name)]
            self._looked_at = slot
        return self._strangers

    def _shares_rows(self, slot: int) -> bool:
        """Whether rows of this key may be in several windows, so that none of them may throw one away for all."""
        return self._assigner.overlaps or bool(self._strangers_of(slot))

    # --- what a window alone sees and throws away

    def _within(self, slot: int, name: WindowName, window: OpenWindow) -> list[StoredRow]:
        """A window's rows in the order they came."""
        since, gone = window.since, set(window.gone)
        rows = [row for row in self.stored.within(slot, *name) if row.place >= since and row.place not in gone]
        rows.sort(key=_place)
        return rows

    def read(self, slot: int, name: WindowName, window: OpenWindow) -> Any:
        rows = self._within(slot, name, window)
        shown = rows
        if self._evict is not None and rows:
            try:
                staying = _staying(self._evict, rows)
            except Exception as error:
                self._keep_refused(RowRefused(error, self._evict.keep, None), slot, self._time_of(name))
                return None
            shown = rows if self._evict.after else staying
            self._throw_away(slot, window, rows, staying)
        objects = [row.row for row in shown]
        if self._inner is None or not objects:
            return objects
        try:
            return self._inner.come_to(Rows.of_objects(self._taken, objects, [row.time for row in shown]))
        except FunctionFailed as error:
            raise self._place_error(error, slot) from None
        except RowRefused as refused:
            self._keep_refused(refused, slot, self._time_of(name))
            return None

    def _time_of(self, name: WindowName) -> int | None:
        return name[1] - 1 if self._assigner.timed else None

    def _throw_away(
        self, slot: int, window: OpenWindow, rows: list[StoredRow], staying: list[StoredRow]
    ) -> None:  # fmt: skip
        if len(staying) == len(rows):
            return
        stays = {row.place for row in staying}
        gone = [row for row in rows if row.place not in stays]
        window.size -= len(gone)
        if self._shares_rows(slot):
            window.gone = [*window.gone, *(row.place for row in gone)]
        else:
            self.stored.remove(slot, gone)

    def purge(self, slot: int, name: WindowName, window: OpenWindow) -> None:
        rows = self._within(slot, name, window)
        if self._shares_rows(slot):
            window.since, window.gone = self.stored.next_place, []
        else:
            self.stored.remove(slot, rows)
        window.size = max(window.size - len(rows), 0)
        window.newest = None


def _staying(evict: Evictor, rows: list[StoredRow]) -> list[StoredRow]:
    stays = evict.keep([row.row for row in rows], [row.time for row in rows])
    return [row for row, stay in zip(rows, stays, strict=True) if stay]


def _kept_from(assigner: Assigner, end: int) -> int:
    """Rows before this belong to no window that ends later."""
    if isinstance(assigner, Sliding):
        # Where the next window begins.
        return end - assigner.size_us + assigner.every_us
    assert isinstance(assigner, Cumulating)
    return aligned_us(end, assigner.size_us, assigner.offset_us)
