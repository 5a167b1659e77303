"""Sinks that are fed in the driver: `collect`, `call` and `discard`.

What they hold stays in the driver and never travels. Rows reach them from staging, after the epoch is published.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.errors import SinkFailed
from headrace.model.report import StagedPart
from headrace.sinks.contract import Guarantee, Release, Sink, StageTask, StageWriter
from headrace.sinks.staged import arrow_writer, read_rows

if TYPE_CHECKING:
    from headrace.model.batch import Rows
    from headrace.model.rows import RowCodec

Identity = tuple[Any, ...]


def identity(parts: Sequence[StagedPart], ctx: Release) -> Identity:
    """Tells one release from another, also across stores: staged files have unique names, inline parts their bytes."""
    return (ctx.timeline, ctx.epoch, *((part.file, zlib.crc32(part.inline), part.rows) for part in parts))


class CollectSink(Sink):
    """Keeps rows in memory; `rows` is shared by all copies of the sink, so it can be read from the one the user has."""

    kind: ClassVar[str] = "collect"
    guarantee: ClassVar[Guarantee] = "exactly once"
    accepts_updates: ClassVar[bool] = True
    driver_only: ClassVar[tuple[str, ...]] = ("rows", "_last")

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self._last: dict[str, Identity] = {}

    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        return arrow_writer(task)

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        # Epochs come in order, so only the newest one can come again.
        release = identity(parts, ctx)
        if self._last.get(ctx.output) == release:
            return
        assert self.codec is not None
        fresh = [row for batch in read_rows(parts, ctx, self.codec) for row in batch]
        self.rows.extend(fresh)
        self._last[ctx.output] = release

    def clear(self) -> None:
        """Forgets the rows collected so far."""
        self.rows.clear()


RowsFunction = Callable[[list[Any], int], object]
RowFunction = Callable[[Any, int], object]


class CallSink(Sink):
    """Hands rows to a function. It cannot tell a repeated release, so it is at least once."""

    kind: ClassVar[str] = "call"
    guarantee: ClassVar[Guarantee] = "at least once"
    accepts_updates: ClassVar[bool] = True
    driver_only: ClassVar[tuple[str, ...]] = ("fn",)

    def __init__(self, fn: Callable[[Any, int], object], batch: bool) -> None:
        self.fn = fn
        self.batch = batch
        self.name = str(getattr(fn, "__qualname__", None) or type(fn).__name__)

    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        return arrow_writer(task)

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        assert self.codec is not None
        batches = read_rows(parts, ctx, self.codec)
        if self.batch:
            self._call([row for batch in batches for row in batch], ctx.epoch)
            return
        for batch in batches:
            for row in batch:
                self._call(row, ctx.epoch)

    def _call(self, rows: Any, epoch: int) -> None:
        try:
            self.fn(rows, epoch)
        except Exception as error:
            raise SinkFailed(
                f"{self.name} raised {type(error).__name__}: {error}",
                where=self._place(),
                found=f"epoch {epoch} of output {self.output}",
                next_move="fix the function and start again: the epoch is published, its rows are handed over again",
            ) from error

    def _place(self) -> str:
        code = getattr(self.fn, "__code__", None)
        return f"sink.call({self.name})" if code is None else f"{code.co_filename}:{code.co_firstlineno}"

    def own_name(self) -> str:
        return self.name.rpartition("<locals>.")[2]

    def describe(self) -> str:
        return f"call {self.name}"


class DiscardSink(Sink):
    """Counts rows and drops them; `count` is shared by all copies of the sink."""

    kind: ClassVar[str] = "discard"
    guarantee: ClassVar[Guarantee] = "exactly once"
    accepts_updates: ClassVar[bool] = True
    driver_only: ClassVar[tuple[str, ...]] = ("_total", "_last")

    def __init__(self) -> None:
        self._total = [0]
        self._last: dict[str, Identity] = {}

    @property
    def count(self) -> int:
        """Rows of all epochs released so far."""
        return self._total[0]

    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        return _Counter()

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        release = identity(parts, ctx)
        if self._last.get(ctx.output) != release:
            self._total[0] += sum(part.rows for part in parts)
            self._last[ctx.output] = release


class _Counter(StageWriter):
    def __init__(self) -> None:
        self._rows = 0

    def write(self, rows: Rows) -> None:
        self._rows += len(rows)

    def finish(self) -> list[StagedPart]:
        return [StagedPart(rows=self._rows, size_bytes=0, format="none")] if self._rows else []
