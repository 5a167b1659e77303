"""Windows of declared aggregates, columnar: rows become partial aggregates of slices, windows are merged from them.

Nothing happens per row or per key in Python. A batch is lifted into columns and added to the state, which merges now
and then; no run is read on the way in. At the end of the epoch the windows that fire are merged from what runs and this
epoch hold of their slices, and their results leave as columns.

When windows fire: at their end; again in an epoch whose rows came late but were allowed; early at times that are
multiples of a span, or at the end of every epoch, for keys that changed since. A row is late when the last window that
holds its slice is over, lateness included, by the watermark as the epoch began.

Sessions are done by `headrace.windows.sessions.operator`. Windows that neither does (own triggers, functions over rows)
are done by `headrace.windows.by_row.operator`, row by row, with the same results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import FunctionFailed
from headrace.model.batch import Int64s, Keys, Rows
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.operators.contract import LATE, TaskInfo
from headrace.operators.spec import COMBINED_PORT
from headrace.state.panes.table import first_live_pane
from headrace.windows.columnar import EARLY, EMIT_ROWS, LATE_PANE, ON_TIME, ColumnarWindows, Mask
from headrace.windows.settings import FINALS
from headrace.windows.sliced.firing import Firing, Part, WindowMerger
from headrace.windows.sliced.plan import PanePlan, Stamp
from headrace.windows.triggers import PerEpoch, Periodic

if TYPE_CHECKING:
    from headrace.operators.spec import StepInfo
    from headrace.state.shard import ShardState
    from headrace.windows.settings import WindowSettings


class PaneOperator(ColumnarWindows):
    """One windowed step whose windows can be cut into slices and whose aggregates merge."""

    plan: PanePlan

    def __init__(self, spec: WindowSettings, info: StepInfo) -> None:
        super().__init__(spec, info, PanePlan(spec, info))
        self.slices = self.plan.slices
        self._stamp = Stamp()

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        self._stamp = Stamp(self.mark, self.before_us)

    # --- rows

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        if not len(rows):
            return
        assert keys is not None, f"step {self.step} is keyed and was given rows without keys"
        self.state.check_owned(keys.hashes)
        try:
            if port == COMBINED_PORT:
                self._add_partials(rows, keys)
            else:
                self._add_rows(rows, keys)
            self.state.relieve(len(rows))
        except FunctionFailed as error:
            raise self._placed(error) from error

    def _add_rows(self, rows: Rows, keys: Keys) -> None:
        self.report.rows_in += len(rows)
        panes = self._panes_of(rows)
        late = self._late(panes, rows.times)
        if late is not None:
            self.report.late += int(np.count_nonzero(late))
            outlet = self.outlets.get(LATE)
            if outlet is not None:
                outlet(rows.take(np.flatnonzero(late)))
        kept = self._counting_rows(panes, late)
        if kept is not None:
            rows, keys, panes = rows.take(kept), keys.take(kept), panes[kept]
        if len(rows):
            self._add(panes, keys, self.plan.lift(rows))

    def _add_partials(self, rows: Rows, keys: Keys) -> None:
        """Rows that were combined before the exchange: the slice is in the place of their time."""
        assert rows.times is not None
        panes, counts = rows.times, rows.columns[0].to_numpy(zero_copy_only=False)
        self.report.rows_in += int(counts.sum())
        late = self._late(panes, panes)
        if late is not None:
            self.report.late += int(counts[late].sum())
        kept = self._counting_rows(panes, late)
        if kept is not None:
            rows, keys, panes = rows.take(kept), keys.take(kept), panes[kept]
        if len(rows):
            self._add(panes, keys, rows.columns[1:])

    def _add(self, panes: Int64s, keys: Keys, accs: Sequence[pa.Array]) -> None:
        """Rows that come when a window of their slice is closed for good do not change what it has come to."""
        if self.before_us > MIN_TIME and not self._by_wall and not self.slices.one_window:
            panes = self.slices.leave_out(panes, self._closed_upto(self.before_us))
        self.column.add(self.plan.table(panes, keys, accs, self._stamp))

    def _panes_of(self, rows: Rows) -> Int64s:
        if not self._by_wall:
            return np.full(len(rows), MIN_TIME) if rows.times is None else self.slices.of(rows.times)
        return np.full(len(rows), self.slices.of(np.array([self._now()], np.int64))[0])

    def _late(self, panes: Int64s, times: Int64s | None) -> Mask | None:
        """Rows whose last window is over, lateness included, or that no window can be computed for; None: no one."""
        late = panes == MIN_TIME
        if self.before_us > MIN_TIME and not self._by_wall:
            closed_us = self._closed_upto(self.before_us)
            over = self.slices.last_ends(panes) - 1 <= closed_us
            if self.slices.has_gaps and times is not None:
                # Between windows there is none that could be over: there a row is late by its own time.
                over = np.where(self.slices.in_window(panes), over, times <= closed_us)
            late |= over
        return late if bool(late.any()) else None

    def _counting_rows(self, panes: Int64s, late: Mask | None) -> Int64s | None:
        """Rows that count for some window; None: all."""
        if not self.slices.has_gaps:
            return None if late is None else np.flatnonzero(~late)
        kept = self.slices.in_window(panes)
        return np.flatnonzero(kept if late is None else kept & ~late)

    # --- results

    def finish(self) -> Iterator[None]:
        reached = self._reached()
        try:
            for firing in self._firings(reached):
                for merged in self._merged(firing):
                    rows = self.plan.rows(merged, firing.label)
                    self.report.fired += len(rows)
                    self.emit(rows)
                    if firing.label == ON_TIME and self._ends_for_good:
                        self._give_final(rows)
                    yield
            # A window that was emptied whenever it fired has nothing left when it goes.
            if not self._ends_for_good and not self.spec.discard and FINALS in self.outlets:
                for merged in self._merged(self._windows_to_drop(reached)):
                    late = pa.array(self.plan.late(merged))
                    self._give_final(self.plan.rows(merged, pc.if_else(late, LATE_PANE, ON_TIME)))
                    yield
            self.column.forget_before(first_live_pane(self.plan.schema, reached))
        except FunctionFailed as error:
            raise self._placed(error) from error

    def _merged(self, firing: Firing) -> Iterator[pa.RecordBatch]:
        """What fires, in pieces that are not too large."""
        for merged in self._merger().merge(firing):
            for start in range(0, merged.num_rows, EMIT_ROWS):
                yield merged.slice(start, EMIT_ROWS)

    def _merger(self) -> WindowMerger:
        return WindowMerger(self.plan, self.column, self.state.bounds, self._stamp.mark)

    def _firings(self, reached: int) -> Iterator[Firing]:
        """What fires in this epoch, windows that end earlier first."""
        before, late_us, discard = self.before_us, self.late_us, self.spec.discard
        fresh: Part = "added" if discard else "all"
        if self._by_wall:
            # The clock may stand still where a window has just ended: rows that come then begin it anew.
            yield Firing(MIN_TIME, before + 1, ON_TIME, rows="added")
        elif late_us and before > MIN_TIME:
            yield Firing(self._closed_upto(before) + 2, before + 1, LATE_PANE, rows=fresh, asked="added")
        if isinstance(self.spec.fire, PerEpoch):
            yield Firing(before + 2, reached + 1, ON_TIME, rows=fresh, asked="added")
            yield Firing(reached + 2, MAX_TIME, EARLY, rows=fresh, asked="added")
            return
        waiting: Part = "waiting" if discard and self.plan.marked else "all"
        yield Firing(before + 2, reached + 1, ON_TIME, rows=waiting)
        if self._fires_early():
            yield Firing(reached + 2, MAX_TIME, EARLY, rows=waiting, asked="waiting")

    # --- results of windows that are gone for good

    @property
    def _ends_for_good(self) -> bool:
        """Whether what windows give at their end is the last of them: then it is final too."""
        return self.late_us == 0 and (self.spec.discard or not isinstance(self.spec.fire, PerEpoch))

    def _windows_to_drop(self, reached: int) -> Firing:
        """Windows that go with this epoch."""
        last_end = MAX_TIME if reached == MAX_TIME else self._closed_upto(reached) + 1
        return Firing(self._closed_upto(self.before_us) + 2, last_end, ON_TIME)

    # --- what is waited for

    def _next_window_us(self) -> int | None:
        """When the first of the open windows that hold something ends, on their clock."""
        reached = self._reached()
        if reached == MAX_TIME:
            return None
        # Of two slices the later one is in no window that ends earlier.
        pane = self.column.first_pane(self.slices.first_open(reached))
        return None if pane is None else self.slices.next_end(pane, reached) - 1

    def _waits_early(self) -> bool:
        still_open = Firing(self._reached() + 2, MAX_TIME, EARLY)
        if isinstance(self.spec.fire, Periodic) and self.spec.fire.clock == "wall":
            return self._merger().has_waiting(still_open)
        # Only people are told of this one, which is not worth reading what earlier epochs have left.
        return bool(self.column.added(self.slices.range(still_open.first_end, still_open.last_end)))
