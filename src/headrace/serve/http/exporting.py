"""A whole state as one stream of bytes: Arrow, Parquet, CSV, JSON or JSON lines, made piece by piece.

Memory is bounded by the size of a piece, whatever the state holds. What a reader gets is of one epoch from the first
byte to the last, because the table it is read from never changes. A state that does not fit into one piece is walked
twice: once to see which types its columns have, and once to give them out (`headrace.read.columns`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from headrace.model.time_shape import TIME, time_writer
from headrace.read.columns import Piece, derive_schema, inner_names, json_text, spread, to_batch
from headrace.read.forms import JSON, WRITE_TIME, encode
from headrace.read.reader import Reader

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


def _batches(table: Reader, prefix: str, form: str = "") -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """``form``: how times are written as text; empty: columns keep their types."""

    def walk_pieces() -> Iterator[Piece]:
        return (_shown(piece, table, form) for piece in table.pieces(prefix)) if form else table.pieces(prefix)

    pieces = walk_pieces()
    first = list(islice(pieces, 2)) or [table.no_rows]
    if len(first) < 2:
        schema, walk = derive_schema(first), iter(first)
    else:
        schema, walk = derive_schema(chain(first, pieces)), walk_pieces()
    return schema, (to_batch(piece, schema) for piece in walk)


def typed_batches(table: Reader, prefix: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """A state as columns with types, values that are Records spread over several."""
    schema, batches = _batches(table, prefix)
    return spread(pa.RecordBatch.from_pylist([], schema)).schema, map(spread, batches)


def _write(writer: Any, batches: Iterator[pa.RecordBatch], outlet: ByteOutlet) -> Iterator[bytes]:
    with writer:
        for batch in batches:
            writer.write_batch(batch)
            yield from outlet.take()
    yield from outlet.take()


def write_arrow(table: Reader, prefix: str = "", form: str = JSON) -> Iterator[bytes]:
    """The stream form of Arrow's IPC format. ``form`` is for text: here columns have types."""
    schema, batches = typed_batches(table, prefix)
    outlet = ByteOutlet()
    yield from _write(pa.ipc.new_stream(pa.PythonFile(outlet, mode="w"), schema), batches, outlet)


def write_parquet(table: Reader, prefix: str = "", form: str = JSON) -> Iterator[bytes]:
    """One Parquet file; a row group per piece."""
    schema, batches = typed_batches(table, prefix)
    outlet = ByteOutlet()
    writer = pq.ParquetWriter(pa.PythonFile(outlet, mode="w"), schema, compression="zstd")
    yield from _write(writer, batches, outlet)


def write_csv(table: Reader, prefix: str = "", form: str = JSON) -> Iterator[bytes]:
    """Comma-separated, with a header. Fields of a value are columns; whatever lies deeper is JSON."""
    schema, batches = _batches(table, prefix, form)
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
        names = inner_names(field.name, field.type, batch.schema.names)
        columns |= {name: _cells(part) for name, part in zip(names, column.flatten())}
    return pa.RecordBatch.from_pydict(columns)


def _cells(column: pa.Array) -> pa.Array:
    kind = column.type
    if not (pa.types.is_nested(kind) or pa.types.is_binary(kind)):
        return column
    return pa.array([None if value is None else json_text(value) for value in column.to_pylist()], pa.string())


def write_lines(table: Reader, prefix: str = "", form: str = JSON) -> Iterator[bytes]:
    """A row as JSON per line."""
    for rows in _json_rows(table, prefix, form):
        yield b"".join(row + b"\n" for row in rows)


def write_json(table: Reader, prefix: str = "", form: str = JSON) -> Iterator[bytes]:
    """One JSON list of rows."""
    before = b"["
    for rows in _json_rows(table, prefix, form):
        yield before + b",\n".join(rows)
        before = b",\n"
    yield b"[]" if before == b"[" else b"]"


def _json_rows(table: Reader, prefix: str, form: str) -> Iterator[list[bytes]]:
    for piece in table.pieces(prefix):
        rows = _rows_of(_shown(piece, table, form))
        while held := [encode(row, form) for row in islice(rows, JSON_ROWS)]:
            yield held


def _rows_of(piece: Piece) -> Iterator[dict[str, Any]]:
    names = list(piece)
    columns: Iterable[Any] = (v.to_pylist() if isinstance(v, pa.Array) else v for v in piece.values())
    return (dict(zip(names, row)) for row in zip(*columns))


def _shown(piece: Piece, table: Reader, form: str) -> Piece:
    """Columns with the times in them as a form writes them."""
    shapes, write = table.column_times, WRITE_TIME[form]
    shown: Piece = {}
    for name, values in piece.items():
        shape = shapes.get(name)
        if shape is None and isinstance(values, pa.Array) and pa.types.is_timestamp(values.type):
            shape = TIME
        replace = time_writer(shape, write)
        if replace is None:
            shown[name] = values
        else:
            shown[name] = list(map(replace, values.to_pylist() if isinstance(values, pa.Array) else values))
    return shown


class Format(msgspec.Struct, frozen=True):
    """One way to give out a whole state."""

    content_type: str
    write: Callable[[Reader, str, str], Iterator[bytes]]
    """Takes the state, the beginning of the keys that are wanted, and how times are written in text."""
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
