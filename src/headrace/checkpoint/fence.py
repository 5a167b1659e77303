"""The fence: who may drive a store.

A fence is a number, taken by creating its file; the highest one drives. It is advice: what really excludes a second
driver is that a manifest is created only if absent. Before it takes a fence, a second driver looks for signs of life of
the first: the lock, where the file system has locks, and the heartbeat, which every store can hold. It then refuses to
start, or, where it was told to, takes over, and the first one stops by itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec

from headrace.checkpoint.heartbeat import (
    BEAT_S,
    STALE_S,
    Beat,
    Clock,
    Heart,
    Owner,
    create_fence,
    drop_heartbeats,
    has_died,
    read_beat,
    read_holder,
    read_owner,
)
from headrace.checkpoint.lock import Lock
from headrace.errors import AlreadyExists, Fenced, MissingFile, StoreError, StoreInUse
from headrace.state import layout
from headrace.state.store import Store

log = logging.getLogger("headrace.fence")

TAKEOVER_WAIT_S: Final = 15.0
"""How long the driver that was taken over has to end before the new one begins."""
GLANCE_S: Final = 2.0
"""How often an idle driver looks for a newer fence in a remote store, where every look is a request."""

_LOCK_POLL_S: Final = 0.1
_WATCH_POLL_S: Final = 1.0


class Fence:
    """A taken fence; its lock and its heartbeat last until it is dropped or the process dies."""

    def __init__(self, store: Store, number: int, lock: Lock, heart: Heart, clock: Clock = time.time) -> None:
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
            found=newest.told(round(self._looked_s * 1e6)),
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
    store: Store,
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


def _take(watch: _Watch, takeover: bool) -> tuple[Beat, Beat | None]:
    """The fence that was taken, and the one before it."""
    while True:
        before = read_holder(watch.store)
        if not takeover:
            watch.refuse_if_alive(before)
        try:
            return watch.create_fence(1 if before is None else before.fence + 1), before
        except AlreadyExists:
            # Another driver that started at the same moment was quicker, and is now the one to look at.
            continue


class _Watch:
    """Looks at another driver until it is known whether it lives."""

    def __init__(self, store: Store, me: Owner, lock: Lock, clock: Clock, sleep: Callable[[float], None]) -> None:
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
            found = holder.told(self._now_us()) if holder is not None else self.lock.holder() or "an unknown process"
            raise self._in_use(found)
        if holder is not None and self._is_heard(holder):
            latest = read_holder(self.store) or holder
            raise self._in_use(latest.told(self._now_us()))

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
        log.warning("waiting for a sign of life of the driver before: %s", holder.told(self._now_us()))
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
