"""Windows give results and go: when a trigger says so after a row, and by a clock, when all input of an epoch is in.

Where to look comes from the timetables; the window says whether there is something to do. For each key event time comes
first, then the wall clock, each in the order of time, windows of one time in the order of their bounds. A window whose
end has come gives its result there, and none that was asked for earlier: of one epoch it would say the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from headrace.operators.failures import function_failed
from headrace.operators.process import MAX_REARMS, DueRange, find_due
from headrace.state.shard import EVENT_DUE, WALL_DUE
from headrace.windows.by_row.results import WindowResult
from headrace.windows.by_row.row_triggers import FIRE, PURGE
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


class WindowFiring:
    """Fires the windows of one step."""

    def __init__(self, operator: WindowOperator) -> None:
        self._operator = operator
        self._reached: int | None = None
        """How far event time has come when the epoch ends; None: its rows are still coming."""
        self._touched = 0

    def begin(self) -> None:
        self._reached = None

    # --- one window

    def carry_out(self, verdict: int, slot: int, name: WindowName, window: OpenWindow) -> None:
        """Does what a trigger said."""
        if verdict & FIRE:
            self.fire(slot, name, window)
        if verdict & PURGE and window.size:
            self._operator.contents.purge(slot, name, window)

    def fire(self, slot: int, name: WindowName, window: OpenWindow, *, main: bool = True, finals: bool = False) -> None:
        """A window gives a result, if it holds anything: to the main outlet, to ``finals``, or to both."""
        operator = self._operator
        finals = finals and FINALS in operator.outlets
        if not window.size or not (main or finals):
            return
        self._touched += window.size if operator.spec.keeps_rows else 1
        operator.settle(slot, window)
        at = name[1] - 1 if operator.assigner.timed else window.newest
        content = operator.contents.read(slot, name, window)
        pane: Pane = self._pane(name) if main else "late" if window.late else "on_time"
        if content:
            home = window.home or name
            operator.results.take(WindowResult(slot, name, home, pane, at, content, main, finals))
        if not main:
            return
        if content:
            operator.report.fired += 1
            window.late = window.late or pane == "late"
        window.changed, window.timeout = False, None
        if operator.spec.discard:
            operator.contents.purge(slot, name, window)

    def _pane(self, name: WindowName) -> Pane:
        """Whether a result that is given now comes before, with or after the end of its window."""
        operator, end = self._operator, name[1] - 1
        if not operator.assigner.timed:
            return "on_time" if isinstance(operator.settings.assigner, RowCount) else "early"
        if operator.schedule.is_past(name):
            return "late"
        if self._reached is None:
            return "early"
        reached = operator.task.clock_us if operator.assigner.clock == "wall" else self._reached
        return "on_time" if end <= reached else "early"

    # --- everything that is due

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
                self._fire_key(slot, due.times[EVENT_DUE][start], due.times[WALL_DUE][start], reached)
                start += 1
                if self._touched > CHUNK_ROWS:
                    break
            yield self._touched

    def _fire_key(self, slot: int, event_times: list[int], wall_times: list[int], reached: int) -> None:
        schedule, clock = self._operator.schedule, self._operator.task.clock_us
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
        due = table.take(slot, upto_us)
        if due is None:
            return False
        at, names = due
        windows, is_event = self._operator.windows, table.due_table == EVENT_DUE
        for name in names:
            window = windows.find(slot, name)
            if window is None:
                continue
            window.awaited -= {(is_event, at)}
            goes = self._look_at(slot, name, window, at, is_event)
            if goes:
                self._clear(slot, name, window)
            if goes or (not self._operator.assigner.timed and window.is_bare):
                windows.remove(slot, window)
            else:
                windows.write(slot, name, window)
        return True

    def _look_at(self, slot: int, name: WindowName, window: OpenWindow, at: int, is_event: bool) -> bool:
        """Does what is due for a window; whether it goes then."""
        operator, plan, schedule = self._operator, self._operator.plan, self._operator.schedule
        if operator.own_trigger is not None:
            verdict = operator.own_trigger.on_time(slot, name, window, at, is_event=is_event)
            self.carry_out(verdict, slot, name, window)
        if plan.periodic is not None and window.early == at and (plan.periodic.clock == "event") == is_event:
            window.early = None
            if window.changed and not self._ends_now(name):
                self.fire(slot, name, window)
        if not is_event and window.timeout == at:
            window.timeout, window.count = None, 0
            self.fire(slot, name, window)
        if not is_event and plan.per_epoch and window.changed and at == operator.task.clock_us:
            self.fire(slot, name, window)
        if not operator.assigner.timed or (operator.assigner.clock == "event") != is_event:
            return False
        goes = at == schedule.drop_of(name)
        if plan.at_end and at == name[1] - 1 and (window.changed or not schedule.is_past(name)):
            self.fire(slot, name, window, finals=goes)
        elif goes:
            # What the epoch would still give out for a window that goes with it comes now or never.
            self.fire(slot, name, window, main=plan.per_epoch and window.changed, finals=True)
        return goes

    def _ends_now(self, name: WindowName) -> bool:
        """Whether the end of a window comes with this epoch and gives a result of its own."""
        operator = self._operator
        if not (operator.assigner.timed and operator.plan.at_end):
            return False
        reached = self._reached if operator.assigner.clock == "event" else operator.task.clock_us
        return name[1] - 1 <= (reached or 0)

    def _clear(self, slot: int, name: WindowName, window: OpenWindow) -> None:
        """Throws away what lies elsewhere for a window."""
        operator = self._operator
        operator.contents.drop(slot, name, window)
        if operator.function is not None:
            operator.function.scoped.clear(slot, window.home or name)
        if operator.own_trigger is not None:
            operator.own_trigger.clear(slot, name, window)

    def _endless(self, slot: int) -> Exception:
        operator = self._operator
        error = RuntimeError(
            "its timers were set again and again in one epoch, each time for a time that has passed; at the end of "
            "drained input every time has passed, and ctx.watermark tells"
        )
        function = None if operator.own_trigger is None else operator.own_trigger.trigger.on_event_time
        return function_failed(error, step=operator.step, function=function, key=operator.key_of(slot))
