"""Bounded caches of a process and of a machine: open runs by name, and fetched files of a remote store.

Files of a store never change, so nothing here is ever invalidated for being old; losing a cache costs time, never data.

Invariants of the cache of files, which all processes of a user on a machine share:
- a file appears under its name whole and verified, or not at all;
- beyond the limit files go, those used longest ago first, but none that a living process has mapped: deleting that one
  would free no space. Each process may overshoot by a sixteenth of the limit before it looks;
- what killed processes left half-fetched goes after a day;
- the file that tells who uses what stays open while a cache or a mapped file needs it; it is closed when a cache of
  another folder is used for the first time, or the process ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Generic, TypeVar

import pyarrow as pa
import xxhash

from headrace.durable import move
from headrace.state.store import map_file

T = TypeVar("T")

PARTIAL_MAX_AGE_S: Final = 24 * 3600.0

_PARTIAL: Final = ".partial"
_MARKS: Final = ".in-use"
_OPEN_ATTEMPTS: Final = 5


class LruCache(Generic[T]):
    """The ``limit`` most recently used things, by name. Safe between threads; a load may happen twice in a race."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: OrderedDict[str, T] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._items)

    def get(self, name: str, load: Callable[[], T]) -> T:
        with self._lock:
            if name in self._items:
                self._items.move_to_end(name)
                return self._items[name]
        # Loading happens outside the lock: fetching one file must not hold up the readers of others.
        item = load()
        with self._lock:
            self._items[name] = item
            self._items.move_to_end(name)
            while len(self._items) > self._limit:
                self._items.popitem(last=False)
        return item

    def drop(self, name: str) -> None:
        with self._lock:
            self._items.pop(name, None)

    def clear(self) -> None:
        with self._lock:
            self._items.clear()


class FileCache:
    """Fetched files in a folder of this machine, by name.

    A file is written under a temporary name and renamed; two processes may fetch the same one at once, and the later
    rename wins with equal content. A buffer stays valid whatever happens to its file.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._unseen_bytes = limit_bytes
        """Put here since the last look at the whole folder; at first nobody has looked."""
        self._marks: _Marks | None = None

    def path(self, name: str) -> Path:
        return self.folder / name

    def open(self, name: str, fetch: Callable[[Path], None]) -> pa.Buffer:
        """The content, mapped; ``fetch`` writes a local copy when there is none. In use while the buffer lives."""
        path = self.path(name)
        marks = self._held_marks()
        for _ in range(_OPEN_ATTEMPTS):
            held = marks.hold(name)
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.utime(path)
                    buffer = map_file(path)
                    if held:
                        weakref.finalize(buffer, marks.let_go, name).atexit = False
                        held = False
                    return buffer
                self._fetch(name, fetch)
            finally:
                if held:
                    marks.let_go(name)
        # Somebody deletes the file as fast as it is fetched: then it is read without a place in the cache.
        return self._open_unkept(name, fetch)

    def put(self, name: str, make: Callable[[Path], None]) -> None:
        """Keeps a file that ``make`` writes, once."""
        path = self.path(name)
        with self._temporary(path) as temporary:
            make(temporary)
            move(temporary, path)
        with contextlib.suppress(FileNotFoundError), self._lock:
            self._unseen_bytes += path.stat().st_size
        if self._unseen_bytes > self._limit_bytes // 16:
            self._evict(self._limit_bytes, keep=path)

    def drop(self, name: str) -> None:
        self.path(name).unlink(missing_ok=True)

    def _fetch(self, name: str, fetch: Callable[[Path], None]) -> None:
        """Where the disk is full, once more after everything that is not in use has gone."""
        try:
            self.put(name, fetch)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._evict(0):
                raise
            self.put(name, fetch)

    def _open_unkept(self, name: str, fetch: Callable[[Path], None]) -> pa.Buffer:
        with self._temporary(self.path(name)) as temporary:
            fetch(temporary)
            return map_file(temporary)

    @contextlib.contextmanager
    def _temporary(self, path: Path) -> Iterator[Path]:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.urandom(6).hex()}{_PARTIAL}")
        try:
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    def _evict(self, limit_bytes: int, keep: Path | None = None) -> int:
        """Deletes unused files, oldest first, until the rest fits; answers how many went."""
        with self._lock:
            self._unseen_bytes = 0
            marks = self._held_marks()
            files = sorted(self._files(), key=lambda file: file[0])
            total = sum(size for _, size, _ in files)
            gone = 0
            for _, size, path in files:
                if total <= limit_bytes:
                    break
                if path == keep:
                    continue
                with marks.unused(path.relative_to(self.folder).as_posix()) as unused:
                    if unused:
                        path.unlink(missing_ok=True)
                        total -= size
                        gone += 1
            return gone

    def _held_marks(self) -> _Marks:
        marks = self._marks
        # Locks do not pass to a process that was forked; it takes its own.
        if marks is None or marks.pid != os.getpid():
            marks = self._marks = _marks_of(self)
        return marks

    def _files(self) -> Iterator[tuple[int, int, Path]]:
        """When last used, size and path of every file; half-fetched ones go if they are old."""
        for path in self.folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if path.name.endswith(_PARTIAL):
                    if time.time() - status.st_mtime > PARTIAL_MAX_AGE_S:
                        path.unlink(missing_ok=True)
                elif path.is_file() and path.name != _MARKS:
                    yield status.st_mtime_ns, status.st_size, path


class _Marks:
    """Which files of a folder are in use, by this process and by others.

    One file per folder, in which a name has one byte. A process locks the bytes of what it uses; the system lets go of
    them when it dies. These locks do not tell a process of its own, so it keeps count besides.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.pid = os.getpid()
        self.caches: weakref.WeakSet[FileCache] = weakref.WeakSet()
        """Who may mark files here; buffers that are mapped outlive them."""
        # A bare descriptor: at the end of the process the system closes it, behind every thread that still uses it.
        self._file = os.open(folder / _MARKS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._let_go: deque[str] = deque()

    def hold(self, name: str) -> bool:
        """Marks a file; False when it is just being evicted."""
        with self._lock:
            self._settle()
            if not self._counts.get(name) and not self._try(fcntl.LOCK_SH, name):
                return False
            self._counts[name] = self._counts.get(name, 0) + 1
            return True

    def let_go(self, name: str) -> None:
        """May be called at any moment, also by the garbage collector inside of any method here: so it takes no lock."""
        self._let_go.append(name)

    @contextlib.contextmanager
    def unused(self, name: str) -> Iterator[bool]:
        """Whether nobody uses a file; while the block runs, nobody begins to."""
        with self._lock:
            self._settle()
            free = not self._counts.get(name) and self._try(fcntl.LOCK_EX, name)
            try:
                yield free
            finally:
                if free:
                    self._unlock(name)

    @property
    def needed(self) -> bool:
        """Whether a cache is there to mark files, or a buffer for which one is marked."""
        with self._lock:
            self._settle()
            return bool(self._counts) or len(self.caches) > 0

    def close(self) -> None:
        """Lets go of all that this process has marked."""
        os.close(self._file)

    def _settle(self) -> None:
        while self._let_go:
            name = self._let_go.popleft()
            self._counts[name] -= 1
            if not self._counts[name]:
                del self._counts[name]
                self._unlock(name)

    def _try(self, kind: int, name: str) -> bool:
        try:
            fcntl.lockf(self._file, kind | fcntl.LOCK_NB, 1, _byte_of(name))
        except OSError:
            return False
        return True

    def _unlock(self, name: str) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _byte_of(name))


def _byte_of(name: str) -> int:
    return xxhash.xxh64_intdigest(name.encode()) >> 2


_known_marks: dict[tuple[int, Path], _Marks] = {}
_known_marks_lock = threading.Lock()


def _marks_of(cache: FileCache) -> _Marks:
    """One object per folder and process: closing any handle of the file would let go of all its locks.

    Those that nobody needs any more are closed here, under the lock, and not when they are collected: a new object for
    the same folder could hold locks by then.
    """
    key = (os.getpid(), cache.folder.absolute())
    with _known_marks_lock:
        for known, marks in list(_known_marks.items()):
            # Those of the process that this one was forked from are not ours to close.
            if known != key and marks.pid == key[0] and not marks.needed:
                del _known_marks[known]
                marks.close()
        marks = _known_marks.get(key) or _known_marks.setdefault(key, _Marks(cache.folder))
        marks.caches.add(cache)
        return marks
