"""A whole state as one stream of bytes: Arrow, Parquet, CSV, JSON or JSON lines, made piece by piece.

Memory is bounded by the size of a piece, whatever the state holds. What a reader gets is of one epoch from the first
byte to the last, because the table it is read from never changes.

Nobody tells the types: a store is read without its program. So a state that does not fit into one piece is walked
twice: once to see which types its columns have, and once to give them out. A column whose values have no common type,
or one that Arrow cannot hold, becomes JSON text and says so in its metadata.

The columns are those of ``StateView.to_polars``: ``key`` and ``value``; of a map also ``entry``, of a list ``index``;
of timers ``key`` and ``at``; of windows the key's own columns, the window and the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

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


ARROW_TYPE: Final = "application/vnd.apache.arrow.stream"
PARQUET_TYPE: Final = "application/vnd.apache.parquet"
CSV_TYPE: Final = "text/csv; charset=utf-8"
LINES_TYPE: Final = "application/x-ndjson"
SEND_BYTES: Final = 65_536
JSON_ROWS: Final = 1024
"""Rows of JSON that are handed on together."""


class ByteOutlet:
    """A file that somebody writes and somebody else takes from, in turns."""

    closed = False

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._at = 0

    def write(self, data: Any) -> int:
        held = bytes(data)
        self._held.append(held)
        self._at += len(held)
        return len(held)

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def take(self) -> Iterator[bytes]:
        """What was written since the last time, in parts that are worth sending."""
        data = b"".join(self._held)
        self._held.clear()
        for start in range(0, len(data), SEND_BYTES):
            yield data[start : start + SEND_BYTES]


def _batches(table: Reader, prefix: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    pieces = walk_pieces(table, prefix)
    first = list(islice(pieces, 2))
    if len(first) < 2:
        schema, walk = derive_schema(first, table.kind), iter(first)
    else:
        schema, walk = derive_schema(chain(first, pieces), table.kind), walk_pieces(table, prefix)
    return schema, (to_batch(piece, schema) for piece in walk)


def _write(writer: Any, batches: Iterator[pa.RecordBatch], outlet: ByteOutlet) -> Iterator[bytes]:
    with writer:
        for batch in batches:
            writer.write_batch(batch)
            yield from outlet.take()
    yield from outlet.take()


def write_arrow(table: Reader, prefix: str = "") -> Iterator[bytes]:
    """The stream form of Arrow's IPC format."""
    schema, batches = _batches(table, prefix)
    outlet = ByteOutlet()
    yield from _write(pa.ipc.new_stream(pa.PythonFile(outlet, mode="w"), schema), batches, outlet)


def write_parquet(table: Reader, prefix: str = "") -> Iterator[bytes]:
    """One Parquet file; a row group per piece."""
    schema, batches = _batches(table, prefix)
    outlet = ByteOutlet()
    writer = pq.ParquetWriter(pa.PythonFile(outlet, mode="w"), schema, compression="zstd")
    yield from _write(writer, batches, outlet)


def write_csv(table: Reader, prefix: str = "") -> Iterator[bytes]:
    """Comma-separated, with a header. Fields of a value are columns; whatever lies deeper is JSON."""
    schema, batches = _batches(table, prefix)
    flat = _flatten(pa.RecordBatch.from_pylist([], schema))
    outlet = ByteOutlet()
    writer = pa_csv.CSVWriter(pa.PythonFile(outlet, mode="w"), flat.schema)
    yield from _write(writer, map(_flatten, batches), outlet)


def _flatten(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns: dict[str, pa.Array] = {}
    for field, column in zip(batch.schema, batch.columns):
        if not pa.types.is_struct(field.type):
            columns[field.name] = _cells(column)
            continue
        for inner, part in zip(field.type, column.flatten()):
            name = f"{field.name}.{inner.name}" if inner.name in batch.schema.names else inner.name
            columns[name] = _cells(part)
    return pa.RecordBatch.from_pydict(columns)


def _cells(column: pa.Array) -> pa.Array:
    kind = column.type
    if not (pa.types.is_nested(kind) or pa.types.is_binary(kind)):
        return column
    return pa.array([None if value is None else json_text(value) for value in column.to_pylist()], pa.string())


def write_lines(table: Reader, prefix: str = "") -> Iterator[bytes]:
    """A row as JSON per line."""
    for rows in _json_rows(table, prefix):
        yield b"".join(row + b"\n" for row in rows)


def write_json(table: Reader, prefix: str = "") -> Iterator[bytes]:
    """One JSON list of rows."""
    before = b"["
    for rows in _json_rows(table, prefix):
        yield before + b",\n".join(rows)
        before = b",\n"
    yield b"[]" if before == b"[" else b"]"


def _json_rows(table: Reader, prefix: str) -> Iterator[list[bytes]]:
    for piece in walk_pieces(table, prefix):
        rows = _rows_of(piece)
        while held := [encode(row, JSON) for row in islice(rows, JSON_ROWS)]:
            yield held


def _rows_of(piece: Piece) -> Iterator[dict[str, Any]]:
    names = list(piece)
    columns: Iterable[Any] = (v.to_pylist() if isinstance(v, pa.Array) else v for v in piece.values())
    return (dict(zip(names, row)) for row in zip(*columns))


class Format(msgspec.Struct, frozen=True):
    """One way to give out a whole state."""

    content_type: str
    write: Callable[[Reader, str], Iterator[bytes]]
    suffix: str


FORMATS: Final[dict[str, Format]] = {
    "arrow": Format(ARROW_TYPE, write_arrow, "arrows"),
    "parquet": Format(PARQUET_TYPE, write_parquet, "parquet"),
    "csv": Format(CSV_TYPE, write_csv, "csv"),
    "json": Format("application/json", write_json, "json"),
    "ndjson": Format(LINES_TYPE, write_lines, "ndjson"),
}
"""Name in ``?format=`` → how."""

BY_TYPE: Final = {form.content_type.partition(";")[0]: name for name, form in FORMATS.items() if name not in ("json",)}
"""What ``Accept`` may ask for; plain JSON describes the state instead."""
