"""Remembers the idempotency keys of requests, and what they were answered with.

A key stands in the frame of its request, so it is durable with the events and found again when the log is opened. It
is forgotten after a time, or when there are too many: the oldest first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headrace.ingest import layout
from headrace.ingest.frames import Frame
from headrace.ingest.partition import iterate_heads


class Answered(NamedTuple):
    """Where the events of a request are."""

    partition: int
    number: int
    events: int
    digest: int
    time_us: int


class KeyMemory:
    """The keys of one stream."""

    def __init__(self, remember_us: int, most: int) -> None:
        self._remember_us = remember_us
        self._most = most
        self._known: OrderedDict[bytes, Answered] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, key: bytes, now_us: int) -> Answered | None:
        found = self._known.get(key)
        return found if found is not None and found.time_us > now_us - self._remember_us else None

    def remember(self, key: bytes, answered: Answered) -> None:
        self._known.pop(key, None)
        self._known[key] = answered
        while len(self._known) > self._most:
            self._known.popitem(last=False)

    def forget_old(self, now_us: int) -> None:
        while self._known:
            oldest = next(iter(self._known.values()))
            if oldest.time_us > now_us - self._remember_us:
                return
            self._known.popitem(last=False)


def read_keyed(folder: Path, newest: list[Frame], since_us: int, most: int) -> list[Frame]:
    """The frames with keys that were written since a time, the latest of them; those of the newest segment are known
    already, and older segments are looked at only as far back as needed."""
    found = [frame for frame in newest if frame.time_us > since_us]
    for segment in reversed(layout.list_segments(folder)[:-1]):
        if len(found) >= most:
            break
        frames = list(_keyed(segment, since_us))
        found = frames + found
        first = next(iterate_heads(segment), None)
        if first is not None and first.time_us <= since_us:
            break
    return found[-most:]


def _keyed(segment: Path, since_us: int) -> Iterator[Frame]:
    return (frame for frame in iterate_heads(segment) if frame.key and frame.time_us > since_us)
