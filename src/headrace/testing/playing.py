"""Spark, played by a few lines of Python: reads queued rows, evaluates expressions, exchanges, keeps the log.

Only Spark is replaced. Chains, operators, state, coordinator and recovery are the ones that run in production, and the
store of a harness is a store like any other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from headrace.connectors.source_contract import BadRows
from headrace.model.batch import Rows
from headrace.model.order import SOURCE
from headrace.model.report import TaskReport
from headrace.plan.physical import Program, SourcePlan
from headrace.runtime.source_rows import SourceRows
from headrace.runtime.task import TaskEnv
from headrace.runtime.tasks_here import TasksHere


class PlayedSpark(TasksHere):
    """Runs the tasks of an epoch one after the other in this process."""

    def __init__(self, program: Program, session: Any = None) -> None:
        """With a Spark session, expressions right behind a source are evaluated there, as in production."""
        super().__init__(program)
        self.session = session
        self.splits: dict[str, list[str]] = {}
        """Source → the split of each row that the next epoch reads."""
        self.chain_order: tuple[int, ...] = ()
        """The order in which sources are read, by their places; empty: as the program names them."""

    def run(self, env: TaskEnv, queued: dict[str, list[Any]]) -> list[TaskReport]:
        """One epoch over the queued rows of each source; the reports of all its tasks."""
        batches: list[pa.RecordBatch] = []
        for index in self.chain_order or range(len(self.program.sources)):
            source = self.program.sources[index]
            rows = queued.get(source.name)
            if rows:
                batches += self.run_chain(env, index, self._input(source, rows))
        batches += self.run_loops(env)
        for level in range(1, len(self.levels) + 1):
            batches = self.run_level(env, level, batches)
        contents = [content for batch in batches for content in batch.column("report").to_pylist()]
        return [msgspec.msgpack.decode(content, type=TaskReport) for content in contents]

    def _input(self, source: SourcePlan, rows: list[Any]) -> list[pa.RecordBatch]:
        bad = [text for row in rows if isinstance(row, BadRows) for text in row.texts]
        splits = self.splits.get(source.name, [])
        if bad:
            splits = [split for row, split in zip(rows, splits, strict=True) if not isinstance(row, BadRows)]
            rows = [row for row in rows if not isinstance(row, BadRows)]
        batch = source_batch(source, rows, splits) if self.session is None else self._ask_spark(source, rows)
        return [batch, SourceRows(source).bad(bad)] if bad else [batch]

    def _ask_spark(self, source: SourcePlan, rows: list[Any]) -> pa.RecordBatch:
        from headrace.spark.query import evaluate_prefix

        return evaluate_prefix(
            self.session, source, pa.Table.from_batches([Rows.of_objects(source.codec, rows).record_batch])
        )


def source_batch(source: SourcePlan, rows: list[Any], splits: Sequence[str] = ()) -> pa.RecordBatch:
    """Rows as a source's chain gets them: fields after the expressions, then what stands beside them.

    ``splits``: where each row came from; none: all from one nameless split.
    """
    return SourceRows(source).good(Rows.of_objects(source.codec, rows).record_batch, splits)


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
