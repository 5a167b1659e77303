"""Rows in the binary form that Postgres' COPY reads, made in the workers a column at a time.

A row is a count of fields, and for each field its length in four bytes (−1 for null) and its value as the type of the
column writes it, all numbers big end first. The server takes this three times as fast as text, but only where the
columns have exactly these types; `rows` makes the text for all others.

This module deliberately writes neither the signature in front of the rows nor the end behind them: parts of several
tasks go by one COPY, and whoever sends them adds both.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.postgres.server import Kind, TableColumn
from headrace.model.columns import as_int64

SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
END: Final = b"\xff\xff"

FITS: Final[dict[Kind, tuple[str, ...]]] = {
    "int": ("int8",),
    "float": ("float8",),
    "bool": ("bool",),
    "text": ("text", "varchar", "citext"),
    "bytes": ("bytea",),
    "moment": ("timestamptz", "timestamp"),
    "span": ("interval",),
    "date": ("date",),
    "clock": ("time",),
    "decimal": ("numeric",),
    "uuid": ("uuid",),
    "json": ("jsonb",),
}
"""Types of columns that read the binary form of a kind."""

_OIDS: Final[dict[Kind, int]] = {
    "int": 20, "float": 701, "bool": 16, "text": 25, "bytes": 17, "moment": 1184, "span": 1186, "date": 1082,
    "clock": 1083, "decimal": 1700, "uuid": 2950, "json": 3802,
}  # fmt: skip
_CHUNK_ROWS: Final = 1 << 15
_Y2K_US: Final = 946_684_800_000_000
_Y2K_DAYS: Final = 10_957

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Binary = Callable[[pa.Array], "Bytes | pa.Array"]
"""The values of a column: a matrix with a row of bytes each, or Arrow binary where they differ in length."""


def encode_rows(columns: Sequence[pa.Array], writers: Sequence[Binary]) -> list[Bytes]:
    """The rows of these columns, in pieces that fit a processor's cache."""
    count = len(columns[0]) if columns else 0
    return [
        _rows([column.slice(at, _CHUNK_ROWS) for column in columns], writers) for at in range(0, count, _CHUNK_ROWS)
    ]


def _rows(columns: Sequence[pa.Array], writers: Sequence[Binary]) -> Bytes:
    fields = [_BinaryField(column, write(column)) for column, write in zip(columns, writers, strict=True)]
    sizes: Ints = np.full(len(columns[0]), 2, np.int64)
    for field in fields:
        sizes = sizes + 4 + field.sizes
    ends: Ints = np.cumsum(sizes)
    at = ends - sizes
    out = np.empty(int(ends[-1]), np.uint8)
    _put_number(out, at, np.full(len(at), len(fields)), 2)
    at = at + 2
    for field in fields:
        field.put(out, at)
        at = at + 4 + field.sizes
    return out


class _BinaryField:
    """One column of some rows on its way into their bytes."""

    def __init__(self, column: pa.Array, values: Bytes | pa.Array) -> None:
        self._there = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None
        self._matrix = values if isinstance(values, np.ndarray) else None
        if self._matrix is not None:
            self.sizes: Ints = np.full(len(column), self._matrix.shape[1], np.int64)
        else:
            offsets, self._data = _offsets_and_bytes(values)
            self.sizes = np.diff(offsets).astype(np.int64)
            self._starts = offsets[:-1].astype(np.int64)
        if self._there is not None:
            self.sizes = np.where(self._there, self.sizes, 0)

    def put(self, out: Bytes, at: Ints) -> None:
        lengths = self.sizes if self._there is None else np.where(self._there, self.sizes, -1)
        _put_number(out, at, lengths, 4)
        if self._matrix is None:
            # For every byte, where it comes from and where it goes.
            targets = np.repeat(at + 4, self.sizes) + _within(self.sizes)
            out[targets] = self._data[np.repeat(self._starts, self.sizes) + _within(self.sizes)]
            return
        matrix, places = self._matrix, at + 4
        if self._there is not None:
            matrix, places = matrix[self._there], places[self._there]
        for byte in range(matrix.shape[1]):
            out[places + byte] = matrix[:, byte]


def _within(sizes: Ints) -> Ints:
    """0, 1, 2, … for each of the lengths."""
    ends = np.cumsum(sizes)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - sizes, sizes)


def _put_number(out: Bytes, at: Ints, values: npt.NDArray[Any], width: int) -> None:
    for byte in range(width):
        out[at + byte] = (values >> (8 * (width - 1 - byte))) & 255


def _offsets_and_bytes(array: pa.Array) -> tuple[npt.NDArray[np.int32], Bytes]:
    _, offsets, data = array.buffers()
    where = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return where, np.frombuffer(b"" if data is None else data, np.uint8)


# --- values


def binary_writer(column: TableColumn) -> Binary:
    """What makes the bytes of a column that was checked."""
    return _list_writer(_PLAIN[column.kind], _OIDS[column.kind]) if column.array else _PLAIN[column.kind]


def _matrix(values: npt.NDArray[Any], kind: str) -> Bytes:
    turned = np.ascontiguousarray(values.astype(kind))
    return turned.view(np.uint8).reshape(len(turned), turned.dtype.itemsize)


def _numbers(array: pa.Array) -> npt.NDArray[Any]:
    return array.fill_null(0).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _spans(array: pa.Array) -> Bytes:
    out = np.zeros((len(array), 16), np.uint8)
    out[:, :8] = _matrix(_numbers(array), ">i8")
    return out


def _uuids(array: pa.Array) -> Bytes:
    data = bytes.fromhex("".join(array.fill_null("0" * 32).to_pylist()).replace("-", ""))
    return np.frombuffer(data, np.uint8).reshape(len(array), 16)


def _clocks(array: pa.Array) -> Bytes:
    # Arrow reads moments, but no times of day.
    moments = pc.binary_join_element_wise("1970-01-01", array, "T").cast(pa.timestamp("us"))
    return _matrix(_numbers(moments.view(pa.int64())), ">i8")


def _documents(array: pa.Array) -> pa.Array:
    texts = array.cast(pa.binary()).to_pylist()
    return pa.array([None if text is None else b"\x01" + text for text in texts], pa.binary())


def numeric_bytes(value: Decimal) -> bytes:
    """A number as groups of four decimal digits, with as many places behind the point as it needs."""
    sign, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).rstrip("0")
    if not text:
        return bytes(8)
    assert isinstance(exponent, int)
    exponent += len(digits) - len(text)
    places = max(0, -exponent)
    # Groups are counted from the point, so the last one is filled up.
    number = int(text) * 10 ** (exponent if exponent > 0 else -places % 4)
    groups: list[int] = []
    while number:
        number, group = divmod(number, 10_000)
        groups.append(group)
    weight = len(groups) - 1 - -(-places // 4)
    while not groups[0]:
        del groups[0]
    head = struct.pack(">hhHH", len(groups), weight, 0x4000 if sign else 0, places)
    return head + struct.pack(f">{len(groups)}h", *reversed(groups))


_PLAIN: Final[dict[Kind, Binary]] = {
    "int": lambda array: _matrix(_numbers(array), ">i8"),
    "float": lambda array: _matrix(_numbers(array), ">f8"),
    "bool": lambda array: _matrix(array.fill_null(False).to_numpy(zero_copy_only=False), "u1"),
    "text": lambda array: array,
    "bytes": lambda array: array,
    "uuid": _uuids,
    "json": _documents,
    "moment": lambda array: _matrix(_numbers(as_int64(array)) - _Y2K_US, ">i8"),
    "span": _spans,
    "date": lambda array: _matrix(_numbers(array.view(pa.int32())) - _Y2K_DAYS, ">i4"),
    "clock": _clocks,
    "decimal": lambda array: pa.array(
        [None if each is None else numeric_bytes(each) for each in array.to_pylist()], pa.binary()
    ),
}


def _list_writer(value: Binary, oid: int) -> Binary:
    empty = struct.pack(">iii", 0, 0, oid)

    def write(array: pa.Array) -> pa.Array:
        items = array.flatten()
        field = _BinaryField(items, value(items)) if len(items) else None
        ends = np.zeros(len(items) + 1, np.int64)
        data = b""
        if field is not None:
            np.cumsum(field.sizes + 4, out=ends[1:])
            out = np.empty(int(ends[-1]), np.uint8)
            field.put(out, ends[:-1])
            data = out.tobytes()
        nulls = 1 if items.null_count else 0
        made: list[bytes | None] = []
        first = 0
        for length in array.value_lengths().to_pylist():
            if not length:
                made.append(None if length is None else empty)
                continue
            head = struct.pack(">iiiii", 1, nulls, oid, length, 1)
            made.append(head + data[ends[first] : ends[first + length]])
            first += length
        return pa.array(made, pa.binary())

    return write


# --- for people


def show_row(data: memoryview, number: int, names: Sequence[str], kinds: dict[str, Kind]) -> tuple[str, int]:
    """Row number `number` (from 1) of a part, as text; or nothing, and how many rows the part has."""
    at = passed = 0
    while at < len(data):
        passed += 1
        fields, at = _fields(data, at, len(names))
        if passed == number:
            shown = (f"{name}={_value_text(kinds.get(name), value)}" for name, value in zip(names, fields, strict=True))
            return ", ".join(shown)[:500], passed
    return "", passed


def _fields(data: memoryview, at: int, count: int) -> tuple[list[bytes | None], int]:
    fields: list[bytes | None] = []
    at += 2
    for _ in range(count):
        (length,) = struct.unpack_from(">i", data, at)
        at += 4
        fields.append(None if length < 0 else bytes(data[at : at + length]))
        at += max(length, 0)
    return fields, at


def _value_text(kind: Kind | None, value: bytes | None) -> str:
    if value is None:
        return "NULL"
    if kind in ("int", "float"):
        return str(struct.unpack(">q" if kind == "int" else ">d", value)[0])
    if kind in ("text", "json"):
        return repr(value.removeprefix(b"\x01").decode(errors="replace"))
    return "0x" + value.hex()
