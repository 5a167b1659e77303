"""Tries to break a sink: `verify_sink`, and the staging area that it and other tests use.

The contract of `headrace.sinks.contract.Sink`, made executable: nothing is visible before the release, a release can be
repeated, and one that died between any two parts is completed by the next.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa

from headrace.errors import EnvironmentMissing
from headrace.model.batch import Rows
from headrace.model.crash import Crash, planned
from headrace.model.report import StagedPart
from headrace.model.rows import RowCodec, codec_of
from headrace.sinks.contract import Sink


class Staging:
    """A staging area in a folder: the `StageTask` of every task, and the `Release` of every epoch."""

    def __init__(self, folder: Path, *, inline_limit_bytes: int = 32 * 1024, local: bool = True) -> None:
        self.folder = folder
        self.inline_limit_bytes = inline_limit_bytes
        self.local = local
        self.files = 0

    def task(self, epoch: int, shard: int = 0, output: str = "out") -> StagingTask:
        return StagingTask(self, epoch, shard, output, f"{epoch}-{shard}-{self.files}", self.inline_limit_bytes)

    def release(self, epoch: int, output: str = "out", timeline: str = "0") -> StagingRelease:
        return StagingRelease(self, timeline, epoch, output)


@dataclass
class StagingTask:
    staging: Staging
    epoch: int
    shard: int
    output: str
    uid: str
    inline_limit_bytes: int

    def put(self, data: bytes | pa.Buffer, ext: str) -> tuple[str, int]:
        self.staging.files += 1
        name = f"{self.output}-{self.uid}-{self.staging.files}.{ext}"
        (self.staging.folder / name).write_bytes(data)
        return name, len(data)

    def take_inline(self, size_bytes: int) -> bool:
        return size_bytes <= self.inline_limit_bytes


@dataclass
class StagingRelease:
    """`dies_at` is the part at which reading raises Crash, counted over all reads of this release."""

    staging: Staging
    timeline: str
    epoch: int
    output: str
    session: Any = None
    dies_at: int | None = None
    reads: int = 0

    def read(self, part: StagedPart) -> pa.Buffer:
        if self.reads == self.dies_at:
            raise Crash(f"while part {self.reads} was read")
        self.reads += 1
        return pa.py_buffer(part.inline if not part.file else (self.staging.folder / part.file).read_bytes())

    def local_path(self, part: StagedPart) -> Path | None:
        return self.staging.folder / part.file if part.file and self.staging.local else None

    def spark(self) -> Any:
        if self.session is None:
            raise EnvironmentMissing("there is no Spark session here")
        return self.session


def stage_rows(
    sink: Sink, codec: RowCodec, staging: Staging, epoch: int, tasks: Sequence[Sequence[Any]]
) -> list[StagedPart]:
    """Runs the tasks of an epoch, each with its rows, and returns the parts the manifest would list."""
    parts: list[StagedPart] = []
    for shard, rows in enumerate(tasks):
        travelled: Sink = cloudpickle.loads(cloudpickle.dumps(sink))
        writer = travelled.open_writer(codec, staging.task(epoch, shard, sink.output))
        writer.write(Rows.of_objects(codec, []))
        half = len(rows) // 2
        writer.write(Rows.of_objects(codec, list(rows[:half])))
        writer.write(Rows.of_columns(codec, codec.to_arrays(rows[half:])))
        parts.extend(writer.finish())
    return parts


@dataclass
class SinkTarget:
    """A new, empty place to write to."""

    make: Callable[[], Sink]
    """A sink of this target, as a restarted program would make it; a sink that keeps rows in memory returns itself."""
    read: Callable[[], list[Any]]
    """The rows that are visible there, in any order."""


def verify_sink(new_target: Callable[[], SinkTarget], row_type: Any, rows: Sequence[Any]) -> None:
    """Stages and releases rows in every way an engine may, and raises AssertionError at the first broken promise.

    `rows` are at least six different rows of `row_type`. Called at least once, a sink may show rows again, never fewer.
    """
    assert len(rows) >= 6, "the suite needs a few rows"
    for inline_limit_bytes, local in ((0, True), (0, False), (2**20, True)):
        with tempfile.TemporaryDirectory() as folder:
            staging = Staging(Path(folder), inline_limit_bytes=inline_limit_bytes, local=local)
            _Suite(new_target, codec_of(row_type), rows, staging).run()


class _Suite:
    def __init__(
        self, new_target: Callable[[], SinkTarget], codec: RowCodec, rows: Sequence[Any], staging: Staging
    ) -> None:
        self.new_target = new_target
        self.codec = codec
        self.rows = rows
        self.staging = staging
        third = len(rows) // 3
        self.tasks = [rows[:third], [], rows[third : 2 * third]]
        self.later = [rows[2 * third :]]

    def run(self) -> None:
        self.an_epoch_is_visible_when_released()
        self.an_epoch_without_rows_has_no_parts()
        parts = self.a_release_can_be_repeated()
        for dies_at in range(parts):
            self.a_release_that_died_is_completed(dies_at)
        self.a_release_that_died_between_files_is_completed()

    def start(self, target: SinkTarget) -> Sink:
        sink = target.make().bind(self.codec, "out")
        sink.start()
        return sink

    def stage(self, sink: Sink, epoch: int, tasks: Sequence[Sequence[Any]]) -> list[StagedPart]:
        parts = stage_rows(sink, self.codec, self.staging, epoch, tasks)
        assert sum(part.rows for part in parts) == sum(map(len, tasks)), "parts have to tell how many rows they hold"
        return parts

    def expect(self, sink: Sink, target: SinkTarget, *tasks: Sequence[Sequence[Any]], what: str) -> None:
        wanted = Counter(repr(row) for epoch in tasks for task in epoch for row in task)
        found = Counter(repr(row) for row in target.read())
        missing, more = wanted - found, found - wanted
        assert not missing, f"{what}: rows are missing: {list(missing)[:3]}"
        strange = [row for row in more if row not in wanted]
        assert not strange, f"{what}: rows that nobody wrote: {strange[:3]}"
        if sink.guarantee == "exactly once":
            assert not more, f"{what}: rows are there more than once: {list(more)[:3]}"

    def an_epoch_is_visible_when_released(self) -> None:
        target = self.new_target()
        sink = self.start(target)
        first = self.stage(sink, 0, self.tasks)
        second = self.stage(sink, 1, self.later)
        assert target.read() == [], "rows were visible before their epoch was released"
        sink.release(first, self.staging.release(0))
        self.expect(sink, target, self.tasks, what="after the first epoch")
        sink.release(second, self.staging.release(1))
        self.expect(sink, target, self.tasks, self.later, what="after the second epoch")
        sink.close()

    def an_epoch_without_rows_has_no_parts(self) -> None:
        assert self.stage(self.start(self.new_target()), 0, [[], []]) == [], "no rows, no parts"

    def a_release_can_be_repeated(self) -> int:
        target = self.new_target()
        sink = self.start(target)
        parts = self.stage(sink, 0, self.tasks)
        sink.release(parts, self.staging.release(0))
        sink.release(parts, self.staging.release(0))
        self.expect(sink, target, self.tasks, what="released twice")
        self.start(target).release(parts, self.staging.release(0))
        self.expect(sink, target, self.tasks, what="released again after a restart")
        return len(parts)

    def a_release_that_died_is_completed(self, dies_at: int) -> None:
        target = self.new_target()
        sink = self.start(target)
        parts = self.stage(sink, 0, self.tasks)
        ctx = self.staging.release(0)
        ctx.dies_at = dies_at
        with suppress(Crash):
            sink.release(parts, ctx)
        self._complete(target, parts, f"died at part {dies_at}")

    def a_release_that_died_between_files_is_completed(self) -> None:
        target = self.new_target()
        sink = self.start(target)
        parts = self.stage(sink, 0, self.tasks)
        with suppress(Crash), planned(_die_between_files):
            sink.release(parts, self.staging.release(0))
        self._complete(target, parts, "died between two files")

    def _complete(self, target: SinkTarget, parts: list[StagedPart], what: str) -> None:
        restarted = self.start(target)
        restarted.release(parts, self.staging.release(0))
        self.expect(restarted, target, self.tasks, what=what)
        restarted.release(self.stage(restarted, 1, self.later), self.staging.release(1))
        self.expect(restarted, target, self.tasks, self.later, what=f"{what}, one epoch later")


def _die_between_files(point: str, epoch: int) -> None:
    if point == "between_files":
        raise Crash(f"between two files of epoch {epoch}")
