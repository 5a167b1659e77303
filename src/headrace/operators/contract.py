"""The contract of an operator: who calls what, in which order, how often.

One instance lives per worker and step and serves one task at a time, for any shard of the step::

    open                                     once per worker, before the first task
      begin                                  once per task
        process process process …            any number of times, empty batches too
        finish                               once, run to its end, after all input; the end watermarks are known
      end                                    once; then the task flushes the state
    close                                    once per worker, if it ends in good order

Rows go out through ``outlets`` at any time between ``begin`` and ``end``. An outlet that is missing has no reader, and
its rows need not be made. A task may be given up between any two calls; then ``begin`` starts the next one, and nothing
of the old one may show. An operator never looks at a clock, a random number or a file of its own; what it cannot hold
in memory it may put into a temporary file without a name, which goes with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headrace.model.batch import Keys, Rows
from headrace.model.ids import MIN_TIME
from headrace.model.report import StepReport

if TYPE_CHECKING:
    from headrace.state.shard import ShardState

Outlet = Callable[[Rows], None]

MAIN = "main"
ERRORS = "errors"
LATE = "late"
LATES: Final = ("late_left", "late_right")
"""Outlets of late rows of two inputs, by port."""
SIDE = "side:"


@dataclass
class TaskInfo:
    """What a task tells its operators."""

    epoch: int
    shard: int
    clock_us: int
    """Wall clock of the epoch, given by the driver: the same in every replay."""
    final: bool = False
    start_watermark: dict[str, int] = field(default_factory=dict)
    """Step → watermark at the end of the epoch before."""
    end_watermark: dict[str, int] = field(default_factory=dict)
    """Step → watermark of this epoch; filled before ``finish``."""
    closed_upto: Mapping[str, int] = field(default_factory=dict)
    """Step → event time up to which windows are closed, whatever lateness is allowed now."""
    ended_ttl: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Step → state whose TTL was taken away → the time up to which its entries had expired by then."""
    last_clock_us: int = MIN_TIME
    """Wall clock of the epoch before: timers on it have fired that far. Without it, old index rows are seen again."""

    def starts_at(self, step: str) -> int:
        return self.start_watermark.get(step, MIN_TIME)

    def closed_at(self, step: str, time_us: int, late_us: int) -> int:
        """The time up to which windows of a step are closed when its watermark is at ``time_us``."""
        return max(time_us - late_us, self.closed_upto.get(step, MIN_TIME), MIN_TIME)

    def ends_at(self, step: str) -> int:
        return self.end_watermark.get(step, MIN_TIME)


COMBINING: Final = "combining before "
"""Stands before the name of a step where its rows are combined before the exchange: a work of its own in reports, and
the step itself to people."""


class Operator(ABC):
    """One step at work."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.outlets: Mapping[str, Outlet] = {}
        self.report = StepReport(step)

    def open(self) -> None:  # noqa: B027 - most steps have nothing to open, finish or close
        """Runs once per worker: what is costly to make is made here."""

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        """A task begins. ``state`` is None for a step that keeps none."""
        self.report = StepReport(self.step, counters={})

    @abstractmethod
    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        """Takes a batch. ``keys`` is None for a step that keeps no state."""

    def finish(self) -> Iterator[None] | None:
        """All input is in: fires what is due and gives out what waited for the end.

        A step that may give out much is a generator, and yields now and then, with no key at hand: what it gave out
        so far then goes on to the next level and leaves memory. Nothing else is called until it has come to its end.
        """
        return None

    def end(self) -> StepReport:
        """What the step did in this task."""
        return self.report

    def close(self) -> None:  # noqa: B027
        """The worker ends."""

    def emit(self, rows: Rows) -> None:
        """Sends rows to the main outlet."""
        if len(rows):
            self.report.rows_out += len(rows)
            outlet = self.outlets.get(MAIN)
            if outlet is not None:
                outlet(rows)


class StatefulOperator(Operator):
    """Base of the steps that keep state."""

    state: ShardState

    def __init__(self, step: str) -> None:
        super().__init__(step)
        self.task = TaskInfo(0, 0, 0)
        self.watermark = MIN_TIME

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        assert state is not None, f"step {self.step} keeps state and was given none"
        state.step = self.step
        self.state = state
        self.task = task
        self.watermark = task.starts_at(self.step)
