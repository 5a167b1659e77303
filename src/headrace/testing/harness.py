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
...     sorted(h.take(totals))
[Hit(page='a', n=1), Hit(page='a', n=2), Hit(page='b', n=1)]
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.checkpoint.coordinator import Coordinator, NoMaintenance
from headrace.checkpoint.fence import Fence, take_fence
from headrace.checkpoint.recover import recover
from headrace.checkpoint.release import Releaser
from headrace.dataflow.graph import ReadNode, WriteNode
from headrace.errors import HeadraceError, ProgramError
from headrace.model import crash
from headrace.model.order import Limits
from headrace.model.time import Timestamp, parse_time
from headrace.plan.compile import compile_app
from headrace.query.store import Store as StoreView
from headrace.runtime.failures import failure_error
from headrace.runtime.task import TaskEnv
from headrace.sinks.driver import CollectSink, DiscardSink
from headrace.state import layout
from headrace.state.store import LocalStore
from headrace.testing.playing import PlayedSpark, offsets_text, read_counts

if TYPE_CHECKING:
    from typing import Self

    from headrace.dataflow.app import App
    from headrace.dataflow.stream import Stream
    from headrace.state.handles import StateDecl

T = TypeVar("T")

_TAP = "tap."


class Harness:
    """Runs a program epoch by epoch. Outputs go to `take` only; nothing outside of a temporary folder is touched."""

    def __init__(
        self,
        app: App,
        *,
        start: str = "2024-01-01T00:00:00",
        parallelism: int = 2,
        store: str | Path | None = None,
        sinks: bool = False,
        limits: Limits | None = None,
    ) -> None:
        """``start``: wall clock of the first epoch. ``store``: a folder to keep. ``sinks``: feed the real sinks too."""
        self.clock_us: int = parse_time(start)
        self._start = start
        self._limits = limits or Limits()
        self._temporary = None if store is not None else tempfile.mkdtemp(prefix="headrace-harness-")
        self._store = LocalStore(store or self._temporary or "", durable=False)
        self._taken: dict[int, CollectSink] = {}
        self._program = self._compile(app, parallelism, sinks)
        self._pushed: dict[str, list[Any]] = {source.name: [] for source in self._program.sources}
        self._fence: Fence | None = None
        self._reached: int | None = None
        self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._played.close()
        if self._fence is not None:
            self._fence.drop()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    # -- what a test does ---------------------------------------------------------------------------------------

    def at(self, text: str) -> Timestamp:
        """A time of day on the day the harness starts, or a whole timestamp: ``h.at("12:00:30")``."""
        return Timestamp(self._time(text))

    def push(self, stream: Stream[T], *rows: T) -> None:
        """Queues rows of a source for the next epoch."""
        node = stream.node
        if not isinstance(node, ReadNode):
            raise ProgramError(
                "rows can be pushed into sources only",
                where=f"push into {node.label}",
                expected="a stream made by app.read",
                found=node.verb,
                next_move="push into the source above it",
            )
        self._pushed[node.name or ""].extend(rows)

    def epoch(self, *, watermark: str | int | None = None, clock: str | int | None = None, final: bool = False) -> None:
        """Runs exactly one epoch over what is queued.

        ``watermark`` sets event time by hand (without it rows move it as in production), ``clock`` moves the wall
        clock, ``final`` ends the input.
        """
        if clock is not None:
            self.clock_us = self._time(clock)
        self._reached = None if watermark is None else self._time(watermark)
        self._epoch(final)

    def drain(self) -> None:
        """Ends the input: the watermark goes to the end of time, and everything fires."""
        self._reached = None
        self._epoch(final=True)

    def take(self, stream: Stream[T]) -> list[T]:
        """The rows a stream gave since they were last taken, in published epochs."""
        sink = self._taken.get(stream.node.id)
        if sink is None:
            raise ProgramError("the harness was made before this stream", where=f"take from {stream.node.label}",
                               next_move="build the whole program first, then the harness")  # fmt: skip
        rows = list(sink.rows)
        sink.clear()
        return rows

    def state(self, step: Stream[Any], of: StateDecl | Any = None, key: Any = None) -> Any:
        """What a state holds for a key in the newest published epoch: a value, a dict, a list, or None."""
        name = step.node.name or ""
        address = name if of is None else f"{name}.{of.name}"
        return StoreView(self._store.url).state(address).get(key)

    def counters(self, step: Stream[Any]) -> Mapping[str, int]:
        """A step's counters since the beginning; ``late`` is one of them."""
        state = self._coordinator.state
        return {} if state is None else dict(state.manifest.counters.get(step.node.name or "", {}))

    def crash(self, at: str = "before_publish") -> None:
        """Runs an epoch that dies at a named point, then starts again from what is in the store.

        If the epoch was published, it is true and released; otherwise its rows are queued again.
        """
        if at not in crash.POINTS:
            raise ProgramError("there is no such crash point", where="Harness.crash", found=at,
                               expected=", ".join(crash.POINTS))  # fmt: skip

        def strike(point: str, epoch: int) -> None:
            if point == at:
                raise crash.Crash(point)

        self._reached = None
        try:
            with crash.planned(strike):
                self._epoch(final=at == "final_published")
        except crash.Crash:
            pass
        self.restart()

    def restart(self) -> None:
        """Starts again from the store, as a new process would: only what was pushed is kept."""
        self._played.close()
        if self._fence is not None:
            self._fence.drop()
        self._begin()

    @property
    def published(self) -> int:
        """The newest published epoch; −1 before the first."""
        state = self._coordinator.state
        return -1 if state is None else state.epoch

    @property
    def store(self) -> str:
        """The folder of the store."""
        return self._store.url

    # -- how it works -------------------------------------------------------------------------------------------

    def _compile(self, app: App, parallelism: int, feed_sinks: bool) -> Any:
        nodes = [node for node in app.nodes if not isinstance(node, WriteNode)]
        number = max((node.id for node in app.nodes), default=0) + 1
        taps: list[WriteNode] = []
        for offset, node in enumerate(nodes):
            sink = CollectSink().bind(node.codec, f"{_TAP}{node.id}")
            self._taken[node.id] = sink
            taps.append(WriteNode(id=number + offset, inputs=(node,), codec=node.codec, at=node.at, name=sink.output,
                                  sink=sink))  # fmt: skip
        program = compile_app(app, parallelism=parallelism, key_groups=128, taps=taps)
        if feed_sinks:
            return program
        quiet = tuple(
            output if output.name.startswith(_TAP) else replace(output, sink=DiscardSink())
            for output in program.outputs
        )
        return replace(program, outputs=quiet)

    def _begin(self) -> None:
        self._reached = None
        self._played = PlayedSpark(self._program)
        self._fence = take_fence(self._store)
        releaser = Releaser(self._store, {output.name: output.sink for output in self._program.outputs})
        job = self._program.facts()
        recovered = recover(self._store, job, releaser)
        self._coordinator = Coordinator(
            self._store, job, self._fence, releaser, NoMaintenance(), recovered.state, adopted=recovered.adopted
        )

    def _epoch(self, final: bool) -> None:
        epoch, offsets = self._plan(final)
        coordinator = self._coordinator
        order = coordinator.begin(
            epoch, offsets, clock_us=self.clock_us, final=final, hints={}, reached_us=self._reached
        )
        if order is not None:
            queued = self._between(coordinator.state.manifest.offsets if coordinator.state else "", offsets)
            env = TaskEnv(self._program, self._store, order, self._limits, coordinator.state)
            reports = self._played.run(env, queued)
            failures = [failure for report in reports for failure in report.failures]
            if failures:
                self._store.delete(layout.spark_offset(epoch))
                raise failure_error(self._program, failures[0])
            coordinator.complete(order, reports, offsets=offsets, inputs={}, took_us={})
        self._store.write(layout.spark_commit(epoch), b"v1\n{}")

    def _plan(self, final: bool) -> tuple[int, str]:
        """Fixes what the epoch reads, as Spark does: an epoch that was planned before keeps its plan."""
        epoch = self.published + 1
        path = layout.spark_offset(epoch)
        counts = {source: len(rows) for source, rows in self._pushed.items()}
        offsets = offsets_text(self.clock_us, counts, final)
        self._store.write(path, offsets.encode())
        return epoch, offsets

    def _between(self, before: str, after: str) -> dict[str, list[Any]]:
        start, end = read_counts(before), read_counts(after)
        return {source: self._pushed[source][start.get(source, 0) : stop] for source, stop in end.items()}

    def _time(self, text: str | int) -> int:
        if isinstance(text, int):
            return text
        if "-" in text or "T" in text:
            return parse_time(text)
        day = datetime.fromtimestamp(parse_time(self._start) // 1_000_000, tz=UTC).date()
        parts = [float(part) for part in text.split(":")]
        while len(parts) < 3:
            parts.append(0.0)
        midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
        moment = midnight + timedelta(hours=parts[0], minutes=parts[1], seconds=parts[2])
        return round((moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))


__all__ = ["Harness", "HeadraceError"]
