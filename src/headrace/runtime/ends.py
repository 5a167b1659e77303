"""The ends of a task: rows that go on to another level put on the wire, rows for sinks are staged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.model.batch import Rows
from headrace.model.report import StagedPart
from headrace.model.wire import RESERVED
from headrace.runtime.budget import InlineBudget
from headrace.runtime.keying import encode_keys
from headrace.runtime.loops import LoopWriter
from headrace.runtime.spreading import Spreading
from headrace.state import layout

if TYPE_CHECKING:
    from headrace.model.batch import Int64s
    from headrace.model.order import EpochOrder, Limits
    from headrace.plan.physical import EdgePlan, Program
    from headrace.sinks.contract import StageWriter
    from headrace.state.store import Store


class Staging:
    """The staging area of one output in one task (a `StageTask`)."""

    def __init__(
        self,
        store: Store,
        order: EpochOrder,
        output: str,
        shard: int,
        attempt: str,
        limits: Limits,
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
        self, program: Program, store: Store, order: EpochOrder, level: int, shard: int, attempt: str, limits: Limits
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

    def _staging(self, name: str) -> Staging:
        return Staging(self._store, self._order, name, self._shard, self._attempt, self._limits, self.budget)

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
