"""Bounded caches of a process and of a machine: open runs by name, and fetched files of a remote store.

Files of a store never change, so nothing here is ever invalidated for being old; losing a cache costs time, never data.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_PARTIAL: Final = ".partial"


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
    """Fetched files in a folder of this machine, shared by its processes; the least recently used go first.

    A file is written under a temporary name and renamed, so a reader sees it whole; two processes may fetch the same
    file at once, and the later rename wins with equal content. A deleted file stays readable where it is mapped.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()

    def path(self, name: str) -> Path:
        return self.folder / name

    def get(self, name: str, fetch: Callable[[Path], None]) -> Path:
        """The local copy, written by ``fetch`` when there is none. It may be evicted at any later time: map it now."""
        path = self.path(name)
        try:
            os.utime(path)
            return path
        except FileNotFoundError:
            pass
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.urandom(6).hex()}{_PARTIAL}")
        try:
            fetch(temporary)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        self._evict(keep=path)
        return path

    def drop(self, name: str) -> None:
        self.path(name).unlink(missing_ok=True)

    def _evict(self, keep: Path) -> None:
        with self._lock:
            files = []
            for path in self.folder.rglob("*"):
                with contextlib.suppress(FileNotFoundError):
                    status = path.stat()
                    if path.is_file() and not path.name.endswith(_PARTIAL):
                        files.append((status.st_mtime_ns, status.st_size, path))
            total = sum(size for _, size, _ in files)
            for _, size, path in sorted(files, key=lambda file: file[0]):
                if total <= self._limit_bytes:
                    break
                if path != keep:
                    path.unlink(missing_ok=True)
                    total -= size
