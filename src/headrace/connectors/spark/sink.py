"""`spark`: any batch writer that Spark has, fed once per epoch from staged Parquet.

Spark does not tell a batch writer which epoch it writes, so a crash right after writing makes it write again: at least
once. Two ways lead to exactly once. Delta keeps the number of a writer's last transaction and passes over one that it
has, so it is given the epoch as such a number. And a path or an option that is a function is called with the release:
by it a user names the epoch to a format that can replace or recognise what it has; whether it does is theirs to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from headrace.connectors.delta.transaction import transaction_of
from headrace.connectors.files.sink import encode_parquet
from headrace.connectors.sink_contract import GuaranteeChoice, Release, Sink, StageTask, StageWriter, chosen_guarantee
from headrace.connectors.staged import PartWriter
from headrace.errors import ProgramError, SinkFailed
from headrace.model.report import StagedPart

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

_MODES = ("append", "overwrite", "ignore", "error", "errorifexists")
_TARGETS = ("dbtable", "table", "topic", "collection")
"""Options by which the usual writers name what they write to."""
_PARQUET: Final = "parquet"
_DELTA_WRITER: Final = "txnAppId"
_DELTA_NUMBER: Final = "txnVersion"
"""Options of Delta: who writes, and a number that goes up from transaction to transaction."""

_MISFIT: Final = re.compile(
    r"NoSuch(Method|Field)Error|IncompatibleClassChangeError|AbstractMethodError|NoClassDefFound"
)
"""What the JVM says of jars that were made for another version."""
_UNKNOWN: Final = "DATA_SOURCE_NOT_FOUND"


class BatchWriterSink(Sink):
    kind: ClassVar[str] = "spark"
    accepts_updates: ClassVar[bool] = False
    driver_only: ClassVar[tuple[str, ...]] = ("path", "options")

    def __init__(
        self,
        format: str,
        path: str | Callable[[Release], str] | None,
        mode: str,
        guarantee: GuaranteeChoice | None,
        options: Mapping[str, Any],
    ) -> None:
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
        self.options = {
            name: value if callable(value) else _option_text(value)
            for name, value in options.items()
            if value is not None
        }
        recognises = self._numbered or any(map(callable, (path, *self.options.values())))
        choice = guarantee or ("exactly_once" if self._numbered else "at_least_once")
        self.guarantee = chosen_guarantee(choice, self._where)
        if self.guarantee == "exactly once" and not recognises:
            raise ProgramError(
                f"the format {format} is not told which epoch it writes",
                where=self._where,
                expected="a path or an option that is a function of the release, by which the format knows an epoch "
                "that it has already",
                found="the same path and options for every epoch",
                next_move='path=lambda release: f"out/epoch={release.epoch}" with mode="overwrite", for example; '
                "or leave guarantee= out",
            )

    @property
    def _numbered(self) -> bool:
        """Whether the epoch is given as Delta's number of a transaction; not where the user gives one."""
        named = {name.lower() for name in self.options}
        return self.format.lower() == "delta" and not named & {_DELTA_WRITER.lower(), _DELTA_NUMBER.lower()}

    @property
    def _where(self) -> str:
        return f'sink.spark("{self.format}")'

    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        return PartWriter(task, encode_parquet, _PARQUET)

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        frame = self._frame(parts, ctx)
        path = self.path(ctx) if callable(self.path) else self.path
        writer = frame.write.format(self.format).mode(self.mode).options(**self._options(ctx))
        try:
            writer.save() if path is None else writer.save(path)
        except Exception as error:
            raise SinkFailed(
                f"Spark could not write epoch {ctx.epoch} of output {ctx.output}",
                where=f"sink.{self.describe()}",
                found=_first_words(error),
                next_move=self._next_move(error, frame) + " and start again; the rows stay staged in the store",
            ) from error

    def _next_move(self, error: Exception, frame: Any) -> str:
        told = str(getattr(error, "java_exception", None) or error)
        if _MISFIT.search(told):
            return f"give the session jars of {self.format} that are made for Spark {frame.sparkSession.version},"
        if _UNKNOWN in told:
            return f"give the session the jars of {self.format} (the settings spark.jars or spark.jars.packages),"
        return "correct the options or the target"

    def _options(self, ctx: Release) -> dict[str, str]:
        """What this epoch is written with."""
        given = {name: _option_text(value(ctx)) if callable(value) else value for name, value in self.options.items()}
        if self._numbered:
            # A number that Delta has, or one below, is passed over: of this epoch, or of a driver that woke up late.
            writer, number = transaction_of(ctx)
            given |= {_DELTA_WRITER: writer, _DELTA_NUMBER: str(number)}
        return given

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

    def takes(self, part: StagedPart) -> bool:
        # Files of a folder by value lack the columns that it is named by.
        return part.format == _PARQUET and not part.extra

    def own_name(self) -> str:
        named = next((self.options[name] for name in _TARGETS if isinstance(self.options.get(name), str)), "")
        return f"{self.format} {self.path.rstrip('/').rpartition('/')[2] if isinstance(self.path, str) else named}"

    def describe(self) -> str:
        return f"spark {self.format}" + (f" {self.path}" if isinstance(self.path, str) else "")


def _first_words(error: Exception) -> str:
    """What the JVM said, without its stack; the bridge's own message only tells which call failed."""
    cause = getattr(error, "java_exception", None)
    told = str(cause if cause is not None else error).strip()
    return told.splitlines()[0] if told else type(error).__name__


def _option_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
