"""How many rows the files of a folder show to its readers."""

from __future__ import annotations

import pyarrow as pa

from headrace.connectors.files.folder import Folder
from headrace.model.part_names import HIDDEN, parse_visible


def count_folder_rows(folder: Folder) -> int:
    """Of all files that a files sink of whatever job put there; what waits to be put together is not shown."""
    total = 0
    for file in folder.list("", below=True):
        named = parse_visible(file.name.rpartition("/")[2])
        if named is not None and not file.name.startswith(f"{HIDDEN}/"):
            total += _count(folder.read(file.name), named.ext)
    return total


def _count(data: pa.Buffer, ext: str) -> int:
    if ext == "json":
        return memoryview(data).tobytes().count(b"\n")
    if ext == "parquet":
        import pyarrow.parquet as pq

        return int(pq.read_metadata(pa.BufferReader(data)).num_rows)
    from pyarrow import csv

    # Text alone, and of one column: what is counted needs no types.
    table = csv.read_csv(
        pa.BufferReader(data),
        csv.ReadOptions(autogenerate_column_names=True),
        csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        csv.ConvertOptions(include_columns=["f0"], column_types={"f0": pa.string()}),
    )
    return int(table.num_rows) - 1
