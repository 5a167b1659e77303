"""Tables with a row per entry of a map, element of a list, or timer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from headrace.model.columns import TIMESTAMP
from headrace.model.key_text import key_text
from headrace.read.columns import Piece
from headrace.read.entries import EntryReader
from headrace.snapshots.column_types import ColumnType, column_type, json_type, key_types
from headrace.snapshots.table import UNFIT, StateTable
from headrace.snapshots.values import Take, is_flat

ENTRY: Final = "entry"
INDEX: Final = "index"
VALUE: Final = "value"
AT: Final = "at"


class EntryTable(StateTable):
    """The entries of a map, elements of a list or timers of each key."""

    reader: EntryReader

    def more_columns(self) -> Iterator[tuple[str, ColumnType]]:
        for name, type, _, _ in self._fields():
            yield name, type

    @property
    def row_key(self) -> tuple[str, ...]:
        return (*self.key_names, {"map": ENTRY, "list": INDEX}.get(self.reader.kind, AT))

    def _fields(self) -> Iterator[tuple[str, ColumnType, str, Take]]:
        """Columns: name, type, which column of the reader they are made of, and how."""
        kind = self.reader.kind
        if kind == "timers":
            yield AT, ColumnType(TIMESTAMP), AT, _same
            return
        assert self.declared is not None and self.declared.type is not None
        shape, times = self.declared.type, self.declared.times
        if kind == "map":
            names = None if times is None else times.names
            inner = key_types(None, shape.keys, names) if shape.keys is not None else [json_type()]
            yield (ENTRY, inner[0], ENTRY, _same) if len(inner) == 1 else (ENTRY, json_type(), ENTRY, _key_texts)
        else:
            yield INDEX, ColumnType(pa.int64()), INDEX, _same
        item_times = None if times is None else times.items
        if shape.items is None or not is_flat(shape.items):
            yield VALUE, column_type(shape.items, item_times), VALUE, _same
            return
        for field in shape.items.fields:
            part_times = None if item_times is None else item_times.fields.get(field.stored_name)
            yield field.name, column_type(field.type, part_times), VALUE, _taker(field.stored_name)

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for rows, piece in self.reader.row_pieces():
            yield self._batch(rows.column("key"), piece, names)

    def rows_of(self, keys: Sequence[bytes], names: Sequence[str]) -> pa.RecordBatch:
        found = [self._batch(rows.column("key"), piece, names) for rows, piece in self.reader.row_pieces(keys)]
        if not found:
            return self._batch(pa.array([], pa.binary()), {name: [] for name in (ENTRY, INDEX, VALUE, AT)}, names)
        return pa.Table.from_batches(found).combine_chunks().to_batches()[0]

    def _batch(self, keys: pa.BinaryArray, piece: Piece, names: Sequence[str]) -> pa.RecordBatch:
        wanted = self.value_names(names)
        behind = [column.name for column in self.columns if column.key_part is None]
        fields = dict(zip(behind, self._fields()))
        try:
            more = {name: _column(piece[fields[name][2]], fields[name]) for name in wanted}
            return self.batch(keys, names, more)
        except UNFIT as error:
            raise self.unfit(error) from error


def _column(values: Any, field: tuple[str, ColumnType, str, Take]) -> pa.Array:
    _, type, _, take = field
    if isinstance(values, pa.Array):
        return values.cast(type.arrow)
    return type.column(take(values))


def _same(values: Sequence[Any]) -> Sequence[Any]:
    return values


def _key_texts(values: Sequence[Any]) -> Sequence[Any]:
    return [list(value) if isinstance(value, tuple) else key_text(value) for value in values]


def _taker(name: str) -> Take:
    return lambda values: [value.get(name) for value in values]
