"""Rows of many keys found at once in tables of whole rows: for each key those of a stretch of time.

Needles are handled as arrays: by hash in each batch of each run, then by key, then by time. What is found are
positions; columns are taken only when somebody asks for them (`GatheredRows`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import StoreError
from headrace.model.batch import Int64s, UInt64s
from headrace.model.ids import MAX_TIME
from headrace.model.shapes import split_optional
from headrace.state.rows.format import FIELD

if TYPE_CHECKING:
    from headrace.model.row_adapter import RowAdapter
    from headrace.model.rows import RowCodec
    from headrace.state.adapters import ValueAdapter
    from headrace.state.block import Block
    from headrace.state.view import TableView


class KeyTimes(NamedTuple):
    """Distinct keys, and for each the times it is asked for, both ends included."""

    hashes: UInt64s
    keys: pa.BinaryArray
    low: Int64s
    high: Int64s


class BatchRows(NamedTuple):
    """Some rows of a batch."""

    batch: pa.RecordBatch
    rows: Int64s | None
    """Positions; None: all of them."""
    codes: Int64s
    """For each row the position of its key among those asked for."""


class GatheredRows:
    """Rows found in several places, in the order of the places; columns are made when they are asked for."""

    def __init__(self, parts: Sequence[BatchRows], codec: RowCodec | None = None) -> None:
        self.parts = [part for part in parts if len(part.codes)]
        self._codec = codec
        self.codes: Int64s = _joined([part.codes for part in self.parts])
        self.at: Int64s = self.numbers("at")
        self.seq: Int64s = self.numbers("seq")

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def width(self) -> int:
        """How many columns the rows themselves have."""
        return 0 if self._codec is None else len(self._codec.schema)

    def only(self, kept: Any) -> GatheredRows:
        """The rows for which a mask holds."""
        if kept.all():
            return self
        parts: list[BatchRows] = []
        start = 0
        for part in self.parts:
            mine = np.flatnonzero(kept[start : start + len(part.codes)])
            start += len(part.codes)
            parts.append(BatchRows(part.batch, mine if part.rows is None else part.rows[mine], part.codes[mine]))
        return GatheredRows(parts, self._codec)

    def recoded(self, codes: Int64s) -> GatheredRows:
        """The same rows by other codes: ``codes[i]`` instead of ``i``."""
        return GatheredRows([part._replace(codes=codes[part.codes]) for part in self.parts], self._codec)

    def numbers(self, name: str) -> Int64s:
        """A column of ours, of whole numbers without nulls."""
        found = []
        for part in self.parts:
            values = part.batch.column(name).to_numpy()
            found.append(values if part.rows is None else values[part.rows])
        return _joined(found)

    def flags(self, name: str) -> Any:
        """A boolean column of ours; false where a run does not have it."""
        found = [
            _picked(part.batch.column(name), part.rows).fill_null(False).to_numpy(zero_copy_only=False)
            if name in part.batch.schema.names
            else np.zeros(len(part.codes), np.bool_)
            for part in self.parts
        ]
        return np.concatenate(found) if found else np.zeros(0, np.bool_)

    def expires(self) -> Int64s:
        """When each row expires; the end of time where it never does."""
        never = np.iinfo(np.int64).max
        found: list[Any] = []
        for part in self.parts:
            if "expires" not in part.batch.schema.names:
                found.append(np.full(len(part.codes), never))
                continue
            found.append(_picked(part.batch.column("expires"), part.rows).fill_null(never).to_numpy())
        return _joined(found)

    def column(self, index: int) -> pa.Array:
        """A column of the rows themselves, by its position in the codec."""
        assert self._codec is not None
        field = self._codec.schema.field(index)
        chunks = [self._field(part, field) for part in self.parts]
        return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks) if chunks else pa.array([], field.type)

    def _field(self, part: BatchRows, field: pa.Field) -> pa.Array:
        stored = FIELD + field.name
        if stored not in part.batch.schema.names:
            return self._default(field.name).take(pa.array(np.zeros(len(part.codes), np.int64)))
        array = _picked(part.batch.column(stored), part.rows)
        if array.type != field.type:
            array = _cast(array, field)
        return self._filled(array, field.name) if array.null_count else array

    def _default(self, name: str) -> pa.Array:
        assert self._codec is not None
        return self._codec.columns[name].encode([self._codec.defaults.get(name)])

    def _filled(self, array: pa.Array, name: str) -> pa.Array:
        """A field that was added later is null in older rows once those have been folded: it has its default."""
        assert self._codec is not None
        default = self._codec.defaults.get(name)
        optional = split_optional(self._codec.annotations[name])[1]
        if default is None or optional or pa.types.is_nested(array.type):
            return array
        return array.fill_null(self._default(name)[0])


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return array.cast(field.type)
    except pa.ArrowException as error:
        raise StoreError(
            f"the column {field.name!r} of rows that are kept cannot become what the program declares now",
            expected=str(field.type),
            found=f"{array.type}: {error}",
            next_move="give the field its old type, or a new name with a default",
        ) from error


def whole_array(column: pa.ChunkedArray) -> pa.Array:
    """A column of a table as one array."""
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def _picked(array: pa.Array, rows: Int64s | None) -> pa.Array:
    return array if rows is None else pc.take(array, pa.array(rows), boundscheck=False)


def _joined(arrays: Sequence[Any]) -> Int64s:
    if len(arrays) == 1:
        only: Int64s = arrays[0]
        return only
    return np.concatenate(arrays) if arrays else np.empty(0, np.int64)


def find_in_views(views: Sequence[TableView], wanted: KeyTimes, *, back: bool = False) -> Iterator[BatchRows]:
    """What the runs hold, oldest run first. ``back``: of each key and run also the last row before its times."""
    for view, found in _stretches(views, wanted, back=back):
        rows = BatchRows(found.batch, spread_ranges(found.starts, found.counts), np.repeat(found.codes, found.counts))
        yield rows if view.adapter is None else _adapted(rows, view.adapter)


def count_in_views(views: Sequence[TableView], wanted: KeyTimes) -> Int64s:
    """How many rows the runs hold of each key; nothing but times is looked at."""
    counts = np.zeros(len(wanted.hashes), np.int64)
    for _, found in _stretches(views, wanted):
        np.add.at(counts, found.codes, found.counts)
    return counts


def first_in_views(views: Sequence[TableView], wanted: KeyTimes) -> Int64s:
    """The time of the first row of each key; the end of time where there is none."""
    first = np.full(len(wanted.hashes), MAX_TIME)
    for _, found in _stretches(views, wanted):
        some = np.flatnonzero(found.counts)
        np.minimum.at(first, found.codes[some], found.batch.column("at").to_numpy()[found.starts[some]])
    return first


def times_in_views(views: Sequence[TableView], wanted: KeyTimes, every: int) -> Int64s:
    """The times of one of so many rows, of every run and batch."""
    times = [
        found.batch.column("at").to_numpy()[start : start + count : every]
        for _, found in _stretches(views, wanted)
        for start, count in zip(found.starts.tolist(), found.counts.tolist())
    ]
    return np.concatenate([*times, np.empty(0, np.int64)])


class _Stretches(NamedTuple):
    """Stretches of a batch, one for each of some keys; a key whose rows go on in the next batch has one there too."""

    batch: pa.RecordBatch
    codes: Int64s
    starts: Int64s
    counts: Int64s


def _stretches(
    views: Sequence[TableView], wanted: KeyTimes, *, back: bool = False
) -> Iterator[tuple[TableView, _Stretches]]:
    if not len(wanted.hashes):
        return
    order = np.argsort(wanted.hashes, kind="stable")
    hashes = wanted.hashes[order]
    for view in reversed(views):
        start, end = view.needles(hashes)
        if start < end:
            for found in _stretches_in_view(view, wanted, order[start:end], hashes[start:end], back):
                yield view, found


def _stretches_in_view(
    view: TableView, wanted: KeyTimes, order: Int64s, hashes: UInt64s, back: bool
) -> Iterator[_Stretches]:
    firsts = view.table.first_array
    begins = np.searchsorted(hashes, firsts, "left")
    # Rows of one hash may go on in the next batch, so a batch answers up to and with the next one's first hash. Those
    # whose first hash is that of the batch before begin in that one.
    ends = np.append(np.searchsorted(hashes, firsts[1:], "right"), len(hashes))
    for index in np.flatnonzero(ends > begins).tolist():
        block = view.table.block(index)
        codes, wanted_hashes = order[begins[index] : ends[index]], hashes[begins[index] : ends[index]]
        starts = np.searchsorted(block.hash, wanted_hashes, "left")
        stops = np.searchsorted(block.hash, wanted_hashes, "right")
        hit = np.flatnonzero(starts < stops)
        if len(hit):
            codes, starts, stops = _of_key(block, wanted, codes[hit], starts[hit], stops[hit])
            yield _in_time(block, wanted, codes, starts, stops, back)


def _adapted(rows: BatchRows, adapter: ValueAdapter | RowAdapter) -> BatchRows:
    """Rows of an older type, and none but those that are asked for."""
    batch = rows.batch if rows.rows is None else rows.batch.take(pa.array(rows.rows))
    return BatchRows(adapter.rows(batch), None, rows.codes)


def _of_key(
    block: Block, wanted: KeyTimes, codes: Int64s, starts: Int64s, stops: Int64s
) -> tuple[Int64s, Int64s, Int64s]:
    """Stretches of equal hashes made stretches of equal keys."""
    keys = pc.take(wanted.keys, pa.array(codes))
    same = pc.and_(
        pc.equal(keys, pc.take(block.key, pa.array(starts))), pc.equal(keys, pc.take(block.key, pa.array(stops - 1)))
    ).to_numpy(zero_copy_only=False)
    for index in np.flatnonzero(~same).tolist():
        found = block.key_range(int(wanted.hashes[codes[index]]), keys[index].as_py())
        starts[index], stops[index] = found
    some = starts < stops
    return (codes, starts, stops) if some.all() else (codes[some], starts[some], stops[some])


def _in_time(block: Block, wanted: KeyTimes, codes: Int64s, starts: Int64s, stops: Int64s, back: bool) -> _Stretches:
    """The rows of these stretches that lie in the times asked for."""
    at = block.batch.column("at").to_numpy()
    low = bisect_within(at, starts, stops, wanted.low[codes], after_equal=back)
    high = bisect_within(at, low, stops, wanted.high[codes], after_equal=True)
    if back:
        # The row right before the first one behind the beginning: it counts at the beginning.
        low = np.maximum(low - 1, starts)
    return _Stretches(block.batch, codes, low, high - low)


def bisect_within(values: Int64s, starts: Int64s, stops: Int64s, needles: Int64s, *, after_equal: bool) -> Int64s:
    """For each stretch [start, stop) of sorted values the first position whose value is not below the needle.

    With ``after_equal`` the first whose value is above it.
    """
    low, high = starts.astype(np.int64), stops.astype(np.int64)
    while True:
        open_ = low < high
        if not open_.any():
            return low
        middle = (low + high) >> 1
        found = values[np.minimum(middle, len(values) - 1)]
        right = open_ & ((found <= needles) if after_equal else (found < needles))
        low = np.where(right, middle + 1, low)
        high = np.where(open_ & ~right, middle, high)


def spread_ranges(starts: Int64s, counts: Int64s) -> Int64s:
    """The positions of all ranges one after the other: ``counts[i]`` of them from ``starts[i]``."""
    before = np.cumsum(counts) - counts
    spread: Int64s = np.arange(int(counts.sum())) + np.repeat(starts - before, counts)
    return spread


def find_in_batch(batch: pa.RecordBatch, wanted: KeyTimes) -> BatchRows:
    """What a batch in memory holds, its rows in any order."""
    positions = pc.index_in(batch.column("key"), value_set=wanted.keys).fill_null(-1)
    codes = np.asarray(positions.to_numpy(), dtype=np.int64)
    at = batch.column("at").to_numpy()
    if len(wanted.low):
        mine = (codes >= 0) & (at >= wanted.low[codes]) & (at <= wanted.high[codes])
    else:
        mine = codes >= 0
    rows = np.flatnonzero(mine)
    return BatchRows(batch, rows, codes[rows])


def rows_between(view: TableView, low: int, high: int) -> Iterator[pa.RecordBatch]:
    """All rows of a run with hashes from ``low`` to ``high``, both included."""
    low, high = max(low, view.low), min(high, view.high)
    firsts = view.table.firsts
    for index in range(len(firsts)):
        if firsts[index] > high or (index + 1 < len(firsts) and firsts[index + 1] < low):
            continue
        block = view.table.block(index)
        start = int(np.searchsorted(block.hash, np.uint64(low), "left"))
        end = int(np.searchsorted(block.hash, np.uint64(high), "right"))
        if start < end:
            yield block.batch.slice(start, end - start)
