"""Where rows of edges without a key go: to every shard in one order, or to the shards in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.model.batch import Int64s
from headrace.model.wire import order_keys

if TYPE_CHECKING:
    from headrace.plan.physical import EdgePlan


class Spreading:
    """The edges without a key of one task. Nothing here depends on how rows are cut into batches."""

    def __init__(self, parallelism: int, level: int, task: int) -> None:
        self._parallelism = parallelism
        self._level = level
        self._task = task
        self._sent: dict[int, int] = {}

    def route(self, edge: EdgePlan, count: int) -> list[tuple[Int64s, pa.BinaryArray]]:
        """Shards and ``k`` of the next ``count`` rows of an edge; several of them: the rows are sent several times."""
        first = self._sent.get(edge.index, 0)
        self._sent[edge.index] = first + count
        if edge.key is None:
            keys = order_keys(self._level, self._task, first, count)
            return [(np.full(count, shard, dtype=np.int64), keys) for shard in range(self._parallelism)]
        # Tasks begin with different shards, so that many small ones do not all fill the first.
        shards = (self._task + np.arange(first, first + count, dtype=np.int64)) % self._parallelism
        return [(shards, pa.repeat(pa.scalar(b"", pa.binary()), count))]
