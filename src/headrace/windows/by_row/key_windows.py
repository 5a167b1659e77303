"""The open windows of one key at a time: read from the table, changed while its rows are taken, written once.

Invariants
- While a key is at hand, what is open is what `KeyWindows` says. A window is written with its times when the rows of
  its key are over, under the name that it has then; a window that rows were refused by is not written.
- Sessions of a key never touch: a row that reaches several makes them one.

What this module deliberately does not do: put rows in, ask triggers (see `headrace.windows.by_row.operator`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from headrace.model.ids import MAX_TIME
from headrace.model.values import ValueCodec
from headrace.state.cells import ABSENT
from headrace.windows.by_row.window_state import WINDOW_SUB, WINDOWS_TABLE, OpenWindow, WindowName

if TYPE_CHECKING:
    from headrace.state.shard import ShardState
    from headrace.windows.by_row.operator import WindowOperator
    from headrace.windows.by_row.schedule import Schedule


class OpenWindows:
    """The open windows of all keys during one task, and their times in the timetables."""

    def __init__(self, state: ShardState, codec: ValueCodec, accumulators: int, schedule: Schedule) -> None:
        self._column = state.entries(WINDOWS_TABLE, codec, WINDOW_SUB)
        self._accumulators = accumulators
        self._schedule = schedule

    def find(self, slot: int, name: WindowName) -> OpenWindow | None:
        window = self._column.find(slot, name)
        return None if window is ABSENT else self._stored(name, window)

    def of_key(self, slot: int) -> dict[WindowName, OpenWindow]:
        """All open windows of a key."""
        return {name: self._stored(name, window) for name, window in self._column.entries(slot)}

    def names_of_key(self, slot: int) -> list[WindowName]:
        """Their names alone, also while some are changed and not written yet."""
        return [name for name, _ in self._column.entries(slot)]

    def _stored(self, name: WindowName, window: OpenWindow) -> OpenWindow:
        window.stored_as, window.awaited = name, self._schedule.awaited_times(window)
        return window

    def fresh(self) -> OpenWindow:
        """A window that nothing was put into yet."""
        return OpenWindow(self._accumulators)

    def write(self, slot: int, name: WindowName, window: OpenWindow) -> None:
        """The window is new, or has changed, be it only its name."""
        self._schedule.enter(slot, name, window)
        if window.stored_as is not None and window.stored_as != name:
            self._column.remove(slot, window.stored_as)
        self._column.put(slot, name, window)
        window.stored_as = name

    def remove(self, slot: int, window: OpenWindow) -> None:
        """The window is no more."""
        if window.stored_as is not None:
            self._schedule.remove(slot, window)
            self._column.remove(slot, window.stored_as)


class KeyWindows:
    """The windows of the key at hand."""

    def __init__(self, operator: WindowOperator) -> None:
        self._operator = operator
        self._windows = operator.windows
        self.slot = -1
        self.changed: dict[WindowName, OpenWindow] = {}
        """Windows that rows were put into."""

    def enter(self, slot: int) -> None:
        """The rows of another key come."""
        self.write()
        self.slot = slot

    def find(self, name: WindowName) -> OpenWindow:
        """A window that no row of the batch was put into yet; a fresh one where it is not open."""
        return self._windows.find(self.slot, name) or self._windows.fresh()

    def write(self) -> None:
        """The rows of the key are over."""
        slot, schedule = self.slot, self._operator.schedule
        for name, window in self.changed.items():
            self._operator.settle(slot, window)
            window.guarded = None
            if not self._operator.assigner.timed and window.is_bare:
                # Without an end it never goes by itself: it would stay for every key there was.
                self._windows.remove(slot, window)
                continue
            schedule.changed(name, window)
            self._windows.write(slot, name, window)
            schedule.enter_changed(slot, name)
        self.slot, self.changed = -1, {}


class KeySessions(KeyWindows):
    """The sessions of the key at hand."""

    def enter(self, slot: int) -> None:
        super().enter(slot)
        self._open = self._windows.of_key(slot)
        self._names = sorted(self._open)

    def touching(self, start: int, end: int) -> list[WindowName]:
        """The sessions that overlap or touch a stretch of time, by start."""
        names = self._names
        upto = bisect_right(names, (end, MAX_TIME))
        first = upto
        while first and names[first - 1][1] >= start:
            first -= 1
        return names[first:upto]

    def find(self, name: WindowName) -> OpenWindow:
        return self._open[name]

    def join(self, olds: list[WindowName], name: WindowName, window: OpenWindow) -> None:
        """The sessions ``olds`` are now ``window``, which goes on with the first of them; none: it is new."""
        at = bisect_left(self._names, olds[0] if olds else name)
        self._names[at : at + len(olds)] = [name]
        for place, old in enumerate(olds):
            other = self._open.pop(old)
            self.changed.pop(old, None)
            if place:
                self._windows.remove(self.slot, other)
        self._open[name] = self.changed[name] = window
