"""Rows into files of an export: Parquet or JSON lines, in parts of bounded size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.state.fold import rebatch
from headrace.transfer.folder import ExportFolder

PARQUET: Final = "parquet"
JSON_LINES: Final = "jsonl"
PART_ROWS: Final = 2_000_000
"""Rows of one file: many readers take files side by side."""
_GROUP_ROWS: Final = 131_072
"""Rows of one row group."""
_GROUP_BYTES: Final = 64 * 2**20


def write_parquet(
    folder: ExportFolder, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> tuple[list[str], int]:
    """Paths of the files, and how many rows are in them; a state without rows is a file without rows."""
    files: list[str] = []
    groups = rebatch(batches, _GROUP_ROWS, _GROUP_BYTES)
    group = next(groups, pa.RecordBatch.from_pylist([], schema))
    total = 0
    while True:
        path = f"{name}/part-{len(files):05d}.parquet"
        files.append(path)
        rows = 0
        with folder.open(path, "wb") as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
            while group is not None and rows < PART_ROWS:
                writer.write_batch(group)
                rows += group.num_rows
                group = next(groups, None)
        total += rows
        if group is None:
            return files, total


def write_lines(folder: ExportFolder, name: str, rows: Iterable[list[bytes]]) -> tuple[list[str], int]:
    """The same of rows that are JSON already, some at a time."""
    files: list[str] = []
    groups = iter(rows)
    group = next(groups, None)
    total = 0
    while True:
        path = f"{name}/part-{len(files):05d}.jsonl"
        files.append(path)
        count = 0
        with folder.open(path, "wb") as file:
            while group is not None and count < PART_ROWS:
                file.write(b"".join(row + b"\n" for row in group))
                count += len(group)
                group = next(groups, None)
        total += count
        if group is None:
            return files, total
