"""The keys of a state that somebody listens to by name: which they are as stored, and when they change by themselves.

Values expire and windows end without anybody writing them, so no epoch tells of it. Of a key that is listened to it is
known when that will be: it is looked at again in the first epoch whose time has come so far. What an epoch costs are
the keys that changed, that somebody began to listen to, or whose time has come; never all that are listened to.

What this module deliberately does not do: know who listens (see `headrace.serve.resp.channels`), or find values that
expire among keys nobody named: they would have to be looked for among all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from heapq import heappop, heappush
from typing import Any

from headrace.read.reader import Reader


class KeysListenedTo:
    """Of one state."""

    def __init__(self) -> None:
        self._stored: dict[bytes, bytes | None] = {}
        """Text of a key, as it stands in the channel → the key as it is stored; None: it can be none of this state."""
        self._texts: dict[bytes, set[bytes]] = {}
        """Stored key → the texts that mean it: numbers and JSON can be written in several ways."""
        self._new: set[bytes] = set()
        """Texts of which the key is not known yet."""
        self._key_type: Any = None
        self._unplaced: set[bytes] = set()
        """Stored keys of which nobody has asked yet when they change by themselves …"""
        self._written: set[bytes] = set()
        """… and those for which that may be another time now."""
        self._due: list[tuple[int, bytes]] = []
        """When keys change by themselves, soonest first …"""
        self._places: dict[bytes, int] = {}
        """… and the time that counts of each: what else stands there of a key is old."""

    def __len__(self) -> int:
        return len(self._stored) + len(self._new)

    def add(self, text: bytes) -> None:
        if text not in self._stored:
            self._new.add(text)

    def drop(self, text: bytes) -> None:
        self._new.discard(text)
        key = self._stored.pop(text, None)
        if key is None:
            return
        self._texts[key].discard(text)
        if not self._texts[key]:
            del self._texts[key]
            self._unplaced.discard(key)
            self._written.discard(key)
            self._places.pop(key, None)

    def keys(self, table: Reader) -> Collection[bytes]:
        """The keys as they are stored, by what the state now says of them; only new ones are looked at."""
        if table.key_type != self._key_type:
            # The first keys of a state that was empty tell their type, and a program may change it.
            self._key_type = table.key_type
            self._new |= self._stored.keys()
            self._stored, self._texts = {}, {}
            self._unplaced, self._written, self._due, self._places = set(), set(), [], {}
        for text in self._new:
            try:
                key = table.key_of(text)
            except ValueError:
                self._stored[text] = None
                continue
            self._stored[text] = key
            self._texts.setdefault(key, set()).add(text)
            self._unplaced.add(key)
        self._new.clear()
        return self._texts.keys()

    def texts(self, key: bytes) -> list[bytes]:
        """How those who listen to a key have written it."""
        return list(self._texts.get(key, ()))

    # --- what changes by itself

    def changed(self, key: bytes) -> None:
        """A key was written, and is told: so it changes by itself at another time than before."""
        if key in self._texts:
            self._written.add(key)

    def due(self, before: Reader, table: Reader) -> Iterator[bytes | None]:
        """Keys that may have changed by themselves since an older epoch of the state, each once.

        None stands between them for work that was done besides; others may begin or stop listening meanwhile.
        """
        now_us = table.now_us
        # One that is stable may have been none before: when a fold took away the last value that expires.
        if (before.stable and table.stable) or now_us is None:
            self._unplaced |= self._written
            self._written = set()
            return
        written, unplaced = self._written, list(self._unplaced - self._written)
        self._written, self._unplaced = set(), set()
        for key in unplaced:
            self._place(key, before.changes_us(key))
            yield None
        for key in written:
            self._place_later(key, table, now_us)
            yield None
        while self._due and self._due[0][0] <= now_us:
            time_us, key = heappop(self._due)
            if self._places.get(key) != time_us:
                continue
            del self._places[key]
            self._place_later(key, table, now_us)
            yield None if key in written else key

    def begin_anew(self) -> None:
        """Another history begins: what was known of times is of the one before."""
        self._unplaced, self._written, self._due, self._places = set(self._texts), set(), [], {}

    def _place_later(self, key: bytes, table: Reader, now_us: int) -> None:
        time_us = table.changes_us(key)
        # What has expired by now has nothing before it any more.
        self._place(key, time_us if time_us is not None and time_us > now_us else None)

    def _place(self, key: bytes, time_us: int | None) -> None:
        # One that comes sooner stays: when it is due, it is asked again. So few stand there of a key, however often it
        # is written.
        if time_us is not None and key in self._texts and time_us < self._places.get(key, time_us + 1):
            self._places[key] = time_us
            heappush(self._due, (time_us, key))
