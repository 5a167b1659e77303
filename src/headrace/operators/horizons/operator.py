"""Rolling aggregates, some over a moving horizon: the rows of a key in (T − span, T], for a result of time T.

T is the time of the key's newest row so far, or with ``per_row`` that of each row. The rows of an epoch are held until
the last is in and handled by key in the order of time (`headrace.operators.holding`), so that results depend on the
epochs' rows alone: a row counts in the results of its epoch from its time on, rows of one time in each other's, and in
those of later epochs. What was given out is not given out again: a row that comes in a later epoch than another one of
its time, or of a later time, is missing from that one's result.

Aggregates without a horizon are what they are in `headrace.operators.rolling`. All accumulators of a key stand in one
value, as of its newest row, with two notes behind: ``!over``, which tells by which declarations those of horizons were
made, and ``!time``. Where nothing but horizons is kept for a key, its value goes when its rows have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa

from headrace.aggregates.accumulate import accumulators_codec
from headrace.aggregates.declare import Agg, Declared
from headrace.errors import FunctionFailed
from headrace.model.batch import Int64s
from headrace.model.ids import MIN_TIME
from headrace.model.job import VALUE_TABLE
from headrace.model.meaning import KEPT_TABLE
from headrace.operators.contract import TaskInfo
from headrace.operators.holding import HoldsRows
from headrace.operators.horizons.horizon_rows import KeptColumns, KeptRows, Lately, slack_us
from headrace.operators.horizons.moving import LineRows, Moving, Past, make_moving
from headrace.operators.keyed import KeyedBatch
from headrace.operators.matching import Mask, PartnerRanges, RowLine, shifted, shifted_us
from headrace.operators.rolling import AggregateOperator
from headrace.state.shard import EVENT_DUE
from headrace.state.ttl import TTL, Expiry

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.state.rows.find import GatheredRows
    from headrace.state.shard import ShardState

OVER_NOTE: Final = "!over"
_LINE_ROWS: Final = 1 << 19
"""About how many rows stand on a line at a time."""
_FIRST_KEYS: Final = 1_024


def horizons_of(aggs: Mapping[str, Agg[Any]]) -> dict[int, Declared[Any]]:
    """The aggregates over a horizon, by their place among all."""
    found = {i: agg for i, agg in enumerate(aggs.values()) if isinstance(agg, Declared)}
    return {i: agg for i, agg in found.items() if agg.over_us is not None}


class _New(NamedTuple):
    """New rows of some keys, in the order of (key, time)."""

    at: Int64s
    codes: Int64s
    """Which of the keys each row has."""
    counted: Int64s
    """Positions of the rows that count: those that are not forgotten as they come."""
    columns: Sequence[pa.Array]
    """What is kept of those that count."""


class HorizonOperator(HoldsRows, AggregateOperator):
    """``aggregate`` with ``over=``."""

    kept: KeptRows

    def __init__(
        self, step: str, aggs: Mapping[str, Agg[Any]], taken: RowCodec, codec: RowCodec, *, key_fields: Sequence[str],
        key_type: Any = None, per_row: bool = False, carried: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(
            step, aggs, taken, codec, key_fields=key_fields, key_type=key_type, per_row=per_row, carried=carried
        )
        # Rows of one time are in each other's horizon.
        self._peers = [] if per_row else None
        where, over = f"step {step}", horizons_of(aggs)
        self.columns = KeptColumns(over.values(), taken, where)
        self.moving: dict[int, Moving] = {
            i: make_moving(agg, list(aggs)[i], taken, self.columns, where) for i, agg in over.items()
        }
        for i, moving in self.moving.items():
            self.folds[i], self.finishing[i] = None, moving.fold
        self._stored = accumulators_codec(self.aggs, self.finishing, OVER_NOTE)
        # The note of declarations has a place among the accumulators, to which no row is added.
        self.folds.append(None)
        self.longest_us = max(moving.over_us for moving in self.moving.values())
        self.keep_us = self.longest_us + slack_us(self.longest_us)
        self.forgets_keys = len(over) == len(aggs)
        """Whether nothing about a key outlasts its rows."""
        self._declared = crc32(repr([(list(aggs)[i], agg) for i, agg in over.items()]).encode())
        self._keys_at_once = _FIRST_KEYS
        self._forgotten_us = MIN_TIME

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        if self.forgets_keys:
            lasts = Expiry(TTL(self.keep_us, "event"), clock_us=task.clock_us, watermark_us=self.watermark)
            self.column = self.state.values(VALUE_TABLE, self._stored, lasts, track=not self.per_row)
        self._forgotten_us = shifted_us(self.watermark, -self.keep_us)
        spans = [(moving.over_us, moving.goes_on) for moving in self.moving.values()]
        codec = self.columns.codec
        table = self.state.rows(KEPT_TABLE, codec, epoch=task.epoch, clock=EVENT_DUE)
        self.kept = KeptRows(table, spans, self._forgotten_us, codec)

    def handle(self, port: int, batch: KeyedBatch) -> None:
        newest = {slot: self._accumulators(slot)[-1] for slot in batch.slots[batch.starts()].tolist()}
        counted, snapshots = self.roll_rows(batch) if self.per_row else (self.roll(batch), [])
        if not len(counted.rows):
            return
        bounds = [*counted.starts().tolist(), len(counted.rows)]
        first = 0
        while first < len(bounds) - 1:
            last = min(first + self._keys_at_once, len(bounds) - 1)
            start, end = bounds[first], bounds[last]
            some = counted
            if end - start < len(counted.rows):
                some = KeyedBatch(counted.rows.take(np.arange(start, end)), counted.slots[start:end])
            self._move(some, newest, snapshots[start:end])
            first = last

    # --- rows of some keys

    def _move(self, batch: KeyedBatch, newest: Mapping[int, int | None], snapshots: list[list[Any]]) -> None:
        """Brings the horizons of some keys to the time of their newest row, and gives out what is to be given out."""
        starts = batch.starts()
        slots = batch.slots[starts].tolist()
        new = self._new(batch, starts)
        lately = self._lately(batch, starts, new, [newest[slot] for slot in slots])
        old = self.kept.find(lately)
        line = RowLine(np.concatenate([old.codes, new.codes[new.counted]]), _times_of(old, new), len(slots))
        self._keys_at_once = max(_LINE_ROWS * len(slots) // max(len(line), 1), 1)
        accs = self._accs(line, old, new, lately, slots)
        if self.per_row:
            for i, made in accs.items():
                for snapshot, acc in zip(snapshots, made):
                    snapshot[i] = acc
            self.give_rows(batch, snapshots)
        # Results were given out: what is kept from here on may be the lists that those were read from.
        for i, made in accs.items():
            for slot, acc in zip(slots, made[-len(slots) :]):
                self.column.values[slot][i] = acc
        self._note(slots, lately)
        codes, at = new.codes[new.counted], new.at[new.counted]
        expires = shifted(at, self.keep_us)
        self.kept.add(lately.hashes[codes], lately.keys.take(pa.array(codes)), at, new.columns, expires)

    def _new(self, batch: KeyedBatch, starts: Int64s) -> _New:
        rows = batch.rows
        at = np.full(len(rows), MIN_TIME) if rows.times is None else rows.times
        codes = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(rows))))
        counted = np.flatnonzero(at > self._forgotten_us)
        columns = self.columns.arrays(rows)
        if len(counted) < len(rows):
            columns = [column.take(pa.array(counted)) for column in columns]
        return _New(at, codes, counted, columns)

    def _lately(self, batch: KeyedBatch, starts: Int64s, new: _New, newest: Sequence[int | None]) -> Lately:
        hashes, keys = self.state.pick(batch.slots[starts])
        before = np.array([MIN_TIME if time is None else time for time in newest], dtype=np.int64)
        held = [self.column.values[slot] for slot in batch.slots[starts].tolist()]
        same = np.array([accs[len(self.aggs)] == self._declared for accs in held])
        # Rows that have left a horizon since an earlier time are there only if they were not forgotten meanwhile.
        known = same & (shifted(before, -self.longest_us) >= self._forgotten_us)
        upto = np.maximum(before, new.at[np.append(starts[1:], len(new.at)) - 1])
        return Lately(hashes, keys, before, known, new.at[starts] if self.per_row else upto, upto)

    def _note(self, slots: list[int], lately: Lately) -> None:
        column, place = self.column, len(self.aggs)
        for slot in slots:
            column.values[slot][place] = self._declared
        if self.forgets_keys:
            # No earlier than the next epoch: what this one has spilled is read back by it.
            lasts = np.maximum(shifted(lately.asked_upto, self.keep_us), shifted_us(self.watermark, 1))
            for slot, expires in zip(slots, lasts.tolist()):
                column.expires[slot] = expires

    # --- lines and stretches

    def _accs(
        self, line: RowLine, old: GatheredRows, new: _New, lately: Lately, slots: list[int]
    ) -> dict[int, list[Any]]:
        """By place of the aggregate: with ``per_row`` the accumulator as of each row, then that of each key."""
        held = [self.column.values[slot] for slot in slots]
        keys = np.arange(len(held))
        codes = np.concatenate([new.codes, keys]) if self.per_row else keys
        times = np.concatenate([new.at, lately.asked_upto]) if self.per_row else lately.asked_upto
        rows = self._line_rows(line, old, new)
        asked: dict[int, PartnerRanges] = {}
        before: dict[int, PartnerRanges] = {}
        accs: dict[int, list[Any]] = {}
        for i, moving in self.moving.items():
            over_us = moving.over_us
            if over_us not in asked:
                asked[over_us] = _horizons(line, codes, times, over_us)
                before[over_us] = _horizons(line, keys, lately.newest, over_us)
            past = None
            if moving.goes_on and self.kept.goes_on(over_us):
                past = Past(lately.known, before[over_us], [each[i] for each in held], codes)
            try:
                accs[i] = moving.accs(rows, asked[over_us], past)
            except FunctionFailed as error:
                raise self.place(error, None if error.stretch is None else slots[int(codes[error.stretch])]) from None
        return accs

    def _line_rows(self, line: RowLine, old: GatheredRows, new: _New) -> LineRows:
        is_old: Mask = np.arange(len(line)) < len(old)
        at = _times_of(old, new)
        columns = {
            name: pa.concat_arrays([old.column(i), new.columns[i]]) if len(old) else new.columns[i]
            for i, name in enumerate(self.columns.names)
        }
        if line.order is not None:
            order = pa.array(line.order)
            columns = {name: column.take(order) for name, column in columns.items()}
            is_old, at = is_old[line.order], at[line.order]
        return LineRows(columns, at, is_old)


def _times_of(old: GatheredRows, new: _New) -> Int64s:
    return np.concatenate([old.at, new.at[new.counted]])


def _horizons(line: RowLine, codes: Int64s, times: Int64s, over_us: int) -> PartnerRanges:
    """For each key and time the rows on the line that lie so far back, and no later."""
    return line.between(codes, shifted(times, -over_us) + 1, times)
