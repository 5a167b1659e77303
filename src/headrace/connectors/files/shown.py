"""What the files of a folder show to readers: how many rows, and the rows themselves with columns that folders name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa

from headrace.connectors.files.folder import Folder
from headrace.connectors.files.partitions import NULL_FOLDER
from headrace.model.part_names import HIDDEN, VisibleName, parse_visible

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec


def visible_files(folder: Folder) -> Iterator[tuple[str, VisibleName]]:
    """All files that a files sink of whatever job put there; what waits to be put together is not shown."""
    for file in folder.list("", below=True):
        named = parse_visible(file.name.rpartition("/")[2])
        if named is not None and not file.name.startswith(f"{HIDDEN}/"):
            yield file.name, named


def read_shown(folder: Folder, codec: RowCodec) -> Iterator[pa.Table]:
    """The rows of all of them, with the columns of the type that they have."""
    for name, named in visible_files(folder):
        table = _read(folder.read(name), named.ext, codec)
        for part in name.split("/")[:-1]:
            column, equals, value = part.partition("=")
            if equals and column in codec.schema.names and column not in table.column_names:
                text = None if value == NULL_FOLDER else unquote(value)
                table = table.append_column(column, pa.array([text] * table.num_rows, pa.string()))
        missing = [field.name for field in codec.schema if field.name not in table.column_names]
        for column in missing:
            # A file of an earlier program, whose type did not have it yet; or JSON without values that are null.
            table = table.append_column(column, pa.nulls(table.num_rows, pa.string()))
        yield table


def _read(data: pa.Buffer, ext: str, codec: RowCodec) -> pa.Table:
    if ext == "parquet":
        import pyarrow.parquet as pq

        return pq.read_table(pa.BufferReader(data))
    types = {field.name: _written_as(field.type) for field in codec.schema}
    if ext == "json":
        from pyarrow import json

        schema = pa.schema([(name, kind) for name, kind in types.items() if kind is not None])
        return json.read_json(pa.BufferReader(data), parse_options=json.ParseOptions(explicit_schema=schema))
    from pyarrow import csv

    return csv.read_csv(
        pa.BufferReader(data),
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(column_types=dict.fromkeys(types, pa.string()), strings_can_be_null=True),
    )


def _written_as(kind: pa.DataType) -> pa.DataType | None:
    """What a value of a type is in JSON; None for what has parts."""
    if pa.types.is_nested(kind):
        return None
    as_it_is = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return kind if as_it_is else pa.string()


def count_folder_rows(folder: Folder) -> int:
    """How many rows readers see."""
    return sum(_count(folder.read(name), named.ext) for name, named in visible_files(folder))


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
