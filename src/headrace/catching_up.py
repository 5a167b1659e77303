"""What a person is told while a job catches up with its input: how much is left, how fast it goes, when it is done.

A source that can tell is looked at after each epoch. Percent are of what was there when it fell behind, or when the run
began, and of all that has come since. The rate is that of reading; the time that is left follows from how fast what is
left becomes less, so what comes in meanwhile counts against it. Nothing is said of a source that keeps up, and no time
where the rate is not known or the end comes no nearer.

Files are measured by their bytes: one that is huge takes longer than many that are small.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.model.behind import counting_text, human_count

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headrace.model.behind import Behind
    from headrace.state.manifest import Manifest

_WINDOW_S: Final = 30.0
"""Over how long the rate is taken: long enough that single epochs do not show, short enough to follow."""
_WIDEST_BAR: Final = 30
_NARROWEST_BAR: Final = 8
"""On a narrow screen the bar makes room for the words."""


@dataclass(frozen=True)
class Figures:
    """How far one source is at a moment."""

    behind: Behind
    per_s: float | None
    """Rows, or bytes of files, that are read in a second; None: not known yet."""
    eta_s: float | None
    """None: not known, or it will not catch up at this rate."""

    @property
    def in_bytes(self) -> bool:
        return self.behind.left_bytes is not None


class _Source:
    """One source, from the first epoch in which it was behind."""

    def __init__(self) -> None:
        self.seen: deque[tuple[float, int, int]] = deque()
        """When, and what was done and left then."""

    def note(self, at_s: float, behind: Behind) -> Figures:
        done, left = _measure(behind)
        if self.seen and done < self.seen[-1][1]:
            # It had kept up in between.
            self.seen.clear()
        self.seen.append((at_s, done, left))
        while len(self.seen) > 2 and at_s - self.seen[0][0] > _WINDOW_S:
            self.seen.popleft()
        first_s, done_before, left_before = self.seen[0]
        took_s = at_s - first_s
        if took_s <= 0:
            return Figures(behind, None, None)
        nearer = (left_before - left) / took_s
        return Figures(behind, (done - done_before) / took_s, left / nearer if nearer > 0 else None)


class CatchingUp:
    """Follows what is left of each source, epoch by epoch."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sources: dict[str, _Source] = {}
        self._figures: dict[str, Figures] = {}

    def __call__(self, manifest: Manifest) -> None:
        now = self._clock()
        figures: dict[str, Figures] = {}
        for name, behind in sorted(manifest.behind.items()):
            if behind.counting:
                figures[name] = Figures(behind, None, None)
            elif behind.left and behind.done is not None:
                figures[name] = self._sources.setdefault(name, _Source()).note(now, behind)
        self._sources = {name: each for name, each in self._sources.items() if name in figures}
        # A new mapping, because the display is drawn by another thread.
        self._figures = figures

    @property
    def figures(self) -> Mapping[str, Figures]:
        """Those of the sources that are behind."""
        return self._figures

    def now(self) -> list[str]:
        """A line for each source that is behind."""
        return [f"{name}: {', '.join(_words(each))}" for name, each in self._figures.items()]

    def bars(self) -> RenderableType | None:
        """A bar for each source that is behind; None where there is none."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        figures = self._figures
        if not figures:
            return None
        grid = Table.grid(padding=(0, 1))
        grid.add_column(no_wrap=True)
        grid.add_column(min_width=_NARROWEST_BAR, max_width=_WIDEST_BAR)
        grid.add_column(no_wrap=True, justify="right")
        grid.add_column(no_wrap=True, overflow="ellipsis")
        for name, each in figures.items():
            percent = each.behind.percent
            bar = ProgressBar(total=100, completed=percent or 0, pulse=percent is None)
            told = "" if percent is None else f"{percent} %"
            words = [word for word in _words(each) if word != told]
            grid.add_row(Text(name, "cyan"), bar, Text(told), Text(", ".join(words), "cyan"))
        return grid


def _measure(behind: Behind) -> tuple[int, int]:
    """What is done and left, in what tells best how long it takes."""
    if behind.left_bytes is not None:
        return behind.done_bytes or 0, behind.left_bytes
    return behind.done or 0, behind.left


def _words(figures: Figures) -> list[str]:
    behind = figures.behind
    if behind.counting:
        return [counting_text(behind.left)]
    size = "" if behind.left_bytes is None else f" ({human_bytes(behind.left_bytes)})"
    words = [f"{human_count(behind.left)} {behind.unit}{size} behind"]
    if behind.percent is not None:
        words.append(f"{behind.percent} %")
    if figures.per_s:
        rate = human_bytes(figures.per_s) if figures.in_bytes else f"{figures.per_s:,.0f} {behind.unit}"
        words.append(f"{rate}/s")
    if figures.eta_s is not None:
        words.append(f"{span_text(figures.eta_s)} left")
    return words


def behind_data(behind: Mapping[str, Behind], figures: Mapping[str, Figures]) -> dict[str, dict[str, Any]]:
    """The same for machines, of every source that can tell; what is not known, or of no use, is null."""
    return {name: _data(each, figures.get(name)) for name, each in behind.items()}


def _data(behind: Behind, figures: Figures | None) -> dict[str, Any]:
    known = figures if figures is not None else Figures(behind, None, None)
    return {
        "left": behind.left,
        "unit": behind.unit,
        "left_bytes": behind.left_bytes,
        "counting": behind.counting,
        "done": behind.done,
        "percent": behind.percent,
        "rows_per_s": None if known.in_bytes or known.per_s is None else round(known.per_s, 1),
        "bytes_per_s": round(known.per_s) if known.in_bytes and known.per_s is not None else None,
        "eta_s": None if known.eta_s is None else round(known.eta_s, 1),
    }


def human_bytes(size: float) -> str:
    """A size that is short.

    >>> human_bytes(950), human_bytes(12_345), human_bytes(7_200_000_000_000)
    ('950 B', '12.3 KB', '7.2 TB')
    """
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def span_text(seconds: float) -> str:
    """A span for people, in at most two units.

    >>> span_text(0.4), span_text(59), span_text(61), span_text(7300), span_text(200_000)
    ('1 s', '59 s', '1 min 1 s', '2 h 1 min', '2 d 7 h')
    """
    whole = max(1, round(seconds))
    for large, small, names in ((86_400, 3600, ("d", "h")), (3600, 60, ("h", "min")), (60, 1, ("min", "s"))):
        if whole >= large:
            rest = whole % large // small
            return f"{whole // large} {names[0]}" + (f" {rest} {names[1]}" if rest else "")
    return f"{whole} s"


def behind_text(behind: dict[str, Behind]) -> str:
    """All sources in one cell; a dash where nobody can tell."""
    if not behind:
        return "–"
    by_unit: dict[str, int] = {}
    for each in behind.values():
        by_unit[each.unit] = by_unit.get(each.unit, 0) + each.left
    return ", ".join(f"{left:,} {unit}" for unit, left in by_unit.items())
