"""Spark, played by a few lines of Python: reads queued rows, evaluates expressions, exchanges, keeps the log.

Only Spark is replaced. Chains, operators, state, coordinator and recovery are the ones that run in production, and the
store of a harness is a store like any other.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.source_contract import BadRows
from headrace.model.batch import Rows
from headrace.model.order import SOURCE, count_tasks, share_parts
from headrace.model.report import TaskReport
from headrace.model.wire import SHARD
from headrace.plan.physical import Program, SourcePlan
from headrace.runtime.fragment import LiveFragment
from headrace.runtime.source_rows import SourceRows
from headrace.runtime.task import TaskEnv, run_chain, run_level, run_loop


class PlayedSpark:
    """Runs the tasks of an epoch one after the other in this process."""

    def __init__(self, program: Program, session: Any = None) -> None:
        """With a Spark session, expressions right behind a source are evaluated there, as in production."""
        self.program = program
        self.session = session
        self.splits: dict[str, list[str]] = {}
        """Source → the split of each row that the next epoch reads."""
        self.chains = [LiveFragment(source.fragment) for source in program.sources]
        self.loops = [LiveFragment(loop.fragment) for loop in program.loops]
        self.levels = [LiveFragment(level) for level in program.levels]

    def run(self, env: TaskEnv, queued: dict[str, list[Any]]) -> list[TaskReport]:
        """One epoch over the queued rows of each source; the reports of all its tasks."""
        batches: list[pa.RecordBatch] = []
        for index, source in enumerate(self.program.sources):
            rows = queued.get(source.name)
            if rows:
                batches += self._chain(env, index, source, rows)
        batches += self._read_loops(env)
        for level in range(1, len(self.levels) + 1):
            batches = self._level(env, level, batches)
        contents = [content for batch in batches for content in batch.column("report").to_pylist()]
        return [msgspec.msgpack.decode(content, type=TaskReport) for content in contents]

    def _chain(self, env: TaskEnv, index: int, source: SourcePlan, rows: list[Any]) -> list[pa.RecordBatch]:
        bad = [text for row in rows if isinstance(row, BadRows) for text in row.texts]
        splits = self.splits.get(source.name, [])
        if bad:
            splits = [split for row, split in zip(rows, splits, strict=True) if not isinstance(row, BadRows)]
            rows = [row for row in rows if not isinstance(row, BadRows)]
        batch = source_batch(source, rows, splits) if self.session is None else self._ask_spark(source, rows)
        batches = [batch, SourceRows(source).bad(bad)] if bad else [batch]
        return list(run_chain(env, source, self.chains[index], batches, shard=index, attempt=uuid.uuid4().hex))

    def _read_loops(self, env: TaskEnv) -> list[pa.RecordBatch]:
        program, batches = self.program, list[pa.RecordBatch]()
        loops = {} if env.parent is None else env.parent.manifest.loops
        count = count_tasks(loops, [loop.name for loop in program.loops], program.parallelism)
        for index in range(count):
            for loop, live in zip(program.loops, self.loops, strict=True):
                parts = share_parts(loops.get(loop.name, ()), index, count)
                shard = len(program.sources) + index
                batches += run_loop(env, loop, live, parts, shard=shard, attempt=uuid.uuid4().hex)
        return batches

    def _ask_spark(self, source: SourcePlan, rows: list[Any]) -> pa.RecordBatch:
        from headrace.spark.query import evaluate_prefix

        return evaluate_prefix(
            self.session, source, pa.Table.from_batches([Rows.of_objects(source.codec, rows).record_batch])
        )

    def _level(self, env: TaskEnv, level: int, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        out: list[pa.RecordBatch] = []
        for shard, mine in enumerate(exchange(self.program, batches)):
            live = self.levels[level - 1]
            out += run_level(env, level, live, mine, shard=shard, attempt=uuid.uuid4().hex)
        return out

    def close(self) -> None:
        for live in (*self.chains, *self.loops, *self.levels):
            live.close()


def source_batch(source: SourcePlan, rows: list[Any], splits: Sequence[str] = ()) -> pa.RecordBatch:
    """Rows as a source's chain gets them: fields after the expressions, then what stands beside them.

    ``splits``: where each row came from; none: all from one nameless split.
    """
    return SourceRows(source).good(Rows.of_objects(source.codec, rows).record_batch, splits)


def exchange(program: Program, batches: Iterable[pa.RecordBatch]) -> list[list[pa.RecordBatch]]:
    """Frames, moved to the shard that they are addressed to, as `repartitionById` does it."""
    shards: list[list[pa.RecordBatch]] = [[] for _ in range(program.parallelism)]
    for batch in batches:
        addressed = batch.column(SHARD)
        for shard in addressed.unique().to_pylist():
            shards[shard].append(batch.filter(pc.equal(addressed, shard)))
    return shards


def offsets_text(clock_us: int, counts: dict[str, int], final: bool) -> str:
    """An entry of Spark's log: what has been read of each source once the epoch is done."""
    lines = ["v2", json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": clock_us // 1000})]
    lines.append(f"{SOURCE}:{json.dumps({'seq': 0, **({'final': True} if final else {})})}")
    lines += [f"{name}:{json.dumps({'rows': count})}" for name, count in sorted(counts.items())]
    return "\n".join(lines)


def read_counts(offsets: str) -> dict[str, int]:
    """How many rows of each source an entry covers."""
    counts: dict[str, int] = {}
    for line in offsets.splitlines()[2:]:
        name, _, value = line.partition(":")
        if name != SOURCE:
            counts[name] = json.loads(value)["rows"]
    return counts
