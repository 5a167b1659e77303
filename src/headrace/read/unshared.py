"""Which keys of a state can differ between two epochs: those in runs that only one of them has.

Runs never change, and both epochs see the runs that they share in the same order. So a key that lies in shared runs
only is the same in both, however many runs there are. Of two epochs of one job that is nearly all of them; two stores
without a common past share nothing, and all keys are looked at.

Hashes are gone through in order, a bounded number of rows at a time. No run is opened further than for the rows that
only one side has.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.state.format import BY_TIME
from headrace.state.lookup import Layers
from headrace.state.view import TableView, share_of_range

STRETCH_ROWS: Final = 1 << 16
STRETCH_ROWS_BY_TIME: Final = 1 << 20
"""Of tables that lie in the order of time: every stretch of hashes walks over all their batches."""


class NamedView(NamedTuple):
    """What a run holds of a state, and what the run is known by, in any store."""

    name: object
    view: TableView


class Stretch(NamedTuple):
    """Hashes from ``low`` to ``high``, both included, and the runs that only one side has there."""

    low: int
    high: int
    rows: int
    """About so many."""
    views: tuple[TableView, ...]


def named_views(layers: Layers, table: str) -> list[NamedView]:
    """The runs of a table, newest first."""
    names = {id(run): (ref.epoch, ref.file, ref.crc, ref.size_bytes) for ref, run in layers.runs}
    return [NamedView((names[id(view.table.run)], view.table.name), view) for view in layers.views(table)]


def derive_stretches(
    first: Sequence[NamedView], second: Sequence[NamedView], *, everything: bool = False
) -> Iterator[Stretch]:
    """The stretches of hashes where keys can differ. ``everything``: also where both sides have the same runs."""
    ends = {end for each in (*first, *second) for end in (each.view.low, each.view.high + 1)}
    bounds = sorted(ends)
    for low, end in pairwise(bounds):
        ours, theirs = (_covering(views, low, end - 1) for views in (first, second))
        shared = set() if everything else {each.name for each in ours} & {each.name for each in theirs}
        views = tuple(each.view for each in (*ours, *theirs) if each.name not in shared)
        rows = sum(_rows_in(view, low, end) for view in views)
        if not views or not rows:
            continue
        by_time = any(view.table.kind in BY_TIME for view in views)
        count = min(end - low, max(1, -(-rows // (STRETCH_ROWS_BY_TIME if by_time else STRETCH_ROWS))))
        for part in range(count):
            start, stop = (low + (end - low) * each // count for each in (part, part + 1))
            yield Stretch(start, stop - 1, share_of_range(rows, part, part + 1, count), views)


def read_keys(stretch: Stretch) -> list[tuple[int, bytes]]:
    """Hash and key of every row in a stretch, each once, in order."""
    hashes: list[pa.Array] = []
    keys: list[pa.Array] = []
    for view in stretch.views:
        for batch in _batches(view, stretch.low, stretch.high):
            hashes.append(batch.column("hash"))
            keys.append(batch.column("key"))
    if not keys:
        return []
    rows = pa.table({"hash": pa.chunked_array(hashes, pa.uint64()), "key": pa.chunked_array(keys, pa.binary())})
    distinct = rows.group_by(["hash", "key"], use_threads=False).aggregate([])
    return sorted(zip(distinct.column("hash").to_pylist(), distinct.column("key").to_pylist()))


def _covering(views: Sequence[NamedView], low: int, high: int) -> list[NamedView]:
    """Those that hold all of these hashes: between two bounds a view has all of them or none."""
    return [each for each in views if each.view.low <= low and high <= each.view.high]


def _rows_in(view: TableView, low: int, end: int) -> int:
    """About as many rows as a view has between two hashes; those are even."""
    width = view.high + 1 - view.low
    return max(1, share_of_range(view.rows, low - view.low, end - view.low, width)) if view.rows else 0


def _batches(view: TableView, low: int, high: int) -> Iterator[pa.RecordBatch]:
    table = view.table
    by_time = table.kind in BY_TIME
    # Rows of the first hash may begin in the batch before.
    first = 0 if by_time else max(0, bisect_left(table.firsts, low) - 1)
    stop = len(table) if by_time else bisect_right(table.firsts, high)
    for number in range(first, stop):
        block = table.block(number)
        hashes = block.hash
        if by_time:
            mask = (hashes >= np.uint64(low)) & (hashes <= np.uint64(high))
            batch = block.batch.filter(pa.array(mask))
        else:
            start = int(np.searchsorted(hashes, np.uint64(low), "left"))
            end = int(np.searchsorted(hashes, np.uint64(high), "right"))
            batch = block.batch.slice(start, end - start)
        if batch.num_rows:
            yield batch
