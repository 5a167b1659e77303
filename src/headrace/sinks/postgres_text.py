"""Rows as CSV, for tables whose columns do not read the binary form.

All text stands in quotes and null is an empty cell. Every type of column reads its value from text, an integer of any
width, json, a domain: what cannot take a value refuses it aloud.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from headrace.model.columns import as_int64
from headrace.model.postgres import Kind, TableColumn

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
