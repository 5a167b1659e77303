"""The fence of a store: which driver may publish, and how others see that it is alive.

A fence is a number, taken by creating its file; the highest one drives. It is advice: what really excludes a second
driver is that a manifest is created only if absent. Before it takes a fence, a second driver looks for signs of life of
the first: the lock, where the file system has locks, and the heartbeat, which every store can hold. It then refuses to
start, or, with `takeover`, takes a higher fence, and the first driver stops by itself.

The driver with fence n writes ``heartbeats/n.json`` every few seconds, and once more when it ends. Every fence has a
file of its own, so drivers never overwrite each other, and only the file of the newest fence counts. A wrong heartbeat
costs a needless refusal or a needless takeover, never a row. A driver whose store does not answer is not ended here: it
ends when it publishes.
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

from headrace.checkpoint.twins import find_twin
from headrace.errors import AlreadyExists, CorruptFile, Fenced, HeadraceError, MissingFile, StoreError, StoreInUse
from headrace.model.lock import Lock
from headrace.state import layout
from headrace.state.store import StoreFiles

log = logging.getLogger("headrace.fence")

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
    url: str = ""
    """Where the store is that the driver has: another place than where this is read, if somebody copied the folder."""

    def describe(self, now_us: int) -> str:
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


def read_newest_fence(store: StoreFiles) -> int:
    """The highest fence that was ever taken; 0 in a store that nobody ever drove."""
    return max(filter(None, map(layout.parse_fence, store.list(layout.FENCES))), default=0)


def read_holder(store: StoreFiles) -> Beat | None:
    """The last sign of life of the driver with the newest fence; None in a store that nobody ever drove."""
    number = read_newest_fence(store)
    if not number:
        return None
    try:
        taken = msgspec.json.decode(store.read(layout.fence(number)), type=Beat)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptFile(
            "the fence file of this store is damaged, so the driver before this one is not known",
            where=f"{store.url}/{layout.fence(number)}",
            expected="JSON with the process, the machine and the time of the driver that took the fence",
            found=str(error),
            next_move="make sure that no other driver runs on this store, then start with --takeover (takeover=True)",
        ) from error
    return read_beat(store, taken)


def read_beat(store: StoreFiles, taken: Beat) -> Beat:
    """The newest heartbeat of a driver; before its first one, what it said when it took the fence."""
    try:
        return msgspec.json.decode(store.read(layout.heartbeat(taken.fence)), type=Beat)
    except (MissingFile, msgspec.DecodeError):
        return taken


def create_fence(
    store: StoreFiles, owner: Owner, number: int, *, locked: bool, clock: Clock, url: str | None = None
) -> Beat:
    """Takes a fence; raises AlreadyExists when somebody else was first. ``url``: of a job that is elsewhere."""
    beat = Beat(
        **msgspec.structs.asdict(owner),
        fence=number,
        nonce=os.urandom(8).hex(),
        at_us=round(clock() * 1e6),
        locked=locked,
        ended=url is not None,
        url=store.url if url is None else url,
    )
    store.create(layout.fence(number), msgspec.json.encode(beat))
    return beat


def drop_heartbeats(store: StoreFiles, before: int) -> None:
    """Deletes what drivers of earlier fences left behind."""
    for path in store.list(layout.HEARTBEATS):
        number = layout.parse_heartbeat(path)
        if number is not None and number < before:
            store.delete(path)


class Heart:
    """Refreshes the heartbeat of one fence in a thread, from `start` to `end`."""

    def __init__(self, store: StoreFiles, taken: Beat, *, clock: Clock = time.time, interval_s: float = BEAT_S) -> None:
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


TAKEOVER_WAIT_S: Final = 15.0
"""How long the driver that was taken over has to end before the new one begins."""
GLANCE_S: Final = 2.0
"""How often an idle driver looks for a newer fence in a remote store, where every look is a request."""

_LOCK_POLL_S: Final = 0.1
_WATCH_POLL_S: Final = 1.0


class Fence:
    """A taken fence; its lock and its heartbeat last until it is dropped or the process dies."""

    def __init__(self, store: StoreFiles, number: int, lock: Lock, heart: Heart, clock: Clock = time.time) -> None:
        self.number = number
        self._store = store
        self._lock = lock
        self.heart = heart
        self._clock = clock
        self._glance_s = 0.0 if store.local_path(layout.LOCK) is not None else GLANCE_S
        self._looked_s = clock()
        self._dropped = False

    def check(self) -> None:
        """Raises Fenced once a newer driver has taken over."""
        self._looked_s = self._clock()
        try:
            # Read, not asked for: in an object store that is one request, where looking for an absent file is two.
            self._store.read(layout.fence(self.number + 1))
        except MissingFile:
            return
        newest = read_holder(self._store)
        assert newest is not None
        raise Fenced(
            "another driver has taken over this store",
            where=self._store.url,
            expected=f"fence {self.number} of this driver to be the newest",
            found=newest.describe(round(self._looked_s * 1e6)),
            next_move="nothing is lost: the other driver goes on from the last published epoch",
        )

    def glance(self) -> None:
        """The same between epochs, as often as one likes: a remote store is asked now and then only."""
        if 0 <= self._clock() - self._looked_s < self._glance_s:
            return
        try:
            self.check()
        except Fenced:
            raise
        except StoreError as error:
            # Nothing is at stake between epochs; if the store stays away, the next epoch says so.
            log.warning("could not look for a newer driver: %s", error)

    def drop(self) -> None:
        """Lets the next driver in at once."""
        if not self._dropped:
            self._dropped = True
            self.heart.end()
            self._lock.release()


def take_fence(
    store: StoreFiles,
    *,
    takeover: bool = False,
    clock: Clock = time.time,
    sleep: Callable[[float], None] = time.sleep,
    interval_s: float = BEAT_S,
    owner: Owner | None = None,
) -> Fence:
    """Becomes the driver of a store, or raises StoreInUse where another one is alive and was not to be replaced.

    ``owner``: who takes it, this process if nobody else is named.
    """
    watch = _Watch(store, owner or read_owner(), Lock(store.local_path(layout.LOCK)), clock, sleep)
    watch.take_lock()
    try:
        taken, before = _take(watch, takeover)
        if takeover and before is not None:
            watch.wait_for_end(before)
        drop_heartbeats(store, taken.fence)
    except BaseException:
        watch.lock.release()
        raise
    # The lock may have come only now, when the driver before let it go.
    taken = msgspec.structs.replace(taken, locked=watch.lock.state == "ours")
    heart = Heart(store, taken, clock=clock, interval_s=interval_s)
    heart.start()
    return Fence(store, taken.fence, watch.lock, heart, clock)


def refuse_running(store: StoreFiles, clock: Clock = time.time, sleep: Callable[[float], None] = time.sleep) -> None:
    """Raises StoreInUse where a driver lives; leaves nothing behind."""
    watch = _Watch(store, read_owner(), Lock(store.local_path(layout.LOCK)), clock, sleep)
    watch.take_lock()
    try:
        watch.refuse_if_alive(read_holder(store))
    finally:
        watch.lock.release()


def _take(watch: _Watch, takeover: bool) -> tuple[Beat, Beat | None]:
    """The fence that was taken, and the one before it."""
    while True:
        # Asked for first: a fence that another driver takes meanwhile must make ours fail.
        newest, before = read_newest_fence(watch.store), None
        try:
            before = read_holder(watch.store)
        except CorruptFile as error:
            # Who takes over needs the number only, and that is in the file's name.
            if not takeover:
                raise
            log.warning("taking over from an unknown driver: %s", error.where)
        if not takeover:
            watch.refuse_if_alive(before)
        if before is not None:
            watch.settle_twin(before.url, takeover)
        try:
            return watch.create_fence(newest + 1), before
        except AlreadyExists:
            # Another driver that started at the same moment was quicker, and is now the one to look at.
            continue


class _Watch:
    """Looks at another driver until it is known whether it lives."""

    def __init__(self, store: StoreFiles, me: Owner, lock: Lock, clock: Clock, sleep: Callable[[float], None]) -> None:
        self.store = store
        self.me = me
        self.lock = lock
        self.clock = clock
        self._sleep = sleep

    def take_lock(self) -> None:
        self.lock.take(f"process {self.me.pid} on {self.me.host}")

    def create_fence(self, number: int) -> Beat:
        return create_fence(self.store, self.me, number, locked=self.lock.state == "ours", clock=self.clock)

    def refuse_if_alive(self, holder: Beat | None) -> None:
        if self.lock.state == "taken":
            found = (
                holder.describe(self._now_us()) if holder is not None else self.lock.holder() or "an unknown process"
            )
            raise self._in_use(found)
        if holder is not None and self._is_heard(holder):
            latest = read_holder(self.store) or holder
            raise self._in_use(latest.describe(self._now_us()))

    def settle_twin(self, url: str, takeover: bool) -> None:
        """Raises StoreInUse where another store of this id is driven; else leaves word there of where the job is."""
        if (store := find_twin(self.store, url)) is None:
            return
        twin = _Watch(store, self.me, Lock(store.local_path(layout.LOCK)), self.clock, self._sleep)
        twin.take_lock()
        try:
            if not takeover:
                twin.refuse_if_alive(read_holder(store))
            number = read_newest_fence(store) + 1
            create_fence(store, self.me, number, locked=False, clock=self.clock, url=self.store.url)
        except StoreInUse as running:
            raise StoreInUse(
                "this store is a copy of another one, under the same id, and a driver is running on that one",
                where=self.store.url,
                expected="one running job for each id: sinks would take its epochs for those of the other",
                found=f"{store.url}: {running.found}",
                next_move=f"stop that job first; or let a second job begin with it: --store NEW --from {store.url}",
            ) from None
        except (HeadraceError, OSError) as error:
            log.warning("%s has the same id and could not be told that the job is here: %s", store.url, error)
        finally:
            twin.lock.release()

    def wait_for_end(self, holder: Beat) -> None:
        """Gives a driver that was taken over the time to notice; whether it does changes nothing that is published."""
        until = self.clock() + TAKEOVER_WAIT_S
        while self.clock() < until:
            if self.lock.state == "taken":
                self.take_lock()
            if self.lock.state != "taken" and self._is_gone(read_beat(self.store, holder)):
                return
            self._sleep(_LOCK_POLL_S if self.lock.state == "taken" else _WATCH_POLL_S)

    def _is_heard(self, holder: Beat) -> bool:
        """Waits for the next sign of life, or for a silence that is long enough.

        A heartbeat that changes is proof, whatever the clocks of the two machines say.
        """
        if self._is_gone(holder):
            return False
        log.warning("waiting for a sign of life of the driver before: %s", holder.describe(self._now_us()))
        until = self.clock() + STALE_S
        while self.clock() < until and not self._is_gone(holder):
            self._sleep(_WATCH_POLL_S)
            latest = read_holder(self.store) or holder
            if (latest.fence, latest.beats) != (holder.fence, holder.beats):
                return not self._is_gone(latest)
        return False

    def _is_gone(self, holder: Beat) -> bool:
        if holder.ended or has_died(holder, self.me):
            return True
        if self.lock.state == "ours" and holder.locked and holder.machine == self.me.machine:
            # It would still hold the lock if it lived: between processes of one machine locks can be relied upon.
            return True
        return self._now_us() - holder.at_us >= STALE_S * 1e6

    def _now_us(self) -> int:
        return round(self.clock() * 1e6)

    def _in_use(self, found: str) -> StoreInUse:
        return StoreInUse(
            "another driver is running on this store",
            where=self.store.url,
            expected=f"a store that nobody drives, or whose driver has been silent for {STALE_S:.0f} s",
            found=found,
            next_move="stop it first, or take over with --takeover (takeover=True): it will stop by itself",
        )
