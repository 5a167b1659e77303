"""The driver's side of an epoch: Spark asks, the coordinator decides, the tasks report, the coordinator publishes.

`EpochDriver.on_batch` is what ``foreachBatch`` calls, on the thread of the query. Errors raised there end the query;
the driver keeps the real one, so that a user never has to read Spark's account of it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from time import monotonic, perf_counter_ns, time_ns
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.checkpoint.coordinator import Coordinator
from headrace.checkpoint.decide import endless_loop
from headrace.checkpoint.pacing import Pacer
from headrace.connectors.kafka.source import silent_partitions
from headrace.errors import StoreError
from headrace.model.amounts import count_of, span_text
from headrace.model.order import ENDLESS_EPOCHS, PROPERTY, Tick, count_tasks, read_clock_us, read_final, waiting
from headrace.model.report import LEFT_TO_SPARK, TaskReport
from headrace.model.watermarks import SourceTime, WaitingOrder, derive_waiting, leave_out_heard, merge_marks
from headrace.runtime.failures import failure_error
from headrace.spark.ticker import Ticker
from headrace.state import layout
from headrace.state.manifest import JobState, Manifest
from headrace.state.spark_offsets import source_offsets
from headrace.state.store import StoreFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.plan.physical import Program
    from headrace.spark.backlog import Backlog, Positions

log = logging.getLogger("headrace.driver")

_YOUNG_S: Final = 2.0
"""Nothing is said about an epoch that is younger."""


class StopRequested(Exception):
    """Raised into the query to end it between two epochs."""


class EpochStopped(Exception):
    """Raised into the query in place of what went wrong, which `EpochDriver.failure` holds."""


class EpochDriver:
    """Runs the epochs of one query."""

    def __init__(
        self,
        session: SparkSession,
        store: StoreFiles,
        program: Program,
        coordinator: Coordinator,
        run: str,
        watch: Callable[[Manifest], None] | None = None,
        *,
        backlog: Backlog,
        pacer: Pacer,
        bounded: bool = False,
    ) -> None:
        """``bounded``: the run is to end when all input is read, so loops have to become empty."""
        self.failure: BaseException | None = None
        self.query: Any = None
        self.idle = threading.Event()
        """Set while no epoch is in progress."""
        self.idle.set()
        self.epochs = 0
        self._session = session
        self._store = store
        self._folders = store.scratch()
        """Where Spark's own folders are."""
        self._program = program
        self._coordinator = coordinator
        self._run_id = run
        """Spark's folder."""
        self._watch = watch
        self._stopping = False
        self._filtered = [source.name for source in program.sources if source.filtered]
        self._logs_inputs = any(not source.source.python for source in program.sources)
        self._known_inputs = {path.removeprefix(f"{layout.INPUTS}/") for path in store.list(layout.INPUTS)}
        self.ticker = Ticker(session)
        """What calls for epochs without input, for the plan."""
        self._tick: Tick | None = None
        self._backlog = backlog
        self._pacer = pacer
        self._hurry = threading.Event()
        """Set when nobody should wait for the next epoch any more."""
        self._kafka = [source.log_name for source in program.sources if source.source.connector == "kafka"]
        self._partitioned = {
            source.name: source.log_name
            for source in program.sources
            if source.source.connector == "kafka" and source.time is not None
        }
        self._bounded = bounded
        self._rounds = 0
        """Epochs in a row in which rows went round and none came in."""
        self._waiting: WaitingOrder | None = None
        self._kept_hints = self._read_kept_hints() if self._filtered else {}
        self._previous_end_ns: int | None = None
        self._current: tuple[int, float] = (0, 0.0)
        """The epoch in progress, and when it began."""

    def request_stop(self) -> None:
        """The current epoch finishes; the next one does not begin."""
        self._stopping = True
        self._hurry.set()

    def on_batch(self, frame: DataFrame, epoch: int) -> None:
        """Called by Spark for every epoch, and again for one whose end Spark did not learn."""
        if self._stopping:
            raise StopRequested
        self._current = (epoch, monotonic())
        self.idle.clear()
        pause_us = 0
        try:
            pause_us = self._run(frame, epoch)
        except Exception as error:
            self.failure = error
            # Spark gets no more than the name: it looks for patterns in the text of what is raised here, and at that
            # of a long trace its thread dies noisily.
            raise EpochStopped(type(error).__name__) from None
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self.idle.set()
        # Spark plans the next epoch when this returns, with all rows that have come until then.
        self._hurry.wait(pause_us / 1e6)

    def activity(self) -> str:
        """What the epoch in progress has done so far; empty while it is young."""
        epoch, began = self._current
        took_s = monotonic() - began
        if took_s < _YOUNG_S:
            return ""
        return ", ".join((f"epoch {epoch}", *self._tasks(), span_text(took_s)))

    def _tasks(self) -> list[str]:
        """How many tasks of the running stages are done. A help for people: where Spark does not tell, none."""
        try:
            tracker = self._session.sparkContext.statusTracker()
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            running = [stage for stage in stages if stage is not None]
        except Exception:  # the JVM may be gone; whoever drives the epoch says so
            return []
        total, done = sum(stage.numTasks for stage in running), sum(stage.numCompletedTasks for stage in running)
        return [f"{done} of {count_of(total, 'task')} done"] if total else []

    def _run(self, frame: DataFrame, epoch: int) -> int:
        """Answers how many microseconds the next epoch has to wait."""
        started = perf_counter_ns()
        offsets = self._folders.read(layout.spark_offset(self._run_id, epoch)).decode()
        ends = source_offsets(offsets)
        positions: dict[str, Positions] = {name: json.loads(ends[name]) for name in self._kafka if name in ends}
        hints: dict[str, dict[str, int]] = {}
        merge_marks(hints, self._hints())
        merge_marks(hints, self._silent(positions))
        clock_us = read_clock_us(offsets)
        paced = self._pacer.begin(started // 1000 - self._planning_us(clock_us, started))
        order = self._coordinator.begin(epoch, offsets, clock_us=clock_us, final=read_final(offsets), hints=hints)
        if order is None:
            return 0
        self._session.sparkContext.setLocalProperty(PROPERTY, msgspec.json.encode(order).decode())
        ordered = perf_counter_ns()
        reports = [msgspec.msgpack.decode(bytes(row[0]), type=TaskReport) for row in frame.collect()]
        collected = perf_counter_ns()
        failures = [failure for report in reports for failure in report.failures]
        if failures:
            # A file that Spark is to read comes before all others: those may be of the same file, and come again.
            raise failure_error(self._program, min(failures, key=lambda failure: failure.kind != LEFT_TO_SPARK))
        took = {"order": (ordered - started) // 1000, "tasks": (collected - ordered) // 1000}
        if self._previous_end_ns is not None:
            took["between"] = (started - self._previous_end_ns) // 1000
        inputs = self._new_inputs()
        behind = self._backlog.read(self.query, ends, positions, inputs)
        manifest = self._coordinator.complete(
            order, reports, offsets=offsets, inputs=inputs, took_us=took, behind=behind, paced=paced
        )
        self.epochs += 1
        self._stopping = self._stopping or manifest.final
        self._announce(manifest)
        self._write_waiting(manifest)
        self._check_rounds(manifest)
        self._previous_end_ns = perf_counter_ns()
        self._show(manifest)
        return self._pacer.end(self._previous_end_ns // 1000, manifest)

    def _planning_us(self, clock_us: int, started_ns: int) -> int:
        """How long ago Spark began to plan the epoch; of one that is planned for the second time that is not known."""
        if self._previous_end_ns is None:
            return 0
        return min(max(0, time_ns() // 1000 - clock_us), (started_ns - self._previous_end_ns) // 1000)

    def _check_rounds(self, manifest: Manifest) -> None:
        circling = waiting(manifest.loops, self._program.facts.loops)
        read = sum(task.rows_read for task in manifest.tasks)
        self._rounds = self._rounds + 1 if circling and not read else 0
        if self._bounded and self._rounds >= ENDLESS_EPOCHS:
            raise endless_loop(circling, self._store.url)

    def _show(self, manifest: Manifest) -> None:
        if self._watch is None:
            return
        try:
            self._watch(manifest)
        except Exception as error:  # the epoch is published; whoever looks on must not undo that
            log.warning("the display of epochs failed and is turned off: %s", error)
            self._watch = None

    def nudge(self) -> None:
        """Between two epochs: wakes the job when only filtered rows have moved time since the last one, or for edits.

        At the end of a query this is what tells the next one of such rows.
        """
        state, edits = self._coordinator.state, self._coordinator.edits
        if state is None:
            return
        hints = self._hints() if self._filtered else {}
        if edits is not None and edits.waiting:
            self._wake(state, hints)
            return
        for source, splits in hints.items():
            known = state.manifest.time.sources.get(source, SourceTime()).splits
            if any(split not in known or known[split].max_us < max_us for split, max_us in splits.items()):
                self._wake(state, hints)
                return

    def _wake(self, state: JobState, hints: dict[str, dict[str, int]]) -> None:
        """Has the ticker call for an epoch now."""
        # The last epoch may be called for already: then it is the one that learns of what was filtered.
        last = self._tick is not None and self._tick.final
        loops = self._loop_tasks(state.manifest)
        tick = Tick(seq=state.epoch + 1, due_us=0, final=last, loops=loops, hidden=hints)
        if tick != self._tick:
            if hints:
                self._store.write(layout.TICK, msgspec.json.encode(tick))
            self._set_tick(tick)

    def _set_tick(self, tick: Tick) -> None:
        self.ticker.set(tick)
        self._tick = tick

    def _read_kept_hints(self) -> dict[str, dict[str, int]]:
        """What the run before left, if the next epoch is the one that it was left for: not in a store begun anew."""
        state = self._coordinator.state
        try:
            tick = msgspec.json.decode(self._store.read(layout.TICK), type=Tick)
        except (OSError, StoreError, msgspec.DecodeError):
            return {}
        return tick.hidden if state is not None and tick.seq == state.manifest.ran_epoch + 1 else {}

    def prepare(self, *, final: bool) -> None:
        """Before the query starts: what its sources need to know. ``final``: its first epoch is the last."""
        state = self._coordinator.state
        manifest = None if state is None else state.manifest
        self._announce(manifest, final=final)
        self._write_waiting(manifest)
        self.nudge()

    def _announce(self, manifest: Manifest | None, *, final: bool = False) -> None:
        """Tells the ticker when the next epoch is due without data."""
        tick = Tick(
            seq=0 if manifest is None else manifest.epoch + 1,
            due_us=None if manifest is None else manifest.next_due_us,
            final=final or (manifest is not None and manifest.ending),
            loops=0 if manifest is None else self._loop_tasks(manifest),
        )
        self._set_tick(tick)

    def _loop_tasks(self, manifest: Manifest) -> int:
        """How many tasks the next epoch has to have for what waits in loops."""
        return count_tasks(manifest.loops, self._program.facts.loops, self._program.parallelism)

    def _write_waiting(self, manifest: Manifest | None) -> None:
        """Tells aligned sources which of them wait in the next epoch."""
        timed = self._program.timed
        if not any(source.align for source in timed):
            return
        order = WaitingOrder() if manifest is None else derive_waiting(manifest.time, timed, manifest.clock_us)
        if order != self._waiting:
            self._store.write(layout.WAITING, msgspec.json.encode(order))
            self._waiting = order

    def _hints(self) -> dict[str, dict[str, int]]:
        """Event times that a filter in the JVM hid from the tasks of the epoch before."""
        observed, state = self._observed_times(), self._coordinator.state
        if state is None:
            return observed
        return leave_out_heard(observed, state.manifest.time, state.manifest.clock_us)

    def _observed_times(self) -> dict[str, dict[str, int]]:
        """The newest event times of the epoch before, as they were in front of filters in the JVM."""
        if not self._filtered or self.query is None:
            return self._kept_hints
        progress = self.query.lastProgress
        if progress is None:
            return self._kept_hints
        observed = progress.observedMetrics
        hints = {}
        for source in self._filtered:
            row = observed.get(source)
            if row is not None and row["max_us"] is not None:
                hints[source] = {row["split"] or "": int(row["max_us"])}
        return hints

    def _silent(self, positions: Mapping[str, Positions]) -> dict[str, dict[str, int]]:
        """Partitions that are read and have not brought a row in any epoch."""
        state = self._coordinator.state
        times = {} if state is None else state.manifest.time.sources
        return {
            source: silent_partitions(positions[name], times.get(source, SourceTime()).splits)
            for source, name in self._partitioned.items()
            if name in positions
        }

    def _new_inputs(self) -> dict[str, bytes]:
        """Entries of Spark's logs per source that are not kept yet, by their path below that folder."""
        if not self._logs_inputs:
            return {}
        folder = layout.spark_inputs(self._run_id)
        names = [path.removeprefix(f"{folder}/") for path in self._folders.list(folder)]
        new = {name: self._folders.read(f"{folder}/{name}") for name in names if name not in self._known_inputs}
        self._known_inputs.update(new)
        self._known_inputs.intersection_update(names)
        return new
