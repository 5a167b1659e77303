"""Sinks that are fed in the driver: `collect`, `call` and `discard`.

What they hold stays in the driver and never travels. Rows reach them from staging, after the epoch is published.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pyarrow as pa

from headrace.connectors.sink_contract import Forget, Guarantee, Release, Rewind, Sink, StageTask, StageWriter
from headrace.connectors.staged import ARROW, arrow_writer, read_changes, read_rows
from headrace.errors import ProgramError, SinkFailed
from headrace.model.report import COUNTED, StagedPart
from headrace.model.row_kind import INSERT, SIGNS
from headrace.model.values import type_name

if TYPE_CHECKING:
    from typing import Self

    import pandas as pd
    import polars as pl

    from headrace.model.batch import Rows
    from headrace.model.rows import RowCodec

Identity = tuple[Any, ...]


def identity(parts: Sequence[StagedPart], ctx: Release) -> Identity:
    """Tells one release from another, also across stores: staged files have unique names, inline parts their bytes."""
    return (ctx.timeline, ctx.epoch, *((part.file, zlib.crc32(part.inline), part.rows) for part in parts))


class _Newest:
    """The newest release of each output, by which one that comes again, or too late, is told.

    Numbers count within one run: a program may be run on several stores, and each begins with epoch 0. Across runs only
    the newest release can come again, and it is told by what is in it.
    """

    def __init__(self) -> None:
        self._last: dict[str, Identity] = {}
        self._numbers: dict[str, tuple[int, int]] = {}
        self._lock = Lock()

    def begin_run(self, output: str) -> None:
        self._numbers.pop(output, None)

    def let_out(self, parts: Sequence[StagedPart], ctx: Release, show: Callable[[], None]) -> None:
        """Shows a release, unless it or a newer one was shown; looking and showing are one step."""
        release, number = identity(parts, ctx), (int(ctx.timeline), ctx.epoch)
        with self._lock:
            if self._last.get(ctx.output) == release or number <= self._numbers.get(ctx.output, (-1, -1)):
                return
            show()
            self._last[ctx.output] = release
            self._numbers[ctx.output] = number


class CollectSink(Sink):
    """Keeps rows in memory; `rows` is shared by all copies of the sink, so it can be read from the one the user has."""

    kind: ClassVar[str] = "collect"
    guarantee: Guarantee = "exactly once"
    accepts_updates: ClassVar[bool] = True
    accepts_changelog: ClassVar[bool] = True
    in_process: ClassVar[bool] = True
    driver_only: ClassVar[tuple[str, ...]] = ("rows", "changes", "_last", "_codecs")
    rewinds: frozenset[Rewind] = frozenset({"repeat", "hold"})

    def __init__(self) -> None:
        self.rows: list[Any] = []
        """What came; of a changelog the rows that came in or replaced others."""
        self.changes: list[tuple[str, Any]] = []
        """Of a changelog everything, each row behind what it is: ``+I``, ``-U``, ``+U`` or ``-D``."""
        self._last = _Newest()
        self._codecs: list[RowCodec] = []
        """Those of the streams that are written here; shared by all copies, as the rows are."""

    def bind(self, codec: RowCodec, output: str) -> Self:
        self._codecs.append(codec)
        return super().bind(codec, output)

    def start(self) -> None:
        self._last.begin_run(self.output)

    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        return arrow_writer(task)

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        assert self.codec is not None
        fresh = list(read_changes(parts, ctx, self.codec))
        self._last.let_out(parts, ctx, lambda: self._take(fresh))

    def _take(self, fresh: list[tuple[list[Any], list[str] | None]]) -> None:
        for rows, signs in fresh:
            if signs is None:
                self.rows.extend(rows)
            else:
                self.rows.extend(row for sign, row in zip(signs, rows) if not sign.startswith("-"))
                self.changes.extend(zip(signs, rows))

    def takes(self, part: StagedPart) -> bool:
        return part.format == ARROW

    def forget(self, ctx: Forget) -> None:
        """Rows lie in memory and end with their process; those that were collected before stay, and come again."""

    def clear(self) -> None:
        """Forgets the rows collected so far."""
        self.rows.clear()
        self.changes.clear()

    def to_polars(self) -> pl.DataFrame:
        """The rows as a Polars DataFrame, a column per field."""
        import polars as pl

        return cast("pl.DataFrame", pl.from_arrow(self._to_arrow()))

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame, a column per field."""
        return self._to_arrow().to_pandas()

    def _to_arrow(self) -> pa.Table:
        types = {type_name(codec.type) for codec in self._codecs}
        if len(types) != 1:
            raise ProgramError(
                "these rows have no common columns" if types else "this sink has no columns yet",
                where="sink.collect()",
                expected="a sink that streams of one type are written to: stream.write(rows); app.run(…)",
                found=f"rows of {', '.join(sorted(types))}" if types else "no stream that is written to it",
                next_move="give each type a sink of its own" if types else "write a stream to it first",
            )
        codec = self._codecs[-1]
        return pa.Table.from_arrays(codec.to_arrays(list(self.rows)), schema=codec.schema)


RowFunction = Callable[[Any, int], object]


class CallSink(Sink):
    """Hands rows to a function. It cannot tell a repeated release, so it is at least once."""

    kind: ClassVar[str] = "call"
    guarantee: Guarantee = "at least once"
    accepts_updates: ClassVar[bool] = True
    in_process: ClassVar[bool] = True
    driver_only: ClassVar[tuple[str, ...]] = ("fn",)
    rewinds: frozenset[Rewind] = frozenset({"repeat", "hold"})

    def __init__(self, fn: Callable[[Any, int], object], batch: bool, kinds: bool = False) -> None:
        self.fn = fn
        self.batch = batch
        self.kinds = self.asks_changelog = kinds
        self.accepts_changelog = kinds  # type: ignore[misc]
        self.name = str(getattr(fn, "__qualname__", None) or type(fn).__name__)

    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        return arrow_writer(task)

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        assert self.codec is not None
        batches = self._signed(parts, ctx, self.codec) if self.kinds else read_rows(parts, ctx, self.codec)
        if self.batch:
            self._call([row for batch in batches for row in batch], ctx.epoch)
            return
        for batch in batches:
            for row in batch:
                self._call(row, ctx.epoch)

    def _signed(self, parts: Sequence[StagedPart], ctx: Release, codec: RowCodec) -> Iterator[list[Any]]:
        """Rows behind what they are; those of a stream in which none goes all come in."""
        for rows, signs in read_changes(parts, ctx, codec):
            yield list(zip(signs or [SIGNS[INSERT]] * len(rows), rows, strict=True))

    def takes(self, part: StagedPart) -> bool:
        return part.format == ARROW

    def forget(self, ctx: Forget) -> None:
        """What the function did with rows is its own affair: it is called with them again."""

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
    guarantee: Guarantee = "exactly once"
    accepts_updates: ClassVar[bool] = True
    accepts_changelog: ClassVar[bool] = True
    in_process: ClassVar[bool] = True
    driver_only: ClassVar[tuple[str, ...]] = ("_total", "_last")
    rewinds: frozenset[Rewind] = frozenset({"repeat", "hold"})

    def __init__(self) -> None:
        self._total = [0]
        self._last = _Newest()

    def start(self) -> None:
        self._last.begin_run(self.output)

    @property
    def count(self) -> int:
        """Rows of all epochs released so far."""
        return self._total[0]

    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        return _Counter()

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        self._last.let_out(parts, ctx, lambda: self._count(parts))

    def forget(self, ctx: Forget) -> None:
        """There is nothing to take back; rows are counted again."""

    def _count(self, parts: Sequence[StagedPart]) -> None:
        self._total[0] += sum(part.rows for part in parts)


class _Counter(StageWriter):
    def __init__(self) -> None:
        self._rows = 0

    def write(self, rows: Rows) -> None:
        self._rows += len(rows)

    def finish(self) -> list[StagedPart]:
        return [StagedPart(rows=self._rows, size_bytes=0, format=COUNTED)] if self._rows else []
