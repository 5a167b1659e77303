"""What happens to windows by a clock, when all input of an epoch is in: they fire, and they go.

Where to look comes from the timetables; whether there is something to do is told by the window. For each key event time
comes first, then the wall clock, each in the order of time, windows of one time in the order of their bounds. A window
whose end has come gives its result there, and none that was asked for earlier: of one epoch it would say the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from headrace.operators.failures import function_failed
from headrace.operators.process import MAX_REARMS, DueRange, find_due
from headrace.state.shard import EVENT_DUE, WALL_DUE
from headrace.windows.by_row.contents import FIRE, PURGE
from headrace.windows.by_row.outcomes import Result
from headrace.windows.by_row.schedule import Timetable
from headrace.windows.by_row.window_state import OpenWindow, WindowName
from headrace.windows.context import Pane
from headrace.windows.kinds import RowCount
from headrace.windows.settings import FINALS

if TYPE_CHECKING:
    from headrace.windows.by_row.operator import WindowOperator


CHUNK_KEYS: Final = 8_192
"""Keys whose windows are looked at together …"""
CHUNK_ROWS: Final = 65_536
"""… and rows that may be taken into memory before changes may have to leave it."""


class Firing:
    """Fires the windows of one step."""

    def __init__(self, operator: WindowOperator) -> None:
        self._operator = operator
        self._reached: int | None = None
        self._touched = 0

    def begin(self) -> None:
        self._reached = None

    def run(self, reached: int) -> Iterator[int]:
        """Looks at everything that is due; now and then, with no key at hand, yields how many rows that touched."""
        operator, task = self._operator, self._operator.task
        self._reached = reached
        ranges = (
            DueRange(EVENT_DUE, operator.watermark, reached),
            DueRange(WALL_DUE, task.last_clock_us, task.clock_us),
        )
        due = find_due(operator.state, ranges, (EVENT_DUE, WALL_DUE))
        start = 0
        while start < len(due.keys):
            end = start + CHUNK_KEYS
            operator.contents.forget()
            slots = operator.state.enter(due.hashes[start:end], due.keys[start:end])
            self._touched = 0
            for slot in slots.tolist():
                self._fire_key(slot, due.times[EVENT_DUE][start], due.times[WALL_DUE][start])
                start += 1
                if self._touched > CHUNK_ROWS:
                    break
            yield self._touched

    def _fire_key(self, slot: int, event_times: list[int], wall_times: list[int]) -> None:
        schedule, reached, clock = self._operator.schedule, self._reached or 0, self._operator.task.clock_us
        left = MAX_REARMS + len(event_times) + len(wall_times)
        schedule.event.expect(event_times)
        schedule.wall.expect(wall_times)
        while self._look(slot, schedule.event, reached) or self._look(slot, schedule.wall, clock):
            left -= 1
            if left < 0:
                raise self._endless(slot)
        schedule.event.expect(None)
        schedule.wall.expect(None)

    def _look(self, slot: int, table: Timetable, upto_us: int) -> bool:
        """Looks at the windows of the earliest time that is due; False: nothing is."""
        found = table.take(slot, upto_us)
        if found is None:
            return False
        at, names = found
        windows, endless = self._operator.windows, not self._operator.assigner.timed
        for name in names:
            held = windows.find(slot, name)
            if held is None or self._look_at(slot, name, held, at, table.due_table == EVENT_DUE):
                continue
            if endless and held.is_bare:
                windows.remove(slot, name)
            else:
                windows.put(slot, name, held)
        return True

    def _look_at(self, slot: int, name: WindowName, held: OpenWindow, at: int, event: bool) -> bool:
        """Does what is due for a window; whether it is gone then."""
        operator, plan, schedule = self._operator, self._operator.plan, self._operator.schedule
        if operator.own_trigger is not None and at in (held.event_timers if event else held.wall_timers):
            self._ask(slot, name, held, at, event)
        if plan.periodic is not None and held.early == at and (plan.periodic.clock == "event") == event:
            held.early = None
            if held.changed and not self._ends_now(name):
                self.fire(slot, name, held)
        if not event and held.timeout == at:
            held.timeout, held.count = None, 0
            self.fire(slot, name, held)
        if not event and plan.per_epoch and held.changed and at == operator.task.clock_us:
            self.fire(slot, name, held)
        if not operator.assigner.timed or (operator.assigner.clock == "event") != event:
            return False
        drops = at == schedule.drop_of(name)
        if plan.at_end and at == schedule.end_of(name) and (held.changed or not schedule.is_past(name)):
            self.fire(slot, name, held, finals=drops)
        elif drops:
            # What the epoch would still give out for a window that goes with it comes now or never.
            self.fire(slot, name, held, main=plan.per_epoch and held.changed, finals=True)
        if drops:
            self._drop(slot, name, held)
        return drops

    def _ends_now(self, name: WindowName) -> bool:
        """Whether the end of a window comes with this epoch and gives a result of its own."""
        operator = self._operator
        if not (operator.assigner.timed and operator.plan.at_end):
            return False
        reached = self._reached if operator.assigner.clock == "event" else operator.task.clock_us
        return operator.schedule.end_of(name) <= (reached or 0)

    def _ask(self, slot: int, name: WindowName, held: OpenWindow, at: int, event: bool) -> None:
        operator = self._operator
        assert operator.own_trigger is not None
        call = operator.own_trigger.on_event_time if event else operator.own_trigger.on_wall_time
        verdict = call(slot, name, held, at)
        if verdict & FIRE:
            self.fire(slot, name, held)
        if verdict & PURGE and held.size:
            operator.contents.purge(slot, name, held)

    def fire(self, slot: int, name: WindowName, held: OpenWindow, *, main: bool = True, finals: bool = False) -> None:
        """A window gives a result, if it holds anything: to the main outlet, to ``finals``, or to both."""
        operator = self._operator
        finals = finals and FINALS in operator.outlets
        if not held.size or not (main or finals):
            return
        self._touched += held.size if operator.spec.keeps_rows else 1
        content = operator.contents.read(slot, name, held)
        pane: Pane = self.pane(name) if main else "late" if held.late else "on_time"
        if content:
            at = operator.time_of(name, held.newest)
            operator.outcome.take(Result(slot, name, held.home or name, pane, at, content, main, finals))
        if not main:
            return
        operator.report.fired += 1
        held.changed = False
        held.late = held.late or pane == "late"
        operator.schedule.stop_waiting(slot, name, held)
        if operator.spec.discard:
            operator.contents.purge(slot, name, held)

    def pane(self, name: WindowName) -> Pane:
        """Whether a result that is given now comes before, with or after the end of its window."""
        operator = self._operator
        if not operator.assigner.timed:
            return "on_time" if isinstance(operator.said.assigner, RowCount) else "early"
        end = operator.schedule.end_of(name)
        if operator.assigner.clock == "wall":
            return "on_time" if self._reached is not None and end <= operator.task.clock_us else "early"
        if operator.schedule.is_past(name):
            return "late"
        return "on_time" if self._reached is not None and end <= self._reached else "early"

    def _drop(self, slot: int, name: WindowName, held: OpenWindow) -> None:
        operator = self._operator
        operator.schedule.over(slot, name, held)
        operator.contents.drop(slot, name, held)
        if operator.function is not None:
            operator.function.scoped.clear(slot, held.home or name)
        if operator.own_trigger is not None:
            operator.own_trigger.clear(slot, name, held)
        operator.windows.remove(slot, name)

    def _endless(self, slot: int) -> Exception:
        operator = self._operator
        error = RuntimeError(
            "its timers were set again and again in one epoch, each time for a time that has passed; at the end of "
            "drained input every time has passed, and ctx.watermark tells"
        )
        function = None if operator.own_trigger is None else operator.own_trigger.trigger.on_event_time
        return function_failed(error, step=operator.step, function=function, key=operator.key_of(slot))
