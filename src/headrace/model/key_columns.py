"""Keys back from their bytes, whole columns at a time: the other direction of `headrace.model.keys.encode_columns`.

What can be read without looking at single keys is: text, bytes, whole numbers and times, dates, floats, booleans, nulls
among them, and tuples of these. Anything else (decimals, keys of mixed types) is answered with None, and the caller
decodes key by key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.batch import Int64s

_NULL: Final = ord("n")
_TUPLE: Final = ord("(")
_LENGTH_BYTES: Final = 4

_FIXED: Final = {
    ord("i"): (9, ">i8", np.int64),
    ord("d"): (5, ">i4", np.int32),
    ord("f"): (9, ">f8", np.float64),
    ord("b"): (2, "u1", np.bool_),
}
"""Tag → bytes with the tag, how they are stored, and what they become."""

Bytes = npt.NDArray[np.uint8]


class _Cells:
    """The cells of a binary column in numpy."""

    def __init__(self, array: pa.BinaryArray) -> None:
        _, offsets, data = array.buffers()
        whole = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
        self.offsets: Int64s = whole.astype(np.int64)
        self.data: Bytes = np.frombuffer(data if data is not None else b"", np.uint8)
        self.starts = self.offsets[:-1]
        self.lengths = np.diff(self.offsets)


def decode_columns(encoded: pa.BinaryArray, kinds: Sequence[pa.DataType]) -> list[pa.Array] | None:
    """The keys as columns of these types: one for a plain key, one per part for a tuple. None: not in bulk."""
    if len(encoded) == 0:
        return [pa.nulls(0, kind) for kind in kinds]
    if len(kinds) == 1:
        parts: list[pa.BinaryArray] | None = [encoded]
    else:
        parts = _split(_Cells(encoded), len(kinds))
    if parts is None:
        return None
    columns = []
    for part, kind in zip(parts, kinds, strict=True):
        column = _decode(part, kind)
        if column is None:
            return None
        columns.append(column)
    return columns


def _decode(encoded: pa.BinaryArray, kind: pa.DataType) -> pa.Array | None:
    cells = _Cells(encoded)
    if not cells.lengths.all():
        return None
    tags = cells.data[cells.starts]
    there = tags != _NULL
    if not there.all():
        if not there.any():
            return pa.nulls(len(encoded), kind)
        some = _decode(encoded.filter(pa.array(there)), kind)
        return None if some is None else some.take(pa.array(np.cumsum(there) - 1, mask=~there))
    tag = int(tags[0])
    if not (tags == tag).all():
        return None
    if tag in (ord("s"), ord("y")):
        wanted = pa.string() if tag == ord("s") else pa.binary()
        return _without_tags(cells).cast(wanted) if kind == wanted else None
    return _decode_fixed(cells, tag, kind)


def _without_tags(cells: _Cells) -> pa.BinaryArray:
    first = cells.offsets[0]
    payload = np.ones(cells.offsets[-1] - first, bool)
    payload[cells.starts - first] = False
    data = cells.data[first : cells.offsets[-1]][payload]
    offsets = (cells.offsets - first - np.arange(len(cells.offsets))).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(cells.starts), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _decode_fixed(cells: _Cells, tag: int, kind: pa.DataType) -> pa.Array | None:
    if tag not in _FIXED:
        return None
    width, stored, wanted = _FIXED[tag]
    if not (cells.lengths == width).all():
        return None
    data = cells.data[cells.offsets[0] : cells.offsets[-1]].reshape(-1, width)
    values: npt.NDArray[Any] = np.ascontiguousarray(data[:, 1:]).view(stored).reshape(-1).astype(wanted)
    column = pa.array(values)
    if column.type == kind:
        return column
    if (pa.types.is_timestamp(kind) and column.type == pa.int64()) or (kind == pa.date32() and tag == ord("d")):
        return column.view(kind)
    whole = tag == ord("i") and (pa.types.is_integer(kind) or pa.types.is_floating(kind))
    return column.cast(kind) if whole else None


def _split(cells: _Cells, count: int) -> list[pa.BinaryArray] | None:
    """The parts of tuples."""
    if not (cells.data[cells.starts] == _TUPLE).all():
        return None
    parts = []
    at = cells.starts + 1
    for _ in range(count):
        if bool(np.any(at + _LENGTH_BYTES > cells.offsets[1:])):
            return None
        lengths = np.zeros(len(at), np.int64)
        for i in range(_LENGTH_BYTES):
            lengths = lengths * 256 + cells.data[at + i]
        parts.append(_gather(cells.data, at + _LENGTH_BYTES, lengths))
        at = at + _LENGTH_BYTES + lengths
    return parts if bool(np.all(at == cells.offsets[1:])) else None


def _gather(data: Bytes, starts: Int64s, lengths: Int64s) -> pa.BinaryArray:
    """Stretches of bytes as a column."""
    ends = np.cumsum(lengths)
    places = np.arange(int(ends[-1])) + np.repeat(starts - (ends - lengths), lengths)
    offsets = np.append(0, ends).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data[places]))]
    return pa.Array.from_buffers(pa.binary(), len(starts), buffers)
