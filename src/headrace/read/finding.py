"""Single keys of a value table, found as fast as Python can: an index over each batch, made when it is first asked.

Hashes are even, so their upper bits nearly say where a row lies. The index of a batch maps those bits to the first row
that may have them; what is left to look at is a row or two. Batches never change and outlive epochs, so an index
serves for as long as its run is open; it takes two to eight bytes per row.

Runs of one key group are listed once per snapshot, so that a key is looked for in the runs of its own shard only,
newest first. Most keys changed long ago: one look into a filter over all small runs together tells that none of them
has the key.

What this module deliberately does not do: know types, expiry or epochs. `headrace.state.lookup` is the same for tasks,
which look for many keys at once.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import xxhash

from headrace.model.ids import HASH_SEED
from headrace.state.block import Block
from headrace.state.lookup import Layers
from headrace.state.run import RunTable
from headrace.state.view import TableView

FILTERED_ROWS: Final = 1 << 18
"""Runs up to this size say beforehand which keys they do not have."""
_FILTER_SHARE: Final = 16
"""Bytes of the filter per row, at least; the more, the fewer keys look as if they were there."""
_LARGER_ROWS: Final = 1 << 15
_LARGER_SHARE: Final = 4
"""Of runs that have more rows than that, whose filters would be the most of all memory."""

T = TypeVar("T")

_hash = xxhash.xxh64_intdigest


_ALL: Final = b"\x01"
"""The filter of a run that may have any key."""
GONE: Final = b""
"""What a tombstone is told as: no stored value is empty."""


class BlockIndex(NamedTuple):
    """One batch of a value table, ready for single keys. Everything but ``starts`` points into the mapped file."""

    shift: int
    base: int
    """(hash >> shift) − base is the place of a hash in ``starts``."""
    places: int
    starts: memoryview
    """Place → the first row that may have it; the next place's is the end."""
    hashes: memoryview
    key_offsets: memoryview
    key_data: memoryview
    value_offsets: memoryview
    value_data: memoryview
    valid: memoryview | None
    block: Block

    def value(self, row: int) -> bytes:
        """The stored value of a row; GONE: it is a tombstone."""
        if self.valid is not None and not self.valid[row >> 3] >> (row & 7) & 1:
            return GONE
        offsets = self.value_offsets
        return self.value_data[offsets[row] : offsets[row + 1]].tobytes()


def index_block(block: Block) -> BlockIndex:
    hashes = block.hash
    first, last = int(hashes[0]), int(hashes[-1])
    shift = max(0, (last - first).bit_length() - block.rows.bit_length())
    base = first >> shift
    places = (hashes >> np.uint64(shift)) - np.uint64(base)
    counts = np.bincount(places.astype(np.int64))
    starts = np.zeros(len(counts) + 1, np.uint16 if block.rows < 2**16 else np.uint32)
    np.cumsum(counts, out=starts[1:])
    key_offsets, key_data, _ = block.keys.parts
    return BlockIndex(
        shift, base, len(counts), starts.data, block.hashes, key_offsets, key_data, *block.values.parts, block
    )


class RunIndex:
    """One table of a run, batch by batch; batches are opened as they are needed."""

    __slots__ = ("__weakref__", "_blocks", "_firsts", "_plain", "_table", "filter", "rows")

    def __init__(self, table: RunTable) -> None:
        # The table is held by whoever looks into it: an index that held it, too, would keep every run for ever.
        self._table = weakref.ref(table)
        self.filter = _filter_of(table) if table.rows <= FILTERED_ROWS else None
        """A byte for each value of the lower bits of a hash: 0 where no row has them. None: the run is a large one."""
        self.rows = table.rows
        self._firsts = table.firsts
        self._blocks: list[BlockIndex | None] = [None] * len(table)
        self._plain: list[tuple[Any, ...] | None] = [None] * len(table)
        """The same as plain tuples, which are taken apart in a third of the time."""

    def value(self, hash_: int, key: bytes) -> bytes | None:
        """The stored value of a key; GONE for a tombstone, None where the run says nothing of it."""
        number = bisect_right(self._firsts, hash_) - 1
        while number >= 0:
            # Spelled out without a call: this is what every reader waits for.
            plain = self._plain[number] or tuple(self.open(number))
            shift, base, places, starts, hashes, key_offsets, key_data, offsets, data, valid, _ = plain
            place = (hash_ >> shift) - base
            if place < places:
                row, end = starts[place], starts[place + 1]
                while row < end:
                    if hashes[row] == hash_ and key_data[key_offsets[row] : key_offsets[row + 1]].tobytes() == key:
                        if valid is not None and not valid[row >> 3] >> (row & 7) & 1:
                            return GONE
                        found: bytes = data[offsets[row] : offsets[row + 1]].tobytes()
                        return found
                    row += 1
            if self._firsts[number] != hash_:
                return None
            # Rows of keys that share this hash may have begun in the batch before.
            number -= 1
        return None

    def find(self, hash_: int, key: bytes) -> tuple[BlockIndex, int] | None:
        """Where the row of a key is."""
        number = bisect_right(self._firsts, hash_) - 1
        while number >= 0:
            index = self._blocks[number] or self.open(number)
            place = (hash_ >> index.shift) - index.base
            if place < index.places:
                for row in range(index.starts[place], index.starts[place + 1]):
                    offsets = index.key_offsets
                    if index.hashes[row] == hash_ and index.key_data[offsets[row] : offsets[row + 1]] == key:
                        return index, row
            if self._firsts[number] != hash_:
                return None
            number -= 1
        return None

    def open(self, number: int) -> BlockIndex:
        """The index of a batch. Two threads may make it at once; one of them stays."""
        table = self._table()
        assert table is not None
        made = self._blocks[number] = index_block(table.block(number))
        self._plain[number] = tuple(made)
        return made

    def warm(self) -> None:
        """Opens, verifies and indexes every batch, so that no reader has to wait for it."""
        for number, made in enumerate(self._blocks):
            if made is None:
                self.open(number)


def _filter_of(table: RunTable) -> bytes:
    """Tells most keys that a small run does not have: a key that changed long ago is in none of the newest runs."""
    share = _FILTER_SHARE if table.rows <= _LARGER_ROWS else _LARGER_SHARE
    size = 1 << (share * table.rows).bit_length()
    found = np.zeros(size, np.uint8)
    for number in range(len(table)):
        found[table.block(number).hash & np.uint64(size - 1)] = 1
    return found.tobytes()


def _filter_together(filters: Sequence[bytes]) -> bytes:
    """What any of them has. Sizes are powers of two: a smaller one, repeated, says the same of more bits."""
    together = np.zeros(max((len(each) for each in filters), default=1), np.uint8)
    for each in filters:
        repeated = together.reshape(-1, len(each))
        np.bitwise_or(repeated, np.frombuffer(each, np.uint8), out=repeated)
    return together.tobytes()


def once_per_table(make: Callable[[RunTable], T]) -> Callable[[RunTable], T]:
    """The same function, called once per process and table; what it makes stays for as long as the run is open."""
    made: WeakKeyDictionary[RunTable, T] = WeakKeyDictionary()

    def of(table: RunTable) -> T:
        found = made.get(table)
        if found is None:
            found = made[table] = make(table)
        return found

    return of


index_of: Final = once_per_table(RunIndex)
"""The index of a table."""


_Lookup = Callable[[int, bytes], bytes | None]


class _Runs(NamedTuple):
    """The runs of some key groups, newest first."""

    filter: bytes
    mask: int
    """filter[hash & mask] is 0 where no small run has the key …"""
    large: tuple[_Lookup, ...]
    """… so that only these are left."""
    all: tuple[tuple[bytes, int, _Lookup], ...]
    """Every run with a filter of its own."""


def _together(indexes: Sequence[RunIndex]) -> _Runs:
    together = _filter_together([index.filter for index in indexes if index.filter is not None])
    filters = [(_ALL if index.filter is None else index.filter, index.value) for index in indexes]
    every = tuple((there, len(there) - 1, value) for there, value in filters)
    large = tuple(index.value for index in indexes if index.filter is None)
    return _Runs(together, len(together) - 1, large, every)


class Finder:
    """A value table over all its runs, asked key by key."""

    def __init__(self, views: Sequence[TableView], groups: int) -> None:
        """``views``: newest first, each of whole key groups."""
        self._shift = 64 - (groups.bit_length() - 1)
        self.expires = any(view.table.has_expires for view in views)
        """Whether any row has an expiry."""
        self._indexes = [(view, index_of(view.table)) for view in views]
        made: dict[tuple[RunIndex, ...], tuple[Any, ...]] = {}
        self._runs: list[tuple[Any, ...]] = []
        """By key group. Most groups have the same runs as their neighbours."""
        width = 2**64 // groups
        for low in range(0, 2**64, width):
            mine = tuple(index for view, index in self._indexes if view.low < low + width and low <= view.high)
            if mine not in made:
                made[mine] = tuple(_together(mine))
            self._runs.append(made[mine])

    def raw(self, key: bytes) -> bytes | None:
        """The stored value of a key, whether it has expired or not; None where there is none."""
        hash_ = _hash(key, HASH_SEED)
        there, mask, large, every = self._runs[hash_ >> self._shift]
        if there[hash_ & mask]:
            for there, mask, value in every:
                if there[hash_ & mask]:
                    found: bytes | None = value(hash_, key)
                    if found is not None:
                        return found or None
            return None
        for value in large:
            found = value(hash_, key)
            if found is not None:
                return found or None
        return None

    def raw_at(self, key: bytes, now_us: int | None) -> bytes | None:
        """The stored value of a key, unless it has expired by that time."""
        found = self.find(key)
        if found is None:
            return None
        index, row = found
        expires = index.block.expires_at(row)
        if expires is not None and now_us is not None and expires <= now_us:
            return None
        return index.value(row) or None

    def expires_us(self, key: bytes) -> int | None:
        """When the value of a key ends; None where it does not, or is not there."""
        found = self.find(key)
        return None if found is None else found[0].block.expires_at(found[1])

    def find(self, key: bytes) -> tuple[BlockIndex, int] | None:
        """Where the newest row of a key is; it may be a tombstone."""
        hash_ = _hash(key, HASH_SEED)
        for view, index in self._indexes:
            if view.low <= hash_ <= view.high:
                found = index.find(hash_, key)
                if found is not None:
                    return found
        return None

    def runs(self) -> list[RunIndex]:
        """Every run once, newest first."""
        return list(dict.fromkeys(index for _, index in self._indexes))


class AdaptedFinder(Finder):
    """The same where values of some runs are adapted on their way out, to the type that was asked for."""

    def __init__(self, views: Sequence[TableView], layers: Layers, table: str) -> None:
        super().__init__(views, layers.groups)
        self._layers = layers
        self._table = table

    def raw(self, key: bytes) -> bytes | None:
        return self._layers.get(self._table, _hash(key, HASH_SEED), key)[0]

    def raw_at(self, key: bytes, now_us: int | None) -> bytes | None:
        value, expires_us = self._layers.get(self._table, _hash(key, HASH_SEED), key)
        return None if expires_us is not None and now_us is not None and expires_us <= now_us else value
