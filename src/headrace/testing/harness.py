"""The harness: any program, without a JVM, with a clock and a watermark you move by hand, in milliseconds.

>>> import headrace as hr
>>> class Hit(hr.Record):
...     page: str
...     n: int = 1
>>> app = hr.App("hits")
>>> hits = app.read("hits", hr.source.items([]), Hit)
>>> totals = hits.key_by(Hit.page).reduce(lambda a, b: a.replace(n=a.n + b.n)).named("totals")
>>> with hr.testing.Harness(app) as h:
...     h.push(hits, Hit("a"), Hit("b"), Hit("a"))
...     h.epoch()
...     sorted(h.take(totals), key=repr)
[Hit(page='a', n=1), Hit(page='a', n=2), Hit(page='b', n=1)]
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from headrace.checkpoint.coordinator import Coordinator
from headrace.checkpoint.decide import endless_loop
from headrace.checkpoint.fence import Fence, take_fence
from headrace.checkpoint.maintenance import Upkeep
from headrace.checkpoint.recover import recover
from headrace.checkpoint.release import Releaser
from headrace.checkpoint.rewind.fork import begin_fork
from headrace.checkpoint.rewind.request import StartRequest, parse_start
from headrace.checkpoint.rewind.rewinder import Rewinder
from headrace.connectors.source_contract import BadRows
from headrace.dataflow.graph import ReadNode
from headrace.edit.editor import Editor
from headrace.edit.offline import EditedEpoch, edit_stopped
from headrace.errors import HeadraceError, ProgramError
from headrace.model import crash
from headrace.model.order import ENDLESS_EPOCHS, EpochLimits, waiting
from headrace.model.retention import RETAIN_AT_LEAST
from headrace.model.time import Timestamp, parse_time
from headrace.model.values import type_name
from headrace.plan.ship import check_shippable, copy_program
from headrace.read.store import open_for_reading
from headrace.replay.restating import StateRestating
from headrace.runtime.failures import failure_error
from headrace.runtime.task import TaskEnv
from headrace.state import layout
from headrace.state.savepoints import Savepoint, create_savepoint
from headrace.state.store import open_store
from headrace.testing.clock import read_time
from headrace.testing.playing import PlayedSpark, offsets_text
from headrace.testing.pushed import PushedRows, paced_counts
from headrace.testing.reasons import RowsOfPatterns
from headrace.testing.states import held_state
from headrace.testing.taps import check_parallelism, compile_with_taps, sink_of, taken_changes, taken_rows

if TYPE_CHECKING:
    from typing import Self

    from headrace.dataflow.app import App
    from headrace.dataflow.stream import Stream
    from headrace.edit.edits import Edit
    from headrace.patterns.reasons import RowReasons
    from headrace.state.handles import StateDecl

T = TypeVar("T")


class Harness:
    """Runs a program epoch by epoch. Outputs go to `take` only; nothing outside of a temporary folder is touched."""

    def __init__(
        self, app: App, *, start: str = "2024-01-01T00:00:00", parallelism: int = 2, store: str | Path | None = None,
        sinks: bool = False, spark: Any = None, limits: EpochLimits | None = None, start_from: str = "",
        repeat: str | Sequence[str] = (), hold: str | Sequence[str] = (), again: bool = False,
        original_lost: bool = False, drop: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """``start``: wall clock of the first epoch. ``store``: a folder or URL to keep. ``sinks``: feed real sinks too.

        ``start_from`` … ``drop``: as in ``app.run``; push what is to be read again.
        ``spark``: a session that evaluates expressions right behind a source, for those outside of the worker's subset.
        """
        check_parallelism(parallelism)
        self.clock_us: int = parse_time(start)
        self._start, self._drop = start, tuple(drop)
        self._limits = limits or EpochLimits()
        self._spark = spark
        self._program, self._taken = compile_with_taps(app, parallelism, spark, feed_sinks=sinks)
        # Nothing has to be shipped here, but what cannot be would fail in production only.
        check_shippable(self._program, app)
        self._temporary = None if store is not None else tempfile.mkdtemp(prefix="headrace-harness-")
        self._store = open_store(store or self._temporary or "", durable=False)
        self._pushed = PushedRows(source.name for source in self._program.sources)
        self._matched = RowsOfPatterns()
        self._fence: Fence | None = None
        try:
            for output in self._program.outputs:
                output.sink.start()
            how: dict[str, Any] = {"repeat": repeat, "hold": hold, "again": again, "original_lost": original_lost}
            self._begin(parse_start(start_from, self._store.url, **how))
        except BaseException:
            self._leave()
            raise
        self._pushed.begin("" if (state := self._coordinator.state) is None else state.manifest.offsets)
        self._pushed.add_written(self._program.sources)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the program in good order; a temporary store goes with it."""
        try:
            self._played.close()
            self._coordinator.releaser.close()
            for output in self._program.outputs:
                output.sink.close()
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._fence is not None:
            self._fence.drop()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    # -- what a test does ---------------------------------------------------------------------------------------

    def at(self, text: str) -> Timestamp:
        """A time of day on the day the harness starts, or a whole timestamp: ``h.at("12:00:30")``."""
        return Timestamp(self._time(text))

    def push(self, stream: Stream[T], *rows: T | BadRows, split: str = "") -> None:
        """Queues rows of a source for the next epoch. ``split``: the part of the source they come from.

        `BadRows` among them stand for input that the source could not decode: it goes to ``stream.errors``, or stops
        the epoch with BadRow.
        """
        node = stream.node
        if not isinstance(node, ReadNode):
            raise ProgramError(
                "rows can be pushed into sources only",
                where=f"push into {node.label}",
                expected="a stream made by app.read",
                found=node.verb,
                next_move="push into the source above it",
            )
        given: list[Any] = []
        for row in rows:
            given += [BadRows([text]) for text in row.texts] if isinstance(row, BadRows) else [row]
        try:
            node.codec.to_arrays([row for row in given if not isinstance(row, BadRows)])
        except HeadraceError as error:
            # Found here and not in an epoch, where the row would stay queued and fail every epoch to come.
            raise ProgramError(
                f"a row is no {type_name(node.codec.type)}", where=f"push into {node.label}", expected=error.expected,
                found=error.found,
            ) from error  # fmt: skip
        self._pushed.add(node.name or "", given, split)

    def epoch(self, *, watermark: str | int | None = None, clock: str | int | None = None, final: bool = False) -> None:
        """Runs exactly one epoch over what is queued.

        ``watermark`` sets event time by hand (without it rows move it as in production), ``clock`` moves the wall
        clock, ``final`` ends the input and all time with it. After an epoch that failed, the next one begins with a
        restart, as in production.
        """
        if clock is not None:
            self.clock_us = self._time(clock)
        self._reached = None if watermark is None or final else self._time(watermark)
        self._epoch(final)

    def drain(self) -> None:
        """Ends the input: the watermark goes to the end of time, and everything fires.

        Where there are loops, epochs go by until they are empty, before the end of time and behind it.
        """
        self._reached = None
        if self._program.loops:
            self._epoch(final=False)
            if self._empty_loops():
                return
        self._epoch(final=True)
        self._empty_loops()

    def take(self, stream: Stream[T]) -> list[T]:
        """The rows a stream gave since they were last taken, in published epochs."""
        return taken_rows(sink_of(self._taken, stream.node))

    def take_changes(self, stream: Stream[T]) -> list[tuple[str, T]]:
        """The same of a changelog, each row behind what it is: ``+I``, ``-U``, ``+U`` or ``-D``."""
        return taken_changes(self._program, sink_of(self._taken, stream.node), stream.node)

    def state(self, step: Stream[Any], of: StateDecl | Any = None, key: Any = None) -> Any:
        """What a state holds for a key in the newest published epoch: a value, a dict, a list, or None.

        ``of`` is the declaration (``Fraud.seen``); without it the one state of reduce, latest, aggregate or a window,
        as the row that the step gives out (of several windows the newest). An AggregatingState gives its accumulator,
        timers their times. A broadcast state is a dict itself: without a key all of it is given.
        """
        return held_state(self._store.url, self._coordinator.state, step.node, of, key)

    def counters(self, step: Stream[Any]) -> Mapping[str, int]:
        """A step's counters since the beginning; ``late`` is one of them."""
        state = self._coordinator.state
        return {} if state is None else dict(state.manifest.counters.get(step.node.name or "", {}))

    def why(self, matches: Any, key: Any) -> list[RowReasons]:
        """What each row of a key was to a pattern: the stages that took it, and why the others did not.

        ``matches``: what ``match`` gave. It is about rows that were pushed into this harness, in published epochs.
        """
        return self._matched.why(matches, key, self.published)

    def crash(
        self, at: str = "before_publish", *, watermark: str | int | None = None, clock: str | int | None = None
    ) -> None:
        """Runs an epoch that dies at a named point, then starts again from what is in the store.

        If the epoch was published, it is true and released; otherwise its rows are queued again. The points of folding
        and sweeping lie behind the epoch, in `maintain`. An epoch that never comes to the point (there is no second
        sink to die between) is an error, because it would prove nothing.
        """
        if at not in crash.POINTS:
            raise ProgramError("there is no such crash point", where="Harness.crash", found=at,
                               expected=", ".join(crash.POINTS))  # fmt: skip

        def strike(point: str, epoch: int) -> None:
            if point == at:
                raise crash.Crash(point)

        try:
            with crash.planned(strike):
                self.epoch(watermark=watermark, clock=clock, final=at == "final_published")
                if at in crash.BESIDE:
                    self.maintain()
        except crash.Crash:
            self.restart()
            return
        raise ProgramError(
            "the epoch went by and never came to this crash point",
            where="Harness.crash",
            expected=f"{at}: {crash.POINTS[at]}",
            found=f"epoch {self.published}, which is published",
            next_move="give the program what leads there (rows, a second output, a large state), or take another point",
        )

    def maintain(self) -> None:
        """Folds and sweeps now; in production a thread of the driver does, beside the epochs.

        What was folded is listed from the next epoch on. The two newest epochs stay readable, what savepoints pin, and
        what those need. Of two sweeps the first lets epochs go and the second deletes them.
        """
        if (state := self._coordinator.state) is not None:
            self._upkeep.fold(state)
            self._upkeep.sweep(state)
            self._upkeep.sweep(state)

    def savepoint(self, name: str = "", *, note: str = "") -> Savepoint:
        """Pins the newest published epoch, as `Run.savepoint` does."""
        return create_savepoint(self._store, name=name, note=note, clock=lambda: self.clock_us / 1e6)

    def edit(self, why: str = "a test") -> Editor:
        """Changes the state by hand, as `hr.Editor` does: the job is stopped, edited and started again.

        ``with h.edit() as edit: edit.set("fraud.total", "c1", 5)``
        """

        def apply(edits: Sequence[Edit], reason: str) -> EditedEpoch:
            self._end()
            try:
                return edit_stopped(self._store, edits, why=reason, clock=lambda: self.clock_us / 1e6)
            finally:
                self._begin()

        return Editor(apply, why=why)

    def restart(self) -> None:
        """Starts again from the store, as a new process would: only what was pushed is kept."""
        self._end()
        self._begin()

    def rewind(
        self, moment: str | int, *, repeat: str | Sequence[str] = (), hold: str | Sequence[str] = (),
        again: bool = False,
    ) -> None:  # fmt: skip
        """Starts again from a savepoint, epoch or time, as ``run --from`` does: rows pushed since are read again."""
        request = parse_start(str(moment), self._store.url, repeat=repeat, hold=hold, again=again)
        self._end()
        try:
            self._begin(request)
        except HeadraceError:
            # Refused: the program goes on where it was.
            self._begin()
            raise

    def _end(self) -> None:
        self._played.close()
        self._coordinator.releaser.close()
        if self._fence is not None:
            self._fence.drop()

    @property
    def published(self) -> int:
        """The newest published epoch; −1 before the first."""
        state = self._coordinator.state
        return -1 if state is None else state.epoch

    @property
    def store(self) -> str:
        """The folder or URL of the store."""
        return self._store.url

    # -- how it works -------------------------------------------------------------------------------------------

    def _begin(self, request: StartRequest | None = None) -> None:
        self._reached = None
        self._failed = False
        # A copy for each start, as workers have their own: what functions keep in themselves must not outlive them.
        self._played = PlayedSpark(copy_program(self._program), self._spark)
        self._matched.listen(self._played.levels)
        facts, clock = self._program.facts, lambda: self.clock_us / 1e6
        begin_fork(self._store, request, facts, {}, open_for_reading, drop=self._drop, clock=clock)
        self._fence = take_fence(self._store)
        try:
            self._recover(self._fence, request)
        except BaseException:
            self._fence.drop()
            raise

    def _recover(self, fence: Fence, request: StartRequest | None) -> None:
        sinks = {output.name: output.sink for output in self._program.outputs}
        # Rows are pushed, so no source is of any kind, and there is none to ask whether it still has them.
        releaser, job = Releaser(self._store, sinks), replace(self._program.facts, source_kinds={})
        restating, clock = StateRestating(self._store, self._program), lambda: self.clock_us / 1e6
        Rewinder(self._store, job, fence, releaser, sinks, {}, restating, clock, self._drop).begin(request)
        recovered = recover(self._store, job, fence, releaser, drop=self._drop)
        self._run = recovered.run
        self._upkeep = Upkeep(
            self._store, job, fence.number, retain=RETAIN_AT_LEAST, inline_bytes=self._limits.inline_run_bytes
        )
        self._coordinator = Coordinator(
            self._store, job, fence, releaser, self._upkeep, None, retired=recovered.retired
        )
        self._coordinator.resume(recovered)

    def _epoch(self, final: bool) -> None:
        if self._failed:
            reached = self._reached
            self.restart()
            self._reached = reached
        self._failed = True
        self._run_epoch(final)
        self._failed = False

    def _empty_loops(self) -> bool:
        """Runs epochs until no row is in a loop; tells whether the last of them was the last of all."""
        for _ in range(ENDLESS_EPOCHS):
            assert self._coordinator.state is not None
            manifest = self._coordinator.state.manifest
            circling = waiting(manifest.loops, self._program.facts.loops)
            if not circling:
                return manifest.final
            self._epoch(final=manifest.ending)
        raise endless_loop(circling, self._store.url)

    def _run_epoch(self, final: bool) -> None:
        epoch, offsets = self._plan(final)
        coordinator = self._coordinator
        self._matched.begin(epoch)
        order = coordinator.begin(
            epoch, offsets, clock_us=self.clock_us, final=final, hints={}, reached_us=self._reached
        )
        if order is not None:
            if coordinator.state is None:
                order = msgspec.structs.replace(order, began_us=parse_time(self._start))
            before = coordinator.state.manifest.offsets if coordinator.state else ""
            queued, self._played.splits = self._pushed.between(before, offsets)
            env = TaskEnv(self._played.program, self._store, order, self._limits, coordinator.state)
            reports = self._played.run(env, queued)
            if failures := [failure for report in reports for failure in report.failures]:
                raise failure_error(self._program, failures[0])
            coordinator.complete(order, reports, offsets=offsets, inputs={}, took_us={})
        self._store.scratch().write(layout.spark_commit(self._run, epoch), b"v1\n{}")

    def _plan(self, final: bool) -> tuple[int, str]:
        """Fixes what the epoch reads. Other than with Spark, an epoch that was planned before is planned again."""
        epoch = self.published + 1
        path = layout.spark_offset(self._run, epoch)
        if (hold := self._coordinator.hold) is not None:
            self._pushed.check(hold.offsets)
            return epoch, hold.offsets
        counts = self._pushed.counts()
        if not final:
            counts.update(paced_counts(self._coordinator.state, self._program, counts))
        offsets = offsets_text(self.clock_us, counts, final)
        self._store.scratch().write(path, offsets.encode())
        return epoch, offsets

    def _time(self, text: str | int) -> int:
        return read_time(text, self._start)


__all__ = ["Harness", "HeadraceError"]
