"""`spark`: any batch writer that Spark has, fed once per epoch from staged Parquet.

Spark cannot tell a batch writer which epoch it writes, so a crash right after writing makes it write again: at least
once. Where the format can replace what it wrote (``mode="overwrite"`` with a partition per epoch), that is the
user's to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from headrace.errors import ProgramError, SinkFailed
from headrace.model.report import StagedPart
from headrace.sinks.contract import Guarantee, Release, Sink, StageTask, StageWriter
from headrace.sinks.files import encode_parquet
from headrace.sinks.staged import PartWriter

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

_MODES = ("append", "overwrite", "ignore", "error", "errorifexists")
_TARGETS = ("dbtable", "table", "topic", "collection")
"""Options by which the usual writers name what they write to."""


class BatchWriterSink(Sink):
    kind: ClassVar[str] = "spark"
    guarantee: Guarantee = "at least once"
    accepts_updates: ClassVar[bool] = False

    def __init__(self, format: str, path: str | None, mode: str, options: Mapping[str, Any]) -> None:
        if mode not in _MODES:
            raise ProgramError(
                f"sink.spark has no mode {mode!r}",
                where=f'sink.spark("{format}")',
                expected=", ".join(_MODES),
                found=repr(mode),
                next_move='leave mode out for "append"',
            )
        self.format = format
        self.path = path
        self.mode = mode
        self.options = {name: _option_text(value) for name, value in options.items() if value is not None}

    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        return PartWriter(task, encode_parquet, "parquet")

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        frame = self._frame(parts, ctx)
        writer = frame.write.format(self.format).mode(self.mode).options(**self.options)
        try:
            writer.save() if self.path is None else writer.save(self.path)
        except Exception as error:
            raise SinkFailed(
                f"Spark could not write epoch {ctx.epoch} of output {ctx.output}",
                where=f"sink.{self.describe()}",
                found=_first_words(error),
                next_move="correct the options or the target and start again; the rows stay staged in the store",
            ) from error

    def _frame(self, parts: Sequence[StagedPart], ctx: Release) -> Any:
        """Staged files are read by Spark in place; what travelled inside the manifest is handed over."""
        import pyarrow.parquet as pq

        session = ctx.spark()
        paths = [ctx.local_path(part) if part.file else None for part in parts]
        frames = []
        in_place = [path.as_uri() for path in paths if path is not None]
        assert self.codec is not None
        if in_place:
            frames.append(session.read.schema(self.codec.spark_ddl).parquet(*in_place))
        carried = [pq.read_table(pa.BufferReader(ctx.read(part))) for part, path in zip(parts, paths) if path is None]
        if carried:
            frames.append(session.createDataFrame(pa.concat_tables(carried)))
        whole = frames[0]
        for frame in frames[1:]:
            whole = whole.unionByName(frame)
        return whole

    def own_name(self) -> str:
        named = next((self.options[name] for name in _TARGETS if name in self.options), "")
        return f"{self.format} {named if self.path is None else self.path.rstrip('/').rpartition('/')[2]}"

    def describe(self) -> str:
        return f"spark {self.format}" + ("" if self.path is None else f" {self.path}")


def _first_words(error: Exception) -> str:
    """What the JVM said, without its stack; the bridge's own message only tells which call failed."""
    cause = getattr(error, "java_exception", None)
    told = str(cause if cause is not None else error).strip()
    return told.splitlines()[0] if told else type(error).__name__


def _option_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
