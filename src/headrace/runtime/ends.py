"""Outputs of a task: rows of the next level are cut into frames, rows of sinks and loops are staged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.model.batch import Rows
from headrace.model.report import StagedPart
from headrace.operators.changelogs.pairs import drop_equal_pairs
from headrace.runtime.framing import FrameCutter
from headrace.runtime.loops import LoopWriter
from headrace.runtime.shards import InlineBudget
from headrace.state import layout

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.connectors.sink_contract import StageWriter
    from headrace.model.order import EpochLimits, EpochOrder
    from headrace.plan.physical import Program
    from headrace.state.store import StoreFiles


class OutputStaging:
    """The staging area of one output in one task (a `StageTask`)."""

    def __init__(
        self,
        store: StoreFiles,
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
        store: StoreFiles,
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
        self.frames = FrameCutter(program, level, shard)
        """Rows on their way to the next level."""
        self._writers: dict[int, StageWriter] = {}
        self._loops: dict[int, LoopWriter] = {}

    def to_edge(self, edge: int, rows: Rows) -> None:
        if rows.kinds is not None:
            rows = drop_equal_pairs(rows, timed=True)
        if len(rows):
            self.frames.add(self._program.edges[edge], rows)

    def to_output(self, output: int, rows: Rows) -> None:
        writer = self._writers.get(output)
        if writer is None:
            plan = self._program.outputs[output]
            writer = self._writers[output] = plan.sink.open_writer(plan.codec, self._staging(plan.name))
        writer.write(rows if rows.kinds is None else drop_equal_pairs(rows, timed=False))

    def to_loop(self, loop: int, rows: Rows) -> None:
        writer = self._loops.get(loop)
        if writer is None:
            name = self._program.loops[loop].name
            writer = self._loops[loop] = LoopWriter(self._staging(f"loop.{name}"), f"{self._level}.{self._shard}")
        writer.write(rows)

    def _staging(self, name: str) -> OutputStaging:
        return OutputStaging(self._store, self._order, name, self._shard, self._attempt, self._limits, self.budget)

    def finish(self) -> dict[str, list[StagedPart]]:
        """Makes all staged rows durable and tells where they are."""
        staged = {self._program.outputs[output].name: writer.finish() for output, writer in self._writers.items()}
        return {output: parts for output, parts in staged.items() if parts}

    def finish_loops(self) -> dict[str, list[StagedPart]]:
        """Makes all rows durable that go into loops, and tells where they are."""
        fed = {self._program.loops[loop].name: writer.finish() for loop, writer in self._loops.items()}
        return {loop: parts for loop, parts in fed.items() if parts}
