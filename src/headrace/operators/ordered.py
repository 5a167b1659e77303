"""A process function that sees the rows of each epoch in the order of event time: ``process(fn, order="time")``.

An epoch's rows come in many batches and from many splits, so they are held (`headrace.operators.holding`) until the
last is in. Then each key's rows are handled in order of their time, those of one time as they came, and after them
what is due fires, as ever. Between epochs there is no order: a row that is older than those of the epoch before is
handled with its own epoch, and is late if the watermark has passed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.operators.contract import TaskInfo
from headrace.operators.holding import HELD_BYTES, HeldRows
from headrace.operators.keyed import KeyedOperator
from headrace.operators.process import ProcessOperator

if TYPE_CHECKING:
    from headrace.model.batch import Keys, Rows
    from headrace.state.shard import ShardState


class HoldsRows(KeyedOperator):
    """Base of the steps whose rows of an epoch are handled at its end, by key and time."""

    held: HeldRows

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        # Where state has little room, rows have no more.
        self.held = HeldRows(min(HELD_BYTES, self.state.limit_bytes))

    def take(self, port: int, rows: Rows, keys: Keys) -> None:
        self.held.add(rows, keys)

    def finish(self) -> Iterator[None]:
        for rows, keys in self.held.drain():
            super().take(0, rows, keys)
            yield
        yield from super().finish() or ()


class OrderedProcessOperator(HoldsRows, ProcessOperator):
    """Runs ``on_event`` for the rows of an epoch by key and time, at its end."""
