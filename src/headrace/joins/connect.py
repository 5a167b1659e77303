"""Two keyed streams that share state: ``connect(other).process(CoProcess)``.

A process function with a method per side; state, timers, side outputs, counters, errors and lateness are those of any
process function. Rows of one side come in the order of their split; between the sides there is no order, as between
splits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.operators.contract import LATES
from headrace.operators.process import ProcessOperator

if TYPE_CHECKING:
    from headrace.model.batch import Keys, Rows


class CoProcessOperator(ProcessOperator):
    """Runs ``on_left`` for rows of port 0 and ``on_right`` for those of port 1."""

    _port = 0

    @property
    def on_row(self) -> Any:
        return self.function.on_left if self._port == 0 else self.function.on_right

    def process(self, port: int, rows: Rows, keys: Keys | None) -> None:
        self._port = port
        self.late_tag = LATES[port]
        super().process(port, rows, keys)
