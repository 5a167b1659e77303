"""When something is due for which windows: an entry per key and time, indexed by time across keys.

An entry is a hint. Whether there is something to do is told by the window itself, which may have gone, grown or been
emptied since; so entries need not be taken back, though those that are keep the index small.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from headrace.model.values import value_codec
from headrace.operators.windows.held import WindowName
from headrace.state.cells import ABSENT, EntriesColumn
from headrace.state.subs import TIME_SUB

if TYPE_CHECKING:
    from headrace.state.shard import ShardState

EVENT_TABLE: Final = "!event_times"
WALL_TABLE: Final = "!wall_times"


class Timetable:
    """What is due on one clock, during one task."""

    def __init__(self, state: ShardState, table: str, due_table: str) -> None:
        self.due_table = due_table
        self._column: EntriesColumn = state.entries(table, value_codec(list[tuple[int, int]]), TIME_SUB)
        self._pending: list[int] | None = None
        """While a key's windows fire: the times to look at, as a heap."""
        state.index_timer(due_table, self._column)

    def add(self, slot: int, time_us: int, name: WindowName) -> None:
        """Something is due for a window of this key then; twice is once."""
        found = self._column.find(slot, time_us)
        names: list[WindowName] = [] if found is ABSENT else found
        if name not in names:
            self._column.put(slot, time_us, [*names, name])
        if self._pending is not None:
            heappush(self._pending, time_us)

    def remove(self, slot: int, time_us: int | None, name: WindowName) -> None:
        """Takes `add` back, if it was said."""
        if time_us is None:
            return
        found = self._column.find(slot, time_us)
        if found is ABSENT or name not in found:
            return
        rest = [each for each in found if each != name]
        if rest:
            self._column.put(slot, time_us, rest)
        else:
            self._column.remove(slot, time_us)

    def move(self, slot: int, old_us: int | None, new_us: int, name: WindowName) -> None:
        """A window's time has changed."""
        if old_us != new_us:
            self.remove(slot, old_us, name)
            self.add(slot, new_us, name)

    # --- while a key's windows fire

    def expect(self, times_us: list[int] | None) -> None:
        """Begins (or with None ends) firing for a key; the times are those the index knows of."""
        self._pending = times_us
        if times_us is not None:
            heapify(times_us)

    def take(self, slot: int, upto_us: int) -> tuple[int, list[WindowName]] | None:
        """The earliest time that is due and its windows, which are there no longer; None: nothing is due any more."""
        pending = self._pending
        while pending and pending[0] <= upto_us:
            time_us = heappop(pending)
            found = self._column.find(slot, time_us)
            if found is not ABSENT:
                self._column.remove(slot, time_us)
                return time_us, sorted(found)
        return None
