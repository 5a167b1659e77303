"""When a window has to be looked at: what a trigger asks for, and the tables of times that say which windows are due.

`FiringPlan` is a declared trigger, taken apart. A `Timetable` is a set of timers per key, as ``process`` has them, and
indexed by time across keys likewise; each timer says which windows it is for.

Invariants
- An entry of a timetable is a hint: the window itself says whether there is something to do.
- For an open window the timetable of its own clock holds the time at which it goes, and until then its end, where rows
  may come after it. Further times follow from what stands in the window (`Schedule.awaited_times`): so timetables are
  brought up to date when the window is written, and nobody else enters anything.
- A window that changes after its end is entered for its end once more, and one that fires once per epoch for the
  clock of the epoch: both are due with this epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from headrace.model.ids import MIN_TIME
from headrace.model.values import value_codec
from headrace.state.cells import ABSENT, EntriesColumn
from headrace.state.shard import EVENT_DUE, WALL_DUE
from headrace.state.subs import TIME_SUB
from headrace.state.timer_handles import Timers
from headrace.windows.by_row.window_state import OpenWindow, WindowName
from headrace.windows.evictors import KeepRows
from headrace.windows.kinds import Assigner, RowCount, Unbounded, aligned_us, last_instant
from headrace.windows.triggers import EveryRows, PerEpoch, Periodic, Timeout, Trigger

if TYPE_CHECKING:
    from headrace.operators.contract import TaskInfo
    from headrace.state.shard import ShardState
    from headrace.windows.settings import WindowSettings

EVENT_TABLE: Final = "!event_times"
WALL_TABLE: Final = "!wall_times"


@dataclass(frozen=True)
class FiringPlan:
    """When windows give results."""

    at_end: bool = False
    """When the end of the window has come, and in each later epoch in which it changed."""
    periodic: Periodic | None = None
    per_epoch: bool = False
    on_rows: Trigger | None = None
    """A trigger that is asked after each row."""
    timeout: Timeout | None = None


def derive_plan(fire: Trigger | None, assigner: Assigner) -> FiringPlan:
    """The parts of a trigger. One that is given takes the place of the end, except that `Periodic` includes it."""
    match fire:
        case None:
            return FiringPlan(at_end=assigner.timed)
        case Periodic():
            return FiringPlan(at_end=assigner.timed, periodic=fire)
        case PerEpoch():
            return FiringPlan(per_epoch=True)
        case Timeout():
            return replace(derive_plan(fire.of, assigner), timeout=fire)
        case _:
            return FiringPlan(on_rows=fire)


def plain_spec(spec: WindowSettings) -> WindowSettings:
    """Windows of rows as what they are made of: an unbounded window, a trigger that counts, purging or an evictor."""
    assigner = spec.assigner
    if not isinstance(assigner, RowCount):
        return spec
    fire = EveryRows(assigner.every)
    if assigner.slides:
        return replace(spec, assigner=Unbounded(), fire=fire, evict=KeepRows(assigner.n))
    return replace(spec, assigner=Unbounded(), fire=fire, discard=True)


class Timetable:
    """What is due on one clock, during one task."""

    def __init__(self, state: ShardState, table: str, due_table: str) -> None:
        self.due_table = due_table
        self._column: EntriesColumn = state.entries(table, value_codec(list[tuple[int, int]]), TIME_SUB)
        self._timers = Timers(table, self._column)
        state.indexes.add_timer(due_table, self._column)

    def add(self, slot: int, time_us: int, name: WindowName) -> None:
        """Something is due for a window of this key then; twice is once."""
        names = self._names(slot, time_us)
        if name not in names:
            self._column.put(slot, time_us, [*names, name])
        self._timers._await(time_us)

    def remove(self, slot: int, time_us: int, name: WindowName) -> None:
        """Takes `add` back, if it was said."""
        names = self._names(slot, time_us)
        if name not in names:
            return
        rest = [each for each in names if each != name]
        if rest:
            self._column.put(slot, time_us, rest)
        else:
            self._column.remove(slot, time_us)

    def _names(self, slot: int, time_us: int) -> list[WindowName]:
        names = self._column.find(slot, time_us)
        return [] if names is ABSENT else names

    # --- while a key's windows fire

    def expect(self, times_us: list[int] | None) -> None:
        """Begins (or with None ends) firing for a key; the times are those the index knows of."""
        self._timers._expect(times_us)

    def take(self, slot: int, upto_us: int) -> tuple[int, list[WindowName]] | None:
        """The earliest time that is due and its windows, which are there no longer; None: nothing is due any more."""
        timers = self._timers
        timers._slot = slot
        time_us = timers._peek(upto_us)
        if time_us is None:
            return None
        names = self._names(slot, time_us)
        timers._take(time_us)
        return time_us, sorted(names)


class Schedule:
    """The timetables of one step during one task."""

    event: Timetable
    wall: Timetable

    def __init__(self, assigner: Assigner, plan: FiringPlan, allow_late_us: int, *, own_timers: bool) -> None:
        """``own_timers``: whether a trigger of the user's may set timers."""
        self._assigner = assigner
        self._plan = plan
        self._allow_late_us = allow_late_us
        self._own_timers = own_timers
        self._watermark = self._clock = self._last_clock = MIN_TIME

    def begin(self, state: ShardState, watermark: int, task: TaskInfo) -> None:
        self.event = Timetable(state, EVENT_TABLE, EVENT_DUE)
        self.wall = Timetable(state, WALL_TABLE, WALL_DUE)
        self._watermark = watermark
        self._clock = task.clock_us
        # Before the first epoch of all no time has passed.
        self._last_clock = task.clock_us if task.last_clock_us == MIN_TIME else task.last_clock_us

    @property
    def uses_wall_clock(self) -> bool:
        """Whether something may be due without any input."""
        by_clock = self._assigner.timed and self._assigner.clock == "wall"
        periodic = self._plan.periodic is not None and self._plan.periodic.clock == "wall"
        return by_clock or periodic or self._plan.timeout is not None or self._own_timers

    def drop_of(self, name: WindowName) -> int:
        """When a window goes for good."""
        return last_instant(name[1], self._allow_late_us)

    def is_past(self, name: WindowName) -> bool:
        """Whether the end of a window had passed when the epoch began."""
        return self._assigner.timed and self._assigner.clock == "event" and name[1] - 1 <= self._watermark

    def changed(self, name: WindowName, window: OpenWindow) -> None:
        """Rows came into a window: notes in it when a result is to come because of that."""
        periodic, timeout = self._plan.periodic, self._plan.timeout
        if periodic is not None and not self.is_past(name):
            # The next round time after the epoch began, which may be before it ends.
            began = self._last_clock if periodic.clock == "wall" else self._watermark
            at = aligned_us(began, periodic.every_us) + periodic.every_us
            ends_first = self._assigner.timed and periodic.clock == self._assigner.clock and at >= name[1] - 1
            if not ends_first and (window.early is None or at < window.early):
                window.early = at
        if timeout is not None and window.changed and (window.timeout is None or timeout.since_newest):
            window.timeout = self._clock + timeout.span_us

    def awaited_times(self, window: OpenWindow) -> frozenset[tuple[bool, int]]:
        """What a window waits for beside its end: whether in event time, and the time."""
        times: list[tuple[bool, int]] = []
        if self._own_timers:
            times += [(True, at) for at in window.event_timers]
            times += [(False, at) for at in window.wall_timers]
        if self._plan.periodic is not None and window.early is not None:
            times.append((self._plan.periodic.clock == "event", window.early))
        if window.timeout is not None:
            times.append((False, window.timeout))
        return frozenset(times)

    # --- what stands in the timetables

    def enter_changed(self, slot: int, name: WindowName) -> None:
        """Rows came into a window: it may be due with this epoch."""
        if self._plan.at_end and self.is_past(name):
            self.event.add(slot, name[1] - 1, name)
        if self._plan.per_epoch:
            self.wall.add(slot, self._clock, name)

    def enter(self, slot: int, name: WindowName, window: OpenWindow) -> None:
        """Enters a window with all it waits for now."""
        if window.stored_as != name:
            self.remove(slot, window)
            for at in self._bounds(name):
                self._own.add(slot, at, name)
        awaited = self.awaited_times(window)
        if awaited != window.awaited:
            for is_event, at in window.awaited - awaited:
                self._table(is_event).remove(slot, at, name)
            for is_event, at in awaited - window.awaited:
                self._table(is_event).add(slot, at, name)
            window.awaited = awaited

    def remove(self, slot: int, window: OpenWindow) -> None:
        """Takes back what was entered for a window under the name it is stored as."""
        name = window.stored_as
        if name is None:
            return
        for at in self._bounds(name):
            self._own.remove(slot, at, name)
        for is_event, at in window.awaited:
            self._table(is_event).remove(slot, at, name)
        window.awaited = frozenset()

    def _bounds(self, name: WindowName) -> list[int]:
        """When a window is looked at in any case."""
        if not self._assigner.timed:
            return []
        ends = self._plan.at_end and self._allow_late_us
        return [self.drop_of(name), name[1] - 1] if ends else [self.drop_of(name)]

    @property
    def _own(self) -> Timetable:
        """The timetable of the clock that windows are assigned by."""
        return self._table(self._assigner.clock == "event")

    def _table(self, is_event: bool) -> Timetable:
        return self.event if is_event else self.wall
