"""One question for a key and a range of time, answered from state and archive together, at one epoch.

A window is in state while it is open (and for as long as ``queryable(keep=…)`` says), in the archive once it is closed,
and in both in between; it is told once. Windows come by their ends, a page at a time, whatever lies where.

Where a state has no archive, the windows that are kept are all there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.model.archive import bucket_of, first_us_of
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.time import Timestamp, timestamp
from headrace.model.window import Window

if TYPE_CHECKING:
    from headrace.read.archive import ArchivedWindows

MOST_WINDOWS: Final = 10_000
"""On one page."""
EVERYTHING: Final = 2**62
"""A page without an end, for who holds all of it anyway."""
PAGE_BYTES: Final = 16 * 2**20
"""A page ends when its values are larger than this."""

Moment = str | datetime | Timestamp | int
"""A point in time, as people give it; a number is microseconds since 1970, as in a Timestamp."""
Place = tuple[int, int]
"""End and start of a window: where it stands in the order of windows."""


class Range(NamedTuple):
    """Which windows of a key are asked for, and in what order."""

    first_end: int = MIN_TIME
    """Windows end here or later, and …"""
    last_end: int = MAX_TIME
    """… here or earlier."""
    first_start: int = MIN_TIME
    """They begin here or later."""
    reverse: bool = False
    """Those that end last come first."""
    behind: Place | None = None
    """Only those that come behind this one in that order: where the page before ended."""

    def holds(self, window: Window) -> bool:
        start, end = int(window.start), int(window.end)
        if not (self.first_end <= end <= self.last_end and start >= self.first_start):
            return False
        return self.behind is None or ((end, start) < self.behind if self.reverse else (end, start) > self.behind)

    def ends(self) -> tuple[int, int]:
        """Between which ends there can be windows still to be told, both included."""
        first, last = max(self.first_end, self.first_start), self.last_end
        if self.behind is not None:
            first, last = (first, min(last, self.behind[0])) if self.reverse else (max(first, self.behind[0]), last)
        return first, last


def moment_us(at: Moment | None) -> int | None:
    """A point in time in microseconds: of ISO text, a datetime, a Timestamp."""
    if at is None:
        return None
    return int(timestamp(at)) if isinstance(at, str | datetime) else int(at)


def between(start_us: int | None, end_us: int | None) -> Range:
    """The windows that lie in a stretch of time: none begins before it, none ends behind it."""
    first = MIN_TIME if start_us is None else start_us
    return Range(first, MAX_TIME if end_us is None else end_us, first)


class RangePage(NamedTuple):
    windows: list[tuple[Window, Any]]
    more: bool
    """Whether others may follow behind the last one."""

    @property
    def next(self) -> Place | None:
        """Where the following page begins (`Range.behind`); None: this was the last one."""
        if not self.more or not self.windows:
            return None
        window = self.windows[-1][0]
        return int(window.end), int(window.start)

    def encoded(self, encode: Callable[[Any], bytes]) -> RangePage:
        """The page with its values as bytes, and no more windows than an answer can hold."""
        told: list[tuple[Window, bytes]] = []
        size = 0
        for window, value in self.windows:
            if size > PAGE_BYTES:
                return RangePage(told, True)
            raw = encode(value)
            told.append((window, raw))
            size += len(raw)
        return RangePage(told, self.more)


def place_text(place: Place) -> str:
    """Where a page ended, as clients hand it back."""
    return f"{place[0]}.{place[1]}"


def parse_place(text: str) -> Place:
    """The other way; ValueError where it is none."""
    end, _, start = text.partition(".")
    found = int(end), int(start)
    if not all(MIN_TIME - 1 <= each <= MAX_TIME for each in found):
        raise ValueError("times have 64 bits")
    return found


def read_range(
    held: Mapping[Window, Any],
    archived: ArchivedWindows | None,
    key: bytes,
    wanted: Range,
    count: int,
    tell: Callable[[dict[str, Any]], Any] = lambda row: row,
) -> RangePage:
    """A page of windows. ``held``: those of the key in state; ``tell``: what becomes of an archived row.

    Days are read one after the other until the page is full, so a page costs what is on it and not all there is.
    """
    mine = {window: value for window, value in held.items() if wanted.holds(window)}
    by_day: dict[str, dict[Window, Any]] = {}
    for window, value in mine.items():
        by_day.setdefault(bucket_of(int(window.end)), {})[window] = value
    kept = set(archived.buckets(*wanted.ends())) if archived is not None else set()
    page: list[tuple[Window, Any]] = []
    for day in sorted({*by_day, *kept}, key=_day, reverse=wanted.reverse):
        found = dict(by_day.get(day, {}))
        if archived is not None and day in kept:
            for window, row in archived.windows(key, day).items():
                # What is in state and in the archive is the same; state has it as it is kept there.
                if window not in found and wanted.holds(window):
                    found[window] = tell(row)
        page += _by_end(found.items(), wanted.reverse)
        if len(page) > count:
            return RangePage(page[:count], True)
    return RangePage(page, False)


def _by_end(found: Iterable[tuple[Window, Any]], reverse: bool) -> list[tuple[Window, Any]]:
    return sorted(found, key=lambda entry: (entry[0].end, entry[0].start), reverse=reverse)


def _day(bucket: str) -> int:
    start = first_us_of(bucket)
    return MIN_TIME if start is None else start
