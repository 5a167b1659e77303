"""A key's bytes, their hash, its key group and its shard: of columns, in the JVM and in Python alike.

One door for everything about keys: the bytes of one value are in `key_bytes` (with the table of the format), keys as
people write them in `key_text`; both are offered here. Here are the forms for whole columns and for Spark SQL, which
must give the very same bytes, and the arithmetic from bytes to a shard. Nothing here knows about sessions, steps or
state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from headrace.errors import ProgramError
from headrace.model.ids import HASH_SEED, KEY_GROUPS
from headrace.model.key_bytes import KEY_TYPES, LENGTH, NULL_KEY, decode_key, encode_key
from headrace.model.key_text import key_text, parse_key_text

__all__ = [
    "NULL_KEY",
    "decode_key",
    "encode_columns",
    "encode_key",
    "group_range",
    "hash_encoded",
    "hash_key",
    "hash_sql",
    "key_group",
    "key_groups",
    "key_sql",
    "key_text",
    "parse_key_text",
    "shard_of",
]


def hash_key(encoded: bytes) -> int:
    """xxhash64 of key bytes as an unsigned number; Spark's ``xxhash64`` gives the same bits, signed."""
    return xxhash.xxh64_intdigest(encoded, HASH_SEED)


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


def group_range(shard: int, parallelism: int, groups: int = KEY_GROUPS) -> range:
    """The key groups that `shard_of` gives to this shard."""
    return range(-(-shard * groups // parallelism), -(-(shard + 1) * groups // parallelism))


def hash_encoded(encoded: pa.BinaryArray) -> npt.NDArray[np.uint64]:
    """`hash_key` of each element; a value that comes again is hashed once."""
    distinct = encoded.dictionary_encode()
    digest = xxhash.xxh64_intdigest
    hashes: npt.NDArray[np.uint64] = np.array(
        [digest(key, HASH_SEED) for key in distinct.dictionary.to_pylist()], dtype=np.uint64
    )
    positions: npt.NDArray[np.int32] = distinct.indices.to_numpy(zero_copy_only=False)
    return hashes[positions]


def encode_columns(arrays: Sequence[pa.Array]) -> pa.BinaryArray:
    """Key bytes of each row: of the value for one column, of the tuple for several."""
    encoded = [_encode_column(array) for array in arrays]
    if len(encoded) == 1:
        return encoded[0]
    pieces: list[Any] = [pa.scalar(b"(", pa.binary())]
    for part in encoded:
        lengths = pc.binary_length(part).to_numpy(zero_copy_only=False)
        pieces += [_fixed(b"", lengths.astype(">u4"), None), part]
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.binary()))


def _encode_column(array: pa.Array) -> pa.BinaryArray:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _tagged(b"s", array.cast(pa.binary()))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _tagged(b"y", array.cast(pa.binary()))
    if pa.types.is_integer(kind):
        return _encode_longs(array)
    if pa.types.is_timestamp(kind):
        return _encode_longs(array.cast(pa.timestamp("us", kind.tz)))
    if pa.types.is_duration(kind):
        return _encode_longs(array.cast(pa.duration("us")))
    if pa.types.is_date32(kind):
        return _fixed(b"d", array.cast(pa.int32()).fill_null(0).to_numpy().astype(">i4"), array)
    if pa.types.is_boolean(kind):
        return _fixed(b"b", array.fill_null(False).to_numpy(zero_copy_only=False).astype("u1"), array)
    if pa.types.is_float64(kind) or pa.types.is_float32(kind):
        values = array.cast(pa.float64()).fill_null(0.0).to_numpy() + 0.0
        return _fixed(b"f", np.where(np.isnan(values), np.nan, values).astype(">f8"), array)
    if pa.types.is_nested(kind):
        raise ProgramError("a nested column cannot be a key", where="key", expected=KEY_TYPES, found=str(kind))
    return pa.array([encode_key(value) for value in array.to_pylist()], pa.binary())


def _encode_longs(array: pa.Array) -> pa.BinaryArray:
    try:
        values = array.cast(pa.int64()).fill_null(0).to_numpy()
    except pa.ArrowInvalid as error:
        raise ProgramError("this column cannot be a key", where="key", expected="64 bits", found=str(error)) from error
    return _fixed(b"i", values.astype(">i8"), array)


def _tagged(tag: bytes, array: pa.BinaryArray) -> pa.BinaryArray:
    width = _one_width(array)
    if width:
        _, offsets, data = array.buffers()
        start = int(np.frombuffer(offsets, np.int32)[array.offset])
        values = np.frombuffer(data, np.uint8)[start : start + len(array) * width]
        return _fixed(tag, values.view(f"V{width}"), None)
    joined = pc.binary_join_element_wise(pa.scalar(tag, pa.binary()), array, pa.scalar(b"", pa.binary()))
    return joined.fill_null(NULL_KEY) if joined.null_count else joined


def _one_width(array: pa.BinaryArray) -> int:
    """The width of all values, where they have the same: then they are copied as one block. Otherwise 0."""
    if array.null_count or not len(array) or array.type != pa.binary():
        return 0
    lengths = pc.binary_length(array)
    least, most = pc.min_max(lengths).values()
    return int(most.as_py()) if least.equals(most) else 0


def _fixed(tag: bytes, values: npt.NDArray[Any], nulls_of: pa.Array | None) -> pa.BinaryArray:
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


def key_sql(columns: Sequence[tuple[str, pa.DataType]]) -> str | None:
    """Spark SQL (ANSI on) for the bytes that `encode_columns` gives; None where the JVM cannot say them."""
    if not columns:
        return f"X'{NULL_KEY.hex()}'"
    composite = len(columns) > 1
    parts = [_part_sql("`" + name.replace("`", "``") + "`", kind, composite) for name, kind in columns]
    if any(part is None for part in parts):
        return None
    known = [part for part in parts if part is not None]
    return f"concat(X'28', {', '.join(known)})" if composite else known[0]


def _part_sql(name: str, kind: pa.DataType, composite: bool) -> str | None:
    found = _payload_sql(name, kind)
    if found is None:
        return None
    tag, payload, width = found
    head = f"X'{tag.hex()}'"
    if composite and width is not None:
        head = f"X'{LENGTH.pack(width + 1).hex()}{tag.hex()}'"
    elif composite:
        head = f"unhex(lpad(hex(octet_length({name}) + 1), 8, '0')), {head}"
    null = f"X'{(LENGTH.pack(1) + NULL_KEY).hex()}'" if composite else f"X'{NULL_KEY.hex()}'"
    return f"coalesce(concat({head}, {payload}), {null})"


def _payload_sql(name: str, kind: pa.DataType) -> tuple[bytes, str, int | None] | None:
    """Tag, SQL of the payload and its width in bytes (None: as long as the value)."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return b"s", f"CAST({name} AS BINARY)", None
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return b"y", name, None
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return b"i", f"unhex(lpad(hex({name}), 16, '0'))", 8
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return b"i", f"unhex(lpad(hex(unix_micros({name})), 16, '0'))", 8
    if pa.types.is_date32(kind):
        return b"d", f"unhex(right(lpad(hex(unix_date({name})), 16, '0'), 8))", 4
    if pa.types.is_boolean(kind):
        # A CASE without ELSE stays null for null; IF would make it false.
        return b"b", f"CASE WHEN {name} THEN X'01' WHEN NOT {name} THEN X'00' END", 1
    return None


def hash_sql(key_bytes_sql: str) -> str:
    """Spark SQL for the hash of key bytes, as a signed BIGINT with the bits of `hash_key`."""
    return f"xxhash64({key_bytes_sql})"
