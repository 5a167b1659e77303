"""Tables with a row per key and window: windows in state, and those that are closed for good and lie in an archive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.columns import TIMESTAMP
from headrace.model.job import DeclaredState
from headrace.model.window import WINDOW_END, WINDOW_START
from headrace.read.archive import ArchivedWindows
from headrace.read.columns import with_times
from headrace.read.windows import SlicedReader, WindowReader
from headrace.snapshots.column_types import ColumnType
from headrace.snapshots.table import UNFIT, StateColumn, StateTable, TableName

ARCHIVE: Final = "archive"
"""``hourly.archive`` is the table of the closed windows of ``hourly``."""


class WindowTable(StateTable):
    """Windows that are merged from slices, and sessions from fragments: finished in columns."""

    reader: SlicedReader

    def named_keys(self) -> tuple[str, ...]:
        return tuple(self.reader.about.key)

    @property
    def row_key(self) -> tuple[str, ...]:
        return (*self.key_names, WINDOW_START, WINDOW_END)

    def more_columns(self) -> Iterator[tuple[str, ColumnType]]:
        batch = self._timed(pa.RecordBatch.from_pydict(self.reader.window_columns(None)))
        for field in batch.schema:
            yield field.name, ColumnType(field.type)

    def _timed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return with_times(batch, self.reader.value_times.fields)

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for merged in self.reader.merged_rows():
            yield self._piece(merged, names)

    def rows_of(self, keys: Sequence[bytes], names: Sequence[str]) -> pa.RecordBatch:
        [merged] = self.reader.merged_rows(keys)
        wanted = pa.array(keys, pa.binary())
        # What shares a hash with one of the keys was merged beside it.
        return self._piece(merged.filter(pc.is_in(merged.column("key"), wanted)), names)

    def plain_rows(self, key: bytes, names: Sequence[str]) -> list[tuple[Any, ...]]:
        if any(pa.types.is_nested(self.by_name[name].type.arrow) for name in names):
            return super().plain_rows(key, names)
        rows = self.reader.windows(key).values()
        return [tuple([row.get(name) for name in names]) for row in rows]

    def _piece(self, merged: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
        wanted = self.value_names(names)
        made = self.reader.window_columns(merged, wanted)
        timed = self._timed(pa.RecordBatch.from_pydict({name: made[name] for name in wanted}))
        return self.batch(merged.column("key"), names, dict(zip(wanted, timed.columns)))


class ArchiveTable(StateTable):
    """The windows of a state that are closed for good, as the epoch knows them."""

    looks_up = False
    reader: WindowReader

    def __init__(self, reader: WindowReader, archived: ArchivedWindows, declared: DeclaredState | None) -> None:
        super().__init__(reader, declared)
        self._archived = archived
        self.address = f"{reader.address}.{ARCHIVE}"
        self.name = TableName(reader.address, ARCHIVE)

    @cached_property
    def columns(self) -> tuple[StateColumn, ...]:
        """As the windows in state have them; where there are none, as the first file has them."""
        known: dict[str, pa.DataType] = {}
        if isinstance(self.reader, SlicedReader) and self.reader.views:
            table = WindowTable(self.reader, self.declared)
            known = {column.name: column.type.arrow for column in table.columns}
        else:
            for frame in self._archived.frames():
                known = {field.name: _plain_type(field.type) for field in frame.to_arrow().schema}
                break
        bounds = dict.fromkeys((WINDOW_START, WINDOW_END), TIMESTAMP)
        types = {name: known.get(name, bounds.get(name, pa.string())) for name in self._archived.columns}
        return tuple(StateColumn(name, ColumnType(kind)) for name, kind in types.items())

    @property
    def row_key(self) -> tuple[str, ...]:
        names = self._archived.columns
        return names[: names.index(WINDOW_END) + 1]

    @property
    def version(self) -> tuple[object, ...]:
        return id(self.reader.layers), self.address, self.reader.epoch

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        fields = [self.schema.field(name) for name in names]
        for frame in self._archived.frames():
            missing = [field.name for field in fields if field.name not in frame.columns]
            table = frame.select([name for name in names if name not in missing]).to_arrow()
            try:
                columns = [
                    pa.nulls(frame.height, field.type)
                    if field.name in missing
                    else table.column(field.name).cast(field.type).combine_chunks()
                    for field in fields
                ]
            except UNFIT as error:
                raise self.unfit(error) from error
            yield pa.RecordBatch.from_arrays([_one(column) for column in columns], schema=pa.schema(fields))


def _one(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks else pa.nulls(0, column.type)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of a column whose text polars holds in its own way."""
    text = pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return pa.string() if text else kind
