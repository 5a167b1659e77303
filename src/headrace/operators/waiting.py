"""Rows that wait for event time to come to theirs: kept as whole rows by key and time, given back in order.

A step that handles rows in the order of their time (`headrace.operators.ordered`) cannot do so before the watermark has
passed them. Until then they are state like any other: columns in a table of whole rows per input, appended once, found
by key and time, let go by a fold when the watermark has passed them. The index by time says of each key that has rows
waiting a time no later than that of the first; timers of the step stand in the same index under other numbers.

What came and is due in the same epoch is never written, unless memory ran out in between. A key with more rows than are
to be handled at once is given back in stretches of time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.model.batch import Int64s, UInt64s
from headrace.model.ids import MAX_TIME
from headrace.operators.order_spec import WAITING_TABLES, TimeOrder
from headrace.operators.ordering import OrderedRows, in_order
from headrace.state.rows.find import BatchRows, GatheredRows, KeyTimes
from headrace.state.shard import CHUNK_KEYS, EVENT_DUE, distinct_keys

if TYPE_CHECKING:
    from headrace.model.batch import Keys, Rows
    from headrace.model.rows import RowCodec
    from headrace.state.due_index import DueKeys
    from headrace.state.rows.table import RowTable
    from headrace.state.shard import ShardState

WAITING: Final = 255
"""The number of rows that wait, in the index that they share with the step's timers."""

_SAMPLES: Final = 64
"""By so many of its rows the times at which a long key is cut are found."""


class _Fresh(NamedTuple):
    """Rows of one input that came in this epoch and are due, in the order of (code, time)."""

    batch: pa.RecordBatch
    codes: Int64s
    at: Int64s

    def between(self, start: int, end: int, after_us: int, upto_us: int) -> BatchRows:
        first, last = np.searchsorted(self.codes, [start, end])
        rows = np.arange(first, last)
        rows = rows[(self.at[first:last] > after_us) & (self.at[first:last] <= upto_us)]
        return BatchRows(self.batch, rows, self.codes[rows])


class DelayedRows:
    """The rows that wait in one task of a step, of this epoch and of those before."""

    def __init__(self, state: ShardState, codecs: Sequence[RowCodec], order: TimeOrder, epoch: int) -> None:
        self.codecs = codecs
        self.order = order
        self.tables: list[RowTable] = [
            state.rows(name, codec, epoch=epoch, clock=EVENT_DUE) for name, codec in zip(WAITING_TABLES, codecs)
        ]
        self.hints = state.indexes.hints(EVENT_DUE)
        for table in self.tables:
            self.hints.follow(table, WAITING)
        self.spilled = False
        """Whether rows of this epoch were written before its input ended."""
        self.in_memory: list[pa.RecordBatch] = []
        """Of each input, rows of this epoch that are due in it."""
        self._state = state

    def add(self, port: int, rows: Rows, keys: Keys) -> None:
        """Takes rows that have a time, as they come."""
        assert rows.times is not None
        self._state.check_owned(keys.hashes)
        encoded = keys.encoded.combine_chunks() if isinstance(keys.encoded, pa.ChunkedArray) else keys.encoded
        self.tables[port].add(keys.hashes, encoded, rows.times, rows.columns, expires=rows.times)

    def end_input(self, reached_us: int) -> None:
        """All rows of the epoch are in, and the watermark is known: what is not due yet waits on."""
        self.spilled = self._state.spills > 0
        if self.spilled:
            self._state.spill()
        self.in_memory = []
        for table in self.tables:
            rows = table.take_buffer()
            waits = rows.column("at").to_numpy() > reached_us
            table.put_back(rows.filter(pa.array(waits)))
            self.in_memory.append(rows.filter(pa.array(~waits)))

    def due(self, after_us: int, upto_us: int) -> DueRows:
        """What comes to its time in between; timers of the step too."""
        return DueRows(self, self._state.indexes.due(EVENT_DUE, after_us, upto_us), after_us, upto_us)


class DueRows:
    """Keys for which something is due in a stretch of time, in the order of their hashes; their codes are positions."""

    def __init__(self, waiting: DelayedRows, index: DueKeys, after_us: int, upto_us: int) -> None:
        self._waiting = waiting
        self._after_us, self._upto_us = after_us, upto_us
        fresh = [_between(batch, after_us, upto_us) for batch in waiting.in_memory]
        hashes = np.concatenate([index.hashes, *(batch.column("hash").to_numpy() for batch in fresh)])
        keys = pa.concat_arrays([index.keys, *(batch.column("key") for batch in fresh)])
        distinct = distinct_keys(hashes, keys)
        order = np.argsort(distinct.hashes, kind="stable")
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        codes = rank[distinct.codes]
        self.hashes: UInt64s = distinct.hashes[order]
        self.keys: pa.BinaryArray = distinct.keys.take(pa.array(order))
        waits = index.numbers == WAITING
        indexed = codes[: len(index.times)]
        self._stored = np.unique(indexed[waits])
        """Codes of keys that may have rows in the runs."""
        self.timers = _TimerTimes(indexed[~waits], index.times[~waits])
        self._fresh = _by_code(fresh, codes[len(index.times) :])
        self._counts = self._count(self._stored, after_us, upto_us)

    def __len__(self) -> int:
        return len(self.keys)

    def groups(self, most_rows: int) -> Iterator[tuple[int, int]]:
        """Neighbouring keys from one code to another that together have about so many rows, or one that has more."""
        ends = np.cumsum(self._counts)
        start = 0
        while start < len(ends):
            before = int(ends[start - 1]) if start else 0
            end = int(np.searchsorted(ends, before + most_rows, "right"))
            end = min(max(end, start + 1), start + CHUNK_KEYS)
            yield start, end
            start = end

    def pieces(self, start: int, end: int, most_rows: int) -> Iterator[OrderedRows]:
        """The rows of such a group; of a key that has very many, a stretch of time after the other."""
        if end - start > 1 or self._counts[start] <= most_rows:
            yield self._piece(start, end, self._after_us, self._upto_us)
            return
        after_us = self._after_us
        for upto_us in [*self._cuts(start, most_rows), self._upto_us]:
            yield self._piece(start, end, after_us, upto_us)
            after_us = upto_us

    def wait_on(self, start: int, end: int) -> None:
        """Keys of a group whose later rows lie in the runs are put into the index again, for when those are due."""
        mine = self._stored[(self._stored >= start) & (self._stored < end)]
        if not len(mine) or self._upto_us >= MAX_TIME:
            return
        waiting = self._waiting
        wanted = self._key_times(mine, self._upto_us, MAX_TIME)
        firsts = [table.first(wanted, fresh=waiting.spilled) for table in waiting.tables]
        first = np.minimum.reduce(firsts)
        some = np.flatnonzero(first < MAX_TIME)
        waiting.hints.add(first[some], wanted.hashes[some], wanted.keys.take(pa.array(some)), WAITING)

    def _piece(self, start: int, end: int, after_us: int, upto_us: int) -> OrderedRows:
        waiting = self._waiting
        stored = self._stored[(self._stored >= start) & (self._stored < end)]
        wanted = self._key_times(stored, after_us, upto_us)
        inputs = []
        for table, codec, fresh in zip(waiting.tables, waiting.codecs, self._fresh, strict=True):
            parts = table.find(wanted, fresh=waiting.spilled).recoded(stored).parts
            inputs.append(GatheredRows([*parts, fresh.between(start, end, after_us, upto_us)], codec))
        return in_order(inputs, waiting.codecs, waiting.order)

    def _cuts(self, code: int, most_rows: int) -> list[int]:
        """Times between which a key has about so many rows, or rows of one time only; found from a sample of them."""
        every = max(most_rows // _SAMPLES, 1)
        wanted = self._key_times(self._stored[self._stored == code], self._after_us, self._upto_us)
        times = [table.sample(wanted, every, fresh=self._waiting.spilled) for table in self._waiting.tables]
        for fresh in self._fresh:
            rows = fresh.between(code, code + 1, self._after_us, self._upto_us).rows
            times.append(fresh.at[rows[::every]] if rows is not None else np.empty(0, np.int64))
        cuts: list[int] = np.unique(np.sort(np.concatenate(times))[_SAMPLES - 1 :: _SAMPLES]).tolist()
        return [cut for cut in cuts if cut < self._upto_us]

    def _count(self, stored: Int64s, after_us: int, upto_us: int) -> Int64s:
        """Rows of each key."""
        counts = np.zeros(len(self), np.int64)
        wanted = self._key_times(stored, after_us, upto_us)
        for table, fresh in zip(self._waiting.tables, self._fresh, strict=True):
            counts[stored] += table.count(wanted, fresh=self._waiting.spilled)
            counts += np.bincount(fresh.codes, minlength=len(self))
        return counts

    def _key_times(self, codes: Int64s, after_us: int, upto_us: int) -> KeyTimes:
        low, high = np.full(len(codes), after_us + 1), np.full(len(codes), upto_us)
        return KeyTimes(self.hashes[codes], self.keys.take(pa.array(codes)), low, high)


class _TimerTimes:
    """At which times the index knows of timers of each key."""

    def __init__(self, codes: Int64s, times: Int64s) -> None:
        order = np.lexsort((times, codes))
        self._codes, self._times = codes[order], times[order]

    def within(self, start: int, end: int) -> dict[int, list[int]]:
        """Code → times, of those that have any."""
        first, last = np.searchsorted(self._codes, [start, end])
        times: dict[int, list[int]] = {}
        for code, time in zip(self._codes[first:last].tolist(), self._times[first:last].tolist()):
            times.setdefault(code, []).append(time)
        return times


def _between(batch: pa.RecordBatch, after_us: int, upto_us: int) -> pa.RecordBatch:
    at = batch.column("at").to_numpy()
    mine = (at > after_us) & (at <= upto_us)
    return batch if mine.all() else batch.filter(pa.array(mine))


def _by_code(batches: Sequence[pa.RecordBatch], codes: Int64s) -> list[_Fresh]:
    """``codes``: of the rows of all batches, one after the other."""
    fresh = []
    start = 0
    for batch in batches:
        mine, at = codes[start : start + batch.num_rows], batch.column("at").to_numpy()
        start += batch.num_rows
        order = np.lexsort((at, mine))
        fresh.append(_Fresh(batch.take(pa.array(order)), mine[order], at[order]))
    return fresh
