"""Bulk lookup of values: many keys against several runs, without a Python step per key.

The needles are put in hash order once. Then, newest run first, they are cut at the first hashes of the run's batches;
per batch one ``searchsorted`` proposes a row for each needle, one vectorised comparison confirms the key, one ``take``
gathers the values. What was found leaves the needles. Hashes that collide go one by one, which is rare enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.state.block import Block
from headrace.state.view import TableView

Indexes = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


def find_values(
    views: Sequence[TableView], hashes: Hashes, keys: pa.BinaryArray
) -> tuple[pa.BinaryArray, pa.Int64Array | None]:
    """For each key its newest value, null where there is none or a tombstone; and the expiry if any table has one."""
    search = _Search(hashes, keys, expires=any(view.table.has_expires for view in views))
    for view in views:
        if len(search.rest) == 0:
            break
        search.look_into(view)
    return search.answer()


class _Search:
    def __init__(self, hashes: Hashes, keys: pa.BinaryArray, *, expires: bool) -> None:
        self.keys = keys
        self.rest: Indexes
        """Needles not found yet, as positions in ``keys``, in the order of their hashes …"""
        self.rest_hash: Hashes
        """… and those hashes."""
        if np.all(hashes[1:] >= hashes[:-1]):
            self.rest, self.rest_hash = np.arange(len(hashes)), hashes
        else:
            self.rest = np.argsort(hashes)
            self.rest_hash = hashes[self.rest]
        self._places: Indexes = np.full(len(hashes), -1)
        self._found = 0
        self._values: list[pa.BinaryArray] = []
        self._expires: list[pa.Int64Array] | None = [] if expires else None

    def look_into(self, view: TableView) -> None:
        start, end = view.needles(self.rest_hash)
        hashes = self.rest_hash[start:end]
        left = np.ones(len(self.rest), bool)
        cuts = np.append(np.searchsorted(hashes, view.table.first_array), len(hashes)) + start
        for index in np.flatnonzero(cuts[1:] > cuts[:-1]).tolist():
            first, last = int(cuts[index]), int(cuts[index + 1])
            hit = self._look_into_block(view.table.block(index), first, last)
            left[first:last][hit] = False
        self.rest, self.rest_hash = self.rest[left], self.rest_hash[left]

    def _look_into_block(self, block: Block, first: int, last: int) -> Indexes:
        """Gathers what the block has for needles first … last; answers which of them it had."""
        wanted = self.rest_hash[first:last]
        rows = np.searchsorted(block.hash, wanted)
        np.minimum(rows, block.rows - 1, out=rows)
        hit = np.flatnonzero(block.hash[rows] == wanted)
        if len(hit) == 0:
            return hit
        rows, needles = rows[hit], self.rest[first:last][hit]
        same = pc.equal(
            pc.take(self.keys, pa.array(needles), boundscheck=False),
            pc.take(block.key, pa.array(rows), boundscheck=False),
        ).to_numpy(zero_copy_only=False)
        if not same.all():
            hit, rows, needles = self._resolve_collisions(block, hit, rows, needles, same)
        self._places[needles] = np.arange(self._found, self._found + len(needles))
        self._found += len(needles)
        self._gather(block, pa.array(rows))
        return hit

    def _resolve_collisions(
        self, block: Block, hit: Indexes, rows: Indexes, needles: Indexes, same: npt.NDArray[Any]
    ) -> tuple[Indexes, Indexes, Indexes]:
        """The first row of a hash is another key: it may be a later one, or absent."""
        for index in np.flatnonzero(~same).tolist():
            hash_ = int(block.hash[rows[index]])
            rows[index] = block.find(hash_, self.keys[int(needles[index])].as_py())
        found = rows >= 0
        return hit[found], rows[found], needles[found]

    def _gather(self, block: Block, rows: pa.Int64Array) -> None:
        self._values.append(pc.take(block.value, rows, boundscheck=False))
        if self._expires is not None:
            if block.expires is None:
                self._expires.append(pa.nulls(len(rows), pa.int64()))
            else:
                self._expires.append(pc.take(block.expires, rows, boundscheck=False))

    def answer(self) -> tuple[pa.BinaryArray, pa.Int64Array | None]:
        """Found values in the order the caller asked."""
        places = pa.array(self._places, mask=self._places < 0)
        if not self._values:
            return pa.nulls(len(places), pa.binary()), None
        values = pc.take(pa.concat_arrays(self._values), places, boundscheck=False)
        if self._expires is None:
            return values, None
        return values, pc.take(pa.concat_arrays(self._expires), places, boundscheck=False)
