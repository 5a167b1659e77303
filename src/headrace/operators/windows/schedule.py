"""When something is to be looked at again: keeps the timetables true to what windows want.

Every window is in the timetable of its clock for its end, where that gives a result, and for when it is dropped. A
window that changes when its end has passed is entered for its end once more, which is due with this epoch. A step that
gives results once per epoch enters its changed windows for the wall clock of the epoch, which is due at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.model.ids import MIN_TIME
from headrace.operators.windows.assigners import Assigner, aligned_us, last_instant
from headrace.operators.windows.held import Held, WindowName
from headrace.operators.windows.plan import FiringPlan
from headrace.operators.windows.timetable import EVENT_TABLE, WALL_TABLE, Timetable
from headrace.operators.windows.triggers import Periodic
from headrace.state.shard import EVENT_DUE, WALL_DUE

if TYPE_CHECKING:
    from headrace.operators.contract import TaskInfo
    from headrace.state.shard import ShardState


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

    def changed(self, slot: int, name: WindowName, held: Held, *, fired: bool) -> None:
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

    def _enter_periodic(self, slot: int, name: WindowName, held: Held, periodic: Periodic) -> None:
        """A result comes at the next round time after the epoch began, which may be before it ends."""
        table, began = (self.wall, self._last_clock) if periodic.clock == "wall" else (self.event, self._watermark)
        at = aligned_us(began, periodic.every_us) + periodic.every_us
        if self._assigner.timed and periodic.clock == self._assigner.clock and at >= self.end_of(name):
            return
        if held.early is None or at < held.early:
            table.move(slot, held.early, at, name)
            held.early = at

    def stop_waiting(self, slot: int, name: WindowName, held: Held) -> None:
        """A result was given: what was waited for has come."""
        if held.timeout is not None:
            self.wall.remove(slot, held.timeout, name)
            held.timeout = None

    def renamed(self, slot: int, name: WindowName, held: Held) -> None:
        """A window got other bounds by merging; its old ones are gone."""
        self.opened(slot, name)
        if held.early is not None and self._plan.periodic is not None:
            (self.wall if self._plan.periodic.clock == "wall" else self.event).add(slot, held.early, name)
        if held.timeout is not None:
            self.wall.add(slot, held.timeout, name)

    def gone(self, slot: int, name: WindowName, held: Held) -> None:
        """A window is no more, before its time."""
        if self._assigner.timed:
            self.own.remove(slot, self.drop_of(name), name)
            if self._plan.at_end and self._allow_late_us:
                self.own.remove(slot, self.end_of(name), name)
        self.over(slot, name, held)

    def over(self, slot: int, name: WindowName, held: Held) -> None:
        """A window's time is over: takes back what else was asked for."""
        if self._plan.periodic is not None:
            (self.wall if self._plan.periodic.clock == "wall" else self.event).remove(slot, held.early, name)
        self.wall.remove(slot, held.timeout, name)
        for at in held.event_timers:
            self.event.remove(slot, at, name)
        for at in held.wall_timers:
            self.wall.remove(slot, at, name)
