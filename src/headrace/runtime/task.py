"""One task: one level, one shard, one epoch. The heart of Headrace.

A task opens the runs its parent manifest lists, pushes its input through the fragment of its level, learns the
watermark from the markers at the end of its input, fires what is due, makes delta and outputs durable, and says so in
one report. Nothing it wrote is true until the driver publishes a manifest that names it.

Who calls: `run_chain` for each partition of a source, `run_loop` for each share of a loop, `run_level` for each shard.
All yield frames for the shards of the next level (`headrace.model.wire`), of which the last holds the task's report.
Those of the last level yield reports alone. None knows Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter_ns

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.source_contract import LeftToSpark
from headrace.errors import EpochFailed, HeadraceError, StoreError
from headrace.model import crash
from headrace.model.batch import Rows
from headrace.model.ids import MIN_TIME
from headrace.model.order import EpochLimits, EpochOrder
from headrace.model.report import LEFT_TO_SPARK, Failure, StagedPart, TaskReport
from headrace.model.watermarks import SourceTime, TimeState, derive_time, merge_marks
from headrace.model.wire import (
    MARKER,
    REPORT,
    ROW_BAD,
    ROW_MARK,
    ROW_SPLIT,
    ROW_TIME,
    ROWS,
    Frame,
    control_batch,
    read_frames,
    report_batch,
)
from headrace.operators.contract import TaskInfo
from headrace.plan.physical import LoopPlan, Program, SourcePlan
from headrace.runtime.ends import TaskEnds
from headrace.runtime.failures import SenderGone, error_failure, read_input, rejected_rows
from headrace.runtime.fragment import LiveFragment
from headrace.runtime.framing import ArrivedRows, RowGatherer
from headrace.runtime.loops import read_loop
from headrace.runtime.marking import LargestTimes, open_marking, read_times
from headrace.runtime.shards import OpenShard, open_shard, write_delta
from headrace.runtime.source_rows import chain_input
from headrace.state.manifest import JobState
from headrace.state.shard import EVENT_DUE
from headrace.state.store import StoreFiles


class Stopwatch:
    """Where a task's time goes, by name; the time between two laps belongs to the later lap."""

    def __init__(self) -> None:
        self._last = perf_counter_ns()
        self.times_us: dict[str, int] = {}

    def lap(self, name: str) -> None:
        now = perf_counter_ns()
        self.times_us[name] = self.times_us.get(name, 0) + (now - self._last) // 1000
        self._last = now


_MAX_FAILURES = 5


class UpstreamEnd(msgspec.Struct, array_like=True):
    """The end of one upstream task, as every shard of the next level reads it."""

    attempt: str
    marks: dict[str, dict[str, int]]


@dataclass
class TaskEnv:
    """What a task works with; the same for all tasks of an epoch in one process."""

    program: Program
    store: StoreFiles
    order: EpochOrder
    limits: EpochLimits
    parent: JobState | None
    """State of the epoch this one continues; None for the first."""
    may_retry: bool = False
    """Whether whoever runs the task would run it again: then a store that fails once is given a second chance."""


class _Task:
    """What chain and level tasks share: the report, the ends, and how a task closes."""

    def __init__(self, env: TaskEnv, live: LiveFragment, level: int, shard: int, attempt: str) -> None:
        order = env.order
        self.env = env
        self.live = live
        self.watch = Stopwatch()
        self.report = TaskReport(level=level, shard=shard, attempt=attempt, epoch=order.epoch, parent=order.parent)
        self.ends = TaskEnds(env.program, env.store, order, level, shard, attempt, env.limits)
        self.info = TaskInfo(
            epoch=order.epoch, shard=shard, clock_us=order.clock_us, final=order.final,
            start_watermark=self._start_watermarks(), end_watermark={},
            closed_upto={} if env.parent is None else env.parent.manifest.closed_for(env.program.facts),
            ended_ttl={} if env.parent is None else env.parent.manifest.ended_ttl_for(env.program.facts),
            last_clock_us=_last_clock_us(env),
        )  # fmt: skip
        self.shards: dict[str, OpenShard] = {}

    @property
    def before(self) -> TimeState:
        """The time as the epoch before left it."""
        return TimeState() if self.env.parent is None else self.env.parent.manifest.time

    def _start_watermarks(self) -> dict[str, int]:
        """Those of the steps of this program, under their names, as the epoch before left them."""
        before, steps = self.before.steps, self.env.program.steps
        return {
            **before,
            **{name: before.get(name, before.get(step.was or "", MIN_TIME)) for name, step in steps.items()},
        }

    def begin(self) -> None:
        crash.reach("state_opening", self.env.order.epoch)
        self.live.attach(self.ends)
        self.live.open()
        for op, operator in zip(self.live.plan.ops, self.live.operators, strict=True):
            state = None
            if op.stateful:
                shard = open_shard(self.env.store, self.env.parent, self.env.program, op.step, self.report.shard,
                                   self.env.order, self.env.limits, self.ends.budget)  # fmt: skip
                self.shards[op.step] = shard
                state = shard.state
            operator.begin(self.info, state)
        self.watch.lap("open")

    def resume(self) -> None:
        """Goes on after waiting for input."""
        self.watch.lap("wait")
        self._check_alone()

    def _check_alone(self) -> None:
        """Operators serve one task at a time: those that another attempt has begun with hold that one's state."""
        if not self.live.serves(self.ends):
            raise EpochFailed(
                "a task was begun with operators that were at work for another",
                where=f"level {self.report.level}, shard {self.report.shard}, epoch {self.report.epoch}",
                expected="one task at a time in a worker",
                found="two that overlap",
                next_move="start again: nothing of this attempt is published",
            )

    def finish_operators(self, time: TimeState) -> Iterator[pa.RecordBatch]:
        """Fires what this epoch's watermark makes due, step by step, in the order rows flow.

        What goes to the next level leaves as it comes: all that fires at once may be more than fits into memory.
        """
        self.info.end_watermark.update(time.steps)
        self.report.watermarks = dict(time.steps)
        for operator in self.live.operators:
            for _ in operator.finish() or ():
                yield from self.hand_on("fire")
        yield from self.hand_on("fire", last=True)

    def hand_on(self, lap: str, *, last: bool = False) -> Iterator[pa.RecordBatch]:
        """The frames that are full, and at last all of them, on their way; ``lap``: what was done up to now."""
        self.watch.lap(lap)
        for batch in self.ends.frames.drain(last=last):
            self.watch.lap(lap)
            yield batch
            self.resume()

    def close(self) -> None:
        """Makes delta and outputs durable and completes the report."""
        self._check_alone()
        for op, operator in zip(self.live.plan.ops, self.live.operators, strict=True):
            step = operator.end()
            if op.stateful:
                shard = self.shards[op.step]
                step.runs = write_delta(shard)
                step.broadcast_runs, digests = shard.write_shared()
                step.broadcast.update(digests)
                if step.waits_for_us is None and self.env.program.steps[op.step].uses_watermark:
                    step.waits_for_us = shard.state.indexes.waits_for(EVENT_DUE, self.info.ends_at(op.step))
            self.report.steps.append(step)
        self.watch.lap("write")
        self.report.staged = self.ends.finish()
        self.report.fed = self.ends.finish_loops()
        self.watch.lap("stage")
        crash.reach("outputs_staged", self.env.order.epoch)

    def fail(self, failure: Failure) -> None:
        if len(self.report.failures) < _MAX_FAILURES:
            self.report.failures.append(failure)

    def control_rows(self, passed: list[bytes], last: bool, marker: UpstreamEnd) -> Iterator[pa.RecordBatch]:
        """The end of the task on the wire: a marker for every shard of the next level, then the reports."""
        self.report.times_us = self.watch.times_us
        reports = [*passed, msgspec.msgpack.encode(self.report)]
        if last:
            yield report_batch(reports)
            return
        parallelism = self.env.program.parallelism
        end = msgspec.msgpack.encode(marker)
        mine = self.report.shard % parallelism
        markers = ((MARKER, shard, end) for shard in range(parallelism))
        yield control_batch([*markers, *((REPORT, mine, report) for report in reports)])


def _last_clock_us(env: TaskEnv) -> int:
    """Wall clock of the epoch before; before the first one no time has passed, unless the test kit says so."""
    if env.parent is not None:
        return env.parent.manifest.clock_us
    return MIN_TIME if env.order.began_us is None else env.order.began_us


def run_chain(
    env: TaskEnv, source: SourcePlan, live: LiveFragment, batches: Iterable[pa.RecordBatch], *, shard: int, attempt: str
) -> Iterator[pa.RecordBatch]:
    """A partition of a source, from decoded columns to the first exchange (or to staged outputs, where there is none).

    Input columns: the fields of ``source.out``; then, as far as rows have them, event time (where no field is it),
    split, bad-row text, and the time that rows say is complete. Of a source that is decoded here: what names the pieces
    of its files.
    """
    task = _Task(env, live, 0, shard, attempt)
    last = not env.program.levels
    try:
        task.begin()
        marking = open_marking(source, task.before.sources.get(source.name, SourceTime()))
        for batch in chain_input(source, live, read_input(batches), marking):
            task.resume()
            task.report.rows_in += batch.num_rows
            task.report.rows_read += batch.num_rows
            task.report.bytes_in += batch.nbytes
            _enter_chain(task, source, batch, marking)
            yield from task.hand_on("process")
        task.resume()
        if marking is not None:
            marking.finish()
            task.report.marks = {source.name: marking.marks}
            task.report.kept = {source.name: marking.kept} if marking.kept else {}
        yield from task.finish_operators(TimeState())
        task.close()
    except LeftToSpark as left:
        task.fail(Failure(kind=LEFT_TO_SPARK, step=source.name, error=left.what, file=left.where))
    except (Exception, SystemExit) as error:
        task.fail(_failure_of(env, error))
    yield from task.control_rows([], last, UpstreamEnd(attempt, task.report.marks))


def run_loop(
    env: TaskEnv, loop: LoopPlan, live: LiveFragment, parts: Sequence[StagedPart], *, shard: int, attempt: str
) -> Iterator[pa.RecordBatch]:
    """What the epoch before fed into a loop (a share of it), from where it is staged to the first exchange."""
    task = _Task(env, live, 0, shard, attempt)
    try:
        task.begin()
        stored = None if env.parent is None else env.parent.manifest.loop_types.get(loop.name)
        for rows in read_loop(env.store, loop, parts, stored, env.program.migrations):
            task.resume()
            task.report.rows_in += len(rows)
            live.entry(rows, None)
            yield from task.hand_on("process")
        task.resume()
        task.report.looped = {loop.name: task.report.rows_in}
        yield from task.finish_operators(TimeState())
        task.close()
    except (Exception, SystemExit) as error:
        task.fail(_failure_of(env, error))
    yield from task.control_rows([], not env.program.levels, UpstreamEnd(attempt, {}))


def _failure_of(env: TaskEnv, error: Exception | SystemExit) -> Failure:
    """What a task reports instead of raising; a store that may only have stumbled is tried again first."""
    if isinstance(error, (SenderGone, MemoryError)) or (env.may_retry and isinstance(error, (StoreError, OSError))):
        raise error
    return error_failure(error)


def report_failure(
    program: Program, order: EpochOrder, level: int, shard: int, attempt: str, error: HeadraceError | OSError
) -> Iterator[pa.RecordBatch]:
    """A task that could not even begin, on the wire."""
    report = TaskReport(level=level, shard=shard, attempt=attempt, epoch=order.epoch, parent=order.parent)
    report.failures.append(error_failure(error))
    content = msgspec.msgpack.encode(report)
    if level == len(program.levels):
        yield report_batch([content])
    else:
        yield control_batch([(REPORT, shard % program.parallelism, content)])


def _enter_chain(task: _Task, source: SourcePlan, batch: pa.RecordBatch, marking: LargestTimes | None) -> None:
    fields = len(source.out.schema)
    bad = _beside(batch, fields).get(ROW_BAD)
    if bad is not None and bad.null_count < len(bad):
        _reject(task, source, bad.drop_null().to_pylist())
        batch = batch.filter(pc.is_null(bad))
    if not batch.num_rows:
        return
    beside, columns = _beside(batch, fields), batch.columns[:fields]
    stamps = None
    if marking is not None:
        times = beside.get(ROW_TIME)
        if times is None:
            assert source.time_field is not None, f"rows of source {source.name} came without their times"
            times = columns[source.out.index(source.time_field)].cast(pa.int64())
        stamps = read_times(times)
    rows = Rows.of_columns(source.out, columns, stamps)
    if marking is not None and stamps is not None:
        marking.see(rows, stamps, beside.get(ROW_SPLIT), beside.get(ROW_MARK))
    task.live.entry(rows, None)


def _beside(batch: pa.RecordBatch, fields: int) -> dict[str, pa.Array]:
    """The columns of a source's rows that are no fields, as far as there are any."""
    return dict(zip(batch.schema.names[fields:], batch.columns[fields:], strict=True))


def _reject(task: _Task, source: SourcePlan, texts: list[str]) -> None:
    """Undecodable rows: to the stream of errors where somebody reads it, else into the report, which stops the job."""
    if task.live.errors is None:
        for text in texts[:_MAX_FAILURES]:
            task.fail(Failure(kind="row", step=source.name, error="undecodable row", row=text))
        return
    task.live.errors(rejected_rows(source, texts))


def run_level(
    env: TaskEnv, level: int, live: LiveFragment, batches: Iterable[pa.RecordBatch], *, shard: int, attempt: str
) -> Iterator[pa.RecordBatch]:
    """A shard of a keyed level: from the exchange before it to the one behind it, or to the driver."""
    task = _Task(env, live, level, shard, attempt)
    last = level == len(env.program.levels)
    inbox = _Inbox(RowGatherer(env.program.edges))
    try:
        task.begin()
        for batch in read_input(batches):
            task.resume()
            task.report.bytes_in += batch.nbytes
            for frame in read_frames(batch):
                if frame.kind == ROWS and not live.has_edge(frame.edge):
                    task.ends.frames.pass_on(shard, frame)
                elif frame.kind == ROWS:
                    for arrived in inbox.gatherer.take(frame):
                        _enter_edge(task, arrived)
                        yield from task.hand_on("process")
                else:
                    inbox.take(frame)
            yield from task.hand_on("process")
        task.resume()
        for arrived in inbox.gatherer.rest():
            _enter_edge(task, arrived)
            yield from task.hand_on("process")
        task.report.upstream = sorted(inbox.attempts)
        if not inbox.failed and not task.report.failures:
            marks = _all_marks(env, inbox)
            yield from task.finish_operators(_derive(env, marks))
            task.close()
    except (Exception, SystemExit) as error:
        task.fail(_failure_of(env, error))
    yield from task.control_rows(inbox.reports, last, UpstreamEnd(attempt, inbox.marks))


class _Inbox:
    """What came to a task beside rows, and rows that are not enough yet for an operator's call."""

    def __init__(self, gatherer: RowGatherer) -> None:
        self.gatherer = gatherer
        self.reports: list[bytes] = []
        self.attempts: set[str] = set()
        self.marks: dict[str, dict[str, int]] = {}
        self.failed = False

    def take(self, frame: Frame) -> None:
        if frame.kind == MARKER:
            marker = msgspec.msgpack.decode(frame.body, type=UpstreamEnd)
            self.attempts.add(marker.attempt)
            merge_marks(self.marks, marker.marks)
            return
        self.reports.append(frame.body.to_pybytes())
        if msgspec.msgpack.decode(frame.body, type=TaskReport).failures:
            self.failed = True


def _all_marks(env: TaskEnv, inbox: _Inbox) -> dict[str, dict[str, int]]:
    """Only what every shard knows alike may move time: markers and hints, not what this shard saw itself."""
    marks: dict[str, dict[str, int]] = {}
    merge_marks(marks, env.order.hints)
    merge_marks(marks, inbox.marks)
    return marks


def _derive(env: TaskEnv, marks: dict[str, dict[str, int]]) -> TimeState:
    program = env.program
    before = TimeState() if env.parent is None else env.parent.manifest.time
    return derive_time(before, marks, sources=program.timed, steps=program.step_sources, was=program.facts.was,
                       clock_us=env.order.clock_us, final=env.order.final, reached_us=env.order.reached_us)  # fmt: skip


def _enter_edge(task: _Task, arrived: ArrivedRows) -> None:
    task.report.rows_in += len(arrived.rows)
    task.live.enter(arrived.edge, arrived.rows, arrived.keys)
