"""Several finished files of one kind as one: how the parts of a folder are put together.

What goes together is told by its shape: lines of JSON always do, CSV with the same header, Parquet with the same
schema.
Memory is bounded by one row group of the result and one of a part.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

Gather = Callable[[str, Sequence[pa.Buffer], Path], None]
"""Puts parts of one format together, in their order, into a file."""

_ROW_GROUP_BYTES: Final = 64 * 2**20
"""Of a Parquet file that is put together, counted as Arrow columns."""


def shape_of(format: str, data: pa.Buffer) -> str:
    """What parts must have in common to become one file."""
    if format == "parquet":
        import pyarrow.parquet as pq

        return _checksum(str(pq.read_schema(pa.BufferReader(data)).remove_metadata()).encode())
    return _checksum(_header(data)) if format == "csv" else "0"


def _checksum(data: bytes) -> str:
    return f"{zlib.crc32(data):08x}"


def _header(data: pa.Buffer) -> bytes:
    """The first line of a CSV file; names of columns in quotes may hold line ends."""
    whole = memoryview(data)
    at = 0
    quoted = False
    while at < len(whole):
        byte = whole[at]
        if byte == 0x22:
            quoted = not quoted
        elif byte == 0x0A and not quoted:
            return bytes(whole[: at + 1])
        at += 1
    return bytes(whole)


def gather(format: str, parts: Sequence[pa.Buffer], made: Path) -> None:
    """Parts of one shape as one file."""
    if format == "parquet":
        _gather_parquet(parts, made)
        return
    with made.open("wb") as file:
        for number, part in enumerate(parts):
            skipped = len(_header(part)) if format == "csv" and number else 0
            file.write(memoryview(part)[skipped:])


def _gather_parquet(parts: Iterable[pa.Buffer], made: Path) -> None:
    import pyarrow.parquet as pq

    writer: pq.ParquetWriter | None = None
    held: list[pa.Table] = []
    held_bytes = 0
    try:
        for part in parts:
            file = pq.ParquetFile(pa.BufferReader(part))
            for number in range(file.num_row_groups):
                held.append(file.read_row_group(number).replace_schema_metadata(None))
                held_bytes += held[-1].nbytes
                writer = writer or pq.ParquetWriter(made, held[-1].schema, compression="zstd")
                if held_bytes >= _ROW_GROUP_BYTES:
                    _write(writer, held)
                    held, held_bytes = [], 0
        if writer is not None and held:
            _write(writer, held)
    finally:
        if writer is not None:
            writer.close()


def _write(writer: object, held: Sequence[pa.Table]) -> None:
    table = pa.concat_tables(held)
    writer.write_table(table, row_group_size=max(1, table.num_rows))  # type: ignore[attr-defined]
