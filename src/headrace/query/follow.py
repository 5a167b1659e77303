"""Following a job from outside: the newest published epoch, opened for reading, again and again.

A `Follower` looks for the next manifest by name, which costs one question to the file system, and gives a `Snapshot` of
each epoch it meets. Nothing here writes, and nothing needs the job to run: while it restarts, recovers or rescales, the
last snapshot simply grows older. A replica is the same over a store whose files have to be fetched: a snapshot of an
epoch is there when all its files are.

Invariants
- `Follower.snapshot` is replaced whole, and only by one that could be opened to the last file.
- Epochs only grow within a timeline; a new timeline (``--fresh``, a rewind) replaces what was there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.errors import MissingFile, StoreError
from headrace.query.snapshot import Snapshot
from headrace.query.store import Store, no_store
from headrace.state import layout
from headrace.state.manifest import JobState, list_epochs, read_manifest, read_state
from headrace.state.store import LocalStore

if TYPE_CHECKING:
    from headrace.state.store import Store as Files

__all__ = ["Follower", "Snapshot", "open_replica"]

ATTEMPTS: Final = 8
"""How often opening begins again when a sweep was faster."""
TIMELINE_EVERY_S: Final = 1.0
"""How often to look whether the store was started over; asking by name costs far less."""
_FETCHERS: Final = 8


class Follower:
    """Keeps the newest snapshot of a store. `look` is called by whoever serves, as often as it likes, on one thread."""

    def __init__(
        self,
        store: Store,
        *,
        on_new: Callable[[Snapshot], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._files = store.files
        self._on_new = on_new
        self._clock = clock
        self.snapshot: Snapshot | None = None
        """What to answer from; stays while a newer one cannot be opened."""
        self._known: JobState | None = None
        self.newest_epoch = -1
        """The newest epoch seen published, whether its files are here yet or not."""
        self._timeline = -1
        self._timeline_seen = -TIMELINE_EVERY_S

    @property
    def lag_epochs(self) -> int:
        """How many epochs are published that cannot be answered from yet."""
        return 0 if self.snapshot is None else max(0, self.newest_epoch - self.snapshot.epoch)

    def look(self) -> Snapshot | None:
        """The newest snapshot, opened if there is a newer one than before; None while nothing is published."""
        for _ in range(ATTEMPTS):
            state = self._next_state()
            if state is None:
                return self.snapshot
            try:
                self._fetch(state)
                snapshot = Snapshot(self._files, self._store.app, state, self.snapshot)
            except MissingFile:
                # A sweep was faster than this reader: there is a newer epoch by now.
                self._known = None
                continue
            if self._on_new is not None:
                self._on_new(snapshot)
            self.snapshot, self._known = snapshot, state
            return snapshot
        raise StoreError(
            "files vanish faster than they can be opened",
            where=self._store.url,
            next_move="run the job with a larger `retain`, or give the replica a faster way to the store",
        )

    def _next_state(self) -> JobState | None:
        """The state of the newest epoch if it is newer than the snapshot."""
        known = self._known
        if known is None:
            return self._newest(self._look_at_timeline())
        epoch = known.epoch + 1
        timeline = known.manifest.timeline
        if not self._files.exists(layout.manifest(timeline, epoch)):
            self.newest_epoch = known.epoch
            if self._clock() - self._timeline_seen < TIMELINE_EVERY_S:
                return None
            return None if self._look_at_timeline() == timeline else self._newest(self._timeline)
        try:
            while self._files.exists(layout.manifest(timeline, epoch)):
                manifest = read_manifest(self._files, timeline, epoch)
                if manifest.parent != known.manifest.nonce:
                    return self._newest(timeline)
                known = known.followed_by(manifest)
                self.newest_epoch = epoch
                epoch += 1
        except MissingFile:
            return self._newest(self._look_at_timeline())
        return known

    def _look_at_timeline(self) -> int:
        self._timeline = self._store.timeline
        self._timeline_seen = self._clock()
        return self._timeline

    def _newest(self, timeline: int) -> JobState | None:
        epochs = list_epochs(self._files, timeline)
        if not epochs:
            return None
        self.newest_epoch = epochs[-1]
        try:
            return read_state(self._files, timeline, epochs[-1])
        except MissingFile:
            return None

    def _fetch(self, state: JobState) -> None:
        """Fetches what a remote store has and this machine has not, several files at a time."""
        if isinstance(self._files, LocalStore):
            return
        before = set() if self._known is None else {ref.file for refs in self._known.runs.values() for ref in refs}
        wanted = {ref.file: ref.crc for refs in state.runs.values() for ref in refs if ref.file not in before}
        wanted.pop("", None)
        if len(wanted) > 1:
            with ThreadPoolExecutor(_FETCHERS) as pool:
                list(pool.map(self._files.open_buffer, wanted, wanted.values()))


def open_replica(path: str | os.PathLike[str], cache_dir: str | os.PathLike[str]) -> Store:
    """A store whose files are fetched into a folder of one's own before they are read, wherever it lies."""
    from headrace.state.remote import RemoteStore

    text = os.fspath(path)
    if "://" in text and not text.startswith("file://"):
        files: Files = RemoteStore(text, cache_dir=Path(cache_dir))
    else:
        from fsspec.implementations.local import LocalFileSystem

        root = Path(text.removeprefix("file://")).absolute()
        files = RemoteStore(root.as_uri(), cache_dir=Path(cache_dir), fs=LocalFileSystem(), root=str(root))
    if not files.exists(layout.STORE_RECORD):
        raise no_store(text)
    return Store.over(files)
