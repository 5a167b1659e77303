"""Handles of timers: Timer, WallTimer (one per key) and Timers (many per key).

Import them from `headrace.state.handles`, which says what handles are. A timer is a state whose value is a time; that
it fires is the business of the operator, which asks `_peek` what is due and takes it away with `_take` before it calls
``on_timer``.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from operator import index as as_int
from typing import cast

from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.time import Timestamp
from headrace.state.cells import ABSENT, EntriesColumn
from headrace.state.overlay import UNLOADED, ValueColumn


def timer_time(at: Timestamp) -> int:
    """A time in µs; what is no time is refused in the call that gives it, not when it is to be stored."""
    time_us = as_int(at)
    if not MIN_TIME <= time_us <= MAX_TIME:
        raise OverflowError(f"{time_us} is no time for a timer: microseconds since 1970 in 64 bits")
    return time_us


class Timer:
    """One timer per key in event time: ``quiet: hr.Timer``; ``on_timer(timer, ctx)`` is called when it is due.

    Setting it again moves it. When it fires it is no longer set.

    >>> class Quiet(hr.Process[Sale, Alert, str]):             # doctest: +SKIP
    ...     quiet: hr.Timer
    ...     def on_event(self, event, ctx):
    ...         self.quiet.set(event.at + hr.minutes(10))
    ...     def on_timer(self, timer, ctx):
    ...         yield Alert(ctx.key, ctx.timestamp)
    """

    __slots__ = ("_column", "_dirty", "_slot", "_values", "name")

    def __init__(self, name: str, column: ValueColumn) -> None:
        self.name = name
        self._slot = -1
        self._column = column
        self._values = column.values
        self._dirty = column.dirty

    def set(self, at: Timestamp) -> None:
        """Fires at this time, instead of any time set before; a time that has passed fires with this epoch."""
        slot, time_us = self._slot, as_int(at)
        if not MIN_TIME <= time_us <= MAX_TIME:
            # Which raises; a call for every timer would cost as much as the rest.
            timer_time(at)
        self._values[slot] = time_us
        self._dirty[slot] = 1

    def get(self) -> Timestamp | None:
        """When it will fire, None if it is not set."""
        value = self._values[self._slot]
        return cast("Timestamp | None", self._column.load(self._slot) if value is UNLOADED else value)

    def clear(self) -> None:
        """Does not fire."""
        self._values[self._slot] = None
        self._dirty[self._slot] = 1

    def _peek(self, upto_us: int, *, stored: bool = True) -> int | None:
        """``stored=False``: nothing that is due lies in the runs, so nobody need look there."""
        time = self._column.get(self._slot) if stored else self._values[self._slot]
        return time if time is not None and time is not UNLOADED and time <= upto_us else None

    def _take(self, time_us: int) -> None:
        self.clear()


class WallTimer(Timer):
    """One timer per key on the wall clock: it fires whether rows flow or not."""

    __slots__ = ()


class Timers:
    """Any number of timers per key in event time, one for each different time: ``ends: hr.Timers``."""

    __slots__ = ("_column", "_pending", "_slot", "name")

    def __init__(self, name: str, column: EntriesColumn) -> None:
        self.name = name
        self._slot = -1
        self._column = column
        self._pending: list[int] | None = None
        """While timers of a key fire: the times to look at, as a heap."""

    def add(self, at: Timestamp) -> None:
        """Fires at this time too; the same time twice fires once."""
        time_us = timer_time(at)
        self._column.put(self._slot, time_us, None)
        self._await(time_us)

    def discard(self, at: Timestamp) -> None:
        """Does not fire at this time; nothing happens if it was not set."""
        time_us = as_int(at)
        if MIN_TIME <= time_us <= MAX_TIME:
            self._column.remove(self._slot, time_us)

    def __iter__(self) -> Iterator[Timestamp]:
        """The times that are set, the earliest first."""
        return (cast(Timestamp, time) for time, _ in self._column.entries(self._slot))

    def __contains__(self, at: Timestamp) -> bool:
        return self._column.find(self._slot, as_int(at)) is not ABSENT

    def __len__(self) -> int:
        return self._column.count(self._slot)

    def clear(self) -> None:
        """Does not fire any more."""
        self._column.clear_key(self._slot)

    def _expect(self, times_us: list[int] | None) -> None:
        """Begins (or with None ends) firing for the key at hand; the times are those an index knows of."""
        self._pending = times_us
        if times_us is not None:
            heapify(times_us)

    def _await(self, time_us: int) -> None:
        """A time was set; while timers of the key fire, it is looked at too."""
        if self._pending is not None:
            heappush(self._pending, time_us)

    def _peek(self, upto_us: int, *, stored: bool = True) -> int | None:
        pending = self._pending
        while pending:
            time_us = pending[0]
            if time_us > upto_us:
                return None
            if self._column.find(self._slot, time_us) is not ABSENT:
                return time_us
            heappop(pending)
        return None

    def _take(self, time_us: int) -> None:
        self._column.remove(self._slot, time_us)
