"""The hash of key bytes: xxhash64, of one key and of a column of keys.

`hash_key` and `hash_encoded` give the same number; one test holds them together. A column is hashed in numpy, all keys
of one length at once: the algorithm is the same few multiplications for each.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from headrace.model.batch import UInt64s
from headrace.model.ids import HASH_SEED

Bytes = npt.NDArray[np.uint8]

_FEW_KEYS: Final = 24
"""So many keys of one length are hashed faster one by one …"""
_LONG_BYTES: Final = 128
"""… and keys so long, among others: a block of them would take many times their room to be put together."""

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_SEED: Final = np.uint64(HASH_SEED)
_STRIPE_BYTES: Final = 32


def hash_key(encoded: bytes) -> int:
    """The hash of one key's bytes, as an unsigned number."""
    return xxhash.xxh64_intdigest(encoded, HASH_SEED)


def hash_encoded(encoded: pa.BinaryArray) -> UInt64s:
    """`hash_key` of each element; null counts as no bytes."""
    count = len(encoded)
    if count <= _FEW_KEYS:
        return np.array([hash_key(key or b"") for key in encoded.to_pylist()], dtype=np.uint64)
    _, offsets_buffer, data_buffer = encoded.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[encoded.offset : encoded.offset + count + 1].astype(np.int64)
    data = np.frombuffer(b"" if data_buffer is None else data_buffer, np.uint8)
    starts, lengths = offsets[:-1], np.diff(offsets)
    shortest, longest = int(lengths.min()), int(lengths.max())
    if shortest == longest:
        # Keys of one length lie side by side.
        return _hash_block(data[starts[0] : starts[0] + count * longest].reshape(count, longest))
    hashes = np.empty(count, np.uint64)
    order = np.argsort(lengths.astype(np.uint16) if longest < 1 << 16 else lengths, kind="stable")
    ordered = lengths[order]
    bounds = np.flatnonzero(np.diff(ordered)) + 1
    for rows in np.split(order, bounds):
        length = int(lengths[rows[0]])
        if len(rows) <= _FEW_KEYS or length >= _LONG_BYTES:
            hashes[rows] = [hash_key(data[start : start + length].tobytes()) for start in starts[rows].tolist()]
        else:
            hashes[rows] = _hash_block(data[starts[rows, None] + np.arange(length)])
    return hashes


def _hash_block(keys: Bytes) -> UInt64s:
    """The hash of each row of a block."""
    count, length = keys.shape
    at = 0
    if length >= _STRIPE_BYTES:
        with np.errstate(over="ignore"):
            lanes = [np.full(count, start, np.uint64) for start in (_SEED + _P1 + _P2, _SEED + _P2, _SEED, _SEED - _P1)]
        while at + _STRIPE_BYTES <= length:
            lanes = [_round(lane, _words(keys, at + 8 * i, "<u8")) for i, lane in enumerate(lanes)]
            at += _STRIPE_BYTES
        hashes = _rotate(lanes[0], 1) + _rotate(lanes[1], 7) + _rotate(lanes[2], 12) + _rotate(lanes[3], 18)
        for lane in lanes:
            hashes = (hashes ^ _round(np.zeros(count, np.uint64), lane)) * _P1 + _P4
    else:
        with np.errstate(over="ignore"):
            hashes = np.full(count, _SEED + _P5, np.uint64)
    hashes += np.uint64(length)
    while at + 8 <= length:
        hashes ^= _round(np.zeros(count, np.uint64), _words(keys, at, "<u8"))
        hashes = _rotate(hashes, 27) * _P1 + _P4
        at += 8
    if at + 4 <= length:
        hashes ^= _words(keys, at, "<u4") * _P1
        hashes = _rotate(hashes, 23) * _P2 + _P3
        at += 4
    for place in range(at, length):
        hashes ^= keys[:, place].astype(np.uint64) * _P5
        hashes = _rotate(hashes, 11) * _P1
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
    mixed: UInt64s = hashes ^ (hashes >> np.uint64(32))
    return mixed


def _words(keys: Bytes, at: int, kind: str) -> UInt64s:
    width = np.dtype(kind).itemsize
    words: npt.NDArray[Any] = np.ascontiguousarray(keys[:, at : at + width]).view(kind).reshape(-1)
    return words.astype(np.uint64)


def _round(lanes: UInt64s, words: UInt64s) -> UInt64s:
    return _rotate(lanes + words * _P2, 31) * _P1


def _rotate(values: UInt64s, bits: int) -> UInt64s:
    rotated: UInt64s = (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))
    return rotated
