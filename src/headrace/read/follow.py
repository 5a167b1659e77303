"""Following a job from outside: the newest published epoch, opened for reading, again and again.

A `Follower` looks for the next manifest by name, which costs one question to the file system, and gives a `Snapshot` of
each epoch it meets. Nothing here writes, and nothing needs the job to run: while it restarts, recovers or rescales, the
last snapshot simply grows older. A replica is the same over a store whose files have to be fetched: a snapshot of an
epoch is there when all its files are. It remembers the newest one, and begins with it where the store is not there.

Invariants
- `Follower.snapshot` is replaced whole, and only by one that could be opened to the last file.
- Epochs only grow within a timeline; a new timeline (``--fresh``, a rewind) replaces what was there, and so does
  another store in the same place: one that was removed and made anew, or restored from an older copy.
- After a rewind the old end stays, until the new timeline has an epoch: what was answered from is never followed by
  something older of the same timeline. Who only begins to follow then, begins with the epoch that was gone back to.

A replica remembers that epoch in one file of its own folder, in which the fetched files lie already. What is read back
was written whole, of the same store; anything else is as if nothing had been remembered. Nothing depends on it: a
replica whose store can be reached never looks at it, and a failure to write is no trouble.
"""

from __future__ import annotations

import logging
import os
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from headrace.durable import write_whole
from headrace.errors import HeadraceError, MissingFile, StoreError
from headrace.read.snapshot import Snapshot
from headrace.read.store import Store, StoreFacts, bare_id, files_of, store_over
from headrace.state import layout
from headrace.state.lineage import read_places
from headrace.state.manifest import JobState, read_manifest, read_state
from headrace.state.moments import parse_address
from headrace.state.record import no_store
from headrace.state.store import LocalStore

if TYPE_CHECKING:
    from headrace.state.store import StoreFiles as Files


log = logging.getLogger("headrace.serving")

_NAME: Final = "newest-epoch"
_CRC_BYTES: Final = 4


class RememberedEpoch(msgspec.Struct, frozen=True):
    """An epoch of a store, as its manifests told it."""

    url: str
    app: str
    store_id: str
    state: JobState


class Memory:
    """The one file of a folder in which a replica of one store remembers."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self._path = folder / _NAME

    def read(self) -> RememberedEpoch | None:
        """What was remembered last; None where there is nothing that can be used."""
        try:
            data = self._path.read_bytes()
            crc, packed = int.from_bytes(data[:_CRC_BYTES]), data[_CRC_BYTES:]
            found = msgspec.msgpack.decode(packed, type=RememberedEpoch) if zlib.crc32(packed) == crc else None
        except (OSError, msgspec.DecodeError):
            return None
        return found if found is not None and found.url == self.url else None

    def write(self, app: str, store_id: str, state: JobState) -> None:
        """Remembers an epoch instead of the one before. Several processes may do so at once: each file is whole."""
        packed = msgspec.msgpack.encode(RememberedEpoch(self.url, app, store_id, state))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Not durable: after a crash of the machine an older epoch, or none, costs a start its store at most.
            pieces = [zlib.crc32(packed).to_bytes(_CRC_BYTES), packed]
            write_whole(self._path, pieces, durable=False, unique=True)
        except OSError as error:
            log.warning("the newest epoch is not remembered for a start without the store: %s", error)


__all__ = ["Follower", "Replica", "Snapshot", "open_replica"]

ATTEMPTS: Final = 8
"""How often opening begins again when a sweep was faster."""
RECORD_EVERY_S: Final = 1.0
"""How often to look whether the store was started over or made anew; asking by name costs far less."""
REMEMBER_EVERY_S: Final = 1.0
"""How often a replica notes what it answers from; where it is ended properly it does so once more."""
NEVER: Final = float("-inf")
_FETCHERS: Final = 8

OnNew = Callable[[Snapshot | None, Snapshot], None]
"""Called with the snapshot before and a new one, before it takes that one's place. Where it raises, it does not."""


class _JobOpened(NamedTuple):
    """A state and what it is of."""

    state: JobState
    app: str
    store_id: str
    timeline: int
    """The present one, when it was opened: right behind a rewind the state is still of the one before."""
    anew: bool = False
    """Whether it does not continue what was known before in this place."""


class Replica(Store):
    """A store of which the newest epoch is remembered on this machine, beside its fetched files."""

    memory: Memory


class Follower:
    """Keeps the newest snapshot of a store. `look` is called by whoever serves, as often as it likes, on one thread."""

    def __init__(
        self, store: Store, *, on_new: OnNew | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._files = files_of(store)
        self._on_new = on_new
        self._clock = clock
        self.snapshot: Snapshot | None = None
        """What to answer from; stays while a newer one cannot be opened."""
        self._known: _JobOpened | None = None
        """What it is of."""
        self._swept = False
        """Whether files of a newer epoch were gone: only the newest of all can be opened then."""
        self.newest_epoch = -1
        """The newest epoch seen published, whether its files are here yet or not."""
        self._record_seen = NEVER
        self._memory = store.memory if isinstance(store, Replica) else None
        self._remembered: _JobOpened | None = None
        """What was remembered last …"""
        self._remembered_s = NEVER
        """… and when."""
        self._recalled = False

    @property
    def lag_epochs(self) -> int:
        """How many epochs are published that cannot be answered from yet."""
        return 0 if self.snapshot is None else max(0, self.newest_epoch - self.snapshot.epoch)

    def look(self) -> Snapshot | None:
        """The newest snapshot, opened if there is a newer one than before; None while nothing is published.

        Where the store cannot be read that is raised each time; `snapshot` may be there all the same.
        """
        try:
            snapshot = self._look()
        except (HeadraceError, OSError):
            if self.snapshot is None:
                self._recall()
            raise
        if self._clock() - self._remembered_s >= REMEMBER_EVERY_S:
            self.remember()
        return snapshot

    def remember(self) -> None:
        """Notes the snapshot, where it is one of a replica, for a start without its store."""
        known = self._known
        if self._memory is None or known is None or known is self._remembered:
            return
        self._memory.write(known.app, known.store_id, known.state)
        self._remembered, self._remembered_s = known, self._clock()

    def _recall(self) -> None:
        """Begins with what was remembered, if all its files are still here. Tried once: files do not come back."""
        found = None if self._memory is None or self._recalled else self._memory.read()
        self._recalled = True
        if found is None:
            return
        known = _JobOpened(found.state, found.app, found.store_id, found.state.manifest.timeline)
        try:
            self.snapshot = self._open(known)
        except (HeadraceError, OSError) as error:
            log.warning("epoch %d, which was answered from before, is not wholly here: %s", known.state.epoch, error)
            return
        self._known = self._remembered = known
        self.newest_epoch = known.state.epoch

    def _look(self) -> Snapshot | None:
        missing: MissingFile | None = None
        for _ in range(ATTEMPTS):
            try:
                found = self._next()
                if found is None:
                    return self.snapshot
                snapshot = self._open(found)
            except MissingFile as error:
                # A sweep was faster than this reader: there is a newer epoch by now.
                self._swept, missing = True, error
                continue
            except Exception:
                # The next look has to find it again, however it was found.
                self._record_seen = NEVER
                raise
            self.snapshot, self._known, self._swept = snapshot, found, False
            return snapshot
        raise StoreError(
            "files are missing, or vanish faster than they can be opened",
            where=self._store.url,
            expected="every file of the newest epoch",
            found="" if missing is None else missing.what,
            next_move="where the job sweeps too fast, run it with a larger `retain`, or give the replica a faster way "
            "to the store; where files were lost, restore them from a copy of the store",
        )

    def _open(self, found: _JobOpened) -> Snapshot:
        self._fetch(found.state)
        name = bare_id(found.store_id)
        snapshot = Snapshot(self._files, found.app, found.state, self.snapshot, anew=found.anew, store_id=name)
        if self._on_new is not None:
            self._on_new(self.snapshot, snapshot)
        return snapshot

    def _next(self) -> _JobOpened | None:
        """The newest epoch if it is newer than the snapshot."""
        known = self._known
        if known is None or self._swept:
            return self._newest()
        state = known.state
        timeline, epoch = known.timeline, state.epoch + 1
        if not self._files.exists(layout.manifest(timeline, epoch)):
            self.newest_epoch = state.epoch
            if self._clock() - self._record_seen < RECORD_EVERY_S:
                return None
            return self._newest() if self._has_moved(known) else None
        try:
            while self._files.exists(layout.manifest(timeline, epoch)):
                manifest = read_manifest(self._files, timeline, epoch)
                if manifest.parent != state.manifest.nonce:
                    return self._newest(continues=False)
                state = state.followed_by(manifest)
                self.newest_epoch = epoch
                epoch += 1
        except MissingFile:
            # What is there and is no manifest is a seal: the job has gone back, and goes on in another timeline.
            sealed = self._files.exists(layout.manifest(timeline, epoch))
            if sealed and self._clock() - self._record_seen < RECORD_EVERY_S:
                return None
            return self._newest()
        return known._replace(state=state, anew=False)

    def _has_moved(self, known: _JobOpened) -> bool:
        """Whether what comes next cannot be found by the name of the next manifest."""
        record = self._read_record()
        manifest = known.state.manifest
        if (record.query, record.timeline) != (known.store_id, known.timeline):
            return True
        # The newest manifest is never swept: there are others by now, or another store is in this place.
        return not self._files.exists(layout.manifest(manifest.timeline, manifest.epoch))

    def _read_record(self) -> StoreFacts:
        record = self._store._record()
        self._record_seen = self._clock()
        return record

    def _newest(self, *, continues: bool = True) -> _JobOpened | None:
        """The newest epoch of all. ``continues``: whether it may be of the same line of epochs as what is known."""
        # Before anything else: should the store be made anew in between, the next look at its record tells.
        record = self._read_record()
        places = read_places(self._files)
        known = self._known
        if not places:
            return None
        if known is not None and record.query == known.store_id and places[-1].timeline < record.timeline:
            # A rewind has begun, and nothing was published since.
            return None
        self.newest_epoch = places[-1].epoch
        state = read_state(self._files, *places[-1])
        if known is None:
            return _JobOpened(state, record.app, record.query, record.timeline)
        before, manifest = known.state.manifest, state.manifest
        continues = continues and record.query == known.store_id
        place, known_place = (manifest.timeline, manifest.epoch), (before.timeline, before.epoch)
        if continues and place == known_place and manifest.nonce == before.nonce:
            self._swept = False
            return None
        anew = not (continues and place > known_place)
        return _JobOpened(state, record.app, record.query, record.timeline, anew=anew)

    def _fetch(self, state: JobState) -> None:
        """Fetches what a remote store has and this machine has not, several files at a time."""
        if isinstance(self._files, LocalStore):
            return
        known = {} if self._known is None else self._known.state.runs
        before = {ref.file for refs in known.values() for ref in refs}
        wanted = {ref.file: ref.crc for refs in state.runs.values() for ref in refs if ref.file not in before}
        wanted.pop("", None)
        if len(wanted) > 1:
            with ThreadPoolExecutor(_FETCHERS) as pool:
                list(pool.map(self._files.open_buffer, wanted, wanted.values()))


def open_replica(path: str | os.PathLike[str], cache_dir: str | os.PathLike[str]) -> Store:
    """A store whose files are fetched into a folder of one's own before they are read, wherever it lies.

    StoreError where there is none, and none was followed from that folder before.
    """
    from headrace.state.remote import RemoteStore

    # A replica follows the job, so of an address only the store counts; servers refuse a moment before.
    text = parse_address(os.fspath(path)).url
    if "://" in text and not text.startswith("file://"):
        files: Files = RemoteStore(text, cache_dir=Path(cache_dir))
    else:
        from fsspec.implementations.local import LocalFileSystem

        root = Path(text.removeprefix("file://")).absolute()
        files = RemoteStore(root.as_uri(), cache_dir=Path(cache_dir), fs=LocalFileSystem(), root=str(root))
    memory = Memory(Path(cache_dir), files.url)
    if memory.read() is None and not files.exists(layout.STORE_RECORD):
        raise no_store(text)
    made = store_over(files, Replica)
    made.memory = memory
    return made
