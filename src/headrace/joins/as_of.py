"""The join as of a time: each left row beside the right row that held at its time.

That is the newest right row of the key whose time is not after the left row's (among equals the last to come), if it
is not older than the tolerance. A left row waits until the watermark has come to its time: then every right row that
may be the answer is there, and the answer is exact. A left row that comes behind the watermark is late.

Of the right rows, versions that a newer one at or before the watermark has replaced are wanted by nobody; a fold leaves
them out. A right row behind the watermark still counts for left rows to come, unless the tolerance has passed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.joins.buffered import TABLES, UNMATCHED, JoinOperator
from headrace.joins.fresh import Fresh
from headrace.model.batch import Int64s, UInt64s
from headrace.model.ids import MIN_TIME
from headrace.model.pairs import NONE
from headrace.operators.matching import Mask, RowLine, shifted
from headrace.state.rows.find import BatchRows, GatheredRows, KeyTimes, whole_array
from headrace.state.rows.table import RowTable
from headrace.state.shard import CHUNK_KEYS, EVENT_DUE, distinct_keys

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.operators.contract import TaskInfo
    from headrace.state.rows.table import HintTable
    from headrace.state.shard import ShardState


class AsOfJoinOperator(JoinOperator):
    """Left rows with what held on the right side at their time."""

    hints: HintTable

    def __init__(self, step: str, left: RowCodec, right: RowCodec, tolerance_us: int | None) -> None:
        super().__init__(step, left, right, "left")
        self.tolerance_us = tolerance_us

    def begin(self, task: TaskInfo, state: ShardState | None) -> None:
        super().begin(task, state)
        self.hints = self.state.indexes.hints(EVENT_DUE)

    def open_tables(self) -> tuple[RowTable, RowTable]:
        epoch, clock = self.task.epoch, "" if self.tolerance_us is None else EVENT_DUE
        waiting = self.state.rows(TABLES[0], self.codecs[0], epoch=epoch, clock=EVENT_DUE)
        return waiting, self.state.rows(TABLES[1], self.codecs[1], epoch=epoch, clock=clock, keeps="newest")

    def are_late(self, port: int, at: Int64s) -> Mask | None:
        if self.watermark <= MIN_TIME or (port == 1 and self.tolerance_us is None):
            return None
        late: Mask = (at if port == 0 else shifted(at, self.tolerance_us or 0)) <= self.watermark
        return late

    def expires(self, port: int, at: Int64s) -> Int64s | None:
        if port == 0:
            return at
        return None if self.tolerance_us is None else shifted(at, self.tolerance_us)

    # --- new rows

    def join(self, fresh: Fresh) -> Iterator[None]:
        left, right = fresh.sides
        if not self.spilled:
            self.tables[1].put_back(right.batch)
        waits = left.at > self.reached
        held = np.flatnonzero(waits)
        codes = left.codes[held]
        self.hints.add(left.at[held], fresh.hashes[codes], fresh.keys.take(pa.array(codes)), 0)
        if not self.spilled:
            self.tables[0].put_back(left.batch.take(pa.array(held)))
        due = np.flatnonzero(~waits)
        if len(due):
            rows = GatheredRows([BatchRows(left.batch, due, left.codes[due])], self.codecs[0])
            self._answer(rows, fresh.hashes, fresh.keys)
        yield

    # --- rows that have waited

    def expire(self) -> Iterator[None]:
        if self.reached <= self.watermark:
            return
        due = self.state.layers.due(EVENT_DUE, self.watermark, self.reached)
        distinct = distinct_keys(due.column("hash").to_numpy(), whole_array(due.column("key")))
        for start in range(0, len(distinct.keys), CHUNK_KEYS):
            end = start + CHUNK_KEYS
            self._answer_keys(distinct.hashes[start:end], distinct.keys[start:end])
            yield

    def _answer_keys(self, hashes: UInt64s, keys: pa.BinaryArray) -> None:
        low = MIN_TIME if self.watermark <= MIN_TIME else self.watermark + 1
        wanted = KeyTimes(hashes, keys, np.full(len(hashes), low), np.full(len(hashes), self.reached))
        rows = self.tables[0].find(wanted)
        if len(rows):
            self._answer(rows, hashes, keys)

    # --- the answer

    def _answer(self, rows: GatheredRows, hashes: UInt64s, keys: pa.BinaryArray) -> None:
        """Gives out left rows with what held at their time; everything that came is in the tables by now."""
        order = RowLine(rows.codes, rows.at, len(hashes)).rows(np.arange(len(rows)))
        codes, at = rows.codes[order], rows.at[order]
        starts = np.append(0, np.flatnonzero(codes[1:] != codes[:-1]) + 1)
        ends = np.append(starts[1:], len(codes)) - 1
        present = codes[starts]
        wanted = KeyTimes(hashes[present], keys.take(pa.array(present)), at[starts], at[ends])
        right = self.tables[1].find(wanted, back=True, buffered=True, fresh=True).recoded(present)
        line = RowLine(right.codes, right.at, len(hashes))
        last = line.last_upto(codes, at)
        found = np.where(last >= 0, line.rows(np.maximum(last, 0)), NONE) if len(line) else last
        if self.tolerance_us is not None and len(line):
            found = np.where(right.at[found] >= shifted(at, -self.tolerance_us), found, NONE)
        left = self.side(0, rows)
        self.give_pairs(left, order, self.side(1, right), found, at)
        outlet = self.outlets.get(UNMATCHED[0])
        alone = np.flatnonzero(found < 0)
        if outlet is not None and len(alone):
            outlet(left.take(order[alone], at[alone]))
