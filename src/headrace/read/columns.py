"""A state as columns, piece by piece: what DataFrames, exports over HTTP and clients give.

The columns are ``key`` and ``value``; of a map also ``entry``, of a list ``index``; of timers ``key`` and ``at``; of
windows the key's own columns, the window and the results; where somebody asks for it, ``expires_at`` beside what
expires. Timers and the ends of windows are times, Records keep the types of their columns, and decimals are as wide as
everywhere. Where columns have types, a value that is a Record or a row of results is spread over columns of its own
(`spread`).

Nobody tells the other types: a store is read without its program. So a schema is derived from all pieces. A column
whose values have no common type, or one that Arrow cannot hold, becomes JSON text and says so in its metadata.

What this module deliberately does not do: walk over a state (`headrace.read.batches`), or files and their formats.
"""

from __future__ import annotations

import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from headrace.model.columns import DECIMAL
from headrace.model.record import Record
from headrace.model.rows import codec_of
from headrace.model.time import Timestamp
from headrace.model.time_shape import TIMESTAMP, TimeShape
from headrace.model.window import WINDOW_END, WINDOW_START
from headrace.read.forms import JSON, encode
from headrace.read.shape import Kind

if TYPE_CHECKING:
    import polars as pl

PIECE_ROWS: Final = 16_384
MAX_FIELDS: Final = 256
"""A dictionary with more names than this is data, not a row type."""
IS_JSON: Final = {b"headrace": b"json"}
_TIME: Final = pa.timestamp("us", "UTC")

Piece = dict[str, Sequence[Any] | pa.Array]
"""Name of a column → its values, all of the same length."""

EXPIRES_AT: Final = "expires_at"
"""When an entry expires, by the clock of its state; null where it does not."""
_KEY: Final = "key"
_AT: Final = "at"
_VALUE: Final = "value"
_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "value": ("key", "value"),
    "map": ("key", "entry", "value"),
    "list": ("key", "index", "value"),
    "timers": ("key", _AT),
}


def no_rows(names: Iterable[str]) -> Piece:
    """The columns of a state that keeps nothing."""
    timed = (WINDOW_START, WINDOW_END, _AT, EXPIRES_AT)
    return {name: times_of([]) if name in timed else pa.nulls(0) for name in names}


def names_of(kind: Kind) -> tuple[str, ...]:
    """The columns of a state of which nothing but its kind is known."""
    return _NAMES.get(kind, (_KEY, WINDOW_START, WINDOW_END))


def pieces_of(kind: Kind, pairs: Iterable[tuple[Any, Any]], annotation: Any = None) -> Iterator[Piece]:
    """Keys and values as columns; entries, elements and times as rows of their own."""
    rows = _rows_of_pairs(kind, pairs)
    while held := list(islice(rows, PIECE_ROWS)):
        yield piece_of(kind, [list(column) for column in zip(*held)], annotation)


def _rows_of_pairs(kind: Kind, pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, ...]]:
    for key, value in pairs:
        match kind:
            case "map":
                yield from ((key, name, each) for name, each in value.items())
            case "list":
                yield from ((key, place, each) for place, each in enumerate(value))
            case "timers":
                yield from ((key, at) for at in value)
            case _:
                yield key, value


def piece_of(kind: Kind, columns: Sequence[Sequence[Any] | pa.Array], annotation: Any = None) -> Piece:
    """Columns of a state, one row per value, entry, element or timer. ``annotation``: the type asked for, if any."""
    part = annotation if kind == "value" else (typing.get_args(annotation) or (None,))[-1]
    last = Timestamp if kind == "timers" else part
    return dict(zip(_NAMES[kind], [*columns[:-1], _as_annotated(columns[-1], last)]))


def _as_annotated(values: Sequence[Any] | pa.Array, annotation: Any) -> Sequence[Any] | pa.Array:
    if annotation is Timestamp:
        return times_of(values)
    if isinstance(annotation, type) and issubclass(annotation, Record):
        codec = codec_of(annotation)
        return pa.StructArray.from_arrays(codec.to_arrays(values), fields=list(codec.schema))
    return values


def expiry_of(rows: pa.RecordBatch) -> Piece:
    """When rows of a table expire, as a column."""
    if "expires" not in rows.schema.names:
        return {EXPIRES_AT: times_of([None] * rows.num_rows)}
    return {EXPIRES_AT: times_of(rows.column("expires"))}


def times_of(values: Sequence[Any] | pa.Array) -> pa.Array:
    """Microseconds as times."""
    return (values if isinstance(values, pa.Array) else pa.array(values, pa.int64())).cast(_TIME)


def row_pieces(rows: Iterable[dict[str, Any]]) -> Iterator[Piece]:
    """Results of windows as columns."""
    rows = iter(rows)
    while held := list(islice(rows, PIECE_ROWS)):
        names = dict.fromkeys(name for row in held for name in row)
        piece: Piece = {name: [row.get(name) for row in held] for name in names}
        yield piece | {name: times_of(piece[name]) for name in (WINDOW_START, WINDOW_END) if name in piece}


def table_of(pieces: Iterable[Piece], empty: Piece) -> pa.Table:
    """All pieces as a table of Arrow. ``empty``: its columns, where there is none."""
    pieces = list(pieces) or [empty]
    schema = derive_schema(pieces)
    return pa.Table.from_batches([spread(to_batch(piece, schema)) for piece in pieces])


def frame_of(pieces: Iterable[Piece], empty: Piece) -> pl.DataFrame:
    """All pieces as a DataFrame."""
    return polars_frame(table_of(pieces, empty))


def polars_frame(table: pa.Table) -> pl.DataFrame:
    """A table of Arrow as a DataFrame."""
    import polars as pl

    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


# --- one schema


def derive_schema(pieces: Iterable[Piece]) -> pa.Schema:
    """The schema that all pieces fit into, of which there is one at least; JSON text where there is no common type."""
    types: dict[str, pa.DataType | None] = {}
    for piece in pieces:
        for name, values in piece.items():
            mine = type_of(values)
            types[name] = merge_types(types[name], mine) if name in types else mine
    return pa.schema([_field(name, kind) for name, kind in types.items()])


def type_of(values: Sequence[Any] | pa.Array) -> pa.DataType | None:
    """The Arrow type of plain values; None where they have none."""
    if isinstance(values, pa.Array):
        return values.type
    try:
        plain = _plain(values)
        found = pa.array(plain).type
        wide = _widen(found)
        return wide if wide.equals(found) else pa.array(plain, wide).type
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def _widen(kind: pa.DataType) -> pa.DataType:
    """The same type with decimals as they are everywhere, however many digits these ones happen to have."""
    if pa.types.is_list(kind):
        return pa.list_(_widen(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_widen(field.type)) for field in kind])
    return DECIMAL if pa.types.is_decimal(kind) else kind


def merge_types(first: pa.DataType | None, second: pa.DataType | None) -> pa.DataType | None:
    """The type that holds what both hold; None: only JSON does."""
    if first is None or second is None:
        return None
    if first.equals(second) or pa.types.is_null(second):
        return first
    if pa.types.is_null(first):
        return second
    if {first, second} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_struct(first) and pa.types.is_struct(second):
        return _merge_structs(first, second)
    if pa.types.is_list(first) and pa.types.is_list(second):
        inner = merge_types(first.value_type, second.value_type)
        return None if inner is None else pa.list_(inner)
    return None


def _merge_structs(first: pa.StructType, second: pa.StructType) -> pa.DataType | None:
    merged: dict[str, pa.DataType] = {field.name: field.type for field in first}
    for field in second:
        inner = merge_types(merged.get(field.name, field.type), field.type)
        if inner is None:
            return None
        merged[field.name] = inner
    return pa.struct(list(merged.items())) if len(merged) <= MAX_FIELDS else None


def _field(name: str, type: pa.DataType | None) -> pa.Field:
    if type is None or not _is_writable(type):
        return pa.field(name, pa.string(), metadata=IS_JSON)
    return pa.field(name, type)


def _is_writable(type: pa.DataType) -> bool:
    """Parquet knows no struct without fields."""
    if pa.types.is_struct(type):
        return 0 < type.num_fields <= MAX_FIELDS and all(_is_writable(field.type) for field in type)
    return not pa.types.is_list(type) or _is_writable(type.value_type)


# --- pieces under the schema


def to_batch(piece: Piece, schema: pa.Schema) -> pa.RecordBatch:
    """A piece under the schema that all pieces share."""
    rows = max((len(values) for values in piece.values()), default=0)
    arrays = [_column(piece.get(field.name, [None] * rows), field) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def spread(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The fields of the values as columns of their own; one called like a column before it is ``value.NAME``."""
    place = batch.schema.get_field_index(_VALUE)
    if place < 0 or not pa.types.is_struct(batch.schema.field(place).type):
        return batch
    fields, columns = list(batch.schema), batch.columns
    value = fields[place].type
    names = inner_names(_VALUE, value, [field.name for field in fields if field.name != _VALUE])
    fields[place : place + 1] = [field.with_name(name) for name, field in zip(names, value)]
    columns[place : place + 1] = columns[place].flatten()
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def with_times(batch: pa.RecordBatch, shapes: Mapping[str, TimeShape | None]) -> pa.RecordBatch:
    """Numbers that are times as times; ``shapes``: column → where the times of its values are."""
    columns = [_as_times(column, shapes.get(name)) for name, column in zip(batch.schema.names, batch.columns)]
    fields = [field.with_type(column.type) for field, column in zip(batch.schema, columns)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _as_times(column: pa.Array, shape: TimeShape | None) -> pa.Array:
    if shape is None:
        return column
    kind = column.type
    if shape.time == TIMESTAMP and pa.types.is_int64(kind):
        return column.cast(_TIME)
    if shape.fields and pa.types.is_struct(kind):
        parts = [_as_times(column.field(i), shape.fields.get(field.name)) for i, field in enumerate(kind)]
        fields = [field.with_type(part.type) for field, part in zip(kind, parts)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=column.is_null() if column.null_count else None)
    if shape.items is not None and pa.types.is_list(kind) and not column.offset:
        mask = column.is_null() if column.null_count else None
        return pa.ListArray.from_arrays(column.offsets, _as_times(column.values, shape.items), mask=mask)
    return column


def inner_names(name: str, kind: pa.StructType, beside: Collection[str]) -> list[str]:
    """What the fields of a column are called as columns of their own, ``beside`` others."""
    return [f"{name}.{inner.name}" if inner.name in beside else inner.name for inner in kind]


def _column(values: Sequence[Any] | pa.Array, field: pa.Field) -> pa.Array:
    if isinstance(values, pa.Array):
        if values.type.equals(field.type):
            return values
        values = values.to_pylist()
    if field.metadata == IS_JSON:
        return pa.array([None if value is None else json_text(value) for value in values], pa.string())
    return pa.array(_plain(values), field.type)


def json_text(value: Any) -> str:
    return encode(value, JSON).decode()


def _plain(values: Sequence[Any]) -> Sequence[Any]:
    """Composite keys are structs: their parts differ in type, which a list could not hold."""
    if any(isinstance(value, tuple | msgspec.Struct) for value in values):
        return [_plain_value(value) for value in values]
    return values


def _plain_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return {f"part_{i}": part for i, part in enumerate(value)}
    return msgspec.to_builtins(value, builtin_types=(bytes, Decimal)) if isinstance(value, msgspec.Struct) else value
