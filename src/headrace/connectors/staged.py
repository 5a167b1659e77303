"""Staging: rows of a task become parts, files of the store or bytes inside the task's report.

A `PartWriter` holds rows back until a part is worth writing, at most `HELD_BYTES` of them and one batch. Sinks that
are fed in the driver stage Arrow streams (`arrow_writer`) and read them back with `read_rows`.

Arrow streams are not compressed: they live for an epoch, and measured on a local disk (500 000 rows of four columns)
zstd makes 11 MB of 19, but a durable write then takes 90 ms instead of 27.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from msgspec import structs

from headrace.connectors.sink_contract import Release, StageTask, StageWriter
from headrace.errors import StoreError
from headrace.model.fields import former_names
from headrace.model.report import StagedPart
from headrace.model.row_kind import DELETE, SIGNS, holds_or_goes, takes_back
from headrace.model.wire import ROW_KIND

if TYPE_CHECKING:
    from headrace.model.batch import Rows
    from headrace.model.rows import RowCodec

HELD_BYTES: Final = 64 * 2**20
"""Rows a writer holds in memory before it puts a part, counted as Arrow columns."""

ARROW: Final = "arrow"
GONE: Final = "gone"
"""In what is beside a part: its rows are to go."""
_BATCH_ROWS: Final = 50_000
_KIND: Final = pa.field(ROW_KIND, pa.int8())

Encode = Callable[[pa.Table], "bytes | pa.Buffer"]
SplitRows = Callable[[pa.RecordBatch], Iterable[tuple[str, pa.RecordBatch]]]
"""Cuts a batch into the folders its rows belong to."""


class PartWriter(StageWriter):
    """Gathers rows, per folder where there are several, and puts them as parts in one format."""

    def __init__(
        self,
        task: StageTask,
        encode: Encode,
        format: str,
        *,
        split: SplitRows | None = None,
        held_bytes: int = HELD_BYTES,
    ) -> None:
        self._task = task
        self._encode = encode
        self._format = format
        self._split = split
        self._held_limit_bytes = held_bytes
        self._held: dict[str, list[pa.RecordBatch]] = {}
        self._sizes: dict[str, int] = {}
        self._parts: list[StagedPart] = []

    def write(self, rows: Rows) -> None:
        if len(rows):
            batch = rows.record_batch
            self.add(batch if rows.kinds is None else batch.append_column(_KIND, pa.array(rows.kinds, pa.int8())))

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes rows as columns; not the type's own alone, where whoever reads them knows of others."""
        for folder, piece in [("", batch)] if self._split is None else self._split(batch):
            self._held.setdefault(folder, []).append(piece)
            self._sizes[folder] = self._sizes.get(folder, 0) + piece.nbytes
        if sum(self._sizes.values()) >= self._held_limit_bytes:
            self._shrink()

    def _shrink(self) -> None:
        """Puts the largest folders first: with many folders, the small ones may still grow into decent files."""
        left = sum(self._sizes.values())
        for folder in sorted(self._sizes, key=lambda name: self._sizes[name], reverse=True):
            if left <= self._held_limit_bytes // 2:
                return
            left -= self._sizes[folder]
            self._put(folder)

    def _put(self, folder: str) -> None:
        del self._sizes[folder]
        table = pa.Table.from_batches(self._held.pop(folder))
        extra = {"folder": folder} if folder else {}
        self._parts.append(stage(self._task, self._encode(table), table.num_rows, self._format, extra))

    def finish(self) -> list[StagedPart]:
        # In the order of names, so that what a task stages depends on its rows alone.
        for folder in sorted(self._held):
            self._put(folder)
        return self._parts


class ChangeWriter(StageWriter):
    """Gathers rows of a changelog by key: those that hold, and apart from them those that are gone.

    Of a key an epoch says one thing, so the order of both does not matter.
    """

    def __init__(self, kept: PartWriter, gone: PartWriter) -> None:
        self._kept, self._gone = kept, gone

    def write(self, rows: Rows) -> None:
        if rows.kinds is None:
            self._kept.write(rows)
            return
        for writer, mine in (
            (self._kept, holds_or_goes(rows.kinds) & ~takes_back(rows.kinds)), (self._gone, rows.kinds == DELETE),
        ):  # fmt: skip
            places = np.flatnonzero(mine)
            if len(places):
                writer.write(rows.take(places).with_kinds(None))

    def finish(self) -> list[StagedPart]:
        gone = [structs.replace(part, extra={**part.extra, GONE: "1"}) for part in self._gone.finish()]
        return [*self._kept.finish(), *gone]


def stage(
    task: StageTask, data: bytes | pa.Buffer, rows: int, format: str, extra: dict[str, str] | None = None
) -> StagedPart:
    """A part: inside the report when it is small, else a file of the staging area."""
    size = len(data)
    if task.take_inline(size):
        return StagedPart(rows=rows, size_bytes=size, format=format, inline=bytes(data), extra=extra or {})
    file, size = task.put(data, format)
    crc = zlib.crc32(data)
    return StagedPart(rows=rows, size_bytes=size, format=format, file=file, extra=extra or {}, crc=crc)


def arrow_writer(task: StageTask) -> PartWriter:
    """Stages rows for a sink that is fed in the driver."""
    return PartWriter(task, encode_arrow, ARROW)


def encode_arrow(table: pa.Table) -> pa.Buffer:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as stream:
        # Steps may emit many small batches; one of decent size costs far less to write and to read.
        stream.write_table(table.combine_chunks(), max_chunksize=_BATCH_ROWS)
    return out.getvalue()


def read_batches(parts: Sequence[StagedPart], ctx: Release) -> Iterator[pa.RecordBatch]:
    """The staged rows of an epoch as columns, in order, a batch at a time."""
    for part in parts:
        with pa.ipc.open_stream(ctx.read(part)) as stream:
            yield from stream


def read_rows(parts: Sequence[StagedPart], ctx: Release, codec: RowCodec) -> Iterator[list[Any]]:
    """The staged rows of an epoch as objects, in order, a batch at a time."""
    for batch in read_batches(parts, ctx):
        yield codec.to_objects(columns_of(batch, codec, f"output {ctx.output}"))


def read_changes(
    parts: Sequence[StagedPart], ctx: Release, codec: RowCodec
) -> Iterator[tuple[list[Any], list[str] | None]]:
    """The same, each batch with the sign of each row; None where rows have none."""
    for batch in read_batches(parts, ctx):
        yield codec.to_objects(columns_of(batch, codec, f"output {ctx.output}")), signs_of(batch)


def signs_of(batch: pa.RecordBatch | pa.Table) -> list[str] | None:
    """What each staged row is, as people write it; None for rows of a stream that is no changelog."""
    return [SIGNS[kind] for kind in batch.column(ROW_KIND).to_pylist()] if ROW_KIND in batch.schema.names else None


def columns_of(batch: pa.RecordBatch, codec: RowCodec, where: str) -> list[pa.Array]:
    """Columns by name: rows may have been staged by an earlier program, whose type had other fields."""
    if batch.schema.names == codec.schema.names and batch.schema.types == codec.schema.types:
        return list(batch.columns)
    columns: list[pa.Array] = []
    was = former_names(codec.type)
    for field in codec.schema:
        name = next((each for each in (field.name, *was.get(field.name, ())) if each in batch.schema.names), None)
        if name is not None:
            columns.append(_fitting(batch.column(name), field, where))
        elif field.name in codec.required:
            raise _misfit(where, f"rows with the field {field.name!r}, which has no default", "rows without it")
        else:
            default = codec.columns[field.name].encode([codec.defaults.get(field.name)])
            columns.append(default.take(pa.array([0] * batch.num_rows, pa.int64())))
    return columns


def _fitting(column: pa.Array, field: pa.Field, where: str) -> pa.Array:
    """A column as the type that its field has now. Of records Arrow would fill renamed fields with nulls."""
    if column.type == field.type:
        return column
    try:
        if _has_same_records(column.type, field.type):
            return column.cast(field.type)
        reason = "records with other fields"
    except pa.ArrowException as error:
        reason = str(error)
    raise _misfit(where, f"{field.name}: {field.type}", f"{column.type}: {reason}")


def _has_same_records(one: pa.DataType, other: pa.DataType) -> bool:
    if not (pa.types.is_nested(one) and pa.types.is_nested(other)):
        return True
    inner, outer = ([kind.field(i) for i in range(kind.num_fields)] for kind in (one, other))
    if pa.types.is_struct(one) and [field.name for field in inner] != [field.name for field in outer]:
        return False
    return len(inner) == len(outer) and all(_has_same_records(a.type, b.type) for a, b in zip(inner, outer))


def _misfit(where: str, expected: str, found: str) -> StoreError:
    return StoreError(
        "rows that wait were staged by an earlier program, whose type does not lead to that of this one",
        where=where,
        expected=expected,
        found=found,
        next_move="run the earlier program until they are out; or give new fields a default, and old ones their type",
    )
