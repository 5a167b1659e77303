"""Outputs of a task: rows of the next level are put on the wire, rows of sinks are staged.

Rows of edges without a key go to every shard in one order, or to the shards in turn (`Spreading`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.model.batch import Int64s, Rows
from headrace.model.report import StagedPart
from headrace.model.wire import RESERVED, order_keys
from headrace.runtime.fragment import encode_keys
from headrace.runtime.loops import LoopWriter
from headrace.runtime.shards import InlineBudget
from headrace.state import layout

if TYPE_CHECKING:
    from headrace.connectors.sink_contract import StageWriter
    from headrace.model.batch import Int64s
    from headrace.model.order import EpochLimits, EpochOrder
    from headrace.plan.physical import EdgePlan, Program
    from headrace.state.store import Store


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


class OutputStaging:
    """The staging area of one output in one task (a `StageTask`)."""

    def __init__(
        self,
        store: Store,
        order: EpochOrder,
        output: str,
        shard: int,
        attempt: str,
        limits: EpochLimits,
        budget: InlineBudget,
    ) -> None:
        self.epoch = order.epoch
        self.shard = shard
        self.output = output
        self.uid = attempt
        self._limit_bytes = limits.inline_output_bytes
        self._budget = budget
        self._store = store
        self._fence = order.fence

    def put(self, data: bytes | pa.Buffer, ext: str) -> tuple[str, int]:
        path = layout.staged(self.epoch, self.output, self.shard, layout.new_uid(self._fence), ext)
        self._store.write(path, data)
        return path, len(data)

    def take_inline(self, size_bytes: int) -> bool:
        return self._budget.take(size_bytes, self._limit_bytes)


class TaskEnds:
    """Collects what leaves the fragment of one task."""

    def __init__(
        self,
        program: Program,
        store: Store,
        order: EpochOrder,
        level: int,
        shard: int,
        attempt: str,
        limits: EpochLimits,
    ) -> None:
        self._program = program
        self._level = level
        self._store = store
        self._order = order
        self._shard = shard
        self._attempt = attempt
        self._limits = limits
        self.budget = InlineBudget(limits.inline_task_bytes)
        self._spreading = Spreading(program.parallelism, level, shard)
        self._wire: list[pa.RecordBatch] = []
        self._writers: dict[int, StageWriter] = {}
        self._loops: dict[int, LoopWriter] = {}

    def to_edge(self, edge: int, rows: Rows) -> None:
        if not len(rows):
            return
        plan, schema = self._program.edges[edge], self._program.schema
        if plan.by_shard:
            for shards, keys in self._spreading.route(plan, len(rows)):
                self._wire.append(wire_batch(schema, plan, rows, shards, keys))
        else:
            self._wire.append(encode_wire(schema, plan, rows))

    def to_output(self, output: int, rows: Rows) -> None:
        writer = self._writers.get(output)
        if writer is None:
            plan = self._program.outputs[output]
            writer = self._writers[output] = plan.sink.open_writer(plan.codec, self._staging(plan.name))
        writer.write(rows)

    def to_loop(self, loop: int, rows: Rows) -> None:
        writer = self._loops.get(loop)
        if writer is None:
            name = self._program.loops[loop].name
            writer = self._loops[loop] = LoopWriter(self._staging(f"loop.{name}"), f"{self._level}.{self._shard}")
        writer.write(rows)

    def _staging(self, name: str) -> OutputStaging:
        return OutputStaging(self._store, self._order, name, self._shard, self._attempt, self._limits, self.budget)

    def drain_wire(self) -> list[pa.RecordBatch]:
        """What has been put on the wire since the last call."""
        batches, self._wire = self._wire, []
        return batches

    def pass_on(self, batch: pa.RecordBatch) -> None:
        """Rows of an edge that a later level reads."""
        self._wire.append(batch)

    def finish(self) -> dict[str, list[StagedPart]]:
        """Makes all staged rows durable and tells where they are."""
        staged = {self._program.outputs[output].name: writer.finish() for output, writer in self._writers.items()}
        return {output: parts for output, parts in staged.items() if parts}

    def finish_loops(self) -> dict[str, list[StagedPart]]:
        """Makes all rows durable that go into loops, and tells where they are."""
        fed = {self._program.loops[loop].name: writer.finish() for loop, writer in self._loops.items()}
        return {loop: parts for loop, parts in fed.items() if parts}


def encode_wire(schema: pa.Schema, edge: EdgePlan, rows: Rows) -> pa.RecordBatch:
    """Rows in the columns of the exchange. The hash is left to whoever exchanges: the JVM computes it for nothing."""
    assert edge.key is not None
    hashes = np.zeros(len(rows), dtype=np.int64)
    if edge.combined:
        *columns, keys = rows.columns
        return wire_batch(schema, edge, Rows.of_columns(edge.codec, columns, rows.times), hashes, keys)
    return wire_batch(schema, edge, rows, hashes, encode_keys(edge.key, rows, f"key_by({edge.key})"))


def wire_batch(schema: pa.Schema, edge: EdgePlan, rows: Rows, hashes: Int64s, keys: pa.BinaryArray) -> pa.RecordBatch:
    """Rows with these ``h`` and ``k``."""
    count = len(rows)
    times = pa.nulls(count, pa.int64()) if rows.times is None else pa.array(rows.times)
    reserved: list[pa.Array] = [
        pa.array(np.full(count, edge.index, dtype=np.int32)),
        pa.array(hashes),
        keys,
        times,
    ]
    by_slot = dict(zip(edge.slots, rows.columns, strict=True))
    slots = [
        by_slot[i] if i in by_slot else pa.nulls(count, field.type)
        for i, field in enumerate(list(schema)[len(RESERVED) :])
    ]
    return pa.RecordBatch.from_arrays([*reserved, *slots], schema=schema)
