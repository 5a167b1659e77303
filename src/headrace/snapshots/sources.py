"""Where a session gets snapshots from: a store that somebody opened, or whatever a server follows."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from headrace.read.snapshot import Snapshot
from headrace.read.store import Store, files_of, reading

if TYPE_CHECKING:
    from headrace.state.manifest import JobState
    from headrace.state.moments import Moment


class SnapshotSource(Protocol):
    """Gives published epochs. Called on the thread that runs a statement; may read files."""

    def ready(self) -> bool:
        """Whether the newest epoch is there at once, without reading files."""
        ...

    def newest(self) -> Snapshot:
        """The newest epoch. NoSuchMoment where there is none yet."""
        ...

    def at(self, moment: Moment) -> Snapshot:
        """A past one. NoSuchMoment where the store does not hold it."""
        ...


class StoreSnapshots:
    """The epochs of a store. Of one that is pinned to a moment, the newest is that."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._before: Snapshot | None = None
        self._lock = threading.Lock()

    def ready(self) -> bool:
        return False

    def newest(self) -> Snapshot:
        return self._open(self._store)

    def at(self, moment: Moment) -> Snapshot:
        return self._open(self._store.at(moment))

    def _open(self, store: Store) -> Snapshot:
        with self._lock:
            before = self._before

        def read(state: JobState) -> Snapshot:
            if before is not None and (before.timeline, before.epoch) == (state.manifest.timeline, state.epoch):
                return before
            return Snapshot(files_of(store), store.app, state, before)

        found = reading(store, read)
        with self._lock:
            self._before = found
        return found
