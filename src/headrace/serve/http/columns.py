"""Rows of a state as Arrow columns, a bounded number of rows at a time, under one schema for all of them.

Nobody tells the types: a store is read without its program. So a state that does not fit into one piece is walked
twice: once to see which types its columns have, and once to give them out. A column whose values have no common type,
or one that Arrow cannot hold, becomes JSON text and says so in its metadata.

The columns are those of ``StateView.to_polars``: ``key`` and ``value``; of a map also ``entry``, of a list ``index``;
of timers ``key`` and ``at``; of windows the key's own columns, the window and the results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from headrace.model.keys import decode_key
from headrace.read.forms import JSON, encode
from headrace.read.reader import Reader

PIECE_ROWS: Final = 16_384
MAX_FIELDS: Final = 256
"""A dictionary with more names than this is data, not a row type."""
IS_JSON: Final = {b"headrace": b"json"}

Piece = dict[str, Sequence[Any] | pa.Array]
"""Name of a column → its values, all of the same length."""

_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "value": ("key", "value"),
    "map": ("key", "entry", "value"),
    "list": ("key", "index", "value"),
    "timers": ("key", "at"),
}


def walk_pieces(table: Reader, prefix: str = "") -> Iterator[Piece]:
    """The whole state, piece by piece, in the order of the keys' hashes."""
    if table.kind == "windows":
        yield from table.window_pieces(prefix)
        return
    names = _NAMES[table.kind]
    rows = _walk_rows(table, prefix)
    while held := list(islice(rows, PIECE_ROWS)):
        yield dict(zip(names, (list(column) for column in zip(*held))))


def _walk_rows(table: Reader, prefix: str) -> Iterator[tuple[Any, ...]]:
    for encoded, value in table.items(prefix):
        key = decode_key(encoded)
        match table.kind:
            case "map":
                yield from ((key, name, each) for name, each in value.items())
            case "list":
                yield from ((key, place, each) for place, each in enumerate(value))
            case "timers":
                yield from ((key, at) for at in value)
            case _:
                yield key, value


# --- one schema


def derive_schema(pieces: Iterable[Piece], kind: str) -> pa.Schema:
    """The schema that all pieces fit into; JSON text where there is no common type."""
    found: dict[str, pa.DataType | None] = {}
    for piece in pieces:
        for name, values in piece.items():
            mine = type_of(values)
            found[name] = merge_types(found[name], mine) if name in found else mine
    names = found or dict.fromkeys(_NAMES.get(kind, ("key",)), pa.null())
    return pa.schema([_field(name, found.get(name, pa.null())) for name in names])


def type_of(values: Sequence[Any] | pa.Array) -> pa.DataType | None:
    """The Arrow type of plain values; None where they have none."""
    if isinstance(values, pa.Array):
        return values.type
    try:
        return pa.array(_plain(values)).type
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


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
    if any(isinstance(value, tuple) for value in values):
        return [
            {f"part_{i}": part for i, part in enumerate(value)} if isinstance(value, tuple) else value
            for value in values
        ]
    return values
