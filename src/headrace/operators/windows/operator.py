"""The windowed step: puts rows into windows, fires windows, lets them go.

A batch goes through here in bulk. Rows are paired with their windows, pairs are put in the order of key and window, the
trigger says after which of them something happens, contents take the rows, and timetables are told what the changed
windows want. What is due by a clock fires when all input is in (`headrace.operators.windows.firing`).

Invariants
- The watermark does not move before `finish`: whether a row is late is judged by the one at the epoch's start.
- A row is late if every window it belongs to is gone. Windows go when the watermark has passed their end by the allowed
  lateness; they are then removed from the state, so what is open is in the state and what is not is gone or not yet.
- Results of one key come out in the order of the rows that made them, however rows were cut into batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from headrace.errors import HeadraceError, StoreError
from headrace.model.batch import Int64s, Keys, Rows
from headrace.model.ids import MIN_TIME
from headrace.operators.contract import LATE, TaskInfo
from headrace.operators.failures import READ_ERRORS, function_failed
from headrace.operators.keyed import KeyedBatch, KeyedOperator, decode_keys
from headrace.operators.windows import building
from headrace.operators.windows.assigners import Session, has_window
from headrace.operators.windows.changed import check_windows
from headrace.operators.windows.contents import FIRE, PURGE, Fired, Pairs, Refusal, StopAdding, Verdicts
from headrace.operators.windows.firing import Firing
from headrace.operators.windows.held import EVER, Held, OpenWindows, WindowName
from headrace.operators.windows.kept import RowContents
from headrace.operators.windows.merging import Merging
from headrace.operators.windows.outcomes import FunctionOutcome, Result
from headrace.operators.windows.own_trigger import OwnTrigger
from headrace.operators.windows.plan import plain_spec
from headrace.operators.windows.sessions import Bools
from headrace.state.cells import WINDOW_KEYS

if TYPE_CHECKING:
    from headrace.model.report import StepReport
    from headrace.operators.spec import StepInfo
    from headrace.operators.windows.spec import WindowSpec
    from headrace.state.shard import ShardState


class WindowOperator(KeyedOperator):
    """Any kind of window with any trigger, evictor and function."""

    windows: OpenWindows
    stands_alone: ClassVar[bool] = False
    """Whether windows that were cut in another way may not go on beside these."""

    def __init__(self, spec: WindowSpec, info: StepInfo) -> None:
        super().__init__(info.step, info.key_type)
        self.said = spec
        self.spec = plain_spec(spec)
        self._cut = spec.windows
        """How windows are cut, in words."""
        self.assigner = self.spec.assigner
        self.entries_per_row = self.assigner.per_row
        parts = building.build_parts(self, self.spec, info)
        self.plan, self.schedule, self.contents = parts.plan, parts.schedule, parts.contents
        self.decider, self.function, self.outcome = parts.decider, parts.function, parts.outcome
        self.own_trigger = self.decider if isinstance(self.decider, OwnTrigger) else None
        self._stored = parts.stored
        self.merging = Merging(self, self.assigner, info) if isinstance(self.assigner, Session) else None
        self.firing = Firing(self)

    def open(self) -> None:
        if self.function is not None:
            self.function.call_plain("open")

    def close(self) -> None:
        if self.function is not None:
            self.function.call_plain("close")

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        check_windows(self.state, self.assigner, self._cut, alone=self.stands_alone)
        self.windows = OpenWindows(self.state, self._stored, len(self.contents.kinds))
        self.schedule.begin(self.state, self.watermark, task)
        if isinstance(self.contents, RowContents):
            self.contents.begin(self.state, self.windows, task.epoch, self._tell_failure)
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
            for piece in _by_keys(batch):
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

    def _opened(self, pairs: Pairs, found: list[Held | None]) -> tuple[Pairs, list[Held], list[bool]]:
        """Windows for all pairs, and which of them are new; without those whose rows a function refuses."""
        helds = [held or self.windows.fresh() for held in found]
        new = [held is None for held in found]
        if not (self.contents.may_refuse and self.keeps_errors and self.merging is None):
            return pairs, helds, new
        left, kept = self.without_refused(pairs, helds)
        return left, [helds[i] for i in kept], [new[i] for i in kept]

    def _take(self, pairs: Pairs, helds: Sequence[Held], new: Sequence[bool]) -> None:
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
        if fired:
            self._fire_rows(fired)
            self._forget_bare(pairs, helds)

    def _forget_bare(self, pairs: Pairs, helds: Sequence[Held]) -> None:
        """Windows without an end never go: what is left of one that was emptied would stay for every key there was."""
        if not self.assigner.timed:
            for slot, name, held in zip(pairs.slots, pairs.names, helds):
                if held.is_bare:
                    self.windows.remove(slot, name)

    def _decide(self, pairs: Pairs, helds: Sequence[Held]) -> Verdicts:
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

    def _settle(self, pairs: Pairs, helds: Sequence[Held], new: Sequence[bool], verdicts: Verdicts | None) -> None:
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

    def without_refused(self, pairs: Pairs, helds: list[Held]) -> tuple[Pairs, list[int]]:
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
            self.function.give_sides(self.outlets, timed=self.spec.timed or self.assigner.timed)
        self.give_failed()

    def end(self) -> StepReport:
        if self.function is not None:
            self.report.counters = self.function.counters()
        if building.uses_wall_clock(self.plan, self.assigner, self.own_trigger is not None):
            self.report.next_due_us = self.state.next_due(self.schedule.wall.due_table, self.task.clock_us)
        return self.report


def _by_keys(batch: KeyedBatch) -> Iterator[KeyedBatch]:
    """A batch in pieces of no more keys than are read ahead together, so that what was read is still there."""
    starts = batch.starts()
    if len(starts) <= WINDOW_KEYS:
        yield batch
        return
    bounds = [*starts[::WINDOW_KEYS].tolist(), len(batch.rows)]
    for start, end in pairwise(bounds):
        piece = np.arange(start, end)
        yield KeyedBatch(batch.rows.take(piece), batch.slots[piece])
