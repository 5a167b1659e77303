"""Data that somebody gives, as batches of Arrow: files and folders of them, DataFrames, tables.

Files are read in bounded memory. JSON lines are read as JSON says it: a column whose values have no common type becomes
JSON text, which says so, and is told apart again by whoever knows the type.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import ProgramError, StoreError
from headrace.read.columns import Piece, derive_schema, to_batch
from headrace.transfer.folder import ExportFolder

BATCH_ROWS: Final = 65_536
PARQUET: Final = (".parquet", ".pq")
LINES: Final = (".jsonl", ".ndjson", ".json")


class GivenRows(NamedTuple):
    """Rows that somebody gives."""

    name: str
    rows: int | None
    """How many there are, where that is known beforehand."""
    batches: Iterator[pa.RecordBatch]


def open_frame(data: Any) -> GivenRows:
    """A path or URL of files, a DataFrame of pandas or polars, or anything of Arrow's."""
    if isinstance(data, str | os.PathLike):
        return _open_files(os.fspath(data))
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        return GivenRows("a table", data.num_rows, iter(data.to_batches(BATCH_ROWS)))
    if isinstance(data, pa.RecordBatchReader):
        return GivenRows("a reader of batches", None, iter(data))
    module = type(data).__module__.partition(".")[0]
    if module == "polars":
        frame = data.collect() if hasattr(data, "collect") else data
        return open_frame(frame.to_arrow())._replace(name="a DataFrame")
    if module == "pandas":
        return open_frame(pa.Table.from_pandas(data, preserve_index=False))._replace(name="a DataFrame")
    if hasattr(data, "scanner"):
        return GivenRows("a dataset", data.count_rows(), data.to_batches(batch_size=BATCH_ROWS))
    raise ProgramError(
        "state cannot be made of this",
        where="bootstrap",
        expected="the path of Parquet files or JSON lines, a DataFrame of pandas, polars or Spark, or a table of Arrow",
        found=type(data).__name__,
        next_move="convert it",
    )


def _open_files(url: str) -> GivenRows:
    folder, files = _find_files(url)
    if all(file.endswith(PARQUET) for file in files):
        rows = 0
        for file in files:
            with folder.open(file) as opened:
                rows += open_parquet(opened, f"{folder.url}/{file}").metadata.num_rows
        return GivenRows(url, rows, _parquet_batches(folder, files))
    if all(file.endswith(LINES) for file in files):
        return GivenRows(url, None, _line_batches(folder, files))
    raise ProgramError(
        "these files cannot be read",
        where=url,
        expected=f"files that end in {', '.join(PARQUET + LINES)}, all of one kind",
        found=", ".join(sorted({os.path.splitext(file)[1] or file for file in files})),
        next_move="convert them to Parquet",
    )


def _find_files(url: str) -> tuple[ExportFolder, list[str]]:
    """The folder, and the data files in it: one, or all of them in the order of their names."""
    if url.endswith(PARQUET + LINES):
        head, slash, name = url.rpartition("/")
        folder = ExportFolder(head if slash else ".")
        if name in folder.list():
            return folder, [name]
    folder = ExportFolder(url.rstrip("/") or "/")
    files = [file for file in folder.list() if not any(part.startswith(("_", ".")) for part in file.split("/"))]
    if not files:
        raise StoreError(
            "there is no file with data",
            where=url,
            expected="a file, or a folder with files",
            next_move="give the path of the data",
        )
    return folder, files


def _parquet_batches(folder: ExportFolder, files: Iterable[str]) -> Iterator[pa.RecordBatch]:
    for file in files:
        with folder.open(file) as opened:
            yield from parquet_batches(opened, f"{folder.url}/{file}")


def parquet_batches(opened: Any, where: str) -> Iterator[pa.RecordBatch]:
    """The rows of one file."""
    try:
        yield from open_parquet(opened, where).iter_batches(BATCH_ROWS)
    except pa.ArrowException as error:
        raise _unreadable(where, error) from error


def open_parquet(opened: Any, where: str) -> pq.ParquetFile:
    """One file, of which the end is read."""
    try:
        return pq.ParquetFile(opened)
    except pa.ArrowException as error:
        raise _unreadable(where, error) from error


def _unreadable(where: str, error: Exception) -> StoreError:
    return StoreError("a Parquet file cannot be read", where=where, found=str(error), next_move="write the file again")


def _line_batches(folder: ExportFolder, files: Iterable[str]) -> Iterator[pa.RecordBatch]:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    for file in files:
        with folder.open(file) as opened:
            number = 0
            while lines := list(islice(opened, BATCH_ROWS)):
                rows = []
                for line in lines:
                    number += 1
                    if line.strip():
                        try:
                            rows.append(decode(line))
                        except msgspec.MsgspecError as error:
                            raise ProgramError(
                                "a line is no JSON object",
                                where=f"{folder.url}/{file}, line {number:,}",
                                expected='an object with a column each: {"key": …, "value": …}',
                                found=f"{error}: {line[:200].decode(errors='replace')}",
                                next_move="mend the file",
                            ) from error
                if rows:
                    names = dict.fromkeys(name for row in rows for name in row)
                    piece: Piece = {name: [row.get(name) for row in rows] for name in names}
                    yield to_batch(piece, derive_schema([piece]))
