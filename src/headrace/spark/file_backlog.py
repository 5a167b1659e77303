"""What of a folder is still to be read, in files and bytes.

The folder is listed when the run begins, by the file system that Spark reads it with (`headrace.spark.listing`), on a
thread of its own: however long that takes, no epoch waits for it, and meanwhile it is told how many files were found.
Of each file a hash and its size are kept, sixteen bytes. What comes in later is counted when all that was known is
read: then the folder is listed again, unless the run ends there anyhow, and with pauses that keep listing cheap beside
what Spark itself lists for every epoch.

A help for people: a folder that cannot be listed, or has more files than `MOST_FILES`, is not told of.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from time import monotonic
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import HeadraceError
from headrace.model.behind import Behind, Pursuit
from headrace.spark.listing import InputFolder, ListedFile
from headrace.state import layout
from headrace.state.store import StoreFiles

log = logging.getLogger("headrace.behind")

Files = npt.NDArray[np.int64]
"""Hashes of their names."""
Lister = Callable[[InputFolder], Iterable[list[ListedFile]]]

MOST_FILES: Final = 10_000_000
_PAUSE_S: Final = 60.0
_PAUSE_TIMES: Final = 20
"""A folder is listed again after a minute, or after twenty times as long as its listing took."""
_TRIES: Final = 3


class _Entry(msgspec.Struct, rename={"batch": "batchId"}):
    path: str
    batch: int


class FileBacklog:
    """Follows the file sources of one run."""

    def __init__(
        self,
        folders: Mapping[str, InputFolder],
        lister: Lister,
        store: StoreFiles,
        *,
        again: bool,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """``folders``: by the name of the source in Spark's log. ``again``: the run goes on with new files."""
        self._sources = {name: _ListedSource(folder, clock) for name, folder in folders.items()}
        self._lister = lister
        self._store = store
        self._again = again
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins to list. Called once, before the first epoch."""
        self._list_on_a_thread(list(self._sources))

    def close(self) -> None:
        """Listing ends with the page at hand."""
        self._closed.set()

    def counting(self) -> dict[str, int]:
        """Source → files found so far, of those that are being listed for the first time."""
        sources = dict(self._sources)
        return {name: source.found for name, source in sources.items() if source.known is None}

    def read(self, entries: Mapping[str, bytes]) -> dict[str, Behind]:
        """Source → what is left. ``entries``: what Spark's logs tell of the epoch at hand, by their paths."""
        for path, entry in entries.items():
            name, _, number = path.partition("/")
            source = self._sources.get(name)
            if source is not None:
                try:
                    source.take(_paths(entry, number))
                except (ValueError, msgspec.DecodeError) as error:
                    self._drop(name, error)
        due = [name for name, source in self._sources.items() if source.wants_listing()] if self._again else []
        if due and (self._thread is None or not self._thread.is_alive()):
            self._list_on_a_thread(due)
        return {name: source.tell() for name, source in list(self._sources.items())}

    def _drop(self, name: str, error: object) -> None:
        log.debug("how many files of %s are left is not told: %s", name, error)
        # A new mapping, because two threads look at it.
        self._sources = {other: source for other, source in self._sources.items() if other != name}

    def _list_on_a_thread(self, names: list[str]) -> None:
        if names:
            self._thread = threading.Thread(target=self._list_all, args=(names,), name="headrace-listing", daemon=True)
            self._thread.start()

    def _list_all(self, names: list[str]) -> None:
        for name in names:
            source = self._sources.get(name)
            if source is None:
                continue
            try:
                source.look(self._lister, partial(self._read_before, name), self._closed)
            except Exception as error:  # Java's, too: whoever reads the folder will say what is wrong with it
                self._drop(name, error)
            if self._closed.is_set():
                return

    def _read_before(self, name: str) -> Files:
        """The files of all published epochs, as the store knows them."""
        for left in reversed(range(_TRIES)):
            try:
                paths = [path for path in self._store.list(layout.INPUTS) if _source_of(path) == name]
                files = (hash(file) for path in paths for file in _paths(self._store.read(path)))
                return np.fromiter(files, dtype=np.int64)
            except (HeadraceError, OSError):
                # An entry that a compacted one has taken in may be swept away between the two.
                if not left:
                    raise
        return np.empty(0, np.int64)


class _ListedFiles:
    """The files of a folder, as they were when it was listed."""

    def __init__(self, hashes: Files, sizes: npt.NDArray[np.int64]) -> None:
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._sizes = hashes[order], sizes[order]
        self._unread = np.ones(len(order), dtype=bool)
        self.left = len(order)
        self.left_bytes = int(sizes.sum())

    def take(self, files: Files) -> tuple[int, int]:
        """Notes that these were read; how many of them were left, and their bytes."""
        wanted = np.unique(files)
        places = np.searchsorted(self._hashes, wanted)
        places, wanted = places[places < len(self._hashes)], wanted[places < len(self._hashes)]
        places = places[self._hashes[places] == wanted]
        places = places[self._unread[places]]
        self._unread[places] = False
        count, size = len(places), int(self._sizes[places].sum())
        self.left -= count
        self.left_bytes -= size
        return count, size


class _ListedSource:
    """One folder. `look` runs on the listing thread; everything else on that of the epochs."""

    def __init__(self, folder: InputFolder, clock: Callable[[], float]) -> None:
        self.known: _ListedFiles | None = None
        self.found = 0
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._pursuit = Pursuit()
        self._listing = True
        self._early: list[Files] = []
        """Files that were read while the folder was being listed."""
        self._newest = np.empty(0, np.int64)
        """Those of the newest epoch that read any: it may not be published yet, and then the store does not tell."""
        self._read = self._read_bytes = 0
        self._not_before = self._last_read = 0.0

    def look(self, lister: Lister, read_before: Callable[[], Files], closed: threading.Event) -> None:
        began, found = self._clock(), 0
        hashes: list[Files] = [np.empty(0, np.int64)]
        sizes: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
        with self._lock:
            self._listing = True
        for page in lister(self._folder):
            hashes.append(np.array([hash(file.path) for file in page], dtype=np.int64))
            sizes.append(np.array([file.size_bytes for file in page], dtype=np.int64))
            self.found = found = found + len(page)
            if closed.is_set():
                return
            if found > MOST_FILES:
                raise ValueError(f"{self._folder.path} has more than {MOST_FILES:,} files")
        known = _ListedFiles(np.concatenate(hashes), np.concatenate(sizes))
        # What this run has read meanwhile first: the store knows of it, too, but not that it was this run.
        self._take_early(known)
        known.take(read_before())
        with self._lock:
            self._take_early(known)
            self._early, self._listing = [], False
            self.known = known
        self._not_before = self._clock() + max(_PAUSE_S, _PAUSE_TIMES * (self._clock() - began))

    def _take_early(self, known: _ListedFiles) -> None:
        taken = known.take(np.concatenate([self._newest, *self._early]))
        if self.known is None:
            self._count(taken)

    def take(self, paths: list[str]) -> None:
        """Files that the epoch at hand has read."""
        files = np.array([hash(path) for path in paths], dtype=np.int64)
        with self._lock:
            self._newest, self._last_read = files, self._clock()
            if self._listing:
                self._early.append(files)
            if self.known is not None:
                self._count(self.known.take(files))

    def _count(self, taken: tuple[int, int]) -> None:
        self._read += taken[0]
        self._read_bytes += taken[1]

    def wants_listing(self) -> bool:
        """All that was known is read; or none of it for a while, so that somebody may have taken it away."""
        now = self._clock()
        if self.known is None or now < self._not_before:
            return False
        return not self.known.left or now - self._last_read >= _PAUSE_S

    def tell(self) -> Behind:
        with self._lock:
            known = self.known
            if known is None:
                return Behind(self.found, "files", counting=True)
            behind = self._pursuit.tell(
                self._read, known.left, "files", read_bytes=self._read_bytes, left_bytes=known.left_bytes
            )
            self._read = self._read_bytes = 0
            return behind


def _source_of(path: str) -> str:
    return path.removeprefix(f"{layout.INPUTS}/").partition("/")[0]


def _paths(entry: bytes, name: str = "") -> list[str]:
    """The files that an entry of Spark's log names, behind its line with the version.

    Of a compacted entry, which repeats all before it, only those of its own number where ``name`` tells it: they come
    last, and the others may be a million.
    """
    number = int(name.removesuffix(".compact")) if name.endswith(".compact") else None
    if number is None:
        return [_decode(line).path for line in entry.splitlines()[1:] if line.strip()]
    paths = []
    for line in _lines_from_the_end(entry):
        file = _decode(line)
        if file.batch != number:
            break
        paths.append(file.path)
    return paths


def _lines_from_the_end(entry: bytes) -> Iterator[bytes]:
    end = len(entry)
    while (start := entry.rfind(b"\n", 0, end)) >= 0:
        if line := entry[start + 1 : end].strip():
            yield line
        end = start


def _decode(line: bytes) -> _Entry:
    return msgspec.json.decode(line, type=_Entry)
