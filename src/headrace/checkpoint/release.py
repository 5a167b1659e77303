"""Releasing: a published epoch's staged rows go to the sinks, in order, as often as it takes.

The epochs of a sink follow each other; the sinks of an epoch do not wait for each other. A sink whose target cannot be
reached is tried again (`patience`). The next epoch begins when all sinks have this one: that is how a slow sink slows
the sources, and why no more than one epoch is ever staged and not released.

That an epoch is released is known from Spark's commits, which lie in a local store. A remote store has none, so there a
note says it, written beside the next epoch; where the note is late, an epoch is released once more, as after a crash.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cached_property
from pathlib import Path
from threading import Event, Lock
from time import perf_counter_ns
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from headrace.checkpoint.facts import ReleasedNote, read_record
from headrace.checkpoint.patience import Patience
from headrace.errors import EnvironmentMissing, HeadraceError, SinkFailed
from headrace.model import crash
from headrace.model.report import StagedPart
from headrace.sinks.contract import Sink
from headrace.state import layout
from headrace.state.manifest import Manifest
from headrace.state.store import Store

log = logging.getLogger("headrace.release")


class ReleaseContext:
    """What a sink is given to let one epoch of one output out (a `Release`)."""

    def __init__(
        self, store: Store, manifest: Manifest, output: str, job: str, session: Callable[[], Any] | None
    ) -> None:
        self.timeline = str(manifest.timeline)
        self.epoch = manifest.epoch
        self.output = output
        self.job = job
        self._store = store
        self._session = session

    def read(self, part: StagedPart) -> pa.Buffer:
        return self._store.open_buffer(part.file, part.crc) if part.file else pa.py_buffer(part.inline)

    def local_path(self, part: StagedPart) -> Path | None:
        return self._store.local_path(part.file) if part.file else None

    def spark(self) -> Any:
        if self._session is None:
            raise EnvironmentMissing(
                "this sink needs a Spark session",
                where=f"output {self.output}",
                next_move="run the program with app.run(), or give the harness a session",
            )
        return self._session()


class _Due(NamedTuple):
    """What one sink has to let out."""

    output: str
    sink: Sink
    parts: list[StagedPart]


class Releaser:
    """Feeds the sinks of one run."""

    def __init__(
        self,
        store: Store,
        sinks: Mapping[str, Sink],
        session: Callable[[], Any] | None = None,
        patience: Patience | None = None,
    ) -> None:
        """``patience``: how a sink is waited for that cannot be reached; without it, the first failure is the end."""
        self.took_us: dict[str, int] = {}
        """Output → how long the last release took, with what it waited."""
        self._store = store
        self._sinks = sinks
        self._session = None if session is None else _one_at_a_time(session)
        self._patience = patience or Patience()
        self._notes = None if store.local_path(layout.RELEASED) is not None else _Notes(store)
        self._pool: ThreadPoolExecutor | None = None

    def start(self) -> None:
        """Starts every sink, before the first epoch."""
        for output, sink in sorted(self._sinks.items()):
            self._patience.insist(sink.start, sink, output)

    def close(self) -> None:
        """What was released is noted for good when this returns."""
        if self._notes is not None:
            self._notes.settle()
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def release(self, manifest: Manifest) -> None:
        """Lets the rows of a published epoch out. Repeating it is harmless.

        Sinks do not wait for each other: each that writes to somewhere else has a thread of its own where there are
        several. All of them have ended when this returns or raises.
        """
        due = self._due(manifest)
        self.took_us = {}
        outside = [each for each in due if not each.sink.in_process]
        if len(outside) > 1 and not crash.armed():
            self._release_together(manifest, outside, [each for each in due if each.sink.in_process])
        else:
            # One after the other also where a test wants to die between two of them.
            for number, each in enumerate(due):
                if number:
                    crash.reach("between_sinks", manifest.epoch)
                self._release(manifest, each, None)
        self._patience.settle()
        if self._notes is not None:
            self._notes.write(ReleasedNote(manifest.timeline, manifest.epoch))

    @cached_property
    def _job(self) -> str:
        """Id of the job's store: the one that Spark's query has in it, for the life of the store."""
        record = read_record(self._store)
        return "" if record is None else str(msgspec.json.decode(record.query)["id"])

    def _due(self, manifest: Manifest) -> list[_Due]:
        due = []
        for output, parts in sorted(manifest.outputs.items()):
            sink = self._sinks.get(output)
            if sink is not None:
                due.append(_Due(output, sink, parts))
                continue
            rows = sum(part.rows for part in parts)
            log.warning(
                "epoch %s has %s rows for output %s, which the program no longer has; they are released nowhere",
                manifest.epoch, rows, output,
            )  # fmt: skip
        return due

    def _release_together(self, manifest: Manifest, outside: list[_Due], inside: list[_Due]) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(len(self._sinks), thread_name_prefix="headrace-release")
        failed = _Failed()
        running = [self._pool.submit(self._release, manifest, each, failed) for each in outside]
        try:
            for each in inside:
                self._release(manifest, each, failed)
        finally:
            # Also after a failure: nobody may still write when the run ends or goes on.
            wait(running)
        if failed.first is not None:
            raise failed.first

    def _release(self, manifest: Manifest, due: _Due, failed: _Failed | None) -> None:
        """One sink, on whatever thread; where it fails, nobody waits for the others any more."""
        context = ReleaseContext(self._store, manifest, due.output, self._job, self._session)
        started = perf_counter_ns()
        try:
            self._patience.insist(
                lambda: due.sink.release(due.parts, context),
                due.sink,
                due.output,
                manifest.epoch,
                None if failed is None else failed.event,
            )
        except BaseException as error:
            told = _told(error, due, manifest.epoch)
            if failed is not None:
                failed.note(told)
            if told is error:
                raise
            raise told from error
        finally:
            self.took_us[due.output] = (perf_counter_ns() - started) // 1000


def _one_at_a_time(open_session: Callable[[], Any]) -> Callable[[], Any]:
    """Before the first epoch there is no session, and two sinks may ask for one at the same moment."""
    lock = Lock()

    def opened() -> Any:
        with lock:
            return open_session()

    return opened


class _Failed:
    """The first failure among sinks that are released at the same time: others may only be its consequence."""

    def __init__(self) -> None:
        self.event = Event()
        self.first: BaseException | None = None

    def note(self, error: BaseException) -> None:
        if self.first is None:
            self.first = error
        self.event.set()


def _told(error: BaseException, due: _Due, epoch: int) -> BaseException:
    """A failure in words for the user; what is in such words already stays as it is."""
    if isinstance(error, HeadraceError) or not isinstance(error, Exception):
        return error
    return SinkFailed(
        f"the sink {due.sink.describe()} failed",
        where=f"output {due.output}, epoch {epoch}",
        found=f"{type(error).__name__}: {error}",
        next_move="mend it and start again: the rows stay staged in the store and are released first",
    )


class _Notes:
    """Writes the note of the newest released epoch beside the work: no epoch waits for more than the note before."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="headrace-released")
        self._pending: Future[None] | None = None

    def write(self, note: ReleasedNote) -> None:
        self.settle()
        self._pending = self._pool.submit(self._store.write, layout.RELEASED, msgspec.json.encode(note))

    def settle(self) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        except (HeadraceError, OSError) as error:
            log.warning("could not note what is released, so it may be released again: %s", error)
