"""Several runs as one sorted stream of rows: of each key (and sub) the newest row, batch by batch.

Each run is walked block by block. A step takes from every run the rows up to the smallest of the blocks' last sort
keys, merges them in numpy, and goes on behind them. So memory is bounded by one block per run, whatever the size of
the runs and however many entries one key has.

Tombstones and clear markers stay in the stream; `drop_dead` takes them out where nothing older can be hidden by them.
Rows of a panes table are merged instead: all of them count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.state.block import Block
from headrace.state.encode import sort_order
from headrace.state.format import BY_TIME, ENTRIES, PANES, ROWS, SORT_COLUMNS, VALUE, table_schema
from headrace.state.panes.about import spans_of
from headrace.state.panes.table import compact_rows, concat_rows
from headrace.state.rows.format import common_schema
from headrace.state.view import TableView

Mask = npt.NDArray[Any]
SortKey = tuple[Any, ...]

_NO_CLEAR = 2**30


def merge_views(views: Sequence[TableView], kind: str) -> Iterator[pa.RecordBatch]:
    """The rows of a table over its runs, newest first given, in sort order, without those that newer ones replace."""
    schema = merged_schema(views, kind)
    if kind == PANES:
        # Slices of other windows were over before these began.
        views = [view for view in views if spans_of(view.table.schema) == spans_of(schema)]
    cursors = [cursor for age, view in enumerate(views) if (cursor := _Cursor(age, view, kind)).block is not None]
    merge = _Merger(kind, schema)
    while cursors:
        bound = min(cursor.last_key() for cursor in cursors)
        parts = [(cursor.age, rows) for cursor in cursors if (rows := cursor.take_upto(bound)).num_rows]
        merged = merge.step(parts)
        if merged.num_rows:
            yield merged
        cursors = [cursor for cursor in cursors if cursor.block is not None]


def merged_schema(views: Sequence[TableView], kind: str) -> pa.Schema:
    """The columns of what several runs come to. A panes table has those of the newest run, of the newest program."""
    if kind == PANES:
        return views[0].table.schema
    if kind == ROWS:
        return common_schema([view.schema for view in views])
    return table_schema(kind, expires=any(view.table.has_expires for view in views))


def drop_dead(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Without tombstones and clear markers: both are rows without a value."""
    values = batch.column("value")
    return batch.filter(values.is_valid()) if values.null_count else batch


def drop_expired(batch: pa.RecordBatch, now_us: int) -> pa.RecordBatch:
    """With tombstones where rows have expired: older runs may hold the same keys with a later expiry."""
    if "expires" not in batch.schema.names:
        return batch
    over = pc.less_equal(batch.column("expires"), now_us).fill_null(False)
    if not over.true_count:
        return batch
    columns = [
        pc.if_else(over, pa.scalar(None, field.type), column) if field.name in ("value", "expires") else column
        for field, column in zip(batch.schema, batch.columns)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


class _Cursor:
    """One run's position in the merge: ``block`` rows [start, end) are next; no block means the end."""

    def __init__(self, age: int, view: TableView, kind: str) -> None:
        self.age = age
        self.block: Block | None = None
        self._kind = kind
        self._adapter = view.adapter
        self._blocks = _blocks_of(view, kind)
        self._start = 0
        self._end = 0
        self._next()

    def last_key(self) -> SortKey:
        assert self.block is not None
        return _sort_key(self._kind, self.block, self._end - 1)

    def take_upto(self, bound: SortKey) -> pa.RecordBatch:
        """The next rows whose sort key is not above the bound."""
        block = self.block
        assert block is not None
        stop = _rows_upto(self._kind, block, self._start, self._end, bound)
        rows = block.batch.slice(self._start, stop - self._start)
        self._start = stop
        if stop == self._end:
            self._next()
        return rows if self._adapter is None else self._adapter.rows(rows)

    def _next(self) -> None:
        self.block, self._start, self._end = next(self._blocks, (None, 0, 0))


def _blocks_of(view: TableView, kind: str) -> Iterator[tuple[Block, int, int]]:
    if kind in BY_TIME:
        yield from _blocks_by_time(view, kind)
        return
    for index in range(len(view.table)):
        firsts = view.table.firsts
        if firsts[index] > view.high or (index + 1 < len(firsts) and firsts[index + 1] < view.low):
            continue
        block = view.table.block(index)
        start, end = view.needles(block.hash)
        if start < end:
            yield block, start, end


def _blocks_by_time(view: TableView, kind: str) -> Iterator[tuple[Block, int, int]]:
    waiting: list[pa.RecordBatch] = []
    for index in range(len(view.table)):
        block = view.table.block(index)
        mine = view.in_range(block.hash)
        if not mine.all():
            block = Block(block.batch.filter(pa.array(mine)))
        if not block.rows:
            continue
        if waiting:
            block = Block(pa.concat_batches([*waiting, block.batch]))
            waiting = []
        if kind == PANES and _goes_on(view, index, block):
            # Rows of one slice and key are merged at once, or newer ones would come before older ones.
            waiting = [block.batch]
            continue
        yield block, 0, block.rows
    if waiting:
        block = Block(waiting[0])
        yield block, 0, block.rows


def _goes_on(view: TableView, index: int, block: Block) -> bool:
    """Whether the next batch begins with the slice and hash this one ends with."""
    if index + 1 >= len(view.table):
        return False
    entry = view.table.entries[index + 1]
    return entry.first == int(block.sort[-1]) and entry.first_hash == int(block.hash[-1])


def _sort_key(kind: str, block: Block, row: int) -> SortKey:
    """What rows compare by. All rows of one hash in a value table go together, so there the hash says enough."""
    if kind == VALUE:
        return (int(block.hash[row]),)
    if kind == ENTRIES:
        sub = block.subs.at(row)
        return int(block.hash[row]), block.keys[row], sub is not None, sub or b""
    if kind == PANES:
        return int(block.sort[row]), int(block.hash[row]), block.keys[row]
    if kind == ROWS:
        at, seq = (block.batch.column(name)[row].as_py() for name in ("at", "seq"))
        return int(block.hash[row]), block.keys[row], at, seq
    return int(block.sort[row]), int(block.hash[row]), block.keys[row], int(block.batch.column("timer")[row].as_py())


def _rows_upto(kind: str, block: Block, start: int, end: int, bound: SortKey) -> int:
    """The end of the rows that do not sort above the bound."""
    sort = block.sort[start:end]
    low, high = (int(np.searchsorted(sort, sort.dtype.type(bound[0]), side)) + start for side in ("left", "right"))
    if kind == VALUE or low == high:
        return high
    # Among rows that tie in the first column: the first whose whole sort key is above the bound.
    return bisect_left(range(end), True, low, high, key=lambda row: _sort_key(kind, block, row) > bound)


class _Merger:
    """Merges the rows of one step. Remembers the clear marker of the last key, whose rows may go on in the next."""

    def __init__(self, kind: str, schema: pa.Schema) -> None:
        self._kind = kind
        self._schema = schema
        self._clear: tuple[int, bytes, int] | None = None
        """Hash, key and age of the newest clear marker of the last key seen."""

    def step(self, parts: Sequence[tuple[int, pa.RecordBatch]]) -> pa.RecordBatch:
        """``parts`` are (age, sorted rows), newest (smallest age) first."""
        if self._kind == PANES:
            return compact_rows(concat_rows([batch for _, batch in reversed(parts)], self._schema))
        rows = _concat([batch for _, batch in parts], self._schema)
        ages = np.repeat([age for age, _ in parts], [batch.num_rows for _, batch in parts])
        if len(parts) > 1:
            order = _merge_order(self._kind, rows, ages)
            rows, ages = _take(rows, order), ages[order]
        keep = self._keep(rows, ages, several=len(parts) > 1)
        return rows if keep is None else rows.filter(pa.array(keep))

    def _keep(self, rows: pa.RecordBatch, ages: npt.NDArray[Any], *, several: bool) -> Mask | None:
        keep = ~_same_as_before(rows, SORT_COLUMNS[self._kind]) if several else None
        if self._kind == ENTRIES and (self._clear is not None or rows.column("sub").null_count):
            live = self._not_cleared(rows, ages)
            keep = live if keep is None else keep & live
        return keep

    def _not_cleared(self, rows: pa.RecordBatch, ages: npt.NDArray[Any]) -> Mask:
        """Rows that no newer clear marker of their key hides."""
        starts = np.flatnonzero(~_same_as_before(rows, ("hash", "key")))
        markers = rows.column("sub").is_null().to_numpy(zero_copy_only=False)
        cleared = np.minimum.reduceat(np.where(markers, ages, _NO_CLEAR), starts)
        if self._clear is not None and self._clear[:2] == _key_of(rows, 0):
            cleared[0] = min(cleared[0], self._clear[2])
        self._clear = (*_key_of(rows, rows.num_rows - 1), int(cleared[-1])) if cleared[-1] < _NO_CLEAR else None
        lengths = np.diff(np.append(starts, rows.num_rows))
        live: Mask = ages <= np.repeat(cleared, lengths)
        return live


def _merge_order(kind: str, rows: pa.RecordBatch, ages: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Sorted by the sort columns, then newest first. The rows come as a few sorted parts, newest part first."""
    first = rows.column(SORT_COLUMNS[kind][0]).to_numpy()
    # A stable sort is quick on parts that are sorted already and leaves the newest row of a hash in front.
    order: npt.NDArray[np.int64] = np.argsort(first, kind="stable")
    ranked = first[order]
    ties = ranked[1:] == ranked[:-1]
    if not ties.any():
        return order
    ages = ages[order]
    if kind == VALUE:
        keys = pc.take(rows.column("key"), pa.array(order))
        if pc.equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)[ties].all():
            return order
    # Only groups with rows of several parts are out of order, as every part is sorted in itself. Groups are whole
    # stretches of ``order``, so sorting their rows together keeps each group in its place.
    starts = np.flatnonzero(np.append(True, ~ties))
    mixed = np.minimum.reduceat(ages, starts) != np.maximum.reduceat(ages, starts)
    places = np.flatnonzero(np.repeat(mixed, np.diff(np.append(starts, len(order)))))
    some = {name: pc.take(rows.column(name), pa.array(order[places])) for name in SORT_COLUMNS[kind]}
    order[places] = order[places][sort_order({**some, "age": pa.array(ages[places])}).to_numpy()]
    return order


def _same_as_before(rows: pa.RecordBatch, columns: Sequence[str]) -> Mask:
    """For each row whether it equals the one before in these columns."""
    same = np.zeros(rows.num_rows, bool)
    if rows.num_rows < 2:
        return same
    same[1:] = True
    for name in columns:
        column = rows.column(name)
        before, after = column.slice(0, len(column) - 1), column.slice(1)
        equal = pc.equal(after, before)
        if column.null_count:
            equal = pc.or_(equal.fill_null(False), pc.and_(after.is_null(), before.is_null()))
        same[1:] &= equal.to_numpy(zero_copy_only=False)
        if not same.any():
            break
    return same


def _key_of(rows: pa.RecordBatch, row: int) -> tuple[int, bytes]:
    return rows.column("hash")[row].as_py(), rows.column("key")[row].as_py()


def _concat(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for field in schema:
        chunks = [
            batch.column(field.name) if field.name in batch.schema.names else pa.nulls(batch.num_rows, field.type)
            for batch in batches
        ]
        # Fields of whole rows may have changed their type since an older run was written.
        chunks = [chunk if chunk.type == field.type else chunk.cast(field.type) for chunk in chunks]
        columns.append(chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _take(rows: pa.RecordBatch, order: npt.NDArray[np.int64]) -> pa.RecordBatch:
    indices = pa.array(order)
    columns = [pc.take(column, indices, boundscheck=False) for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)
