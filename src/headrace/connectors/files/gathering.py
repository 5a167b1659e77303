"""Several finished files of one kind as one: how the parts of a folder are put together, and cut off again.

What goes together is told by its shape: lines of JSON always do, CSV with the same header, Parquet with the same
schema. Rows keep the order of their parts, so the rows up to an epoch are the first ones of a file: its *spans* say
where each epoch ends, in rows of Parquet and in bytes of text.
Memory is bounded by one row group of the result and one of a part.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import ClassVar, Final

import msgspec
import pyarrow as pa

_ROW_GROUP_BYTES: Final = 64 * 2**20
"""Of a Parquet file that is put together, counted as Arrow columns."""


class FileSpans(msgspec.Struct, frozen=True):
    """Where the rows of which epoch end in a file."""

    epochs: list[int]
    """Of each part, in order."""
    ends: list[int]

    def until(self, epoch: int) -> FileSpans:
        """The spans of the epochs that are not behind this one."""
        count = sum(each <= epoch for each in self.epochs)
        return FileSpans(self.epochs[:count], self.ends[:count])


class Gathering:
    """How rows of several epochs lie in one file."""

    needs_spans: ClassVar[bool] = True
    """Whether only spans tell which rows are of which epoch."""

    def gather(self, format: str, parts: Sequence[pa.Buffer], made: Path) -> None:
        """Puts parts of one shape together, in their order, into a file."""
        gather(format, parts, made)

    def cut(self, format: str, data: pa.Buffer, epoch: int, spans: FileSpans | None, made: Path) -> bool | None:
        """Writes the rows of a file that are not behind an epoch.

        None: all of its rows may stay, nothing was written. False: none may.
        """
        assert spans is not None
        left = spans.until(epoch)
        if left.ends == spans.ends:
            return None
        if left.ends and format == "parquet":
            _cut_parquet(data, left.ends[-1], made)
        elif left.ends:
            with made.open("wb") as file:
                file.write(memoryview(data)[: left.ends[-1]])
        return bool(left.ends)


def spans_of(format: str, parts: Sequence[tuple[int, pa.Buffer]]) -> FileSpans:
    """The spans of a file that is put together from parts, each with its epoch."""
    lengths: list[int] = []
    for number, (_, part) in enumerate(parts):
        if format == "parquet":
            import pyarrow.parquet as pq

            lengths.append(pq.read_metadata(pa.BufferReader(part)).num_rows)
        else:
            lengths.append(part.size - (len(_header(part)) if format == "csv" and number else 0))
    return FileSpans([epoch for epoch, _ in parts], list(accumulate(lengths)))


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


def _cut_parquet(data: pa.Buffer, rows: int, made: Path) -> None:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(pa.BufferReader(data))
    with pq.ParquetWriter(made, file.schema_arrow, compression="zstd") as writer:
        for number in range(file.num_row_groups):
            if rows <= 0:
                return
            group = file.read_row_group(number).slice(0, rows)
            _write(writer, [group])
            rows -= group.num_rows


def _write(writer: object, held: Sequence[pa.Table]) -> None:
    table = pa.concat_tables(held)
    writer.write_table(table, row_group_size=max(1, table.num_rows))  # type: ignore[attr-defined]
