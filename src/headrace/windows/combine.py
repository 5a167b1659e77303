"""Combining before the exchange of windows that are cut into slices: a partial aggregate for each slice and key.

What this module deliberately does not do: judge lateness. A slice is late or not where it arrives.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.model.batch import Int64s, Rows
from headrace.model.ids import MIN_TIME
from headrace.operators.combine import Lifting, combine_lifted
from headrace.operators.contract import TaskInfo
from headrace.windows.sliced.plan import PanePlan

if TYPE_CHECKING:
    from headrace.operators.spec import CombinedRows, StepInfo
    from headrace.windows.settings import WindowSettings


def combine_panes(spec: WindowSettings, info: StepInfo) -> CombinedRows | None:
    """How the rows of a step of sliced windows are combined; None where they have to travel as they are."""
    lifting = PaneLifting(spec, info)
    # Between windows a row is late by its own time, which a partial does not tell.
    if lifting.plan.slices.has_gaps:
        return None
    return combine_lifted(partial(PaneLifting, spec, info), info.step, lifting.fields)


class PaneLifting(Lifting):
    """The group of a row is its slice."""

    def __init__(self, spec: WindowSettings, info: StepInfo) -> None:
        self.plan = PanePlan(spec, info)
        self.fields = [field for agg in self.plan.aggs for field in agg.fields]
        self._task = TaskInfo(0, 0, 0)

    def begin(self, task: TaskInfo) -> None:
        self._task = task
        self.plan.begin(task.epoch)

    def groups(self, rows: Rows) -> Int64s:
        return self.plan.slices.of(self._times(rows))

    def lift(self, rows: Rows) -> list[pa.Array]:
        return self.plan.lift(rows)

    def _times(self, rows: Rows) -> Int64s:
        if self.plan.slices.clock == "wall":
            return np.full(len(rows), max(self._task.clock_us, self._task.last_clock_us))
        # Rows without event time are late, which is found out where they arrive.
        return np.full(len(rows), MIN_TIME) if rows.times is None else rows.times
