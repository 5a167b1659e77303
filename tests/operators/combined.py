"""A step with what stands before its exchange, as the exchange would bring both together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.model.batch import Keys, Rows
from headrace.model.keys import hash_encoded
from headrace.model.report import StepReport
from headrace.operators.contract import MAIN, Operator, TaskInfo
from headrace.operators.spec import COMBINED_PORT


class CombinedStep(Operator):
    """What `before` gives out goes into `behind`, at the port for combined rows."""

    def __init__(self, behind: Operator, before: Operator) -> None:
        super().__init__(behind.step)
        self.behind, self.before = behind, before
        before.outlets = {MAIN: self._take}
        self.sent = 0
        """Rows that crossed the exchange."""

    def _take(self, rows: Rows) -> None:
        *columns, keys = rows.columns
        self.sent += len(rows)
        moved = Rows.of_columns(rows.codec, columns, rows.times)
        self.behind.process(COMBINED_PORT, moved, Keys(hash_encoded(keys), keys))

    def begin(self, task: TaskInfo, state: Any) -> None:
        self.behind.outlets = self.outlets
        self.behind.begin(task, state)
        self.before.begin(task, None)

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        self.before.process(0, rows, keys)

    def finish(self) -> Iterator[None]:
        for operator in (self.before, self.behind):
            yield from operator.finish() or ()

    def end(self) -> StepReport:
        return self.behind.end()
