"""Maps over several runs: the entries of a key, merged newest first.

Rules, the same for every way to read them:
- of two rows with the same (key, sub) the one in the newer run counts; a tombstone there hides the older;
- a clear marker hides all rows of its key in older runs, and none in its own: those are newer than the marker.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.state.adapters import ValueAdapter
from headrace.state.block import Block
from headrace.state.view import BlockRange, TableView

CHUNK_ROWS: Final = 4096
"""Rows turned into Python objects at a time while a large map is walked."""

Entry = tuple[bytes, int | None]
Hashes = npt.NDArray[np.uint64]
Indexes = npt.NDArray[np.int64]


def find_entry(views: Sequence[TableView], hash_: int, key: bytes, sub: bytes) -> tuple[bytes | None, int | None]:
    """Value and expiry of one entry."""
    for view in views:
        cleared = False
        for block, start, end in view.pieces(hash_, key):
            if block.subs.is_null(start):
                cleared = True
                start += 1
            row = block.find_sub(start, end, sub)
            if row >= 0:
                value = block.values.at(row)
                if value is None:
                    return None, None
                return value if view.adapter is None else view.adapted(value, key), block.expires_at(row)
        if cleared:
            break
    return None, None


def walk_entries(views: Sequence[TableView], hash_: int, key: bytes) -> Iterator[tuple[bytes, bytes, int | None]]:
    """The live entries of one key in the order of their subs; memory does not grow with their number."""
    for sub, same in groupby(_merged_rows(views, hash_, key), key=itemgetter(0)):
        _, _, value, expires = next(same)
        if value is not None:
            yield sub, value, expires


def walk_versions(views: Sequence[TableView], hash_: int, key: bytes) -> Iterator[tuple[int, int | None]]:
    """Of every live entry of one key the version of the run that has it, and its expiry."""
    for _, same in groupby(_merged_rows(views, hash_, key), key=itemgetter(0)):
        _, age, value, expires = next(same)
        if value is not None:
            yield views[age].version, expires


def _merged_rows(
    views: Sequence[TableView], hash_: int, key: bytes
) -> Iterator[tuple[bytes, int, bytes | None, int | None]]:
    """The rows of one key that no marker hides, by sub; of one sub the newest first."""
    sources = []
    for age, view in enumerate(views):
        pieces = list(view.pieces(hash_, key))
        if not pieces:
            continue
        sources.append(_walk_run(view, age, pieces))
        if pieces[0].block.subs.is_null(pieces[0].start):
            break
    return heapq.merge(*sources, key=itemgetter(0, 1)) if len(sources) > 1 else iter(*sources or ((),))


def _walk_run(
    view: TableView, age: int, pieces: Sequence[BlockRange]
) -> Iterator[tuple[bytes, int, bytes | None, int | None]]:
    for block, start, end in pieces:
        for first in range(start, end, CHUNK_ROWS):
            batch = block.batch.slice(first, min(CHUNK_ROWS, end - first))
            if view.adapter is not None:
                batch = view.adapter.rows(batch)
            values = batch.column("value").to_pylist()
            expires = [None] * len(values) if block.expires is None else batch.column("expires").to_pylist()
            for sub, value, expiry in zip(batch.column("sub").to_pylist(), values, expires):
                if sub is not None:
                    yield sub, age, value, None if value is None else expiry


def find_maps(
    views: Sequence[TableView], hashes: Hashes, keys: pa.BinaryArray, limit: int
) -> list[dict[bytes, Entry] | None]:
    """Whole maps of distinct keys, each in sub order; ``None`` where the runs hold more than ``limit`` rows."""
    search = _MapSearch(hashes, keys, limit)
    for view in views:
        search.look_into(view)
    return search.answer()


class _BlockRows(NamedTuple):
    """Rows found in one block: ``counts[i]`` consecutive ones for needle ``needles[i]``."""

    needles: list[int]
    counts: list[int]
    subs: list[bytes | None]
    values: list[bytes | None]
    expires: list[int | None] | None
    plain: bool
    """No markers and no tombstones among them."""


class _MapSearch:
    def __init__(self, hashes: Hashes, keys: pa.BinaryArray, limit: int) -> None:
        self._keys = keys
        self._limit = limit
        self._rest: Indexes = np.argsort(hashes, kind="stable")
        """Needles that older runs may still add to, as positions in ``keys``, in the order of their hashes …"""
        self._rest_hash: Hashes = hashes[self._rest]
        """… and those hashes."""
        self._rows: Indexes = np.zeros(len(hashes), np.int64)
        self._parts: Indexes = np.zeros(len(hashes), np.int64)
        """In how many blocks rows of a needle were found; more than one, and they must be sorted."""
        self._found: list[_BlockRows] = []

    def look_into(self, view: TableView) -> None:
        start, end = view.needles(self._rest_hash)
        if start == end:
            return
        hashes = self._rest_hash[start:end]
        firsts = view.table.first_array
        begins = np.searchsorted(hashes, firsts, "left") + start
        # Rows of one hash may go on in the next batch, so a batch answers up to and with the next one's first hash.
        ends = np.append(np.searchsorted(hashes, firsts[1:], "right"), len(hashes)) + start
        done = np.zeros(len(self._rest), bool)
        for index in np.flatnonzero(ends > begins).tolist():
            self._look_into_block(view, view.table.block(index), int(begins[index]), int(ends[index]), done)
        done |= self._rows[self._rest] > self._limit
        self._rest, self._rest_hash = self._rest[~done], self._rest_hash[~done]

    def _look_into_block(self, view: TableView, block: Block, begin: int, end: int, done: npt.NDArray[Any]) -> None:
        wanted = self._rest_hash[begin:end]
        starts = np.searchsorted(block.hash, wanted, "left")
        ends = np.searchsorted(block.hash, wanted, "right")
        hit = np.flatnonzero(starts < ends)
        if len(hit) == 0:
            return
        needles = self._rest[begin:end][hit]
        starts, ends = self._exact_ranges(block, needles, wanted[hit], starts[hit], ends[hit])
        some = starts < ends
        hit, needles, starts, ends = hit[some], needles[some], starts[some], ends[some]
        if len(hit) == 0:
            return
        subs = block.batch.column("sub")
        if subs.null_count:
            marked = pc.take(subs, pa.array(starts)).is_null().to_numpy(zero_copy_only=False)
            done[begin + hit[marked]] = True
        self._rows[needles] += ends - starts
        small = self._rows[needles] <= self._limit
        self._gather(view, block, needles[small], starts[small], ends[small])

    def _exact_ranges(
        self, block: Block, needles: Indexes, hashes: Hashes, starts: Indexes, ends: Indexes
    ) -> tuple[Indexes, Indexes]:
        """Ranges of equal hashes made ranges of equal keys."""
        keys = pc.take(self._keys, pa.array(needles))
        same = pc.and_(
            pc.equal(keys, pc.take(block.key, pa.array(starts))), pc.equal(keys, pc.take(block.key, pa.array(ends - 1)))
        ).to_numpy(zero_copy_only=False)
        for index in np.flatnonzero(~same).tolist():
            starts[index], ends[index] = block.key_range(int(hashes[index]), keys[index].as_py())
        return starts, ends

    def _gather(self, view: TableView, block: Block, needles: Indexes, starts: Indexes, ends: Indexes) -> None:
        counts = ends - starts
        total = int(counts.sum())
        if total == 0:
            return
        before = np.cumsum(counts) - counts
        rows = pa.array(np.arange(total) + np.repeat(starts - before, counts))
        subs = pc.take(block.batch.column("sub"), rows)
        values = pc.take(block.batch.column("value"), rows)
        if isinstance(view.adapter, ValueAdapter):
            values = view.adapter.array(values, pc.take(block.key, rows))
        expires = None if block.expires is None else pc.take(block.expires, rows).to_pylist()
        plain = values.null_count == 0
        self._parts[needles] += 1
        self._found.append(
            _BlockRows(needles.tolist(), counts.tolist(), subs.to_pylist(), values.to_pylist(), expires, plain)
        )

    def answer(self) -> list[dict[bytes, Entry] | None]:
        maps: list[dict[bytes, Entry] | None] = [{} for _ in range(len(self._rows))]
        # Oldest first: a later row simply takes the place of an earlier one.
        for gathered in reversed(self._found):
            _add(maps, gathered)
        for needle in np.flatnonzero(self._parts > 1).tolist():
            maps[needle] = dict(sorted((maps[needle] or {}).items()))
        for needle in np.flatnonzero(self._rows > self._limit).tolist():
            maps[needle] = None
        return maps


def _add(maps: list[dict[bytes, Entry] | None], gathered: _BlockRows) -> None:
    subs, values = gathered.subs, gathered.values
    expires: Sequence[int | None] = gathered.expires or [None] * len(values)
    end = 0
    for needle, count in zip(gathered.needles, gathered.counts):
        start, end = end, end + count
        target: Any = maps[needle]
        if gathered.plain:
            target.update(zip(subs[start:end], zip(values[start:end], expires[start:end])))
            continue
        for sub, value, expiry in zip(subs[start:end], values[start:end], expires[start:end]):
            if value is not None:
                target[sub] = (value, expiry)
            else:
                # A tombstone, or the marker of a clear, whose victims were never gathered.
                target.pop(sub, None)
