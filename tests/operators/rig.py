"""The rig of the test kit, under the names that these tests use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace.model.batch import Keys, Rows
from headrace.operators.contract import Operator
from headrace.testing.rig import GROUPS, EmittedRow, OperatorRig, row_time, values

__all__ = ["GROUPS", "Rig", "Row", "values"]

Row = EmittedRow


class Rig(OperatorRig):
    """A rig whose rows have the time of their field ``at``, or none."""

    def __init__(
        self, operator: Operator, taken: Any, key: Callable[[Any], Any], *, timed: bool = True, **options: Any
    ) -> None:
        super().__init__(operator, taken, key, time=row_time if timed else None, **options)

    def rows(self, batch: Sequence[Any], times: Callable[[Any], int] | None = None) -> tuple[Rows, Keys | None]:
        """A batch as the operator gets it, with these times instead of its own if they are given."""
        own, self.time = self.time, times or self.time
        try:
            return super().rows(batch)
        finally:
            self.time = own
