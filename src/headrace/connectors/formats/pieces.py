"""Pieces of messages as columns of bytes, made of whole columns of values: numbers of seven bits a byte, floats, text.

A message is the pieces of its fields one behind the other (`joined`), so writing many of them is a few calls of Arrow
per field. Pieces have no nulls: what is absent is no bytes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.formats.cursor import Bytes, Ints

Longs = npt.NDArray[np.uint64]

# Of buffers: the first scalar or array of Python's values has Arrow import pandas, in every process that loads this.
NOTHING: Final = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(bytes(8)), pa.py_buffer(b"")])[0]
_VARINT_BYTES: Final = 10
_DECIMAL_BYTES: Final = 16


def joined(*pieces: pa.Array) -> pa.Array:
    """The pieces of each message, one behind the other."""
    return pieces[0] if len(pieces) == 1 else pc.binary_join_element_wise(*pieces, NOTHING)


def constant(piece: bytes, count: int) -> pa.Array:
    """The same piece in every message."""
    offsets = np.arange(count + 1, dtype=np.int32) * len(piece)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(piece * count)])


def varints(values: Longs) -> pa.Array:
    """Numbers of seven bits a byte, the lowest first."""
    count = len(values)
    largest = int(values.max(initial=0))
    width = max(1, -(-largest.bit_length() // 7))
    out = np.empty((count, width), np.uint8)
    rest = values
    sizes = np.ones(count, np.int64)
    for place in range(width):
        out[:, place] = (rest & np.uint64(0x7F)).astype(np.uint8)
        rest = rest >> np.uint64(7)
        more = rest != 0
        out[:, place] |= more.astype(np.uint8) << 7
        sizes += more
    return _left_aligned(out, sizes)


def longs(values: Ints) -> pa.Array:
    """Signed numbers, zigzag."""
    return varints(((values << 1) ^ (values >> 63)).view(np.uint64))


def fixed(values: npt.NDArray[np.generic]) -> pa.Array:
    """Numbers as the bytes that they are in memory, the lowest first."""
    size = values.dtype.itemsize
    content = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False)
    offsets = np.arange(len(values) + 1, dtype=np.int32) * size
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(content)])


def sizes_of(values: pa.Array) -> Ints:
    """How many bytes each piece has."""
    return np.asarray(pc.binary_length(values)).astype(np.int64)


def decimals(values: pa.Array) -> pa.Array:
    """The digits of decimals as numbers of as few bytes as hold them and their sign, the highest byte first."""
    count = len(values)
    held = np.frombuffer(values.buffers()[1], np.uint8)[values.offset * _DECIMAL_BYTES :][: count * _DECIMAL_BYTES]
    low = held.reshape(count, _DECIMAL_BYTES)
    sign = np.where(low[:, -1] >= 0x80, 0xFF, 0).astype(np.uint8)
    # A byte is needed where anything above it, or the sign bit below it, is not just the sign again.
    below = np.concatenate([np.zeros((count, 1), np.uint8), low[:, :-1]], axis=1)
    needed = (low != sign[:, None]) | ((below >= 0x80) != (sign >= 0x80)[:, None])
    needed[:, 0] = True
    sizes = _DECIMAL_BYTES - np.argmax(needed[:, ::-1], axis=1)
    high_first = low[:, ::-1]
    kept = np.arange(_DECIMAL_BYTES) >= (_DECIMAL_BYTES - sizes)[:, None]
    return _of_bytes(high_first[kept], sizes)


def by_list(lists: pa.Array, items: pa.Array) -> pa.Array:
    """The pieces of each list's items, one behind the other."""
    offsets = lists.offsets
    first = offsets[0].as_py() if len(offsets) else 0
    grouped = pa.ListArray.from_arrays(pc.subtract(offsets, first), items)
    return pc.binary_join(grouped, NOTHING)


def counts_of(lists: pa.Array) -> Ints:
    """How many items each list has."""
    return np.diff(np.asarray(lists.offsets)).astype(np.int64)


def items_of(lists: pa.Array, values: pa.Array) -> pa.Array:
    """Of the flat `values` of a column of lists those that its rows hold."""
    offsets = lists.offsets
    return values[offsets[0].as_py() : offsets[-1].as_py()] if len(lists) else values[:0]


def where_valid(column: pa.Array, pieces: pa.Array, absent: bytes) -> pa.Array:
    """`pieces`, which are those of the values that are there, at their places; `absent` at the others."""
    if not column.null_count:
        return pieces
    there = np.asarray(column.is_valid())
    at = np.where(there, np.cumsum(there) - 1, len(pieces))
    return pa.concat_arrays([pieces, pa.array([absent], pa.binary())]).take(pa.array(at))


def _left_aligned(rows: Bytes, sizes: Ints) -> pa.Array:
    if rows.shape[1] == 1:
        return _of_bytes(rows[:, 0], sizes)
    return _of_bytes(rows[np.arange(rows.shape[1]) < sizes[:, None]], sizes)


def _of_bytes(content: Bytes, sizes: Ints) -> pa.Array:
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(content))]
    return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)
