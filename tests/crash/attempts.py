"""A scheduler that runs one task of an epoch twice at the same time, as Spark may: a lost worker is not always dead.

The first attempt has begun when the second one starts; the second runs to its end; then the first goes on. Each has a
worker of its own (a copy of the program that has travelled, and operators made from it), unless they are to share one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa

from headrace.model import crash
from headrace.model.report import TaskReport
from headrace.plan.physical import Program
from headrace.plan.ship import dump_program, load_program
from headrace.runtime.task import TaskEnv, run_chain, run_level
from headrace.runtime.tasks_here import exchange
from headrace.testing import Harness
from headrace.testing.playing import PlayedSpark, source_batch

Batches = list[pa.RecordBatch]
Attempt = Callable[[PlayedSpark, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

FIRST, SECOND = 0, 1
SHARD = 0
"""The shard (at level 0: the partition) whose task is run twice."""


class OverlappingSpark(PlayedSpark):
    """Runs the tasks of an epoch, one of them twice.

    ``reads`` says for each reader of that task (the shards of the next level) which attempt it gets to see; behind the
    last level there is one reader, the driver, and different attempts mean that it collects both. ``in_function``: the
    second attempt starts while the first is in the middle of user code, and not while it waits for input.
    """

    def __init__(
        self, program: Program, level: int, reads: tuple[int, int], *, in_function: bool = False, shared: bool = False
    ) -> None:
        super().__init__(program)
        self.level = level
        self.reads = reads
        self.in_function = in_function
        self.other = self if shared else PlayedSpark(load_program(dump_program(program)))
        self.seen: tuple[Batches, Batches] = ([], [])
        """What a level gave, as a reader of the first and of the second attempt sees it."""

    def run(self, env: TaskEnv, queued: dict[str, list[Any]]) -> list[TaskReport]:
        self.seen = ([], [])
        for index, source in enumerate(self.program.sources):
            self._task(0, index, self._chain_attempt(env, index), [source_batch(source, queued[source.name])])
        for level in range(1, len(self.levels) + 1):
            given = [exchange(self.program, batches) for batches in self.seen]
            self.seen = ([], [])
            for shard in range(self.program.parallelism):
                which = self.reads[shard] if level == self.level + 1 else FIRST
                self._task(level, shard, self._level_attempt(env, level, shard), given[which][shard])
        return reports_of(self._collected())

    def _chain_attempt(self, env: TaskEnv, index: int) -> Attempt:
        def attempt(worker: PlayedSpark, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            source, live = worker.program.sources[index], worker.chains[index]
            there = replace(env, program=worker.program)
            return run_chain(there, source, live, batches, shard=index, attempt=uuid.uuid4().hex)

        return attempt

    def _level_attempt(self, env: TaskEnv, level: int, shard: int) -> Attempt:
        def attempt(worker: PlayedSpark, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            there = replace(env, program=worker.program)
            live = worker.levels[level - 1]
            return run_level(there, level, live, batches, shard=shard, attempt=uuid.uuid4().hex)

        return attempt

    def _task(self, level: int, shard: int, attempt: Attempt, batches: Batches) -> None:
        if (level, shard) != (self.level, SHARD):
            made = list(attempt(self, iter(batches)))
            first, second = made, made
        else:
            first, second = self._twice(attempt, batches)
        self.seen[FIRST].extend(first)
        self.seen[SECOND].extend(second)

    def _twice(self, attempt: Attempt, batches: Batches) -> tuple[Batches, Batches]:
        second: Batches = []

        def start_second() -> None:
            if not second:
                second.extend(attempt(self.other, iter(batches)))

        if not self.in_function:
            return list(attempt(self, _interrupted(batches, start_second))), second
        started = False

        def hook(point: str, epoch: int) -> None:
            nonlocal started
            if point == "in_function" and not started:
                started = True
                start_second()

        with crash.planned(hook):
            first = list(attempt(self, iter(batches)))
        assert started, "user code never said that it was in the middle"
        return first, second

    def _collected(self) -> Batches:
        if self.level < len(self.levels):
            return self.seen[FIRST]
        if len(set(self.reads)) == 1:
            return self.seen[self.reads[0]]
        return [*self.seen[FIRST], *(batch for batch in self.seen[SECOND] if batch not in self.seen[FIRST])]

    def close(self) -> None:
        super().close()
        if self.other is not self:
            self.other.close()


def _interrupted(batches: Batches, meanwhile: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    """The input of a task, which learns half way that something else happened while it waited."""
    head, *rest = batches
    half = head.num_rows // 2
    yield head.slice(0, half)
    meanwhile()
    yield head.slice(half)
    yield from rest


def reports_of(batches: Batches) -> list[TaskReport]:
    contents = [content for batch in batches for content in batch.column("report").to_pylist()]
    return [msgspec.msgpack.decode(content, type=TaskReport) for content in contents]


@contextmanager
def overlapping(h: Harness, level: int, reads: tuple[int, int], **how: bool) -> Iterator[OverlappingSpark]:
    """Epochs inside the block run one task of this level twice."""
    before = h._played
    h._played = played = OverlappingSpark(h._program, level, reads, **how)
    try:
        yield played
    finally:
        h._played = before
        played.close()
