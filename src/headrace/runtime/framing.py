"""Rows into frames before an exchange, and frames into rows behind it.

`FrameCutter`: a task gathers what goes along an edge up to a bound, orders it by shard once and slices it, so that many
shards do not make many tiny frames of each batch. The order is stable: rows of one task and key stay in their order.
`RowGatherer`: small frames of an edge are put together before operators see them, large ones are handed on as they lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.model.batch import Int64s, Keys, Rows
from headrace.model.ids import MIN_TIME
from headrace.model.keys import hash_encoded, key_groups, shards_of
from headrace.model.wire import HASH, KEY, ROW_KIND, ROW_TIME, Frame, frames_batch, order_keys, read_rows, rows_batches
from headrace.runtime.fragment import encode_keys

if TYPE_CHECKING:
    from headrace.plan.physical import EdgePlan, Program

_SHARD_BYTES: Final = 64 * 1024
"""What a frame should have at least, as far as the bounds below let it."""
_LEAST_BYTES: Final = 2 * 1024 * 1024
_MOST_BYTES: Final = 32 * 1024 * 1024
"""Bounds of what a task gathers along all its edges."""
_FRAME_BYTES: Final = 384 * 1024
"""A frame with several rows has about so many bytes at most. The JVM copies frames into arrays on its heap, and larger
ones than half a megabyte are a burden there: the exchange took twice as long with frames of four."""
_CALL_ROWS: Final = 16_384
"""Frames of so many rows are worth an operator's call by themselves; smaller ones are put together up to about that."""
_CALL_BYTES: Final = 4 * 1024 * 1024


class _EdgeBacklog:
    """Rows of one edge that wait for being cut."""

    def __init__(self, plan: EdgePlan) -> None:
        self.plan = plan
        self.batches: list[pa.RecordBatch] = []
        self.shards: list[Int64s] = []
        """The shard of each row; nothing where every row goes to every shard."""


class FrameCutter:
    """The exchange edges of one task."""

    def __init__(self, program: Program, level: int, task: int) -> None:
        self._parallelism = program.parallelism
        self._groups = program.key_groups
        self._shard_of_group = shards_of(np.arange(self._groups), self._parallelism, self._groups)
        self._level = level
        self._task = task
        self._sent: dict[int, int] = {}
        """Edge without a key → how many rows have been sent along it; it does not depend on how rows are batched."""
        self._bound_bytes = min(max(self._parallelism * _SHARD_BYTES, _LEAST_BYTES), _MOST_BYTES)
        self._backlogs: dict[int, _EdgeBacklog] = {}
        self._size_bytes = 0
        self._full: list[_EdgeBacklog] = []
        self._passing: list[tuple[int, pa.Buffer]] = []

    def add(self, plan: EdgePlan, rows: Rows) -> None:
        """Rows for the next level."""
        batch, shards = self._route(plan, rows)
        backlog = self._backlogs.get(plan.index)
        if backlog is None:
            backlog = self._backlogs[plan.index] = _EdgeBacklog(plan)
        backlog.batches.append(batch)
        backlog.shards.append(shards)
        self._size_bytes += batch.nbytes
        if self._size_bytes >= self._bound_bytes:
            self._close_backlogs()

    def pass_on(self, shard: int, frame: Frame) -> None:
        """A frame that came here and is read by a later level, which has the same shards."""
        self._passing.append((shard, frame.data))

    def drain(self, *, last: bool = False) -> Iterator[pa.RecordBatch]:
        """What is gathered, as it is handed to Spark; ``last``: with everything that has been added.

        Batches are made when they are asked for, because what goes to every shard is written once for each.
        """
        if last:
            self._close_backlogs()
        backlogs, self._full = self._full, []
        passing, self._passing = self._passing, []
        if passing:
            yield frames_batch([shard for shard, _ in passing], [data for _, data in passing])
        for backlog in backlogs:
            yield from self._cut(backlog)

    # --- where rows go

    def _route(self, plan: EdgePlan, rows: Rows) -> tuple[pa.RecordBatch, Int64s]:
        """Rows in the schema of their edge, and the shard of each; none of them: every row goes to every shard."""
        count = len(rows)
        if plan.by_shard:
            first = self._sent.get(plan.index, 0)
            self._sent[plan.index] = first + count
            if plan.key is None:
                keys = order_keys(self._level, self._task, first, count)
                return _in_edge_schema(plan, rows, {KEY: keys}), _EVERYWHERE
            # Tasks begin with different shards, so that many small ones do not all fill the first.
            shards = (self._task + np.arange(first, first + count, dtype=np.int64)) % self._parallelism
            return _in_edge_schema(plan, rows, {}), shards
        if plan.combined:
            *columns, keys = rows.columns
            rows = Rows.of_columns(plan.codec, columns, rows.times)
        else:
            keys = _encode_edge_keys(plan, rows)
        hashes = hash_encoded(keys)
        shards = self._shard_of_group[key_groups(hashes, self._groups)]
        return _in_edge_schema(plan, rows, {HASH: pa.array(hashes), KEY: keys}), shards

    # --- cutting

    def _close_backlogs(self) -> None:
        self._full += self._backlogs.values()
        self._backlogs = {}
        self._size_bytes = 0

    def _cut(self, backlog: _EdgeBacklog) -> Iterator[pa.RecordBatch]:
        plan = backlog.plan
        return rows_batches(plan.index, plan.schema, self._addressed_pieces(backlog))

    def _addressed_pieces(self, backlog: _EdgeBacklog) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows in pieces, each with the shard that it goes to."""
        batch = _concatenate(backlog.batches)
        if backlog.plan.key is None or self._parallelism == 1:
            for shard in range(self._parallelism):
                yield from ((shard, piece) for piece in _pieces(batch))
            return
        owners = np.concatenate(backlog.shards).astype(np.uint16 if self._parallelism <= 1 << 16 else np.int64)
        ordered = batch.take(pa.array(np.argsort(owners, kind="stable")))
        ends = np.cumsum(np.bincount(owners, minlength=self._parallelism)).tolist()
        for shard, (start, end) in enumerate(zip([0, *ends], ends)):
            if start < end:
                yield from ((shard, piece) for piece in _pieces(ordered.slice(start, end - start)))


_EVERYWHERE: Final = np.zeros(0, np.int64)


def _in_edge_schema(plan: EdgePlan, rows: Rows, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    """Rows with what stands beside their fields."""
    if plan.timed:
        times = np.full(len(rows), MIN_TIME, np.int64) if rows.times is None else rows.times
        columns[ROW_TIME] = pa.array(times, pa.int64())
    if plan.changelog:
        assert rows.kinds is not None, f"rows of a changelog came to edge {plan.index} without their kinds"
        columns[ROW_KIND] = pa.array(rows.kinds, pa.int8())
    return pa.RecordBatch.from_arrays([*(columns[name] for name in plan.beside), *rows.columns], schema=plan.schema)


def _encode_edge_keys(plan: EdgePlan, rows: Rows) -> pa.BinaryArray:
    assert plan.key is not None
    return encode_keys(plan.key, rows, f"key_by({plan.key})")


def _concatenate(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in slices of about `_FRAME_BYTES`."""
    count = batch.num_rows
    frames = max(-(-batch.nbytes // _FRAME_BYTES), 1)
    rows = max(-(-count // frames), 1)
    for start in range(0, count, rows):
        yield batch.slice(start, rows)


class ArrivedRows(NamedTuple):
    """Rows of an edge with their keys."""

    edge: int
    rows: Rows
    keys: Keys


class RowGatherer:
    """Frames of rows that one task reads."""

    def __init__(self, edges: tuple[EdgePlan, ...]) -> None:
        self._edges = edges
        self._small: dict[int, list[pa.RecordBatch]] = {}
        self._rows: dict[int, int] = {}
        self._bytes: dict[int, int] = {}

    def take(self, frame: Frame) -> Iterator[ArrivedRows]:
        """What can be handed on once this frame is here. Rows of one edge stay in their order."""
        edge = frame.edge
        batch = read_rows(frame, self._edges[edge].schema)
        self._small.setdefault(edge, []).append(batch)
        self._rows[edge] = self._rows.get(edge, 0) + batch.num_rows
        self._bytes[edge] = self._bytes.get(edge, 0) + frame.body.size
        if self._rows[edge] >= _CALL_ROWS or self._bytes[edge] >= _CALL_BYTES:
            yield self._arrived_rows(edge)

    def rest(self) -> Iterator[ArrivedRows]:
        """What still waits, when all frames have been read."""
        for edge in list(self._small):
            yield self._arrived_rows(edge)

    def _arrived_rows(self, edge: int) -> ArrivedRows:
        plan = self._edges[edge]
        batch = _concatenate(self._small.pop(edge))
        self._rows[edge] = self._bytes[edge] = 0
        beside = dict(zip(plan.beside, batch.columns))
        times = beside[ROW_TIME].to_numpy() if ROW_TIME in beside else None
        kinds = beside[ROW_KIND].to_numpy() if plan.changelog else None
        rows = Rows.of_columns(plan.codec, batch.columns[len(beside) :], times, kinds)
        hashes = beside[HASH].to_numpy() if HASH in beside else np.zeros(len(rows), np.uint64)
        if KEY in beside:
            keys = beside[KEY]
        elif plan.by_shard:
            keys = pa.repeat(pa.scalar(b"", pa.binary()), len(rows))
        else:
            keys = _encode_edge_keys(plan, rows)
        return ArrivedRows(edge, rows, Keys(hashes, keys))
