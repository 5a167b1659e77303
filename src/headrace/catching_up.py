"""What a person is told while a job catches up with its input: how much is left, how fast it goes, when it is done.

A source that can tell is looked at after each epoch. The rate is that at which what is left becomes less, so it counts
what comes in meanwhile against it. Nothing is said of a source that keeps up.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.model.behind import Behind
    from headrace.state.manifest import Manifest

_WINDOW_S: Final = 30.0
"""Over how long the rate is taken: long enough that single epochs do not show, short enough to follow."""


class _Source:
    """One source, from the first epoch in which it was behind."""

    def __init__(self, at_s: float, left: int) -> None:
        self.most = left
        self.seen: deque[tuple[float, int]] = deque([(at_s, left)])

    def note(self, at_s: float, left: int) -> None:
        self.most = max(self.most, left)
        self.seen.append((at_s, left))
        while len(self.seen) > 2 and at_s - self.seen[0][0] > _WINDOW_S:
            self.seen.popleft()

    @property
    def per_s(self) -> float:
        """How fast what is left becomes less; 0 where it does not."""
        (first_s, before), (last_s, now) = self.seen[0], self.seen[-1]
        return max(0.0, (before - now) / (last_s - first_s)) if last_s > first_s else 0.0


class CatchingUp:
    """Follows what is left of each source, epoch by epoch."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sources: dict[str, _Source] = {}
        self._units: dict[str, str] = {}

    def __call__(self, manifest: Manifest) -> None:
        now = self._clock()
        # A new mapping, because the display is drawn by another thread.
        sources = {name: each for name, each in self._sources.items() if name in manifest.behind}
        for name, behind in manifest.behind.items():
            known = sources.get(name)
            if not behind.left:
                sources.pop(name, None)
            elif known is None:
                sources[name] = _Source(now, behind.left)
            else:
                known.note(now, behind.left)
            self._units[name] = behind.unit
        self._sources = sources

    def now(self) -> list[str]:
        """A line for each source that is behind."""
        return [_line(name, source, self._units[name]) for name, source in sorted(self._sources.items())]


def _line(name: str, source: _Source, unit: str) -> str:
    left = source.seen[-1][1]
    told = f"{name}: {human_count(left)} {unit} behind"
    if source.most > left:
        told += f", {100 * (source.most - left) / source.most:.0f} %"
    rate = source.per_s
    if rate <= 0:
        return told
    return f"{told}, {rate:,.0f} {unit}/s, {span_text(left / rate)} left"


def human_count(count: int) -> str:
    """A number that is short however large it is.

    >>> human_count(950), human_count(12_345), human_count(7_200_000)
    ('950', '12,345', '7.2 million')
    """
    if count < 1_000_000:
        return f"{count:,}"
    return f"{count / 1e6:.1f} million" if count < 1_000_000_000 else f"{count / 1e9:.1f} billion"


def span_text(seconds: float) -> str:
    """A span for people, in at most two units.

    >>> span_text(0.4), span_text(59), span_text(61), span_text(7300)
    ('1 s', '59 s', '1 min 1 s', '2 h 1 min')
    """
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole % 3600 // 60 else "")


def behind_text(behind: dict[str, Behind]) -> str:
    """All sources in one cell; a dash where nobody can tell."""
    if not behind:
        return "–"
    by_unit: dict[str, int] = {}
    for each in behind.values():
        by_unit[each.unit] = by_unit.get(each.unit, 0) + each.left
    return ", ".join(f"{left:,} {unit}" for unit, left in by_unit.items())
