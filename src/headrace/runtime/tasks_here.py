"""The tasks of an epoch, run one after the other in this process, with frames moved between them as Spark would.

For those who run a program without Spark: the harness, and replays of past epochs.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.order import count_tasks, share_parts
from headrace.model.report import TaskReport
from headrace.model.wire import REPORT, REPORT_SCHEMA, SHARD, read_frames
from headrace.plan.physical import Program
from headrace.runtime.fragment import LiveFragment
from headrace.runtime.task import TaskEnv, run_chain, run_level, run_loop


class TasksHere:
    """The operators of a program in this process."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.chains = [LiveFragment(source.fragment) for source in program.sources]
        self.loops = [LiveFragment(loop.fragment) for loop in program.loops]
        self.levels = [LiveFragment(level) for level in program.levels]

    def run_chain(self, env: TaskEnv, index: int, batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The chain of a source over what was read of it."""
        source, live = self.program.sources[index], self.chains[index]
        return list(run_chain(env, source, live, batches, shard=index, attempt=uuid.uuid4().hex))

    def run_loops(self, env: TaskEnv) -> list[pa.RecordBatch]:
        """What the epoch before fed into loops."""
        program, batches = self.program, list[pa.RecordBatch]()
        loops = {} if env.parent is None else env.parent.manifest.loops
        count = count_tasks(loops, [loop.name for loop in program.loops], program.parallelism)
        for index in range(count):
            for loop, live in zip(program.loops, self.loops, strict=True):
                parts = share_parts(loops.get(loop.name, ()), index, count)
                shard = len(program.sources) + index
                batches += run_loop(env, loop, live, parts, shard=shard, attempt=uuid.uuid4().hex)
        return batches

    def run_level(
        self, env: TaskEnv, level: int, batches: Sequence[pa.RecordBatch], only: int | None = None
    ) -> list[pa.RecordBatch]:
        """A level over the frames that came to it. ``only``: one of its shards."""
        out: list[pa.RecordBatch] = []
        for shard, mine in enumerate(exchange(self.program, batches)):
            if only is None or shard == only:
                live = self.levels[level - 1]
                out += run_level(env, level, live, mine, shard=shard, attempt=uuid.uuid4().hex)
        return out

    def close(self) -> None:
        for live in (*self.chains, *self.loops, *self.levels):
            live.close()


def exchange(program: Program, batches: Iterable[pa.RecordBatch]) -> list[list[pa.RecordBatch]]:
    """Frames, moved to the shard that they are addressed to, as `repartitionById` does it."""
    shards: list[list[pa.RecordBatch]] = [[] for _ in range(program.parallelism)]
    for batch in batches:
        addressed = batch.column(SHARD)
        for shard in addressed.unique().to_pylist():
            shards[shard].append(batch.filter(pc.equal(addressed, shard)))
    return shards


def reports_in(batches: Iterable[pa.RecordBatch]) -> list[TaskReport]:
    """The reports among what tasks gave, of the last level or of one before it."""
    contents: list[bytes] = []
    for batch in batches:
        if batch.schema.equals(REPORT_SCHEMA):
            contents += batch.column(0).to_pylist()
        else:
            contents += (frame.body.to_pybytes() for frame in read_frames(batch) if frame.kind == REPORT)
    return [msgspec.msgpack.decode(content, type=TaskReport) for content in contents]
