"""The rig: one operator over epochs in memory, with real runs below it, without a store or a driver.

It does what a task does, in the order the contract says (`headrace.operators.contract`): begin, batches, finish, end,
flush. What an epoch wrote becomes a run, encoded and opened again, so the next epoch reads what a store would give it.

>>> import headrace as hr
>>> from headrace.model.rows import codec_of
>>> from headrace.operators.rolling import ReduceOperator
>>> class Hit(hr.Record):
...     page: str
...     n: int = 1
>>> add = lambda a, b: a.replace(n=a.n + b.n)
>>> rig = OperatorRig(ReduceOperator("totals", add, codec_of(Hit)), Hit, lambda hit: hit.page, time=None)
>>> values(rig.epoch([Hit("a"), Hit("a")]))
[Hit(page='a', n=1), Hit(page='a', n=2)]
>>> values(rig.epoch([Hit("a", 5)]))
[Hit(page='a', n=7)]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.model.batch import Keys, Rows
from headrace.model.ids import MIN_TIME
from headrace.model.keys import encode_key, group_range, hash_key, key_groups
from headrace.model.report import RunRef, StepReport
from headrace.model.rows import RowCodec, codec_of
from headrace.model.wire import order_keys
from headrace.operators.contract import MAIN, Operator, Outlet, TaskInfo
from headrace.state.broadcast import SharedState
from headrace.state.fold import fold_runs
from headrace.state.format import TableData
from headrace.state.lookup import Layers
from headrace.state.run import StateRun, encode_run, open_run
from headrace.state.shard import EVENT_DUE, WALL_DUE, ShardState

GROUPS: Final = 16
"""Key groups of a rig: enough to cut its state into a few shards."""
NO_LIMIT: Final = 1 << 40

OpenedRun = tuple[RunRef, StateRun]


Key = Callable[[Any], Any]
Time = Callable[[Any], int]
Batch = Sequence[Any]
"""Rows; of a step with several inputs (port, rows)."""


def everywhere(row: Any) -> Any:
    """Stands for the key of a broadcast input: its rows go to every shard, in the order in which they are given."""
    raise AssertionError("rows of a broadcast input have no key")


class Port(NamedTuple):
    """One input of an operator."""

    taken: RowCodec
    key: Key | None
    time: Time | None


class EmittedRow(NamedTuple):
    """A row that came out of an outlet, and its time."""

    value: Any
    at: int | None
    kind: int | None = None
    """Of a changelog."""


class RowOfKind(NamedTuple):
    """A row of a changelog that goes in; all rows of its batch are such."""

    value: Any
    kind: int


class _ShardOutcome(NamedTuple):
    """What one shard's task came to."""

    runs: list[OpenedRun]
    """Newest first."""
    report: StepReport
    spills: int
    shared: Sequence[OpenedRun] = ()
    """What changed in broadcast states; the same on all shards."""


def row_time(row: Any) -> int:
    """The usual event time of a test's rows: their field ``at``."""
    return int(row.at)


def values(rows: Sequence[EmittedRow]) -> list[Any]:
    """The rows without their times."""
    return [row.value for row in rows]


class OperatorRig:
    """An operator, the runs of its past epochs, and what its outlets gave in the last one."""

    def __init__(
        self,
        operator: Operator,
        taken: Any,
        key: Key | tuple[Key, ...] | None = None,
        *,
        time: Time | tuple[Time | None, ...] | None = row_time,
        outlets: Sequence[str] = (),
        overlay_limit_bytes: int = NO_LIMIT,
        hash_of: Callable[[bytes], int] = hash_key,
        ttl: Mapping[str, str] | None = None,
        parallelism: int = 1,
        as_objects: bool = False,
    ) -> None:
        """``taken``: type (or codec) of the rows that go in. ``key``: of a row; None for a step without state.

        A step with several inputs has a tuple of types and one of keys (and of times, where they differ); then each
        batch of an epoch is (port, rows).

        ``time``: event time of a row in µs; None for a stream without time. ``outlets``: those that somebody reads
        beside ``main``. ``overlay_limit_bytes``: 1 writes and reads state back after every batch. ``ttl``: table →
        ``event`` or ``wall``, for folds that purge. ``as_objects``: rows go in as objects instead of columns.
        """
        self.ports = _ports(taken, key, time)
        self.taken, self.key, self.time = self.ports[0]
        self.overlay_limit_bytes = overlay_limit_bytes
        self.hash_of = hash_of
        self.ttl = dict(ttl or {})
        self.parallelism = parallelism
        self.as_objects = as_objects
        self.out: dict[str, list[EmittedRow]] = {}
        """Outlet → what it gave in the last epoch or attempt."""
        self.report = StepReport(operator.step)
        """Of the last epoch or attempt, all shards together."""
        self.runs: list[OpenedRun] = []
        """The state as past epochs left it, newest first."""
        self.shared_runs: list[OpenedRun] = []
        """Broadcast states as past epochs left them, newest first."""
        self.epoch_number = 0
        self.watermark = MIN_TIME
        self.clock = 0
        self.spills = 0
        """How often state was written in the middle of an epoch."""
        self._outlets: dict[str, Outlet] = {tag: self._outlet(tag) for tag in (MAIN, *outlets)}
        self.take_over(operator)

    def take_over(self, operator: Operator) -> None:
        """Has another instance go on from here, as a new worker does; it is opened, the old one simply left."""
        self.operator = operator
        operator.outlets = self._outlets
        operator.open()

    def epoch(
        self,
        *batches: Batch,
        watermark: int | None = None,
        clock: int | None = None,
        final: bool = False,
    ) -> list[EmittedRow]:
        """One epoch that becomes true; returns what came out of the main outlet.

        ``watermark``: event time at its end, the one before if not given; ``clock``: its wall clock, likewise.
        """
        written = self._play(batches, self._info(clock, final), self._reached(watermark))
        self.runs = [run for task in written for run in task.runs] + self.runs
        self.shared_runs = [*written[0].shared, *self.shared_runs]
        self.spills += sum(task.spills for task in written)
        self.epoch_number += 1
        self.watermark = self._reached(watermark)
        self.clock = self.clock if clock is None else clock
        return self.out.get(MAIN, [])

    def attempt(
        self,
        *batches: Batch,
        watermark: int | None = None,
        clock: int | None = None,
        final: bool = False,
        finish: bool = True,
    ) -> None:
        """One epoch that is given up when it is done, or with ``finish=False`` before its end: nothing of it is kept.

        The operator is not told, as in production: the next thing it hears is ``begin``.
        """
        self._play(batches, self._info(clock, final), self._reached(watermark) if finish else None)

    def fold(self, newest: int | None = None) -> None:
        """Folds the newest runs (all, if no number is given) into one, purging what has expired or fired."""
        self._fold(self.runs, newest)
        self._fold(self.shared_runs, newest)

    def _fold(self, runs: list[OpenedRun], newest: int | None) -> None:
        count = len(runs) if newest is None else min(newest, len(runs))
        if not count:
            return
        now = {"event": self.watermark, "wall": self.clock}
        folded = fold_runs(
            runs[:count],
            lo=0,
            hi=GROUPS,
            groups=GROUPS,
            drop_tombstones=count == len(runs),
            clocks={table: now[clock] for table, clock in self.ttl.items()},
            fired={EVENT_DUE: self.watermark, WALL_DUE: self.clock},
        )
        data = folded.to_buffer()
        runs[:count] = [self._open_run(data, range(GROUPS))] if folded.rows else []

    def rows(self, batch: Sequence[Any]) -> tuple[Rows, Keys | None]:
        """A batch as the operator gets it."""
        return self._rows_of(batch, Port(self.taken, self.key, self.time))

    def _rows_of(self, batch: Sequence[Any], port: Port) -> tuple[Rows, Keys | None]:
        kinds = None
        if batch and isinstance(batch[0], RowOfKind):
            kinds = np.array([row.kind for row in batch], dtype=np.int8)
            batch = [row.value for row in batch]
        stamps = None if port.time is None else np.array([port.time(row) for row in batch], dtype=np.int64)
        if self.as_objects:
            rows = Rows.of_objects(port.taken, list(batch), stamps, kinds)
        else:
            rows = Rows.of_columns(port.taken, port.taken.to_arrays(batch), stamps, kinds)
        if port.key is None or port.key is everywhere:
            return rows, None
        encoded = [encode_key(port.key(row)) for row in batch]
        hashes = np.array([self.hash_of(key) for key in encoded], dtype=np.uint64)
        return rows, Keys(hashes, pa.array(encoded, pa.binary()))

    # --- what a task does

    def _outlet(self, tag: str) -> Outlet:
        def take(rows: Rows) -> None:
            times = [None] * len(rows) if rows.times is None else rows.times.tolist()
            # Columns and back: what comes out has to fit the type it is said to have, and each column be whole.
            lengths = {len(column) for column in rows.columns} | {len(times)}
            assert lengths <= {len(rows)}, f"outlet {tag}: {len(rows)} rows with columns of {sorted(lengths)}"
            kinds = [None] * len(rows) if rows.kinds is None else rows.kinds.tolist()
            self.out.setdefault(tag, []).extend(map(EmittedRow, rows.codec.to_objects(rows.columns), times, kinds))

        return take

    def _reached(self, watermark: int | None) -> int:
        return self.watermark if watermark is None else max(watermark, self.watermark)

    def _info(self, clock: int | None, final: bool) -> TaskInfo:
        return TaskInfo(
            self.epoch_number,
            0,
            self.clock if clock is None else clock,
            final,
            start_watermark={self.operator.step: self.watermark},
            last_clock_us=self.clock if self.epoch_number else MIN_TIME,
        )

    def _play(self, batches: Sequence[Batch], info: TaskInfo, reached: int | None) -> list[_ShardOutcome]:
        """The tasks of an epoch, one after the other, as one worker may run them."""
        self.out.clear()
        written = []
        for shard in range(self.parallelism):
            info.shard = shard
            info.end_watermark = {}
            groups = group_range(shard, self.parallelism, GROUPS)
            written.append(self._task(self._cut(batches, groups), info, reached, groups))
        self.report = _merged([task.report for task in written])
        told = [task.report.broadcast for task in written]
        assert all(each == told[0] for each in told), f"shards came to different broadcast states: {told}"
        return written

    def _cut(self, batches: Sequence[Batch], groups: range) -> Iterator[tuple[int, Rows, Keys | None]]:
        sent = 0
        for batch in batches:
            port = 0
            if len(self.ports) > 1:
                port, batch = batch
            rows, keys = self.rows(batch) if port == 0 else self._rows_of(batch, self.ports[port])
            if self.ports[port].key is everywhere:
                keys = Keys(np.zeros(len(rows), np.uint64), order_keys(0, 0, sent, len(rows)))
                sent += len(rows)
            elif keys is not None and self.parallelism > 1:
                owned = key_groups(keys.hashes, GROUPS)
                mine = np.flatnonzero((owned >= groups.start) & (owned < groups.stop))
                rows, keys = rows.take(mine), keys.take(mine)
            yield port, rows, keys

    def _task(
        self, batches: Iterator[tuple[int, Rows, Keys | None]], info: TaskInfo, reached: int | None, groups: range
    ) -> _ShardOutcome:
        operator = self.operator
        layers = Layers(self.runs, lo=groups.start, hi=groups.stop, groups=GROUPS)
        runs: list[OpenedRun] = []

        def write(tables: Sequence[TableData]) -> None:
            data = encode_run(tables, lo=groups.start, hi=groups.stop, groups=GROUPS)
            runs.insert(0, self._open_run(data, groups))

        def spill(tables: Sequence[TableData]) -> None:
            write(tables)
            layers.prepend(*runs[0])

        state = None
        if self.key is not None:
            state = ShardState(
                layers, lo=groups.start, hi=groups.stop, groups=GROUPS, spill=spill,
                overlay_limit_bytes=self.overlay_limit_bytes,
            )  # fmt: skip
            shared = Layers(self.shared_runs, lo=0, hi=GROUPS, groups=GROUPS)
            state.shared = SharedState(shared, tuple(run for _, run in self.shared_runs))
        operator.begin(info, state)
        for port, rows, keys in batches:
            operator.process(port, rows, keys)
        if reached is None:
            return _ShardOutcome([], operator.report, 0)
        info.end_watermark[operator.step] = reached
        for _ in operator.finish() or ():
            pass
        report = operator.end()
        if state is None:
            return _ShardOutcome(runs, report, 0)
        if tables := state.flush():
            write(tables)
        changed, digests = state.shared.flush()
        report.broadcast.update(digests)
        data = [encode_run(changed, lo=0, hi=GROUPS, groups=GROUPS)] if changed else []
        return _ShardOutcome(runs, report, state.spills, [self._open_run(each, range(GROUPS)) for each in data])

    def _open_run(self, data: pa.Buffer, groups: range) -> OpenedRun:
        lo, hi = groups.start, groups.stop
        return RunRef(epoch=self.epoch_number, lo=lo, hi=hi, rows=0, size_bytes=len(data), crc=0), open_run(data)


def _ports(taken: Any, key: Any, time: Any) -> tuple[Port, ...]:
    if not isinstance(taken, tuple):
        return (Port(taken if isinstance(taken, RowCodec) else codec_of(taken), key, time),)
    times = time if isinstance(time, tuple) else (time,) * len(taken)
    return tuple(_ports(*each)[0] for each in zip(taken, key, times, strict=True))


def _merged(reports: Sequence[StepReport]) -> StepReport:
    if len(reports) == 1:
        return reports[0]
    counters: dict[str, int] = {}
    for report in reports:
        for name, count in report.counters.items():
            counters[name] = counters.get(name, 0) + count
    dues = [report.next_due_us for report in reports if report.next_due_us is not None]
    return StepReport(
        reports[0].step,
        rows_in=sum(report.rows_in for report in reports),
        rows_out=sum(report.rows_out for report in reports),
        late=sum(report.late for report in reports),
        fired=sum(report.fired for report in reports),
        counters=counters,
        next_due_us=min(dues, default=None),
    )
