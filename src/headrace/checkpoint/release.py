"""Releasing: a published epoch's staged rows go to the sinks, in order, as often as it takes.

That an epoch is released is known from Spark's commits, which lie in a local store. A remote store has none, so there a
note says it, written beside the next epoch; where the note is late, an epoch is released once more, as after a crash.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from headrace.checkpoint.facts import ReleasedNote
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

    def __init__(self, store: Store, manifest: Manifest, output: str, session: Callable[[], Any] | None) -> None:
        self.timeline = str(manifest.timeline)
        self.epoch = manifest.epoch
        self.output = output
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


class Releaser:
    """Feeds the sinks of one run."""

    def __init__(self, store: Store, sinks: Mapping[str, Sink], session: Callable[[], Any] | None = None) -> None:
        self._store = store
        self._sinks = sinks
        self._session = session
        self._notes = None if store.local_path(layout.RELEASED) is not None else _Notes(store)

    def close(self) -> None:
        """What was released is noted for good when this returns."""
        if self._notes is not None:
            self._notes.settle()

    def release(self, manifest: Manifest) -> None:
        """Lets the rows of a published epoch out. Repeating it is harmless."""
        for number, (output, parts) in enumerate(sorted(manifest.outputs.items())):
            if number:
                crash.reach("between_sinks", manifest.epoch)
            sink = self._sinks.get(output)
            if sink is None:
                rows = sum(part.rows for part in parts)
                log.warning(
                    "epoch %s has %s rows for output %s, which the program no longer has; they are released nowhere",
                    manifest.epoch, rows, output,
                )  # fmt: skip
                continue
            context = ReleaseContext(self._store, manifest, output, self._session)
            try:
                sink.release(parts, context)
            except HeadraceError:
                raise
            except Exception as error:
                raise SinkFailed(
                    f"the sink {sink.describe()} failed",
                    where=f"output {output}, epoch {manifest.epoch}",
                    found=f"{type(error).__name__}: {error}",
                    next_move="mend it and start again: the rows stay staged in the store and are released first",
                ) from error
        if self._notes is not None:
            self._notes.write(ReleasedNote(manifest.timeline, manifest.epoch))


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
