"""Signs of life: how a driver lets others know that it runs, and how they tell that it does no longer.

The driver with fence n writes ``heartbeats/n.json`` every few seconds, and once more when it ends. Every fence has a
file of its own, so drivers never overwrite each other, and only the newest fence's file means anything.

Like the fence a heartbeat is advice. To believe it wrongly costs a needless refusal or a needless takeover, never a
row: what excludes is that a manifest is created only if absent.

What this module deliberately does not do: decide who may drive (see `fence`), or end a driver whose store does not
answer; that one ends by itself when it wants to publish.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from headrace.errors import HeadraceError, MissingFile
from headrace.state import layout
from headrace.state.store import Store

log = logging.getLogger("headrace.heartbeat")

BEAT_S: Final = 5.0
"""How often a driver says that it lives."""
STALE_S: Final = 20.0
"""After this much silence a driver counts as dead. Several beats, as a request may be lost and a machine may stall."""

Clock = Callable[[], float]


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """A process that drives: enough for a person to find it, and for its neighbours to see that it is gone."""

    host: str
    pid: int
    user: str = ""
    machine: str = ""
    """Of the running kernel, which containers share: locks between its processes can be relied upon."""
    space: str = ""
    """Where process ids mean the same thing (a pid namespace); empty where that cannot be known."""


class Beat(Owner, frozen=True, kw_only=True):
    """What is in the file of a fence, and again, with a later time, in its heartbeats."""

    fence: int
    nonce: str = ""
    at_us: int = 0
    """By the clock of the driver's machine."""
    locked: bool = False
    """Whether it holds the lock of the store, so that a free lock says that it is gone."""
    beats: int = 0
    ended: bool = False

    def told(self, now_us: int) -> str:
        """Who it is, for people."""
        of = f" of user {self.user}" if self.user else ""
        silent_s = max(0, now_us - self.at_us) / 1e6
        heard = f", last heard of {silent_s:.0f} s ago" if self.at_us else ""
        return f"process {self.pid}{of} on {self.host} (fence {self.fence}){heard}"


def read_owner() -> Owner:
    """This process."""
    host = machine = socket.gethostname()
    space = host if sys.platform == "darwin" else ""
    with contextlib.suppress(OSError):
        machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = os.readlink("/proc/self/ns/pid")
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # Containers run under numbers that have no name.
        user = str(os.getuid())
    return Owner(host=host, pid=os.getpid(), user=user, machine=machine, space=space)


def has_died(beat: Beat, me: Owner) -> bool:
    """Whether this process can see for itself that another one is gone; False when it cannot tell."""
    if not me.space or (beat.machine, beat.space) != (me.machine, me.space):
        return False
    try:
        os.kill(beat.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def read_holder(store: Store) -> Beat | None:
    """The last sign of life of the driver with the newest fence; None in a store that nobody ever drove."""
    fences = [number for path in store.list(layout.FENCES) if (number := layout.parse_fence(path)) is not None]
    if not fences:
        return None
    return read_beat(store, msgspec.json.decode(store.read(layout.fence(max(fences))), type=Beat))


def read_beat(store: Store, taken: Beat) -> Beat:
    """The newest heartbeat of a driver; before its first one, what it said when it took the fence."""
    try:
        return msgspec.json.decode(store.read(layout.heartbeat(taken.fence)), type=Beat)
    except (MissingFile, msgspec.DecodeError):
        return taken


def create_fence(store: Store, owner: Owner, number: int, *, locked: bool, clock: Clock) -> Beat:
    """Takes a fence; raises AlreadyExists when somebody else was first."""
    beat = Beat(
        **msgspec.structs.asdict(owner),
        fence=number,
        nonce=os.urandom(8).hex(),
        at_us=round(clock() * 1e6),
        locked=locked,
    )
    store.create(layout.fence(number), msgspec.json.encode(beat))
    return beat


def drop_heartbeats(store: Store, before: int) -> None:
    """Deletes what drivers of earlier fences left behind."""
    for path in store.list(layout.HEARTBEATS):
        number = layout.parse_heartbeat(path)
        if number is not None and number < before:
            store.delete(path)


class Heart:
    """Refreshes the heartbeat of one fence in a thread, from `start` to `end`."""

    def __init__(self, store: Store, taken: Beat, *, clock: Clock = time.time, interval_s: float = BEAT_S) -> None:
        self._store = store
        self._last = taken
        self._clock = clock
        self._interval_s = interval_s
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="headrace-heartbeat", daemon=True)
        self._quiet = False

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """The last heartbeat: it lets the next driver in at once."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(STALE_S)
        self.beat(ended=True)

    def beat(self, *, ended: bool = False) -> None:
        """Says once that this driver lives, or that it has ended. A store that does not answer is only noted."""
        last = self._last
        self._last = msgspec.structs.replace(last, at_us=round(self._clock() * 1e6), beats=last.beats + 1, ended=ended)
        try:
            self._store.write(layout.heartbeat(last.fence), msgspec.json.encode(self._last))
            self._quiet = False
        except (HeadraceError, OSError) as error:
            if not self._quiet:
                log.warning("the heartbeat could not be written, so another driver may take over: %s", error)
            self._quiet = True

    def _loop(self) -> None:
        while not self._ending.wait(self._interval_s):
            self.beat()
