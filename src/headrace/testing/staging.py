"""A staging area in a folder, for tests of sinks: what a task stages into, and what a release reads from.

It plays the store of a job for one sink. A `StagingRelease` can be told to fail in the middle, to die there, or to let
something else happen meanwhile: that is how `headrace.testing.sinks` comes between any two parts of a release.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa

from headrace.connectors.sink_contract import Sink
from headrace.errors import EnvironmentMissing, SinkUnavailable
from headrace.model.batch import Rows
from headrace.model.crash import Crash
from headrace.model.report import StagedPart
from headrace.model.rows import RowCodec


class Staging:
    """A staging area in a folder: the `StageTask` of every task, and the `Release` of every epoch."""

    def __init__(
        self, folder: Path, *, inline_limit_bytes: int = 32 * 1024, local: bool = True, session: Any = None
    ) -> None:
        self.folder = folder
        self.inline_limit_bytes = inline_limit_bytes
        self.local = local
        self.session = session
        self.files = 0
        self._attempts = count()

    def task(self, epoch: int, shard: int = 0, output: str = "out") -> StagingTask:
        """A new attempt of a task."""
        uid = f"{epoch}-{shard}-{next(self._attempts)}"
        return StagingTask(self, epoch, shard, output, uid, self.inline_limit_bytes)

    def release(self, epoch: int, output: str = "out", timeline: str = "0") -> StagingRelease:
        return StagingRelease(self, timeline, epoch, output, self.session)

    def forget(self, epoch: int, last: int, *, output: str = "out", timeline: str = "0") -> StagingForget:
        """A job goes back behind ``epoch`` of a timeline that came to ``last``; the next one goes on."""
        return StagingForget(timeline, epoch, last, str(int(timeline) + 1), output, self.session)


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
    """Parts are counted over all reads of this release, from 0."""

    staging: Staging
    timeline: str
    epoch: int
    output: str
    session: Any = None
    dies_at: int | None = None
    """The part at which reading raises Crash, as if the process had died."""
    unavailable_at: int | None = None
    """The part at which reading raises SinkUnavailable, as if a connection had broken."""
    meanwhile: Callable[[], None] | None = None
    """Called before part `meanwhile_at` is read, once: what others do while this release is under way."""
    meanwhile_at: int = 0
    reads: int = 0
    job: str = "staging"

    def read(self, part: StagedPart) -> pa.Buffer:
        at, self.reads = self.reads, self.reads + 1
        if at == self.dies_at:
            raise Crash(f"while part {at} was read")
        if at == self.unavailable_at:
            raise SinkUnavailable(f"the connection broke at part {at}", where=f"output {self.output}")
        if at == self.meanwhile_at and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return pa.py_buffer(part.inline if not part.file else (self.staging.folder / part.file).read_bytes())

    def local_path(self, part: StagedPart) -> Path | None:
        return self.staging.folder / part.file if part.file and self.staging.local else None

    def spark(self) -> Any:
        if self.session is None:
            raise EnvironmentMissing("there is no Spark session here")
        return self.session


@dataclass
class StagingForget:
    timeline: str
    epoch: int
    last: int
    next_timeline: str
    output: str
    session: Any = None
    job: str = "staging"

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
