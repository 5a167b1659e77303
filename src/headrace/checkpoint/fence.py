"""The fence: who may drive a store.

A fence is a number, taken by creating its file; the highest one drives. It is advice: what really excludes a second
driver is that a manifest is created only if absent. The lock (on a local disk one that the operating system drops
when its holder dies) is how a second driver learns, before it does anything, that the first is alive.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from headrace.errors import AlreadyExists, Fenced, StoreInUse
from headrace.state import layout
from headrace.state.store import Store

TAKEOVER_WAIT_S = 15.0


class FenceRecord(msgspec.Struct, frozen=True):
    fence: int
    host: str
    pid: int
    nonce: str


class Fence:
    """A taken fence; keeps the lock as long as the process lives."""

    def __init__(self, store: Store, number: int, lock: IO[str] | None) -> None:
        self.number = number
        self._store = store
        self._lock = lock

    def check(self) -> None:
        """Raises Fenced once a newer driver has taken over."""
        if self._store.exists(layout.fence(self.number + 1)):
            newest = max(filter(None, map(layout.parse_fence, self._store.list(layout.FENCES))))
            record = msgspec.json.decode(self._store.read(layout.fence(newest)), type=FenceRecord)
            raise Fenced(
                "another driver has taken over this store",
                where=self._store.url,
                found=f"fence {newest} of process {record.pid} on {record.host}; this one has {self.number}",
                next_move="nothing is lost: the other driver goes on from the last published epoch",
            )

    def drop(self) -> None:
        """Lets the next driver in at once."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def take_fence(store: Store, *, takeover: bool = False, sleep: Callable[[float], None] = time.sleep) -> Fence:
    """Becomes the driver of a store, or raises StoreInUse where another one is alive and was not to be replaced."""
    lock = _try_lock(store)
    if lock is None and store.local_path(layout.LOCK) is not None and not takeover:
        raise StoreInUse(
            "another driver is running on this store",
            where=store.url,
            found=_holder(store),
            next_move="stop it first, or take over with --takeover (takeover=True): it will stop by itself",
        )
    number = _next_fence(store)
    waited = 0.0
    while lock is None and store.local_path(layout.LOCK) is not None and waited < TAKEOVER_WAIT_S:
        sleep(0.1)
        waited += 0.1
        lock = _try_lock(store)
    return Fence(store, number, lock)


def _next_fence(store: Store) -> int:
    while True:
        taken = [number for path in store.list(layout.FENCES) if (number := layout.parse_fence(path)) is not None]
        number = max(taken, default=0) + 1
        record = FenceRecord(number, socket.gethostname(), os.getpid(), os.urandom(8).hex())
        try:
            store.create(layout.fence(number), msgspec.json.encode(record))
        except AlreadyExists:
            continue
        return number


def _try_lock(store: Store) -> IO[str] | None:
    path = store.local_path(layout.LOCK)
    if path is None:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = path.open("a+")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        return None
    handle.seek(0)
    handle.truncate()
    handle.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    handle.flush()
    return handle


def _holder(store: Store) -> str:
    path = store.local_path(layout.LOCK)
    assert path is not None
    return Path(path).read_text().strip() or "an unknown process"
