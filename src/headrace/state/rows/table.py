"""Tables of whole rows during one epoch: what came is buffered in memory and appended to what the runs hold.

Who calls: an operator adds rows while its task runs, takes them back when the input has ended, and adds again those
that are worth keeping. Where memory ran out in between, they have been written as they came, and are read back run by
run. Rows of this epoch and of those before are always told apart: by the buffer, or by the epoch in ``seq``.

`HintTable` is an index by time that does not follow a column of values: rows say themselves when they are due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from headrace.model.batch import Int64s, UInt64s
from headrace.model.ids import MIN_TIME
from headrace.state.format import ROWS, TableData
from headrace.state.rows.find import (
    BatchRows,
    GatheredRows,
    KeyTimes,
    count_in_views,
    find_in_batch,
    find_in_views,
    first_in_views,
    rows_between,
    times_in_views,
)
from headrace.state.rows.format import EPOCH_BITS, Keeps, rows_schema

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.state.lookup import Layers
    from headrace.state.shard import ShardState
    from headrace.state.view import TableView

SLICE_ROWS: Final = 1 << 20
"""Rows of an epoch that are handled together where they did not stay in memory."""
HINTS: Final = pa.schema([("time", pa.int64()), ("hash", pa.uint64()), ("key", pa.binary()), ("timer", pa.uint8())])


class RowTable:
    """Rows of one stream by key and time, seen from one task."""

    def __init__(
        self, layers: Callable[[], Layers], table: str, codec: RowCodec | None, extra: Sequence[pa.Field], *,
        epoch: int, clock: str = "", keeps: Keeps = "all",
    ) -> None:  # fmt: skip
        """``codec``: None for rows that are only keys and times. ``clock``: the timer index by which rows expire."""
        self.table = table
        self.codec = codec
        self.schema = rows_schema(() if codec is None else codec.schema, extra, clock=clock, keeps=keeps)
        self.fresh_rows = 0
        """Rows that this epoch brought, wherever they are."""
        self._extra = tuple(field.name for field in extra)
        self._epoch = epoch
        self._layers = layers
        self._buffer: list[pa.RecordBatch] = []

    # --- this epoch's rows

    def add(
        self, hashes: UInt64s, keys: pa.BinaryArray, at: Int64s, columns: Sequence[pa.Array], *,
        expires: Int64s | None = None, extra: Sequence[pa.Array] = (), seq: Int64s | None = None,
    ) -> None:  # fmt: skip
        """Takes rows in the order they came. ``seq``: that of rows that have one already."""
        if seq is None:
            seq = (self._epoch << EPOCH_BITS) + self.fresh_rows + np.arange(len(hashes))
            self.fresh_rows += len(hashes)
        arrays = [pa.array(hashes), keys, pa.array(at), pa.array(seq)]
        if "expires" in self.schema.names:
            arrays.append(pa.nulls(len(hashes), pa.int64()) if expires is None else pa.array(expires))
        # Spark writes its own zone on times, and other names on the elements of lists.
        fitted = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip([*arrays, *extra, *columns], self.schema, strict=True)
        ]
        self._buffer.append(pa.RecordBatch.from_arrays(fitted, schema=self.schema))

    def put_back(self, rows: pa.RecordBatch, **extra: Any) -> None:
        """Keeps rows that were taken from the buffer, with columns of ours replaced."""
        if not rows.num_rows:
            return
        for name, values in extra.items():
            index = rows.schema.get_field_index(name)
            rows = rows.set_column(index, rows.schema.field(index), pa.array(values))
        self._buffer.append(rows)

    @property
    def buffered(self) -> Sequence[pa.RecordBatch]:
        """What has been added since the last spill, and was not taken."""
        return self._buffer

    def take_buffer(self) -> pa.RecordBatch:
        """What has been added since the last spill, in that order; the buffer is empty then."""
        batches, self._buffer = self._buffer, []
        if len(batches) == 1:
            return batches[0]
        return pa.concat_batches(batches) if batches else self._empty()

    def fresh_between(self, low: int, high: int) -> pa.RecordBatch:
        """Spilled rows of this epoch with hashes from ``low`` to ``high``, oldest run first."""
        views = [view for view in self._views() if self._is_fresh(view)]
        batches = [batch for view in reversed(views) for batch in rows_between(view, low, high)]
        return pa.concat_batches(batches) if batches else self._empty()

    def _empty(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in self.schema], schema=self.schema)

    # --- rows of earlier epochs

    def find(
        self, wanted: KeyTimes, *, back: bool = False, buffered: bool = False, fresh: bool = False
    ) -> GatheredRows:
        """Rows of these keys and times from earlier epochs, each key's in the order of (time, arrival) run by run.

        ``back``: of each key and run at least the last row at or before the first time too. ``buffered``: what is in
        the buffer too. ``fresh``: what this epoch has spilled too.
        """
        parts: list[BatchRows] = list(find_in_views(self._older(fresh), wanted, back=back))
        if buffered:
            near = wanted._replace(low=np.full_like(wanted.low, MIN_TIME)) if back else wanted
            parts += [find_in_batch(batch, near) for batch in self._buffer if _may_hold(batch, near)]
        return GatheredRows(parts, self.codec)

    def count(self, wanted: KeyTimes, *, fresh: bool = False) -> Int64s:
        """How many rows `find` would give of each key."""
        return count_in_views(self._older(fresh), wanted)

    def sample(self, wanted: KeyTimes, every: int, *, fresh: bool = False) -> Int64s:
        """The times of some of the rows that `find` would give: of one of so many."""
        return times_in_views(self._older(fresh), wanted, every)

    def first(self, wanted: KeyTimes, *, fresh: bool = False) -> Int64s:
        """The time of the first row that `find` would give of each key; the end of time where there is none."""
        return first_in_views(self._older(fresh), wanted)

    def _older(self, fresh: bool) -> list[TableView]:
        return [view for view in self._views() if fresh or not self._is_fresh(view)]

    def _views(self) -> tuple[TableView, ...]:
        return self._layers().views(self.table)

    def _is_fresh(self, view: TableView) -> bool:
        """Whether a run was spilled by this epoch: then all of its rows are of it."""
        return int(view.table.block(0).batch.column("seq")[0].as_py()) >> EPOCH_BITS == self._epoch

    # --- what `ShardState` asks for

    def weigh(self) -> int:
        return sum(batch.nbytes for batch in self._buffer)

    def changes(self) -> TableData | None:
        if not self._buffer:
            return None
        return TableData(self.table, ROWS, pa.Table.from_batches(self._buffer, self.schema))

    def clear(self) -> None:
        self._buffer = []


def _may_hold(batch: pa.RecordBatch, wanted: KeyTimes) -> bool:
    """Whether some of these keys may be among a batch's rows; steps that go through keys in order skip most of them."""
    hashes = batch.column("hash").to_numpy()
    if not len(hashes) or not len(wanted.hashes):
        return False
    return bool(hashes.min() <= wanted.hashes.max() and hashes.max() >= wanted.hashes.min())


class HintTable:
    """An index by time that does not follow a column of values: rows say themselves when they are due."""

    def __init__(self) -> None:
        self._buffer: list[pa.RecordBatch] = []
        self._follows: list[tuple[RowTable, int]] = []

    def add(self, times: Int64s, hashes: UInt64s, keys: pa.BinaryArray, timer: int) -> None:
        """At these times something about these keys may be due."""
        if len(times):
            self._buffer.append(_hints_of(times, hashes, keys, timer))

    def follow(self, table: RowTable, timer: int) -> None:
        """From now on every flush adds, for each key, the earliest of the table's rows that are flushed with it."""
        self._follows.append((table, timer))

    def batches(self) -> list[pa.RecordBatch]:
        """What was added since the last flush."""
        return self._buffer

    def followed(self) -> Iterator[pa.RecordBatch]:
        """What a flush adds."""
        for table, timer in self._follows:
            if table.buffered:
                yield _earliest(table.buffered, timer)

    def weigh(self) -> int:
        return sum(batch.nbytes for batch in self._buffer)

    def clear(self) -> None:
        self._buffer = []


def _hints_of(times: Int64s, hashes: UInt64s, keys: pa.BinaryArray, timer: int) -> pa.RecordBatch:
    timers = pa.array(np.full(len(times), timer, np.uint8))
    return pa.RecordBatch.from_arrays([pa.array(times), pa.array(hashes), keys, timers], schema=HINTS)


def _earliest(batches: Sequence[pa.RecordBatch], timer: int) -> pa.RecordBatch:
    """The earliest row of each key."""
    rows = pa.Table.from_batches(batches).select(["hash", "key", "at"])
    first = rows.group_by(["hash", "key"]).aggregate([("at", "min")])
    keys = pa.concat_arrays(first.column("key").chunks)
    return _hints_of(first.column("at_min").to_numpy(), first.column("hash").to_numpy(), keys, timer)


def joined(found: Iterable[GatheredRows], codec: RowCodec) -> GatheredRows:
    """Several findings as one, in this order."""
    return GatheredRows([part for each in found for part in each.parts], codec)


def fresh_batches(state: ShardState, tables: Sequence[RowTable]) -> Iterator[tuple[pa.RecordBatch, ...]]:
    """The rows of this epoch, a batch for each table: all of them, or a range of hashes after the other."""
    if not any(table.fresh_rows for table in tables):
        return
    if not state.spills:
        yield tuple(table.take_buffer() for table in tables)
        return
    state.spill()
    low, high = state.bounds
    rows = sum(table.fresh_rows for table in tables)
    count = max(1, -(-rows // SLICE_ROWS))
    step = -(-(high - low + 1) // count)
    for start in range(low, high + 1, step):
        end = min(start + step - 1, high)
        yield tuple(table.fresh_between(start, end) for table in tables)
