"""Rows as the parts of a release: checked, completed, and in one of the two forms that COPY of Postgres reads.

A part begins with a line that names its columns, because rows may have been staged by an earlier program. Behind it
come the rows in binary (`headrace.connectors.postgres.binary`), or as CSV for tables whose columns do not read the
binary form: all text in quotes, null an empty cell.

What no table could take (text with a NUL, a moment before 4713 BC) is refused here, in the worker, before the epoch is
published. Then the program can be mended and the epoch computed again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from headrace.connectors.postgres.binary import binary_writer, encode_rows
from headrace.connectors.postgres.server import Kind, TableColumn, table_columns
from headrace.errors import SinkFailed
from headrace.model.columns import as_int64
from headrace.model.jsonrows import JsonForm

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec


_FIRST_US: Final = -62_135_596_800_000_000
"""0001-01-01: from here to the end of 9999 Arrow and Postgres write a moment alike."""
_LAST_US: Final = 253_402_300_799_999_999
_OPTIONS: Final = csv.WriteOptions(include_header=False, quoting_style="needed", batch_size=16_384)

_Write = Callable[[pa.Array], pa.Array]


def encode_csv(columns: Sequence[TableColumn], arrays: Sequence[pa.Array]) -> pa.Buffer:
    """The rows of these columns, without a header."""
    made = [_texts(column, array) for column, array in zip(columns, arrays, strict=True)]
    out = pa.BufferOutputStream()
    csv.write_csv(pa.table(made, names=[column.name for column in columns]), out, _OPTIONS)
    return out.getvalue()


def _texts(column: TableColumn, array: pa.Array) -> pa.Array:
    """A column as Arrow writes it into CSV, made into text first where Arrow would write otherwise."""
    write = _PLAIN.get(column.kind)
    if column.array:
        return _lists(array, write)
    return array if write is None else write(array)


def _lists(array: pa.Array, write: _Write | None) -> pa.Array:
    items = array.flatten()
    texts = (items if write is None else write(items)).cast(pa.string())
    escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    shown = pc.fill_null(pc.binary_join_element_wise('"', escaped, '"', ""), "NULL")
    ends = np.zeros(len(array) + 1, np.int32)
    np.cumsum(pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False), out=ends[1:])
    lists = pa.ListArray.from_arrays(pa.array(ends), shown)
    joined = pc.binary_join_element_wise("{", pc.binary_join(lists, ","), "}", "")
    return pc.if_else(array.is_valid(), joined, pa.scalar(None, pa.string()))


def _moments(array: pa.Array) -> pa.Array:
    micros = as_int64(array)
    bounds = pc.min_max(micros)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is None or (low >= _FIRST_US and high <= _LAST_US):
        return micros.view(pa.timestamp("us", "UTC")).cast(pa.string())
    return pa.array([None if us is None else _far_moment(us) for us in micros.to_pylist()], pa.string())


def _far_moment(us: int) -> str:
    """A moment that people rarely meet: before the year 1, or after 9999."""
    day, rest = divmod(us, 86_400_000_000)
    text = str(np.datetime64(day, "D"))
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    year, month_and_day = digits[:-6], digits[-6:]
    number = sign * int(year)
    seconds, fraction = divmod(rest, 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}+00"
    # There is no year 0: what is written so is 1 BC.
    return f"{number:04d}{month_and_day} {clock}" if number > 0 else f"{1 - number:04d}{month_and_day} {clock} BC"


def _hex(array: pa.Array) -> pa.Array:
    return pa.array([None if value is None else f"\\x{value.hex()}" for value in array.to_pylist()], pa.string())


def _spans(array: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(array.cast(pa.string()), "microseconds", " ")


def _decimals(array: pa.Array) -> pa.Array:
    """Without the zeros that fill up Arrow's scale: a numeric would keep and show them."""
    text = pc.replace_substring_regex(array.cast(pa.string()), r"^(-?\d+)\.0+$|^(0)E-18$", r"\1\2")
    if pc.any(pc.match_substring(text, "E")).as_py():
        values = [None if each is None else f"{each:f}".rstrip("0").rstrip(".") for each in array.to_pylist()]
        return pa.array(values, pa.string())
    return pc.replace_substring_regex(text, r"^(-?\d+\.\d*[1-9])0+$", r"\1")


_PLAIN: Final[dict[Kind, _Write]] = {"bytes": _hex, "decimal": _decimals, "moment": _moments, "span": _spans}


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
