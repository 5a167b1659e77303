"""Keys in bulk: bytes of columns, key groups and shards, and columns back from bytes.

The bytes of a single value are defined in `key_bytes`, with the table of the format; keys as people write them in
`key_text`; hashes in `key_hash`. All are offered here. `decode_columns` reads text, bytes, whole numbers, times, dates,
floats, booleans, nulls among them, and tuples of these; for any other type it returns None, and the caller decodes key
by key. Nothing here knows about sessions, steps or state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ProgramError
from headrace.model.batch import Int64s
from headrace.model.ids import KEY_GROUPS
from headrace.model.key_bytes import KEY_TYPES, NULL_KEY, decode_key, encode_key
from headrace.model.key_hash import hash_encoded, hash_key
from headrace.model.key_text import key_text, parse_key_text, possible_keys

__all__ = [
    "NULL_KEY",
    "decode_columns",
    "decode_key",
    "encode_columns",
    "encode_key",
    "group_range",
    "hash_encoded",
    "hash_key",
    "key_group",
    "key_groups",
    "key_text",
    "parse_key_text",
    "possible_keys",
    "shard_of",
    "shards_of",
]


def key_group(hashed: int, groups: int = KEY_GROUPS) -> int:
    """The top bits of the hash; `groups` is a power of two."""
    return (int(hashed) * groups) >> 64


def key_groups(hashes: npt.NDArray[np.uint64], groups: int = KEY_GROUPS) -> npt.NDArray[np.int64]:
    """`key_group` of many."""
    if groups == 1:
        return np.zeros(len(hashes), np.int64)
    return (hashes >> np.uint64(64 - (groups.bit_length() - 1))).astype(np.int64)


def shard_of(group: int, parallelism: int, groups: int = KEY_GROUPS) -> int:
    return group * parallelism // groups


def shards_of(key_groups: Int64s, parallelism: int, groups: int = KEY_GROUPS) -> Int64s:
    """`shard_of` many."""
    return key_groups * parallelism // groups


def group_range(shard: int, parallelism: int, groups: int = KEY_GROUPS) -> range:
    """The key groups that `shard_of` gives to this shard."""
    return range(-(-shard * groups // parallelism), -(-(shard + 1) * groups // parallelism))


def encode_columns(arrays: Sequence[pa.Array]) -> pa.BinaryArray:
    """Key bytes of each row: of the value for one column, of the tuple for several."""
    encoded = [_encode_column(array) for array in arrays]
    if len(encoded) == 1:
        return encoded[0]
    pieces: list[Any] = [pa.scalar(b"(", pa.binary())]
    for part in encoded:
        lengths = pc.binary_length(part).to_numpy(zero_copy_only=False)
        pieces += [_encode_fixed(b"", lengths.astype(">u4"), None), part]
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.binary()))


def _encode_column(array: pa.Array) -> pa.BinaryArray:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _join_tagged(b"s", array.cast(pa.binary()))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _join_tagged(b"y", array.cast(pa.binary()))
    if pa.types.is_integer(kind):
        return _encode_longs(array)
    if pa.types.is_timestamp(kind):
        return _encode_longs(array.cast(pa.timestamp("us", kind.tz)))
    if pa.types.is_duration(kind):
        return _encode_longs(array.cast(pa.duration("us")))
    if pa.types.is_date32(kind):
        return _encode_fixed(b"d", array.cast(pa.int32()).fill_null(0).to_numpy().astype(">i4"), array)
    if pa.types.is_boolean(kind):
        return _encode_fixed(b"b", array.fill_null(False).to_numpy(zero_copy_only=False).astype("u1"), array)
    if pa.types.is_float64(kind) or pa.types.is_float32(kind):
        values = array.cast(pa.float64()).fill_null(0.0).to_numpy() + 0.0
        return _encode_fixed(b"f", np.where(np.isnan(values), np.nan, values).astype(">f8"), array)
    if pa.types.is_nested(kind):
        raise ProgramError("a nested column cannot be a key", where="key", expected=KEY_TYPES, found=str(kind))
    return pa.array([encode_key(value) for value in array.to_pylist()], pa.binary())


def _encode_longs(array: pa.Array) -> pa.BinaryArray:
    try:
        values = array.cast(pa.int64()).fill_null(0).to_numpy()
    except pa.ArrowInvalid as error:
        raise ProgramError("this column cannot be a key", where="key", expected="64 bits", found=str(error)) from error
    return _encode_fixed(b"i", values.astype(">i8"), array)


def _join_tagged(tag: bytes, array: pa.BinaryArray) -> pa.BinaryArray:
    width = _one_width(array)
    if width:
        _, offsets, data = array.buffers()
        start = int(np.frombuffer(offsets, np.int32)[array.offset])
        values = np.frombuffer(data, np.uint8)[start : start + len(array) * width]
        return _encode_fixed(tag, values.view(f"V{width}"), None)
    joined = pc.binary_join_element_wise(pa.scalar(tag, pa.binary()), array, pa.scalar(b"", pa.binary()))
    return joined.fill_null(NULL_KEY) if joined.null_count else joined


def _one_width(array: pa.BinaryArray) -> int:
    """The width of all values, where they have the same: then they are copied as one block. Otherwise 0."""
    if array.null_count or not len(array) or array.type != pa.binary():
        return 0
    lengths = pc.binary_length(array)
    least, most = pc.min_max(lengths).values()
    return int(most.as_py()) if least.equals(most) else 0


def _encode_fixed(tag: bytes, values: npt.NDArray[Any], nulls_of: pa.Array | None) -> pa.BinaryArray:
    """Big-endian numbers of one width behind a tag, written straight into Arrow buffers."""
    count, width = len(values), len(tag) + values.dtype.itemsize
    data = np.empty((count, width), np.uint8)
    data[:, : len(tag)] = np.frombuffer(tag, np.uint8)
    data[:, len(tag) :] = np.ascontiguousarray(values).view(np.uint8).reshape(count, values.dtype.itemsize)
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    encoded = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    if nulls_of is None or not nulls_of.null_count:
        return encoded
    return pc.if_else(nulls_of.is_valid(), encoded, pa.scalar(NULL_KEY, pa.binary()))


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
