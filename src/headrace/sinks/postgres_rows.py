"""Rows as the parts of a release: checked, filled in, and in one of the two forms that Postgres' COPY reads.

A part begins with a line that names its columns, because rows may have been staged by an earlier program; behind it
come the rows in binary (`postgres_binary`) or as CSV (`postgres_text`).

What no table could ever take (text with a NUL, a moment before 4713 BC) is refused here, in the worker, before the
epoch is published: then the program can still be mended and the epoch be computed anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SinkFailed
from headrace.model.columns import as_int64
from headrace.model.jsonrows import JsonForm
from headrace.model.postgres import TableColumn, table_columns
from headrace.sinks.postgres_binary import binary_writer, encode_rows
from headrace.sinks.postgres_text import encode_csv

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec

CSV: Final = "pgcsv"
BINARY: Final = "pgcopy"

_EARLIEST_US: Final = -210_866_803_200_000_000
"""4713 BC, 24 November: where Postgres' calendar begins."""
_NUL_IN_JSON: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_UUID: Final = r"^[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}$"
_PLACE: Final = "headrace_place"

Refuse = Callable[[str, str], SinkFailed]
"""Of what was found and what to do about it."""
Check = Callable[[pa.Array], None]


def row_encoder(codec: RowCodec, where: str, key: Sequence[str], format: str) -> Callable[[pa.Table], pa.Buffer]:
    """What turns rows into a part: with `key`, only the last row of each key in it."""
    columns = table_columns(codec)
    prepared = [_preparer(column, codec, where) for column in columns]
    head = ",".join(f'"{column.name}"' for column in columns).encode() + b"\n"
    writers = [binary_writer(column) for column in columns] if format == BINARY else []

    def encode(table: pa.Table) -> pa.Buffer:
        if key:
            table = _last_of_each(table, list(key))
        arrays = [prepare(table.column(c.name).combine_chunks()) for c, prepare in zip(columns, prepared, strict=True)]
        out = pa.BufferOutputStream()
        out.write(head)
        for piece in encode_rows(arrays, writers) if format == BINARY else [encode_csv(columns, arrays)]:
            out.write(piece)
        return out.getvalue()

    return encode


def header(part: pa.Buffer) -> tuple[tuple[str, ...], int]:
    """The columns of a part, and where its rows begin."""
    view, size = memoryview(part), 4096
    while (end := bytes(view[:size]).find(b"\n")) < 0:
        size *= 2
    return tuple(bytes(view[1 : end - 1]).decode().split('","')), end + 1


def _last_of_each(table: pa.Table, key: list[str]) -> pa.Table:
    """Without the rows that a later one of the same key replaces: they need not travel."""
    places = pa.array(np.arange(table.num_rows))
    grouped = table.select(key).append_column(_PLACE, places).group_by(key).aggregate([(_PLACE, "max")])
    if grouped.num_rows == table.num_rows:
        return table
    return table.take(pa.array(np.sort(grouped.column(f"{_PLACE}_max").to_numpy())))


# --- checks


def _preparer(column: TableColumn, codec: RowCodec, where: str) -> Callable[[pa.Array], pa.Array]:
    """Fills in what is missing, and refuses what cannot be written; nested values become JSON text."""

    def refuse(found: str, move: str) -> SinkFailed:
        return SinkFailed(
            f"Postgres cannot take a value of column {column.name}",
            where=where,
            expected=f"{column.name} {column.ddl}",
            found=found,
            next_move=f"{move}; nothing of this epoch was written, start again after the change",
        )

    fill = _filler(column, codec, refuse)
    if column.kind == "json":
        return _json_writer(column, fill, refuse)
    check = _checker(column, refuse)

    def prepare(array: pa.Array) -> pa.Array:
        array = fill(array)
        if check is not None:
            check(array.flatten() if column.array else array)
        return array

    return prepare


def _filler(column: TableColumn, codec: RowCodec, refuse: Refuse) -> Callable[[pa.Array], pa.Array]:
    default = None if column.nullable else codec.defaults.get(column.name)
    filled = None if default is None else column.column.encode([default])

    def fill(array: pa.Array) -> pa.Array:
        if column.nullable or not array.null_count:
            return array
        if filled is None:
            raise refuse("a row without a value", "fill it in, or drop such rows")
        # What a function would be given for a null, a table is given too.
        there = array.is_valid().to_numpy(zero_copy_only=False)
        places = np.where(there, np.arange(len(array)), len(array))
        return pa.concat_arrays([array, filled]).take(pa.array(places))

    return fill


def _checker(column: TableColumn, refuse: Refuse) -> Check | None:
    checks: dict[str, Callable[[pa.Array, Refuse], None]] = {
        "text": _check_text, "moment": _check_moments, "clock": _check_clocks, "uuid": _check_uuids,
    }  # fmt: skip
    check = checks.get(column.kind)
    return None if check is None else lambda array: check(array, refuse)


def _check_text(array: pa.Array, refuse: Refuse) -> None:
    _, _, data = array.buffers()
    # Looked for in all bytes at once: a NUL is rare, and a call per row is not.
    if data is not None and not np.frombuffer(data, np.uint8).all():
        found = pc.index(pc.match_substring(array, "\0"), True).as_py()
        if found >= 0:
            text = repr(array[found].as_py())[:200]
            raise refuse(f"text with a NUL: {text}", "take it out: Postgres cannot hold it in text")


def _check_moments(array: pa.Array, refuse: Refuse) -> None:
    low = pc.min(as_int64(array)).as_py()
    if low is not None and low < _EARLIEST_US:
        raise refuse(f"a moment {low} µs after 1970", "drop such rows: Postgres begins in 4713 BC")


def _check_clocks(array: pa.Array, refuse: Refuse) -> None:
    found = pc.index(pc.match_substring_regex(array, r"[Z+-]"), True).as_py()
    if found >= 0:
        raise refuse(f"{array[found].as_py()}, a time of day with a zone", "drop the zone, or write a datetime")


def _check_uuids(array: pa.Array, refuse: Refuse) -> None:
    found = pc.index(pc.match_substring_regex(array, _UUID), False).as_py()
    if found >= 0:
        raise refuse(f"{array[found].as_py()!r}, which is no UUID", "mend it, or declare the field as text")


def _json_writer(
    column: TableColumn, fill: Callable[[pa.Array], pa.Array], refuse: Refuse
) -> Callable[[pa.Array], pa.Array]:
    form = JsonForm(column.annotation)

    def write(array: pa.Array) -> pa.Array:
        values = column.column.decode(fill(array))
        texts = [None if value is None else text for value, text in zip(values, form.encode(values), strict=True)]
        for text in texts:
            if text is not None and b"\\u0000" in text and _NUL_IN_JSON.search(text):
                shown = text[:200].decode(errors="replace")
                raise refuse(f"text with a NUL: {shown}", "take it out: Postgres cannot hold it")
        return pa.array(texts, pa.binary()).cast(pa.string())

    return write
