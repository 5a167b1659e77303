"""When a window has to be looked at: what a trigger asks for, and the tables of times that say which windows are due.

`FiringPlan` is a declared trigger, taken apart. A `Timetable` holds an entry per key and time, indexed by time across
keys; an entry is a hint, and the window itself says whether there is something to do. `Schedule` enters windows: for
their end, where that gives a result, and for when they are dropped. A window that changes after its end is entered for
its end once more, which is due with this epoch. A step that gives results once per epoch enters changed windows for the
wall clock of the epoch, which is due at once.
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


EVENT_TABLE: Final = "!event_times"
WALL_TABLE: Final = "!wall_times"


def plain_spec(spec: WindowSettings) -> WindowSettings:
    """Windows of rows as what they are made of: an unbounded window, a trigger that counts, purging or an evictor."""
    assigner = spec.assigner
    if not isinstance(assigner, RowCount):
        return spec
    fire = EveryRows(assigner.every)
    if assigner.slides:
        return replace(spec, assigner=Unbounded(), fire=fire, evict=KeepRows(assigner.n))
    return replace(spec, assigner=Unbounded(), fire=fire, discard=True)


def uses_wall_clock(plan: FiringPlan, assigner: Assigner, own_trigger: bool) -> bool:
    """Whether something may be due without any input."""
    by_clock = assigner.timed and assigner.clock == "wall"
    periodic = plan.periodic is not None and plan.periodic.clock == "wall"
    return by_clock or periodic or plan.timeout is not None or own_trigger


class Timetable:
    """What is due on one clock, during one task."""

    def __init__(self, state: ShardState, table: str, due_table: str) -> None:
        self.due_table = due_table
        self._column: EntriesColumn = state.entries(table, value_codec(list[tuple[int, int]]), TIME_SUB)
        self._timers = Timers(table, self._column)
        """The same times as any set of timers; here each says which windows it is for."""
        state.index_timer(due_table, self._column)

    def add(self, slot: int, time_us: int, name: WindowName) -> None:
        """Something is due for a window of this key then; twice is once."""
        found = self._column.find(slot, time_us)
        names: list[WindowName] = [] if found is ABSENT else found
        if name not in names:
            self._column.put(slot, time_us, [*names, name])
        self._timers._await(time_us)

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
        self._timers._expect(times_us)

    def take(self, slot: int, upto_us: int) -> tuple[int, list[WindowName]] | None:
        """The earliest time that is due and its windows, which are there no longer; None: nothing is due any more."""
        timers = self._timers
        timers._slot = slot
        time_us = timers._peek(upto_us)
        if time_us is None:
            return None
        names = self._column.find(slot, time_us)
        timers._take(time_us)
        return time_us, sorted(names)


class Schedule:
    """The timetables of one step during one task."""

    event: Timetable
    wall: Timetable

    def __init__(self, assigner: Assigner, plan: FiringPlan, allow_late_us: int) -> None:
        self._assigner = assigner
        self._plan = plan
        self._allow_late_us = allow_late_us
        self._watermark = MIN_TIME
        self._clock = self._last_clock = MIN_TIME

    def begin(self, state: ShardState, watermark: int, task: TaskInfo) -> None:
        self.event = Timetable(state, EVENT_TABLE, EVENT_DUE)
        self.wall = Timetable(state, WALL_TABLE, WALL_DUE)
        self._watermark = watermark
        self._clock = task.clock_us
        # Before the first epoch of all no time has passed.
        self._last_clock = task.clock_us if task.last_clock_us == MIN_TIME else task.last_clock_us

    @property
    def own(self) -> Timetable:
        """The timetable of the clock that windows are assigned by."""
        return self.event if self._assigner.clock == "event" else self.wall

    def end_of(self, name: WindowName) -> int:
        """The last instant of a window."""
        return name[1] - 1

    def drop_of(self, name: WindowName) -> int:
        """When a window goes for good."""
        return last_instant(name[1], self._allow_late_us)

    def is_past(self, name: WindowName) -> bool:
        """Whether the end of a window had passed when the epoch began."""
        return self._assigner.timed and self._assigner.clock == "event" and name[1] - 1 <= self._watermark

    def opened(self, slot: int, name: WindowName) -> None:
        """A window is new."""
        if self._assigner.timed:
            self.own.add(slot, self.drop_of(name), name)
            if self._plan.at_end and self._allow_late_us:
                self.own.add(slot, self.end_of(name), name)

    def changed(self, slot: int, name: WindowName, held: OpenWindow, *, fired: bool) -> None:
        """Rows came; ``fired``: a trigger fired on one of them."""
        plan, past = self._plan, self.is_past(name)
        if plan.at_end and past:
            self.event.add(slot, self.end_of(name), name)
        if plan.per_epoch:
            self.wall.add(slot, self._clock, name)
        if plan.periodic is not None and not past:
            self._enter_periodic(slot, name, held, plan.periodic)
        if plan.timeout is not None:
            if fired:
                self.stop_waiting(slot, name, held)
            if held.changed and (held.timeout is None or plan.timeout.since_newest):
                until = self._clock + plan.timeout.span_us
                self.wall.move(slot, held.timeout, until, name)
                held.timeout = until

    def _enter_periodic(self, slot: int, name: WindowName, held: OpenWindow, periodic: Periodic) -> None:
        """A result comes at the next round time after the epoch began, which may be before it ends."""
        table, began = (self.wall, self._last_clock) if periodic.clock == "wall" else (self.event, self._watermark)
        at = aligned_us(began, periodic.every_us) + periodic.every_us
        if self._assigner.timed and periodic.clock == self._assigner.clock and at >= self.end_of(name):
            return
        if held.early is None or at < held.early:
            table.move(slot, held.early, at, name)
            held.early = at

    def stop_waiting(self, slot: int, name: WindowName, held: OpenWindow) -> None:
        """A result was given: what was waited for has come."""
        if held.timeout is not None:
            self.wall.remove(slot, held.timeout, name)
            held.timeout = None

    def renamed(self, slot: int, name: WindowName, held: OpenWindow) -> None:
        """A window got other bounds by merging; its old ones are gone."""
        self.opened(slot, name)
        if held.early is not None and self._plan.periodic is not None:
            (self.wall if self._plan.periodic.clock == "wall" else self.event).add(slot, held.early, name)
        if held.timeout is not None:
            self.wall.add(slot, held.timeout, name)

    def gone(self, slot: int, name: WindowName, held: OpenWindow) -> None:
        """A window is no more, before its time."""
        if self._assigner.timed:
            self.own.remove(slot, self.drop_of(name), name)
            if self._plan.at_end and self._allow_late_us:
                self.own.remove(slot, self.end_of(name), name)
        self.over(slot, name, held)

    def over(self, slot: int, name: WindowName, held: OpenWindow) -> None:
        """A window's time is over: takes back what else was asked for."""
        if self._plan.periodic is not None:
            (self.wall if self._plan.periodic.clock == "wall" else self.event).remove(slot, held.early, name)
        self.wall.remove(slot, held.timeout, name)
        for at in held.event_timers:
            self.event.remove(slot, at, name)
        for at in held.wall_timers:
            self.wall.remove(slot, at, name)
