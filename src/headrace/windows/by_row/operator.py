"""The windowed step that runs row by row.

For each row of a key, in order, and each window that it belongs to: the open window is found, the row is put in
(`headrace.windows.by_row.contents`), the trigger is asked, and the window fires or is emptied. When the rows of a key
are over, its windows are written, with the times at which they are due (`headrace.windows.by_row.key_windows`). What is
due by a clock fires when all input is in (`headrace.windows.by_row.firing`).

Invariants
- The watermark does not move before `finish`: whether a row is late is judged by the one at the epoch's start.
- A row is late if every window it belongs to is gone. A window goes when the watermark has passed its end by the
  allowed lateness. It is removed from the state then, so the state holds exactly the open windows that have rows.
- Results of one key come out in the order of the rows that made them, however rows were cut into batches.
- A row that a function refuses changes nothing: no window, no trigger, no session.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import FunctionFailed, StoreError
from headrace.model.batch import Int64s, Keys, Rows
from headrace.model.ids import MIN_TIME
from headrace.operators.contract import LATE, TaskInfo
from headrace.operators.keyed import KeyedBatch, KeyedOperator
from headrace.operators.process import call_plain
from headrace.windows.by_row.contents import AggregatedContents, Contents, ReducedContents, RowRefused
from headrace.windows.by_row.firing import WindowFiring
from headrace.windows.by_row.functions import WindowFunction
from headrace.windows.by_row.key_windows import KeySessions, KeyWindows, OpenWindows
from headrace.windows.by_row.merging import SessionMerging
from headrace.windows.by_row.results import make_result_rows
from headrace.windows.by_row.row_contents import RowContents
from headrace.windows.by_row.row_triggers import OwnTrigger, make_row_trigger
from headrace.windows.by_row.schedule import Schedule, derive_plan, plain_spec
from headrace.windows.by_row.window_state import EVER, OpenWindow, WindowName, window_codec
from headrace.windows.kinds import Session, has_window

if TYPE_CHECKING:
    from headrace.model.report import StepReport
    from headrace.operators.spec import StepInfo
    from headrace.state.shard import ShardState
    from headrace.windows.sessions.gaps import Bools
    from headrace.windows.settings import WindowSettings


class WindowOperator(KeyedOperator):
    """Any kind of window with any trigger, evictor and function."""

    windows: OpenWindows
    key: KeyWindows

    def __init__(self, spec: WindowSettings, info: StepInfo) -> None:
        super().__init__(info.step, info.key_type)
        self.settings = spec
        """As the user said it; ``spec`` has no windows of rows."""
        self.spec = plain_spec(spec)
        self.assigner = self.spec.assigner
        self.entries_per_row = self.assigner.per_row
        self.plan = derive_plan(self.spec.fire, self.assigner)
        self.trigger = make_row_trigger(self.plan.on_rows, spec.trigger_decls, info)
        self.own_trigger = self.trigger if isinstance(self.trigger, OwnTrigger) else None
        self.schedule = Schedule(self.assigner, self.plan, spec.allow_late_us, own_timers=self.own_trigger is not None)
        self.function = None if spec.function is None else WindowFunction(spec.function, info)
        inner = _make_inner(self.spec, info)
        self.contents: Contents = (
            RowContents(info.taken[0], self.assigner, self.spec.evict, inner)
            if inner is None or self.spec.keeps_rows
            else inner
        )
        self.results = make_result_rows(self, self.spec, info, inner, self.function)
        mark: Any = int if self.trigger is None else self.trigger.mark
        self._stored = window_codec(self.contents.kinds, mark)._replace(
            each=self.contents.may_refuse, find_misfit=self.contents.find_misfit
        )
        """How open windows are stored."""
        self.merging = SessionMerging(self, self.assigner, info) if isinstance(self.assigner, Session) else None
        self.firing = WindowFiring(self)
        self._times: list[int] | None = None
        """Of the rows of the batch."""
        self._refused_row = -1

    def open(self) -> None:
        if self.function is not None:
            call_plain(self.function.function, "open", self.step)

    def close(self) -> None:
        if self.function is not None:
            call_plain(self.function.function, "close", self.step)

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        self.schedule.begin(self.state, self.watermark, task)
        self.windows = OpenWindows(self.state, self._stored, len(self.contents.kinds), self.schedule)
        if self.merging is None:
            self.key = KeyWindows(self)
        else:
            self.key = self.merging.key = KeySessions(self)
        if isinstance(self.contents, RowContents):
            self.contents.begin(self.state, self.windows, task.epoch, self._keep_refused, self.place)
        if self.own_trigger is not None:
            self.own_trigger.begin(task, self.state, self.watermark)
        if self.function is not None:
            self.function.begin(task, self.state, self.outlets)
        self.firing.begin()
        self.results.begin()

    # --- which rows come in at all

    def _part_late(self, rows: Rows, keys: Keys) -> tuple[Rows, Keys]:
        """Rows that no open window takes go to where late rows go; those between windows belong nowhere."""
        if not self.assigner.timed:
            return rows, keys
        if self.assigner.clock == "wall":
            return rows.with_times(np.full(len(rows), self.task.clock_us, np.int64)), keys
        if rows.times is None:
            rows = rows.with_times(np.full(len(rows), MIN_TIME, np.int64))
        assert rows.times is not None
        timely = has_window(rows.times)
        if timely.all() and (self.watermark <= MIN_TIME or self.merging is not None):
            return rows, keys
        open_to = timely.copy()
        if self.merging is None:
            some = np.flatnonzero(timely)
            open_to[some] = self._has_open(rows.times[some])
        if open_to.all():
            return rows, keys
        late = ~open_to & (~timely | (rows.times <= self.gone_upto))
        self.give_late(rows, np.flatnonzero(late))
        in_time = np.flatnonzero(open_to)
        return rows.take(in_time), keys.take(in_time)

    @property
    def gone_upto(self) -> int:
        """Windows whose last instant is not beyond this are gone."""
        if self.assigner.clock == "wall":
            return MIN_TIME
        return self.task.closed_at(self.step, self.watermark, self.spec.allow_late_us)

    def _has_open(self, times: Int64s) -> Bools:
        """Which times lie in a window that is not gone."""
        ends = self.assigner.last_ends(times)
        is_open: Bools = (ends - 1 > self.gone_upto) & (ends > times)
        return is_open

    def give_late(self, rows: Rows, positions: Int64s) -> None:
        if len(positions):
            self.report.late += len(positions)
            outlet = self.outlets.get(LATE)
            if outlet is not None:
                outlet(rows.take(positions))

    # --- a batch

    def handle(self, port: int, batch: KeyedBatch) -> None:
        self.contents.forget()
        if self.merging is not None:
            batch, gaps = self.merging.with_gaps(batch)
        rows = batch.rows
        if len(rows):
            self._times = None if rows.times is None else rows.times.tolist()
            self._refused_row = -1
            self.contents.begin_batch(rows, guarded=self.keeps_errors)
            if self.trigger is not None:
                self.trigger.begin_batch(rows)
            if self.merging is not None:
                self.give_late(rows, self.merging.take(batch, gaps))
            else:
                self._take(batch)
            self.key.write()
        self.give()

    def _take(self, batch: KeyedBatch) -> None:
        """Puts rows into their windows."""
        key, add = self.key, self.add
        ask = None if self.trigger is None else self.ask
        for row, slot, name in self._pairs(batch):
            if slot != key.slot:
                key.enter(slot)
            window = key.changed.get(name)
            if window is None:
                window = key.find(name)
                if not add(slot, window, row):
                    continue
                key.changed[name] = window
            elif not add(slot, window, row):
                continue
            if ask is not None:
                ask(slot, name, window, row)

    def _pairs(self, batch: KeyedBatch) -> Iterable[tuple[int, int, WindowName]]:
        """Each row with its key and each window it belongs to that is not gone, by the bounds of the windows."""
        slots = batch.slots
        if not self.assigner.timed:
            return zip(range(len(slots)), slots.tolist(), repeat(EVER))
        assert batch.rows.times is not None, f"step {self.step} has windows in time, and rows without"
        assigned = self.assigner.assign(batch.rows.times)
        rows = np.arange(len(slots)) if assigned.rows is None else assigned.rows
        alive = assigned.ends - 1 > self.gone_upto
        rows, starts, ends = rows[alive], assigned.starts[alive], assigned.ends[alive]
        return zip(rows.tolist(), slots[rows].tolist(), zip(starts.tolist(), ends.tolist()))

    def add(self, slot: int, window: OpenWindow, row: int) -> bool:
        """Puts a row of the batch into a window; False: a function refused it."""
        try:
            self.contents.add(slot, window, row)
        except RowRefused as refused:
            self._refuse(refused, slot, row)
            return False
        window.size += 1
        window.changed = True
        if self._times is not None and not self.assigner.timed:
            # Results of windows without an end have the time of their newest row.
            at = self._times[row]
            window.newest = at if window.newest is None else max(window.newest, at)
        return True

    def ask(self, slot: int, name: WindowName, window: OpenWindow, row: int) -> None:
        """Asks the trigger, if there is one, after a row that was put into a window."""
        if self.trigger is not None and (verdict := self.trigger.ask(slot, name, window, row)):
            self.firing.carry_out(verdict, slot, name, window)

    def settle(self, slot: int, window: OpenWindow) -> None:
        """Brings what a window holds up to date."""
        try:
            self.contents.settle(window)
        except FunctionFailed as error:
            raise self.place(error, slot) from None

    # --- what goes wrong

    def _refuse(self, refused: RowRefused, slot: int, row: int) -> None:
        """A function refused a row of the batch: it is kept once, however many windows it belongs to."""
        again, self._refused_row = row == self._refused_row, row
        if again and self.keeps_errors and not refused.stops:
            return
        self._keep_refused(refused, slot, None if self._times is None else self._times[row])

    def _keep_refused(self, refused: RowRefused, slot: int, at_us: int | None) -> None:
        """What a function refused, a row or a whole window, goes where errors are read; or the task stops."""
        error, function, row = refused.error, refused.function, refused.row
        if not self.keeps_errors or refused.stops or isinstance(error, StoreError):
            raise self.failure(error, function, row, slot) from error
        self.keep_failed(error, function, row, at_us, key=self.key_of(slot))

    # --- the end of an epoch

    def finish(self) -> Iterator[None]:
        reached = self.task.ends_at(self.step)
        if self.function is not None:
            self.function.reach(reached)
        if self.own_trigger is not None:
            self.own_trigger.reach(reached)
        for fired in self.firing.run(reached):
            self.give()
            self.state.relieve(fired)
            yield

    def give(self) -> None:
        """Sends on everything that was made so far; slots still mean the same keys."""
        self.results.flush()
        if self.function is not None:
            self.function.bound.give_sides(self.outlets, timed=self.spec.timed or self.assigner.timed)
        self.give_failed()

    def end(self) -> StepReport:
        if self.function is not None:
            self.report.counters = self.function.bound.counts()
        if self.schedule.uses_wall_clock:
            self.report.next_due_us = self.state.indexes.next_due(self.schedule.wall.due_table, self.task.clock_us)
        return self.report


def _make_inner(spec: WindowSettings, info: StepInfo) -> Contents | None:
    """What the rows of a window come to, where that is not the rows themselves."""
    if spec.aggs:
        return AggregatedContents(spec.aggs, info.taken[0], info.step)
    return None if spec.reduce is None else ReducedContents(spec.reduce, info.taken[0])
