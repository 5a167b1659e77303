"""A whole state as one stream of bytes: Arrow, Parquet, CSV, JSON or JSON lines, made piece by piece.

How a state is walked over, in bounded memory, says `headrace.read.batches`; here are the formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from headrace.read.batches import batches_of, json_rows, typed_batches
from headrace.read.columns import inner_names, json_text
from headrace.read.forms import JSON
from headrace.read.reader import Reader

ARROW_TYPE: Final = "application/vnd.apache.arrow.stream"
PARQUET_TYPE: Final = "application/vnd.apache.parquet"
CSV_TYPE: Final = "text/csv; charset=utf-8"
LINES_TYPE: Final = "application/x-ndjson"
SEND_BYTES: Final = 65_536


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
    schema, batches = batches_of(table, prefix, form)
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
    for rows in json_rows(table, prefix, form):
        yield b"".join(row + b"\n" for row in rows)


def write_json(table: Reader, prefix: str = "", form: str = JSON) -> Iterator[bytes]:
    """One JSON list of rows."""
    before = b"["
    for rows in json_rows(table, prefix, form):
        yield before + b",\n".join(rows)
        before = b",\n"
    yield b"[]" if before == b"[" else b"]"


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
