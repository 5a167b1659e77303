"""Runs one operator over epochs in memory, with real runs below it: what a task does, without a store or a driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.model.batch import Keys, Rows
from headrace.model.ids import MIN_TIME
from headrace.model.keys import encode_key, hash_key
from headrace.model.report import RunRef, StepReport
from headrace.model.rows import RowCodec
from headrace.operators.contract import Operator, TaskInfo
from headrace.state.format import TableData
from headrace.state.lookup import Layers
from headrace.state.run import encode_run, open_run
from headrace.state.shard import ShardState

GROUPS = 16


class Row(NamedTuple):
    """A row that came out, and its time."""

    value: Any
    at: int | None


class Rig:
    """An operator, the runs of its past epochs, and what its outlets gave in the last one."""

    def __init__(
        self,
        operator: Operator,
        taken: RowCodec,
        key: Callable[[Any], Any],
        *,
        step: str = "step",
        outlets: Sequence[str] = (),
        overlay_limit_bytes: int = 1 << 40,
        hash_of: Callable[[bytes], int] = hash_key,
        timed: bool = True,
    ) -> None:
        self.operator = operator
        self.taken = taken
        self.key = key
        self.step = step
        self.overlay_limit_bytes = overlay_limit_bytes
        self.hash_of = hash_of
        self.timed = timed
        self.out: dict[str, list[Row]] = {}
        operator.outlets = {tag: self._outlet(tag) for tag in ("main", *outlets)}
        self.runs: list[tuple[RunRef, Any]] = []
        self.epoch_number = 0
        self.watermark = MIN_TIME
        self.clock = 0
        self.spills = 0
        operator.open()

    def _outlet(self, tag: str) -> Callable[[Rows], None]:
        def take(rows: Rows) -> None:
            times = [None] * len(rows) if rows.times is None else rows.times.tolist()
            assert [len(column) for column in rows.columns] == [len(rows)] * len(rows.columns)
            again = rows.codec.to_objects(rows.columns)
            self.out.setdefault(tag, []).extend(map(Row, again, times))

        return take

    def epoch(
        self,
        *batches: Sequence[Any],
        watermark: int | None = None,
        clock: int | None = None,
        times: Callable[[Any], int] = lambda row: row.at,
        final: bool = False,
    ) -> list[Row]:
        """One epoch that becomes true; returns what came out of the main outlet."""
        tables, state, written = self.attempt(*batches, watermark=watermark, clock=clock, times=times, final=final)
        if tables:
            written.insert(0, self._run(tables))
        self.runs = written + self.runs
        self.spills += state.spills
        self.epoch_number += 1
        self.watermark = self.watermark if watermark is None else max(watermark, self.watermark)
        self.clock = self.clock if clock is None else clock
        return self.out.get("main", [])

    def attempt(
        self,
        *batches: Sequence[Any],
        watermark: int | None = None,
        clock: int | None = None,
        times: Callable[[Any], int] = lambda row: row.at,
        final: bool = False,
    ) -> tuple[Sequence[TableData], ShardState, list[tuple[RunRef, Any]]]:
        """One epoch that never becomes true: nothing of it is kept."""
        self.out.clear()
        reached = self.watermark if watermark is None else max(watermark, self.watermark)
        info = TaskInfo(
            self.epoch_number,
            0,
            self.clock if clock is None else clock,
            final,
            start_watermark={self.step: self.watermark},
            last_clock_us=self.clock if self.epoch_number else MIN_TIME,
        )
        layers = Layers(self.runs, lo=0, hi=GROUPS, groups=GROUPS)
        written: list[tuple[RunRef, Any]] = []

        def spill(tables: Sequence[TableData]) -> None:
            written.insert(0, self._run(tables))
            layers.prepend(*written[0])

        state = ShardState(
            layers, lo=0, hi=GROUPS, groups=GROUPS, spill=spill, overlay_limit_bytes=self.overlay_limit_bytes
        )
        self.operator.begin(info, state)
        for batch in batches:
            self.operator.process(0, *self.rows(batch, times))
        info.end_watermark[self.step] = reached
        self.operator.finish()
        self.report: StepReport = self.operator.end()
        return state.flush(), state, written

    def rows(self, batch: Sequence[Any], times: Callable[[Any], int]) -> tuple[Rows, Keys]:
        encoded = [encode_key(self.key(row)) for row in batch]
        hashes = np.array([self.hash_of(key) for key in encoded], dtype=np.uint64)
        stamps = np.array([times(row) for row in batch], dtype=np.int64) if self.timed else None
        columns = self.taken.to_arrays(batch)
        return Rows.of_columns(self.taken, columns, stamps), Keys(hashes, pa.array(encoded, pa.binary()))

    def _run(self, tables: Sequence[TableData]) -> tuple[RunRef, Any]:
        data = encode_run(tables, lo=0, hi=GROUPS, groups=GROUPS)
        ref = RunRef(epoch=self.epoch_number, lo=0, hi=GROUPS, rows=0, size_bytes=len(data), crc=0)
        return ref, open_run(data)


def values(rows: Sequence[Row]) -> list[Any]:
    return [row.value for row in rows]
