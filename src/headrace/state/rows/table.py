"""Tables of whole rows during one epoch: what came is buffered in memory and appended to what the runs hold.

Who calls: an operator adds rows while its task runs, takes them back when the input has ended, and adds again those
that are worth keeping. Where memory ran out in between, they have been written as they came, and are read back run by
run. Rows of this epoch and of those before are always told apart: by the buffer, or by the epoch in ``seq``.

`HintTable` is an index by time that does not follow a column of values: rows say themselves when they are due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.model.batch import Int64s, UInt64s
from headrace.model.ids import MIN_TIME
from headrace.state.format import DUE, ROWS, TableData
from headrace.state.rows.find import BatchRows, GatheredRows, KeyTimes, find_in_batch, find_in_views, rows_between
from headrace.state.rows.format import EPOCH_BITS, Keeps, rows_schema

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.state.lookup import Layers
    from headrace.state.view import TableView

_HINTS = pa.schema([("time", pa.int64()), ("hash", pa.uint64()), ("key", pa.binary()), ("timer", pa.uint8())])


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
        views = [view for view in self._views() if fresh or not self._is_fresh(view)]
        parts: list[BatchRows] = list(find_in_views(views, wanted, back=back))
        if buffered:
            near = wanted._replace(low=np.full_like(wanted.low, MIN_TIME)) if back else wanted
            parts += [find_in_batch(batch, near) for batch in self._buffer if _may_hold(batch, near)]
        return GatheredRows(parts, self.codec)

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
    """An index by time: at this time something about this key may be due."""

    def __init__(self, table: str) -> None:
        self.table = table
        self.earliest: int | None = None
        """The earliest time that this epoch has put there."""
        self._buffer: list[pa.RecordBatch] = []

    def add(self, times: Int64s, hashes: UInt64s, keys: pa.BinaryArray, timer: int) -> None:
        if len(times):
            earliest = int(times.min())
            self.earliest = earliest if self.earliest is None else min(earliest, self.earliest)
            timers = pa.array(np.full(len(times), timer, np.uint8))
            arrays = [pa.array(times), pa.array(hashes), keys, timers]
            self._buffer.append(pa.RecordBatch.from_arrays(arrays, schema=_HINTS))

    def weigh(self) -> int:
        return sum(batch.nbytes for batch in self._buffer)

    def changes(self) -> TableData | None:
        return TableData(self.table, DUE, pa.Table.from_batches(self._buffer, _HINTS)) if self._buffer else None

    def clear(self) -> None:
        self._buffer = []


def joined(found: Iterable[GatheredRows], codec: RowCodec) -> GatheredRows:
    """Several findings as one, in this order."""
    return GatheredRows([part for each in found for part in each.parts], codec)
