"""The hash of whole rows: a number for each, from the bytes of its columns.

Rows with the same cells have the same number in every process and version, because joins store it: a change here makes
their state unreadable. Cells are compared byte for byte: not-a-number is itself, and 0.0 is not −0.0. Everything is
computed in columns. Two different rows of one key have the same number once in 2⁶⁴ pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.batch import Int64s, UInt64s
from headrace.model.key_hash import hash_encoded

_NULL: Final = np.uint64(0xA0761D6478BD642F)
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_WHOLE: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def hash_rows(columns: Sequence[pa.Array], times: Int64s) -> Int64s:
    """A number for each row, of its cells and its time, as the columns of a store have it: with a sign."""
    hashes = _mixed(times.view(np.uint64))
    for column in columns:
        hashes = _beside(hashes, _cells(column))
    return hashes.view(np.int64)


def _beside(hashes: UInt64s, cells: UInt64s) -> UInt64s:
    """What was hashed so far and one more cell each; their order counts."""
    with np.errstate(over="ignore"):
        return _mixed(hashes * _STEP + cells)


def _mixed(values: UInt64s) -> UInt64s:
    """Every bit of a number in all others: the last steps of splitmix64."""
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * _FIRST
        values = (values ^ (values >> np.uint64(27))) * _SECOND
    mixed: UInt64s = values ^ (values >> np.uint64(31))
    return mixed


def _cells(array: pa.Array) -> UInt64s:
    hashes = _values(array)
    if array.null_count:
        hashes = np.where(array.is_null().to_numpy(zero_copy_only=False), _NULL, hashes)
    return hashes


def _values(array: pa.Array) -> UInt64s:
    """Of cells that are not null; what stands for the others is anything."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _values(array.storage)
    if pa.types.is_dictionary(kind):
        return _cells(array.dictionary_decode())
    if pa.types.is_boolean(kind):
        return _values(array.cast(pa.uint8()))
    if pa.types.is_struct(kind):
        hashes = np.zeros(len(array), np.uint64)
        for child in array.flatten():
            hashes = _beside(hashes, _cells(child))
        return hashes
    if pa.types.is_map(kind):
        pairs = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
        return _lists(array.offsets, _cells(pairs))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists(array.offsets, _cells(array.values))
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        return _fixed(array, kind.byte_width)
    if pa.types.is_null(kind):
        return np.zeros(len(array), np.uint64)
    return hash_encoded(_one_array(array.cast(pa.binary())))


def _fixed(array: pa.Array, width: int) -> UInt64s:
    """Cells of one width, as they lie in memory."""
    data: npt.NDArray[Any] = np.frombuffer(array.buffers()[1], _WHOLE[min(width, 8)])
    words = max(width // 8, 1)
    block = data[array.offset * words : (array.offset + len(array)) * words].reshape(len(array), words)
    hashes = np.zeros(len(array), np.uint64)
    for place in range(words):
        hashes = _beside(hashes, block[:, place].astype(np.uint64))
    return hashes


def _lists(offsets: pa.Array, values: UInt64s) -> UInt64s:
    """Of lists: a sum over their values, each mixed with its place in its list."""
    bounds = offsets.to_numpy().astype(np.int64)
    counts = np.diff(bounds)
    mine = values[bounds[0] : bounds[-1]]
    places = np.arange(len(mine)) - np.repeat(bounds[:-1] - bounds[0], counts)
    with np.errstate(over="ignore"):
        sums = np.append(np.uint64(0), np.cumsum(_beside(_mixed(places.astype(np.uint64) + _STEP), mine)))
        total = sums[bounds[1:] - bounds[0]] - sums[bounds[:-1] - bounds[0]]
        return _beside(total, counts.astype(np.uint64))


def _one_array(array: Any) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
