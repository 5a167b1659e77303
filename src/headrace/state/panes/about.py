"""What a panes table says of itself: how its windows lie in time, and which columns its results are made of.

It is JSON in the metadata of the table's schema (`headrace.state.panes.table.read_about`), for whoever reads a table
without the program that wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import msgspec
import pyarrow as pa

from headrace.state.panes.table import clock_of, read_about

TUMBLING: Final = "tumbling"
SLIDING: Final = "sliding"
CUMULATING: Final = "cumulating"
SESSION: Final = "session"


class About(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the windows of a table lie in time, and what its columns are for."""

    windows: str = TUMBLING
    """``tumbling``, ``sliding``, ``cumulating`` or ``session``."""
    size_us: int = 1
    every_us: int = 0
    offset_us: int = 0
    key: list[str] = []
    """Names of the columns that the key is made of."""
    results: dict[str, list[str]] = {}
    """Name of a result → its kind of aggregate, then the columns it is made of; behind that of a quantile its share."""
    pane: bool = False
    """Whether results say if they come before, at or after the end of their window."""
    emptied: str = ""
    """When windows that give each row once are emptied before their end; what is left of them is told by that."""
    late_us: int = 0
    """How long sessions are kept after their end …"""
    clock: str = ""
    """… and by which clock they end."""

    @property
    def spans(self) -> str:
        """How the windows lie in time, for comparing and for people."""
        every = f" every {self.every_us}" if self.every_us else ""
        emptied = f", emptied {self.emptied}" if self.emptied else ""
        if self.windows == SESSION:
            # How long a gap is stands in each row. How long sessions are kept does not.
            return f"sessions by {self.clock} time, kept for {self.late_us} µs"
        return f"{self.windows} windows of {self.size_us}{every} µs, moved by {self.offset_us}{emptied}"

    def start_of(self, end_us: int) -> int:
        """Where the window that ends there begins."""
        if self.windows == CUMULATING:
            return _aligned(end_us - 1, self.size_us, self.offset_us)
        return end_us - self.size_us

    def windows_of(self, pane_us: int) -> Iterator[tuple[int, int]]:
        """Start and end of every window that holds a slice, without those that were closed when its rows came."""
        if self.windows == SLIDING:
            start = _aligned(pane_us, self.every_us, self.offset_us)
            within_us, rest_us = pane_us - start, self.size_us % self.every_us
            left_out = within_us - rest_us if within_us >= rest_us else within_us
            first = _aligned(pane_us - self.size_us, self.every_us, self.offset_us) + self.every_us
            while start >= first + left_out * self.every_us:
                yield start, start + self.size_us
                start -= self.every_us
            return
        base = _aligned(pane_us, self.size_us, self.offset_us)
        if self.windows == TUMBLING:
            yield base, base + self.size_us
            return
        slice_us = _aligned(pane_us, self.every_us, base)
        first = slice_us + self.every_us * (1 + pane_us - slice_us)
        for end in range(first, base + self.size_us + 1, self.every_us):
            yield base, end


@lru_cache(256)
def parse_about(text: str) -> About:
    """What a table says of itself."""
    return msgspec.json.decode(text, type=About)


def spans_of(schema: pa.Schema) -> str:
    """How the windows of a table lie in time."""
    return parse_about(read_about(schema)).spans


def cut_of(schema: pa.Schema) -> str:
    """The same and by which clock: tables of one step that differ in it cannot be merged."""
    return f"{spans_of(schema)}, {clock_of(schema)} clock"


def _aligned(time_us: int, size_us: int, offset_us: int) -> int:
    return time_us - (time_us - offset_us) % size_us
