"""What every promise of a sink is tried with: a new place to write to, rows for some epochs, and what must be there.

The promises themselves stand in `headrace.testing.sink_promises` and `headrace.testing.sink_rivals`; a `SinkTrial` does
for them what an engine does: it starts sinks, stages rows, releases them until that succeeds.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from headrace.connectors.sink_contract import Sink
from headrace.errors import SinkUnavailable
from headrace.model.report import StagedPart
from headrace.model.rows import RowCodec
from headrace.testing.staging import Staging, StagingRelease, stage_rows

BACK_S: Final = 60.0
"""How long a system that was started again has to become reachable."""


@dataclass
class SinkTarget:
    """A new, empty place to write to."""

    make: Callable[[], Sink]
    """A sink of this target, as a restarted program would make it; a sink that keeps rows in memory returns itself."""
    read: Callable[[], list[Any]]
    """The rows that are visible there, in any order."""
    stop: Callable[[], None] | None = None
    """Takes the system behind the sink away (ends the server). None: that is not tried."""
    start: Callable[[], None] | None = None
    """Brings it back, with what was in it."""
    failing: Callable[[int], AbstractContextManager[Any]] | None = None
    """``failing(n)``: inside, call number n (from 0) of a release to the system behind finds it unreachable, and all
    after it do. None: that is not tried."""


class SinkTrial:
    """One sink, with parts that lie in one way, and the rows of three epochs: `tasks`, `later` and `last`."""

    def __init__(
        self, new_target: Callable[[], SinkTarget], codec: RowCodec, rows: Sequence[Any], staging: Staging
    ) -> None:
        self.new_target = new_target
        self.codec = codec
        self.rows = rows
        self.staging = staging
        third = len(rows) // 3
        self.tasks = [rows[:third], [], rows[third : 2 * third]]
        self.later = [rows[2 * third : -1]]
        self.last = [rows[-1:]]

    def start(self, target: SinkTarget) -> Sink:
        """A sink of the target, as a program that begins makes it."""
        sink = target.make().bind(self.codec, "out")
        sink.start()
        return sink

    def stage(self, sink: Sink, epoch: int, tasks: Sequence[Sequence[Any]]) -> list[StagedPart]:
        """The parts of an epoch, each of whose tasks has its rows."""
        parts = stage_rows(sink, self.codec, self.staging, epoch, tasks)
        assert sum(part.rows for part in parts) == sum(map(len, tasks)), "parts have to tell how many rows they hold"
        return parts

    def expect(self, sink: Sink, target: SinkTarget, *tasks: Sequence[Sequence[Any]], what: str) -> None:
        """Exactly the rows of these epochs are visible; a sink that is *at least once* may show them repeatedly."""
        wanted = Counter(repr(row) for epoch in tasks for task in epoch for row in task)
        found = Counter(repr(row) for row in target.read())
        missing, more = wanted - found, found - wanted
        assert not missing, f"{what}: rows are missing: {list(missing)[:3]}"
        strange = [row for row in more if row not in wanted]
        assert not strange, f"{what}: rows that nobody wrote: {strange[:3]}"
        if sink.guarantee == "exactly once":
            assert not more, f"{what}: rows are there more than once: {list(more)[:3]}"

    def insist(self, sink: Sink, parts: list[StagedPart], ctx: StagingRelease, what: str) -> None:
        """A release as the engine makes it: tried again while the sink says that this may help."""
        until = time.monotonic() + BACK_S
        while True:
            try:
                sink.release(parts, ctx)
                return
            except SinkUnavailable as error:
                if time.monotonic() > until:
                    raise AssertionError(f"{what}: still {error}") from error
                time.sleep(0.1)

    def complete(self, sink: Sink, target: SinkTarget, parts: list[StagedPart], what: str) -> None:
        """Releases what a release before left unfinished, and the epoch after it."""
        self.insist(sink, parts, self.staging.release(0), what)
        self.expect(sink, target, self.tasks, what=what)
        self.insist(sink, self.stage(sink, 1, self.later), self.staging.release(1), what)
        self.expect(sink, target, self.tasks, self.later, what=f"{what}, one epoch later")
