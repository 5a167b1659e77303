"""The windowed step that runs row by row: puts rows into windows, fires windows, drops them.

A batch is paired with its windows, and pairs are sorted by key and window. The trigger decides after which pairs a
window fires, the contents take the rows, and the schedule notes when a changed window is due. What is due by a clock
fires when all input is in (`headrace.windows.by_row.firing`).

Invariants
- The watermark does not move before `finish`: whether a row is late is judged by the one at the epoch's start.
- A row is late if every window it belongs to is gone. A window goes when the watermark has passed its end by the
  allowed lateness. It is removed from the state then, so the state holds exactly the open windows that have rows.
- Results of one key come out in the order of the rows that made them, however rows were cut into batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from headrace.errors import FunctionFailed, HeadraceError, StoreError
from headrace.model.batch import Int64s, Keys, Rows
from headrace.model.ids import MIN_TIME
from headrace.model.key_text import key_phrase
from headrace.operators.contract import LATE, TaskInfo
from headrace.operators.failures import READ_ERRORS, function_failed
from headrace.operators.keyed import KeyedBatch, KeyedOperator, decode_keys
from headrace.operators.process import call_plain
from headrace.windows.by_row.contents import (
    FIRE,
    PURGE,
    Accumulated,
    Contents,
    Fired,
    Pairs,
    Reduced,
    Refusal,
    StopAdding,
    Verdicts,
)
from headrace.windows.by_row.deciding import Decider, OwnTrigger, built_in_decider
from headrace.windows.by_row.firing import Firing
from headrace.windows.by_row.functions import WindowFunction
from headrace.windows.by_row.merging import Merging, by_keys
from headrace.windows.by_row.outcomes import (
    FunctionOutcome,
    Result,
    make_outcome,
)
from headrace.windows.by_row.row_contents import RowContents
from headrace.windows.by_row.schedule import Schedule, derive_plan, plain_spec, uses_wall_clock
from headrace.windows.by_row.window_state import EVER, OpenWindow, OpenWindows, WindowName, check_windows, window_codec
from headrace.windows.kinds import Session, has_window
from headrace.windows.sessions.gaps import Bools

if TYPE_CHECKING:
    from headrace.model.report import StepReport
    from headrace.operators.spec import StepInfo
    from headrace.state.shard import ShardState
    from headrace.windows.settings import WindowSettings


class WindowOperator(KeyedOperator):
    """Any kind of window with any trigger, evictor and function."""

    windows: OpenWindows
    stands_alone: ClassVar[bool] = False
    """Whether windows that were cut in another way may not go on beside these."""

    def __init__(self, spec: WindowSettings, info: StepInfo) -> None:
        super().__init__(info.step, info.key_type)
        self.said = spec
        self.spec = plain_spec(spec)
        self._cut = spec.windows
        """How windows are cut, in words."""
        self.assigner = self.spec.assigner
        self.entries_per_row = self.assigner.per_row
        self.plan = derive_plan(self.spec.fire, self.assigner)
        self.schedule = Schedule(self.assigner, self.plan, spec.allow_late_us)
        self.decider = self._make_decider(info)
        self.own_trigger = self.decider if isinstance(self.decider, OwnTrigger) else None
        self.function = None if spec.function is None else WindowFunction(spec.function, info)
        inner = _make_inner(self.spec, info)
        self.contents = _make_contents(self.spec, info, inner)
        self.outcome = make_outcome(self, self.spec, info, inner, self.function)
        mark: Any = int if self.decider is None else self.decider.mark
        self._stored = window_codec(self.contents.kinds, mark, each=self.contents.may_refuse)
        """How open windows are stored."""
        self.merging = Merging(self, self.assigner, info) if isinstance(self.assigner, Session) else None
        self.firing = Firing(self)

    def _make_decider(self, info: StepInfo) -> Decider | None:
        """The trigger that is asked after each row, if there is one."""
        trigger = self.plan.on_rows
        if trigger is None:
            return None
        built_in = built_in_decider(trigger, info.taken[0], f"step {info.step}")
        return built_in or OwnTrigger(trigger, self.spec.trigger_decls, info, self.schedule)

    def open(self) -> None:
        if self.function is not None:
            call_plain(self.function.function, "open", self.step)

    def close(self) -> None:
        if self.function is not None:
            call_plain(self.function.function, "close", self.step)

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        check_windows(self.state, self.assigner, self._cut, alone=self.stands_alone)
        self.windows = OpenWindows(self.state, self._stored, len(self.contents.kinds))
        self.schedule.begin(self.state, self.watermark, task)
        if isinstance(self.contents, RowContents):
            self.contents.begin(self.state, self.windows, task.epoch, self._tell_failure, self.place)
        if self.own_trigger is not None:
            self.own_trigger.begin(task, self.state, self.watermark)
        if self.function is not None:
            self.function.begin(task, self.state, self.watermark, self.outlets)
        self.firing.begin()
        self.outcome.begin(self.state)
        if isinstance(self.outcome, FunctionOutcome):
            self.outcome.keep_failed = self.keep_failed if self.keeps_errors else None

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
        wanted = timely.copy()
        if self.merging is None:
            some = np.flatnonzero(timely)
            wanted[some] = self._has_open(rows.times[some])
        if wanted.all():
            return rows, keys
        late = ~wanted & (~timely | (rows.times <= self.gone_upto))
        self.give_late(rows, np.flatnonzero(late))
        kept = np.flatnonzero(wanted)
        return rows.take(kept), keys.take(kept)

    @property
    def gone_upto(self) -> int:
        """Windows whose last instant is not beyond this are gone."""
        if self.assigner.clock == "wall":
            return MIN_TIME
        return max(self.watermark - self.spec.allow_late_us, MIN_TIME)

    def _has_open(self, times: Int64s) -> Bools:
        """Which times lie in a window that is not gone."""
        ends = self.assigner.last_ends(times)
        found: Bools = (ends - 1 > self.gone_upto) & (ends > times)
        return found

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
            for piece in by_keys(batch):
                for part in self.merging.parts(piece):
                    self._put(part.rows, np.arange(len(part.rows)), part.slots, part.starts, part.ends)
        elif self._takes_one_by_one:
            for position in range(len(batch.rows)):
                at = np.array([position])
                self._assign(KeyedBatch(batch.rows.take(at), batch.slots[at]))
        else:
            self._assign(batch)
        self.give()

    @property
    def _takes_one_by_one(self) -> bool:
        """A row that a function refuses must not count for the trigger, which may empty the window in between."""
        return self.decider is not None and self.contents.may_refuse and self.keeps_errors

    def _assign(self, batch: KeyedBatch) -> None:
        rows, count = batch.rows, len(batch.rows)
        if not self.assigner.timed:
            starts, ends = np.full(count, EVER[0], np.int64), np.full(count, EVER[1], np.int64)
            self._put(rows, np.arange(count), batch.slots, starts, ends)
            return
        assert rows.times is not None, f"step {self.step} has windows in time, and rows without"
        assigned = self.assigner.assign(rows.times)
        alive = assigned.ends - 1 > self.gone_upto
        positions = np.arange(count) if assigned.rows is None else assigned.rows
        starts, ends = assigned.starts, assigned.ends
        if not alive.all():
            positions, starts, ends = positions[alive], starts[alive], ends[alive]
        if len(positions):
            self._put(rows, positions, batch.slots[positions], starts, ends)

    def _put(self, rows: Rows, positions: Int64s, slots: Int64s, starts: Int64s, ends: Int64s) -> None:
        """Rows into their windows; ``positions`` are those of the pairs' rows in the batch."""
        order = np.lexsort((ends, starts, slots))
        positions, slots, starts, ends = positions[order], slots[order], starts[order], ends[order]
        fresh = np.ones(len(order), np.bool_)
        fresh[1:] = (slots[1:] != slots[:-1]) | (starts[1:] != starts[:-1]) | (ends[1:] != ends[:-1])
        firsts = np.flatnonzero(fresh)
        in_place = len(positions) == len(rows) and bool((positions[1:] > positions[:-1]).all())
        names = list(zip(starts[firsts].tolist(), ends[firsts].tolist()))
        pairs = Pairs(rows if in_place else rows.take(positions), positions, firsts, slots[firsts].tolist(), names)
        helds = [self.windows.find(slot, name) for slot, name in zip(pairs.slots, pairs.names)]
        self._take(*self._opened(pairs, helds))

    def _opened(self, pairs: Pairs, found: list[OpenWindow | None]) -> tuple[Pairs, list[OpenWindow], list[bool]]:
        """Windows for all pairs, and which of them are new; without those whose rows a function refuses."""
        helds = [held or self.windows.fresh() for held in found]
        new = [held is None for held in found]
        if not (self.contents.may_refuse and self.keeps_errors and self.merging is None):
            return pairs, helds, new
        left, kept = self.without_refused(pairs, helds)
        return left, [helds[i] for i in kept], [new[i] for i in kept]

    def _take(self, pairs: Pairs, helds: Sequence[OpenWindow], new: Sequence[bool]) -> None:
        if not len(pairs.positions):
            return
        for slot, name, held in zip(pairs.slots, pairs.names, helds):
            self.windows.put(slot, name, held)
        verdicts = None if self.decider is None else self._decide(pairs, helds)
        self._settle(pairs, helds, new, verdicts)
        try:
            fired = self.contents.add(pairs, helds, verdicts)
        except StopAdding as stop:
            raise self._failure(stop.refusal, pairs) from stop.refusal.error
        except FunctionFailed as error:
            raise self.place(error, None if error.stretch is None else pairs.slots[error.stretch]) from None
        if fired:
            self._fire_rows(fired)
            self._forget_bare(pairs, helds)

    def _forget_bare(self, pairs: Pairs, helds: Sequence[OpenWindow]) -> None:
        """Windows without an end never go: what is left of one that was emptied would stay for every key there was."""
        if not self.assigner.timed:
            for slot, name, held in zip(pairs.slots, pairs.names, helds):
                if held.is_bare:
                    self.windows.remove(slot, name)

    def _decide(self, pairs: Pairs, helds: Sequence[OpenWindow]) -> Verdicts:
        assert self.decider is not None
        try:
            verdicts = self.decider.decide(pairs, helds)
        except HeadraceError:
            raise
        except Exception as error:
            function = getattr(self.plan.on_rows, "fn", None)
            raise function_failed(error, step=self.step, function=function) from error
        if self.spec.discard:
            verdicts[(verdicts & FIRE) != 0] |= PURGE
        return verdicts

    def _settle(
        self, pairs: Pairs, helds: Sequence[OpenWindow], new: Sequence[bool], verdicts: Verdicts | None
    ) -> None:
        """Tells the schedule what changed, key by key: timetables are read ahead in the order of keys."""
        count = len(pairs.starts)
        fires = [False] * count
        rest = [True] * count
        if verdicts is not None:
            fires = (np.maximum.reduceat(verdicts & FIRE, pairs.starts) > 0).tolist()
            ends = np.append(pairs.starts[1:], len(pairs.positions)) - 1
            rest = ((verdicts[ends] & FIRE) == 0).tolist()
        for i, (slot, name, held) in enumerate(zip(pairs.slots, pairs.names, helds)):
            held.changed = rest[i]
            if new[i]:
                self.schedule.opened(slot, name)
            self.schedule.changed(slot, name, held, fired=fires[i])

    def _fire_rows(self, fired: list[Fired]) -> None:
        """Windows that fired on rows, in the order of the rows."""
        fired.sort(key=lambda each: (each.position, each.name))
        for each in fired:
            content = self.contents.resolve(each)
            if each.verdict & FIRE and content:
                late = self.schedule.is_past(each.name)
                each.held.late = each.held.late or late
                self.report.fired += 1
                home = each.held.home or each.name
                at = self.time_of(each.name, each.newest)
                self.outcome.take(
                    Result(each.slot, each.name, home, self.firing.pane(each.name), at, content, True, False)
                )

    def time_of(self, name: WindowName, newest: int | None) -> int | None:
        """The time of a result."""
        return name[1] - 1 if self.assigner.timed else newest

    # --- rows that a function refuses

    def without_refused(self, pairs: Pairs, helds: list[OpenWindow]) -> tuple[Pairs, list[int]]:
        """The pairs whose rows the user's functions take, and which stretches are left; the others are told."""
        refused = self.contents.refused(pairs, helds)
        if not refused:
            return pairs, list(range(len(helds)))
        told: set[int] = set()
        for refusal in sorted(refused, key=lambda each: int(pairs.positions[each.pair])):
            position = int(pairs.positions[refusal.pair])
            if position not in told:
                told.add(position)
                row, slot = self._culprit(refusal, pairs)
                times = pairs.rows.times
                at = None if times is None else int(times[refusal.pair])
                self.keep_failed(refusal.error, refusal.function, row, at, key=self.key_of(slot))
        kept = np.delete(np.arange(len(pairs.positions)), [each.pair for each in refused])
        stretches = pairs.stretch_of()[kept]
        left = np.unique(stretches)
        slots, names = [pairs.slots[i] for i in left.tolist()], [pairs.names[i] for i in left.tolist()]
        firsts = np.searchsorted(stretches, left)
        return Pairs(pairs.rows.take(kept), pairs.positions[kept], firsts, slots, names), left.tolist()

    def _culprit(self, refusal: Refusal, pairs: Pairs) -> tuple[Any, int]:
        stretch = int(np.searchsorted(pairs.starts, refusal.pair, "right")) - 1
        return pairs.rows.objects[refusal.pair], pairs.slots[stretch]

    def key_of(self, slot: int) -> Any:
        return decode_keys([self.state.name(slot)], self.key_type)[0]

    def place(self, error: FunctionFailed, slot: int | None) -> FunctionFailed:
        """An aggregate cannot be computed: says of which step, and of which key where that is known."""
        error.where = f"step {self.step}"
        error.found = "" if slot is None else key_phrase(self.key_of(slot))
        return error

    def _failure(self, refusal: Refusal, pairs: Pairs) -> Exception:
        row, slot = self._culprit(refusal, pairs)
        return self.stopped(refusal.error, refusal.function, row, slot)

    def stopped(self, error: Exception, function: Any, row: Any, slot: int) -> Exception:
        """The error that ends the task."""
        if isinstance(error, StoreError):
            return error
        key = self.key_of(slot)
        return function_failed(error, step=self.step, function=function, row=row, key=key, way_out=READ_ERRORS)

    def _tell_failure(self, error: Exception, function: Any, row: Any, slot: int, name: WindowName) -> None:
        """A window whose rows a function refuses gives no result: its row of errors does, or the task stops."""
        if not self.keeps_errors or isinstance(error, StoreError):
            raise self.stopped(error, function, row, slot) from error
        at = name[1] - 1 if self.assigner.timed else None
        self.keep_failed(error, function, row, at, key=self.key_of(slot))

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
        self.outcome.flush()
        if self.function is not None:
            self.function.bound.give_sides(self.outlets, timed=self.spec.timed or self.assigner.timed)
        self.give_failed()

    def end(self) -> StepReport:
        if self.function is not None:
            self.report.counters = self.function.bound.counts()
        if uses_wall_clock(self.plan, self.assigner, self.own_trigger is not None):
            self.report.next_due_us = self.state.next_due(self.schedule.wall.due_table, self.task.clock_us)
        return self.report


def _make_inner(spec: WindowSettings, info: StepInfo) -> Accumulated | Reduced | None:
    """What the rows of a window come to, beside the rows themselves."""
    if spec.aggs:
        return Accumulated(spec.aggs, info.taken[0], info.step)
    return None if spec.reduce is None else Reduced(spec.reduce, info.taken[0])


def _make_contents(spec: WindowSettings, info: StepInfo, inner: Accumulated | Reduced | None) -> Contents:
    by_rows = spec.keeps_rows or inner is None
    contents = RowContents(info.taken[0], spec.assigner, spec.evict, inner) if by_rows else inner
    assert contents is not None
    contents.stamps = not spec.assigner.timed
    return contents
