"""`files`: a folder of JSON lines, CSV or Parquet files, exactly once.

Tasks stage files in their final form; releasing them is giving them a name in the folder (`folder`). Names are
``part-<timeline>-<epoch>-<output>-<place>.<ext>``: they follow from the manifest alone, so a release that died half-way
is repeated without a trace, and a folder never holds a row of an epoch that was not published.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import pyarrow as pa

from headrace.errors import ProgramError
from headrace.model.crash import reach
from headrace.model.report import StagedPart
from headrace.sinks.contract import Guarantee, Release, Sink, StageTask, StageWriter
from headrace.sinks.folder import Folder, open_folder
from headrace.sinks.partitions import split_by
from headrace.sinks.staged import PartWriter
from headrace.sinks.text import csv_lines, json_lines

if TYPE_CHECKING:
    from typing import Self

    from headrace.model.rows import RowCodec

Format = Literal["json", "csv", "parquet"]
FORMATS: Final = ("json", "csv", "parquet")


class FilesSink(Sink):
    kind: ClassVar[str] = "files"
    guarantee: ClassVar[Guarantee] = "exactly once"
    accepts_updates: ClassVar[bool] = False
    driver_only: ClassVar[tuple[str, ...]] = ("_folder",)

    def __init__(self, path: str | os.PathLike[str], format: Format, partition_by: Iterable[Any]) -> None:
        self.path = os.fspath(path)
        self.format = format
        self.partition_by = tuple(_column_name(column) for column in partition_by)
        self._folder: Folder | None = None
        if format not in FORMATS:
            raise ProgramError(
                f"sink.files cannot write {format!r}",
                where=self.where,
                expected="json (one object per line), csv or parquet",
                found=repr(format),
                next_move=f'use hr.sink.spark("{format}", path=…) for any other format Spark writes',
            )

    @property
    def where(self) -> str:
        return f'sink.files("{self.path}")'

    def bind(self, codec: RowCodec, output: str) -> Self:
        for name in self.partition_by:
            kind = codec.schema.types[codec.index(name, where=self.where)]
            if pa.types.is_nested(kind) or pa.types.is_binary(kind):
                raise self._misfit(f"cannot partition by {name}", "text, numbers, booleans, dates or times", str(kind))
        if set(self.partition_by) >= set(codec.schema.names):
            raise self._misfit("partition_by takes every column", "a column left for the files", "none")
        nested = [field.name for field in codec.schema if pa.types.is_nested(field.type)]
        if self.format == "csv" and nested:
            raise self._misfit(
                f"CSV cannot hold {', '.join(nested)}", "text, numbers, booleans and times", "lists, maps or records"
            )
        return super().bind(codec, output)

    def _misfit(self, what: str, expected: str, found: str) -> ProgramError:
        move = 'use format="json" or "parquet", or select other columns before writing'
        return ProgramError(what, where=self.where, expected=expected, found=found, next_move=move)

    def start(self) -> None:
        self._open().prepare()

    def _open(self) -> Folder:
        if self._folder is None:
            self._folder = open_folder(self.path)
        return self._folder

    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        split = split_by(self.partition_by) if self.partition_by else None
        return PartWriter(task, encoder(self.format, codec, self.partition_by), self.format, split=split)

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        folder = self._open()
        for place, part in enumerate(parts):
            if place:
                reach("between_files", ctx.epoch)
            folder.put(file_name(part, place, ctx), ctx.read(part), ctx.local_path(part))
        folder.settle()

    def own_name(self) -> str:
        # Only its last part: where the folder is moved to, its output stays the same.
        return self.path.rstrip("/").rpartition("/")[2] or self.path

    def describe(self) -> str:
        by = f", by {', '.join(self.partition_by)}" if self.partition_by else ""
        return f"files {self.path} ({self.format}{by})"


def file_name(part: StagedPart, place: int, ctx: Release) -> str:
    """Where a part of an epoch goes, relative to the folder. Its order among names is the order of epochs."""
    name = f"part-{ctx.timeline}-{ctx.epoch:012d}-{ctx.output}-{place:05d}.{part.format}"
    folder = part.extra.get("folder", "")
    return f"{folder}/{name}" if folder else name


def encoder(format: str, codec: RowCodec, without: tuple[str, ...]) -> Callable[[pa.Table], bytes | pa.Buffer]:
    """Rows to the bytes of a finished file; partition columns stand in the folder's name instead."""
    if format == "json":
        return lambda table: json_lines(table, codec, without)
    if format == "csv":
        return lambda table: csv_lines(table, without)
    return lambda table: encode_parquet(table.drop_columns(list(without)) if without else table)


def encode_parquet(table: pa.Table) -> pa.Buffer:
    import pyarrow.parquet as pq

    out = pa.BufferOutputStream()
    pq.write_table(table, out, compression="zstd")
    return out.getvalue()


def _column_name(column: Any) -> str:
    """A column by its name, or by the field of a Record: ``"day"`` or ``Sale.day``."""
    if isinstance(column, MemberDescriptorType):
        return column.__name__
    if isinstance(column, str):
        return column
    raise ProgramError(
        "partition_by takes columns",
        where="sink.files",
        expected='names or fields, as in partition_by=("day", Sale.shop)',
        found=repr(column),
        next_move="compute the column with with_columns first",
    )
