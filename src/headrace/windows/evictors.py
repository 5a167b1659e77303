"""Which rows of a window are thrown away when it fires: what ``evict=`` takes.

An evictor looks at the rows of one window in the order they came, before the function sees them or after, and says
which to keep; the others are gone for later results too. A step with an evictor keeps every row: nothing is aggregated
ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


class Evictor:
    """Throws rows of a window away when it fires; made by `keep_rows`, `keep_span` and `keep_delta`, or one's own."""

    after: bool = False
    """Whether the function sees the rows before they are thrown away."""

    def keep(self, rows: Sequence[Any], times: Sequence[int]) -> list[bool]:
        """For each row, in the order they came, whether it stays. ``times`` are theirs, in microseconds."""
        raise NotImplementedError


@dataclass(frozen=True)
class KeepRows(Evictor):
    """The newest ``n`` rows, by the order they came."""

    n: int
    after: bool = False

    def keep(self, rows: Sequence[Any], times: Sequence[int]) -> list[bool]:
        gone = max(len(rows) - self.n, 0)
        return [False] * gone + [True] * (len(rows) - gone)


@dataclass(frozen=True)
class KeepSpan(Evictor):
    """The rows within a span before the newest, by their times."""

    span_us: int
    after: bool = False

    def keep(self, rows: Sequence[Any], times: Sequence[int]) -> list[bool]:
        cutoff = max(times, default=0) - self.span_us
        return [time > cutoff for time in times]


@dataclass(frozen=True)
class KeepDelta(Evictor):
    """The rows that differ from the one that came last by less than a threshold."""

    threshold: float
    column: str | None = None
    """Name of the field that is compared …"""
    fn: Callable[[Any, Any], float] | None = None
    """… or a function of the row and the last one."""
    after: bool = False

    def keep(self, rows: Sequence[Any], times: Sequence[int]) -> list[bool]:
        if not rows:
            return []
        last = rows[-1]
        if self.fn is not None:
            return [self.fn(row, last) < self.threshold for row in rows]
        name = self.column or ""
        newest = getattr(last, name)
        return [abs(getattr(row, name) - newest) < self.threshold for row in rows]
