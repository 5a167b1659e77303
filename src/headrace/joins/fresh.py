"""The rows that an epoch brought to a join, both sides together, some keys at a time.

Keys get codes in the order of their hashes, and rows stand in the order of (key, time, arrival): that is the order in
which they are kept, so that what is to be kept needs no further sorting.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.batch import Int64s, UInt64s
from headrace.model.key_bytes import LENGTH, NULL_KEY
from headrace.operators.matching import RowLine
from headrace.state.rows.find import BatchRows, GatheredRows, KeyTimes
from headrace.state.rows.table import fresh_batches
from headrace.state.shard import distinct_keys

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.state.rows.table import RowTable
    from headrace.state.shard import ShardState

_COMPOSITE: Final = b"("
_NULL_PART: Final = LENGTH.pack(len(NULL_KEY)) + NULL_KEY


class JoinSide(NamedTuple):
    """New rows of one side, sorted by (code, time, arrival)."""

    batch: pa.RecordBatch
    codes: Int64s
    at: Int64s

    def __len__(self) -> int:
        return len(self.codes)

    def gathered(self, codec: RowCodec) -> GatheredRows:
        return GatheredRows([BatchRows(self.batch, None, self.codes)], codec)


class Fresh(NamedTuple):
    """New rows of both sides that have the same keys among them."""

    hashes: UInt64s
    keys: pa.BinaryArray
    """Distinct keys by code, in the order of their hashes."""
    sides: tuple[JoinSide, JoinSide]

    def partner_times(self, port: int, low: Int64s, high: Int64s) -> KeyTimes:
        """The times at which partners are wanted for the keys that have rows on one side.

        ``low`` and ``high``: for each row of that side. What is found has positions among these keys only for codes:
        `present` tells those of all keys.
        """
        starts = _starts(self.sides[port].codes)
        present = self.sides[port].codes[starts]
        ends = np.append(starts, len(low))[1:] - 1
        # Rows of a key stand in the order of time, so the first asks furthest back and the last furthest ahead.
        return KeyTimes(self.hashes[present], self.keys.take(pa.array(present)), low[starts], high[ends])

    def present(self, port: int) -> Int64s:
        """Codes of the keys that have rows on one side."""
        codes = self.sides[port].codes
        return codes[_starts(codes)]


def _starts(codes: Int64s) -> Int64s:
    if not len(codes):
        return np.empty(0, np.int64)
    return np.append(0, np.flatnonzero(codes[1:] != codes[:-1]) + 1)


def fresh_slices(state: ShardState, tables: tuple[RowTable, RowTable]) -> Iterator[Fresh]:
    """The rows of this epoch: all at once where they are in memory, else a range of hashes after the other."""
    for left, right in fresh_batches(state, tables):
        yield arrange(left, right)


def arrange(left: pa.RecordBatch, right: pa.RecordBatch) -> Fresh:
    """Rows of both sides in order, with codes for their keys."""
    batches = (left, right)
    hashes = np.concatenate([batch.column("hash").to_numpy() for batch in batches])
    keys = pa.concat_arrays([batch.column("key") for batch in batches])
    distinct = distinct_keys(hashes, keys)
    order = np.argsort(distinct.hashes, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    codes = rank[distinct.codes]
    count = len(order)
    sides = (_side(left, codes[: left.num_rows], count), _side(right, codes[left.num_rows :], count))
    # Two keys of one hash would stand in either order here, and by their bytes in the store, which sorts again then.
    return Fresh(distinct.hashes[order], distinct.keys.take(pa.array(order)), sides)


def _side(batch: pa.RecordBatch, codes: Int64s, keys: int) -> JoinSide:
    at = batch.column("at").to_numpy()
    order = RowLine(codes, at, keys).order
    if order is None:
        return JoinSide(batch, codes, at)
    return JoinSide(batch.take(pa.array(order)), codes[order], at[order])


def null_keys(keys: pa.BinaryArray) -> Int64s:
    """Positions of keys that are null or have a part that is: in SQL they equal nothing, not even each other."""
    null = pc.equal(keys, NULL_KEY).to_numpy(zero_copy_only=False)
    maybe = np.flatnonzero(null | pc.match_substring(keys, _NULL_PART).to_numpy(zero_copy_only=False))
    some = keys.take(pa.array(maybe)).to_pylist()
    return maybe[np.array([_has_null(key) for key in some], dtype=np.bool_)]


def _has_null(key: bytes) -> bool:
    if not key.startswith(_COMPOSITE):
        return key == NULL_KEY
    at = len(_COMPOSITE)
    while at < len(key):
        (length,) = LENGTH.unpack_from(key, at)
        at += LENGTH.size
        if key[at : at + length] == NULL_KEY:
            return True
        at += length
    return False
