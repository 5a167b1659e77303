"""Releasing: a published epoch's staged rows go to the sinks, in order, as often as it takes.

The epochs of a sink follow each other; the sinks of an epoch do not wait for each other. A sink whose target cannot be
reached is tried again (`patience`). The next epoch begins when all sinks have this one: that is how a slow sink slows
the sources, and why no more than one epoch is ever staged and not released.

That an epoch is released is known from Spark's commits, which lie in a local store. A remote store has none, so there a
note says it, written beside the next epoch; where the note is late, an epoch is released once more, as after a crash. A
run that ends leaves the note in every store, because Spark may be stopped before its last commit.

What no sink of the program can let out is refused, and not dropped: the program of then meant it to go somewhere. Rows
whose file was damaged since they were staged are not let out either.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cached_property, partial
from pathlib import Path
from threading import Event, Lock
from time import perf_counter_ns
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from headrace.checkpoint.facts import ReleasedNote
from headrace.checkpoint.patience import Patience
from headrace.connectors.sink_contract import Sink
from headrace.errors import EnvironmentMissing, HeadraceError, Refused, SinkFailed
from headrace.model import crash
from headrace.model.report import COUNTED, TAP, StagedPart
from headrace.state import layout
from headrace.state.manifest import Manifest
from headrace.state.record import read_record
from headrace.state.staged_parts import open_part
from headrace.state.store import StoreFiles

log = logging.getLogger("headrace.release")


class ReleaseContext:
    """What a sink is given to let one epoch of one output out (a `Release`)."""

    def __init__(
        self, store: StoreFiles, manifest: Manifest, output: str, job: str, session: Callable[[], Any] | None
    ) -> None:
        self.timeline = str(manifest.timeline)
        self.epoch = manifest.epoch
        self.output = output
        self.job = job
        self._store = store
        self._session = session
        self._unchecked = [part for part in manifest.outputs.get(output, ()) if part.file]
        """Files that nobody has compared with what was staged; a release that is tried again does not ask again."""

    def read(self, part: StagedPart) -> pa.Buffer:
        self._check()
        return self._store.open_buffer(part.file, part.crc) if part.file else pa.py_buffer(part.inline)

    def local_path(self, part: StagedPart) -> Path | None:
        if not part.file:
            return None
        # Whoever takes the file as it is does not look at its bytes.
        self._check()
        return self._store.local_path(part.file)

    def _check(self) -> None:
        """Looks at all files before the first is let out: what a sink has taken already cannot be called back."""
        while self._unchecked:
            # A remote store compares each file when it fetches it.
            if self._store.local_path(self._unchecked[-1].file) is not None:
                open_part(self._store, self._unchecked[-1], otherwise=self._otherwise)
            self._unchecked.pop()

    @property
    def _otherwise(self) -> str:
        return (
            "; the rows are released then. Without one, leave out what this epoch has for the output: "
            f'write(hr.sink.discard(), name="{self.output}") for one start'
        )

    def spark(self) -> Any:
        return open_session(self._session, f"output {self.output}")


def open_session(session: Callable[[], Any] | None, where: str) -> Any:
    """The driver's session. Raises EnvironmentMissing where there is none (the test kit)."""
    if session is None:
        raise EnvironmentMissing(
            "this sink needs a Spark session",
            where=where,
            next_move="run the program with app.run(), or give the harness a session",
        )
    return session()


class _DueOutput(NamedTuple):
    """What one sink has to let out."""

    output: str
    sink: Sink
    parts: list[StagedPart]


class Releaser:
    """Feeds the sinks of one run."""

    def __init__(
        self,
        store: StoreFiles,
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
        self._notes = _ReleaseNotes(store)
        self._pool: ThreadPoolExecutor | None = None

    def start(self) -> None:
        """Starts every sink, before the first epoch."""
        for output, sink in sorted(self._sinks.items()):
            self._patience.insist(sink.start, sink, output)

    def close(self) -> None:
        """What was released is noted for good when this returns."""
        self._notes.settle()
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def insist(self, output: str, call: Callable[[Sink], None]) -> None:
        """Makes a call to one sink, with as much patience as a release has."""
        due = _DueOutput(output, self._sinks[output], [])
        try:
            self._patience.insist(lambda: call(due.sink), due.sink, output)
        except BaseException as error:
            told = sink_failure(error, due, None)
            if told is error:
                raise
            raise told from error

    def session(self) -> Any:
        """The driver's session. Raises EnvironmentMissing where there is none (the test kit)."""
        return open_session(self._session, "")

    def release(self, manifest: Manifest, *, only: Container[str] | None = None) -> None:
        """Lets the rows of a published epoch out. Repeating it is harmless. ``only``: to these outputs.

        Sinks do not wait for each other: each that writes to somewhere else has a thread of its own where there are
        several. All of them have ended when this returns or raises.
        """
        due = self._due(manifest, only)
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
        self._notes.add(ReleasedNote(manifest.timeline, manifest.epoch))

    @cached_property
    def job(self) -> str:
        """Id of the job's store: the one that Spark's query has in it, for the life of the store."""
        record = read_record(self._store)
        assert record is not None, "a store has an id once it is recovered, and rows go out after that"
        return record.store_id

    def _due(self, manifest: Manifest, only: Container[str] | None) -> list[_DueOutput]:
        """What goes to which sink. Refuses rows that no sink of this program can let out as they were meant.

        That is so only where another program staged them: the newest epoch of the run before was not released.
        """
        due, strangers = [], []
        for output, parts in sorted(manifest.outputs.items()):
            sink = self._sinks.get(output)
            if only is not None and output not in only:
                continue
            if sink is not None and all(sink.takes(part) for part in parts):
                due.append(_DueOutput(output, sink, parts))
            elif output.startswith(TAP) or all(part.format == COUNTED for part in parts):
                continue
            elif sink is None:
                strangers.append(output)
            else:
                raise _misfit(manifest, _DueOutput(output, sink, parts), self._store.url)
        if strangers:
            known = sorted(name for name in self._sinks if not name.startswith(TAP))
            raise _homeless(manifest, strangers, known, self._store.url)
        return due

    def _release_together(self, manifest: Manifest, outside: list[_DueOutput], inside: list[_DueOutput]) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(len(self._sinks), thread_name_prefix="headrace-release")
        failed = _FailedRelease()
        running = [self._pool.submit(self._release, manifest, each, failed) for each in outside]
        try:
            for each in inside:
                self._release(manifest, each, failed)
        finally:
            # Also after a failure: nobody may still write when the run ends or goes on.
            wait(running)
        if failed.first is not None:
            raise failed.first

    def _release(self, manifest: Manifest, due: _DueOutput, failed: _FailedRelease | None) -> None:
        """One sink, on whatever thread; where it fails, nobody waits for the others any more."""
        context = ReleaseContext(self._store, manifest, due.output, self.job, self._session)
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
            told = sink_failure(error, due, manifest.epoch)
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


class _FailedRelease:
    """The first failure among sinks that are released at the same time: others may only be its consequence."""

    def __init__(self) -> None:
        self.event = Event()
        self.first: BaseException | None = None

    def note(self, error: BaseException) -> None:
        if self.first is None:
            self.first = error
        self.event.set()


def sink_failure(error: BaseException, due: _DueOutput, epoch: int | None) -> BaseException:
    """A failure in words for the user; what is in such words already stays as it is."""
    if isinstance(error, HeadraceError) or not isinstance(error, Exception):
        return error
    return SinkFailed(
        f"the sink {due.sink.describe()} failed",
        where=f"output {due.output}" + (f", epoch {epoch}" * (epoch is not None)),
        found=f"{type(error).__name__}: {error}",
        next_move="mend it and start again: the job goes on with going back"
        if epoch is None
        else "mend it and start again: the rows stay staged in the store and are released first",
    )


def _homeless(manifest: Manifest, outputs: list[str], known: list[str], where: str) -> Refused:
    """Rows of a published epoch whose output is gone, or has another name now."""
    names = " and ".join(f"{_count(manifest.outputs[output])} for the output {output}" for output in outputs)
    first = outputs[0]
    return Refused(
        f"epoch {manifest.epoch} is published but not released, with {names}, which this program does not have",
        where=where,
        expected=f"an output named {first}: an output nobody named is called after its step and its target",
        found=f"the outputs {', '.join(known)}" if known else "no outputs",
        next_move=f'let the rows go to where they are wanted, under the name of then: write(…, name="{first}"); or '
        f'drop them: write(hr.sink.discard(), name="{first}"), from any stream',
    )


def _misfit(manifest: Manifest, due: _DueOutput, where: str) -> Refused:
    """Rows of a published epoch that wait in the form of another kind of sink."""
    output, sink, parts = due
    form = ", ".join(sorted({part.format for part in parts}))
    return Refused(
        f"epoch {manifest.epoch} is published but not released, with {_count(parts)} for the output {output}, staged "
        "for another kind of sink",
        where=where,
        expected=f"what {sink.describe()} can read",
        found=f"rows as {form}",
        next_move="give this sink another name, and let the rows go to the sink of then: write(…, "
        f'name="{output}"); or drop them: write(hr.sink.discard(), name="{output}"), from any stream',
    )


def _count(parts: list[StagedPart]) -> str:
    rows = sum(part.rows for part in parts)
    return f"{rows:,} row{'' if rows == 1 else 's'}"


class _ReleaseNotes:
    """Writes the note of the newest released epoch beside the work: no epoch waits for more than the note before.

    In a local store Spark's commits say the same, so there it is written once, when the run ends.
    """

    def __init__(self, store: StoreFiles) -> None:
        self._store = store
        self._pool: ThreadPoolExecutor | None = None
        if store.local_path(layout.RELEASED) is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="headrace-released")
        self._pending: Callable[[], None] | None = None
        """What is left to do until the newest note is written."""

    def add(self, note: ReleasedNote) -> None:
        if self._pool is None:
            self._pending = partial(self._write, note)
            return
        self.settle()
        self._pending = self._pool.submit(self._write, note).result

    def _write(self, note: ReleasedNote) -> None:
        self._store.write(layout.RELEASED, msgspec.json.encode(note))

    def settle(self) -> None:
        """The newest note is written when this returns."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending()
        except (HeadraceError, OSError) as error:
            log.warning("could not note what is released, so it may be released again: %s", error)
