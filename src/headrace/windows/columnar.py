"""What both kinds of columnar windows share: a table of partial aggregates, the clocks, and who waits for what.

Windows cut into slices are in `headrace.windows.sliced.operator`, sessions in `headrace.windows.sessions.operator`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from headrace.errors import FunctionFailed
from headrace.model.batch import Rows
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.job import VALUE_TABLE
from headrace.model.report import StepReport
from headrace.operators.contract import StatefulOperator, TaskInfo
from headrace.windows.settings import FINALS
from headrace.windows.triggers import Periodic

if TYPE_CHECKING:
    from headrace.operators.spec import StepInfo
    from headrace.state.panes.column import PaneColumn
    from headrace.state.shard import ShardState
    from headrace.windows.settings import WindowSettings
    from headrace.windows.sliced.plan import AggregatePlan

EMIT_ROWS: Final = 65_536
EARLY: Final = "early"
ON_TIME: Final = "on_time"
LATE_PANE: Final = "late"

Mask = npt.NDArray[np.bool_]


class ColumnarWindows(StatefulOperator):
    """One windowed step whose aggregates merge in columns."""

    column: PaneColumn

    def __init__(self, spec: WindowSettings, info: StepInfo, plan: AggregatePlan) -> None:
        super().__init__(info.step)
        self.spec = spec
        self.plan = plan
        self.late_us = spec.allow_late_us
        self._by_wall = spec.assigner.clock == "wall"
        self.before_us = MIN_TIME
        """The windows' clock as the epoch began."""
        self.mark = 0
        """How many times the early trigger's span had passed as the epoch began: what its rows are marked with."""

    def _closed_upto(self, time_us: int) -> int:
        """Windows whose last instant is not beyond this are closed when their clock is at ``time_us``."""
        return self.task.closed_at(self.step, time_us, self.late_us)

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        self.plan.begin(task.epoch)
        self.column = self.state.panes(VALUE_TABLE, self.plan.schema)
        self.before_us = task.last_clock_us if self._by_wall else self.watermark
        self.mark = self._bucket(ended=False)

    def _placed(self, error: FunctionFailed) -> FunctionFailed:
        error.where = error.where or f"step {self.step}"
        return error

    def _give_final(self, rows: Rows) -> None:
        outlet = self.outlets.get(FINALS)
        if outlet is not None:
            outlet(rows)

    # --- clocks

    def _now(self) -> int:
        """The wall clock of this epoch; it never goes back."""
        return max(self.task.clock_us, self.task.last_clock_us)

    def _reached(self) -> int:
        """The windows' clock at the end of the epoch."""
        return self._now() if self._by_wall else max(self.task.ends_at(self.step), self.before_us)

    def _bucket(self, *, ended: bool) -> int:
        """How many times the early trigger's span has passed, as the epoch began or as it ends."""
        fire, task = self.spec.fire, self.task
        if not isinstance(fire, Periodic):
            return 0
        if fire.clock == "event":
            return (task.ends_at(self.step) if ended else task.starts_at(self.step)) // fire.every_us
        if ended or task.last_clock_us == MIN_TIME:
            return self._now() // fire.every_us
        return task.last_clock_us // fire.every_us

    def _fires_early(self) -> bool:
        return self.plan.marked and self._bucket(ended=True) > self.mark

    # --- what is waited for

    def end(self) -> StepReport:
        ends_us, early_us = self._next_window_us(), self._next_early_us()
        early_by_wall = isinstance(self.spec.fire, Periodic) and self.spec.fire.clock == "wall"
        dues = [(ends_us, self._by_wall), (early_us, early_by_wall)]
        self.report.next_due_us = min([us for us, by_wall in dues if us is not None and by_wall], default=None)
        self.report.waits_for_us = min([us for us, by_wall in dues if us is not None and not by_wall], default=None)
        return super().end()

    @abstractmethod
    def _next_window_us(self) -> int | None:
        """When the first of the open windows that hold something ends, on their clock."""

    def _next_early_us(self) -> int | None:
        """When results come early next, on the trigger's clock, where something waits for it."""
        fire = self.spec.fire
        if not isinstance(fire, Periodic) or self._fires_early():
            return None
        now = self._now() if fire.clock == "wall" else self.task.ends_at(self.step)
        if now in (MIN_TIME, MAX_TIME) or not self._waits_early():
            return None
        return (now // fire.every_us + 1) * fire.every_us

    @abstractmethod
    def _waits_early(self) -> bool:
        """Whether some open window has rows that came since the last early results."""
