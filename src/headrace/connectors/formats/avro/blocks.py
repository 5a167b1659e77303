"""The blocks of Avro's arrays and maps: how many items each message has, and all of them as one column.

Numbers of a block are found by their bytes alone and read at once. Other items tell only while they are read where the
next one begins: the n-th items of all messages are read together, so these cost as many rounds as the longest list has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from headrace.connectors.formats.avro.schema import AvroType
from headrace.connectors.formats.cursor import Cursor, Ints

Read = Callable[[Cursor], pa.Array]


def offsets_of(lengths: Ints) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.array(offsets)


def number_size(item: AvroType) -> int | None:
    """The bytes of an item that is a number: 0 for those of seven bits a byte. None: it is something else."""
    sizes = {"int": 0, "long": 0, "enum": 0, "boolean": 1, "float": 4, "double": 8}
    return (item.size or None) if item.kind == "fixed" else sizes.get(item.kind)


def read_blocks(cursor: Cursor, read: Read, kind: pa.DataType, size: int | None) -> tuple[Ints, pa.Array]:
    """The items of an array or a map of each message: how many there are, and all of them in order."""
    lengths = np.zeros(len(cursor), np.int64)
    parts: list[tuple[Ints, pa.Array]] = []
    for which, values in _rounds(cursor, read) if size is None else _runs(cursor, read, size):
        parts.append((which, values))
        lengths += np.bincount(which, minlength=len(cursor))
    if not parts:
        return lengths, pa.nulls(0, kind)
    if len(parts) == 1:
        return lengths, parts[0][1]
    owners = np.concatenate([which for which, _ in parts])
    items = pa.concat_arrays([values for _, values in parts])
    return lengths, items.take(pa.array(np.argsort(owners, kind="stable")))


def pass_numbers(cursor: Cursor, size: int) -> None:
    """Goes behind an array of numbers."""
    for _ in _runs(cursor, lambda items: pa.nulls(len(items)), size):
        pass


def _rounds(cursor: Cursor, read: Read) -> Iterator[tuple[Ints, pa.Array]]:
    for which, part in blocks_of(cursor):
        yield which, read(part)


def _runs(cursor: Cursor, read: Read, size: int) -> Iterator[tuple[Ints, pa.Array]]:
    which = np.flatnonzero(~cursor.lost)
    while len(which):
        counts = _block_counts(cursor, which)
        which, counts = which[counts > 0], counts[counts > 0]
        part = cursor.subset(which)
        items, owners = part.numbers(counts, size)
        yield which[owners], read(items)
        part.hand_back(items, owners)
        cursor.rejoin(which, part)


def blocks_of(cursor: Cursor) -> Iterator[tuple[Ints, Cursor]]:
    """Who has an item next, again and again, with a cursor of those that is read on."""
    which = np.flatnonzero(~cursor.lost)
    counts = _block_counts(cursor, which)
    while True:
        which, counts = which[counts > 0], counts[counts > 0]
        if not len(which):
            return
        part = cursor.subset(which)
        yield which, part
        cursor.rejoin(which, part)
        counts = np.where(cursor.lost[which], 0, counts - 1)
        done = (counts == 0) & ~cursor.lost[which]
        if done.any():
            counts[done] = _block_counts(cursor, which[done])


def _block_counts(cursor: Cursor, which: Ints) -> Ints:
    """How many items the next block of each has; 0 ends a list. A negative number is followed by the block's size."""
    part = cursor.subset(which)
    counts = part.longs()
    sized = np.flatnonzero(counts < 0)
    if len(sized):
        inner = part.subset(sized)
        inner.longs()
        part.rejoin(sized, inner)
        counts = np.abs(counts)
    # An item of no bytes at all would let a message claim any number of them.
    part.fail(counts > part.ends - part.at + (1 << 16), "it claims more items than it has room for")
    cursor.rejoin(which, part)
    return np.where(part.lost, 0, counts)
