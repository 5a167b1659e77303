"""How far a run is: what its epochs did, how far it is behind its input, and what holds its event time back.

`RunProgress` is called with each published manifest and answers in text and figures. It draws nothing: screens, lines
of a log, lines of JSON and the page of a notebook ask it.

*Behind*: a source that can tell is looked at after each epoch. Percent are of what was there when it fell behind, or
when the run began, and of all that has come since. The rate is that of reading; the time that is left follows from how
fast what is left becomes less, so what comes in meanwhile counts against it. A source that keeps up is not mentioned.
Files are measured by their bytes: one that is huge takes longer than many that are small.

*Standstill*: why a watermark stands still is decided by `headrace.model.watermark_reasons`; here is only when to
speak: in a display that is drawn anew as long as time stands still, in lines of text once per standstill, and at the
end whenever something was left waiting.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.model.amounts import count_of, human_bytes, human_count, span_text
from headrace.model.behind import counting_text
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.time import format_time
from headrace.model.watermark_reasons import Reason, explain_watermark, next_move, stands_still, tell_reason

if TYPE_CHECKING:
    from headrace.model.behind import Behind
    from headrace.state.manifest import Manifest

WallClock = Callable[[], int]
"""Microseconds since 1970."""
_WINDOW_S: Final = 30.0
"""Over how long the rate is taken: long enough that single epochs do not show, short enough to follow."""


# --- one epoch


def rows_in(manifest: Manifest) -> int:
    """Rows that entered the job in an epoch."""
    return sum(task.rows_read for task in manifest.tasks)


def rows_out(manifest: Manifest) -> int:
    return sum(rows for task in manifest.tasks for rows in task.staged.values())


def delta_bytes(manifest: Manifest) -> int:
    return sum(step.get("delta_bytes", 0) for task in manifest.tasks for step in task.steps.values())


def late_rows(manifest: Manifest) -> int:
    return sum(step.get("late", 0) for task in manifest.tasks for step in task.steps.values())


def took_us(manifest: Manifest) -> int:
    """From Spark's question to the publishing of an epoch."""
    return sum(took for name, took in manifest.took_us.items() if name != "between")


def status_line(manifest: Manifest) -> str:
    """One line about an epoch."""
    rows, took_ms = count_of(rows_in(manifest), "row"), took_us(manifest) / 1000
    return (
        f"epoch {manifest.epoch}: {rows} in, {rows_out(manifest):,} out, {took_ms:,.0f} ms, "
        f"delta {human_bytes(delta_bytes(manifest))}, watermark {time_text(watermark_of(manifest))}"
    )


def watermark_of(manifest: Manifest) -> int | None:
    """How far event time has come in the slowest step; None where no step knows time."""
    return min(manifest.time.steps.values(), default=None)


def time_text(time_us: int | None) -> str:
    """A point in time for people, to the millisecond; a dash where there is none."""
    if time_us is None or time_us <= MIN_TIME:
        return "–"
    return "end of time" if time_us >= MAX_TIME else format_time(time_us - time_us % 1000)


# --- the run


class RunProgress:
    """Follows a run, epoch by epoch. Time counts from the start of its first epoch: starting Spark is left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, wall: WallClock | None = None) -> None:
        self._clock = clock
        self._began: float | None = None
        self.epochs = 0
        self.rows_in = 0
        self.rows_out = 0
        self.standstill = Standstill(wall or wall_clock_us)
        self.catching_up = CatchingUp(clock)

    def __call__(self, manifest: Manifest) -> None:
        if self._began is None:
            self._began = self._clock() - took_us(manifest) / 1e6
        self.epochs += 1
        self.rows_in += rows_in(manifest)
        self.rows_out += rows_out(manifest)
        self.standstill(manifest)
        self.catching_up(manifest)

    def counts(self) -> str:
        came, went = count_of(self.rows_in, "row"), count_of(self.rows_out, "row")
        return f"{count_of(self.epochs, 'epoch')}, {came} in, {went} out"

    def summary(self) -> str:
        """One line for the end."""
        if self._began is None:
            return "no epoch was published"
        seconds = max(self._clock() - self._began, 0.001)
        return f"{self.counts()} in {seconds:.1f} s ({self.rows_in / seconds:,.0f} rows/s)"


# --- what holds event time back


def wall_clock_us() -> int:
    return time.time_ns() // 1000


def reasons_of(manifest: Manifest) -> tuple[Reason, ...]:
    """Why the watermarks of an epoch stand where they stand."""
    return explain_watermark(
        manifest.time, manifest.timed, manifest.reads, manifest.clock_us, waits=manifest.waits_for,
        waiting=manifest.waiting,
    )  # fmt: skip


def reason_text(reason: Reason, clock_us: int) -> str:
    """One line: what holds time back, and what can be done."""
    move = next_move(reason, clock_us)
    return tell_reason(reason, clock_us) + (f" ({move})" if move else "")


class Standstill:
    """Notices, epoch by epoch, that something waits for a watermark that does not move."""

    def __init__(self, wall: WallClock = wall_clock_us) -> None:
        self._wall = wall
        self._reasons: tuple[Reason, ...] = ()
        self._told: set[tuple[str, str, int | None]] = set()

    def __call__(self, manifest: Manifest) -> None:
        self._reasons = reasons_of(manifest)
        standing = {_spell(reason) for reason in self._reasons}
        # One that moved on and stands again later is a new one, and worth another word.
        self._told &= standing

    def now(self) -> list[str]:
        """A line for each input that holds something back at this moment."""
        clock_us = self._wall()
        return [reason_text(reason, clock_us) for reason in self._reasons if stands_still(reason, clock_us)]

    def news(self) -> list[str]:
        """The same, each standstill once."""
        clock_us = self._wall()
        fresh = [each for each in self._reasons if stands_still(each, clock_us) and _spell(each) not in self._told]
        self._told |= {_spell(reason) for reason in fresh}
        return [reason_text(reason, clock_us) for reason in fresh]

    def left(self) -> list[str]:
        """At the end: what has not come out, and why."""
        clock_us = self._wall()
        late = [each for each in self._reasons if each.waiting and each.kind != "ended"]
        late = [msgspec.structs.replace(each, steps=each.waiting) for each in late]
        return [f"not out yet: {reason_text(reason, clock_us)}" for reason in late]


def _spell(reason: Reason) -> tuple[str, str, int | None]:
    return reason.source, reason.split, reason.at_us


# --- how far behind the input


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


class _SourcePace:
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
        self._sources: dict[str, _SourcePace] = {}
        self._figures: dict[str, Figures] = {}

    def __call__(self, manifest: Manifest) -> None:
        now = self._clock()
        figures: dict[str, Figures] = {}
        for name, behind in sorted(manifest.behind.items()):
            if behind.counting:
                figures[name] = Figures(behind, None, None)
            elif behind.left and behind.done is not None:
                figures[name] = self._sources.setdefault(name, _SourcePace()).note(now, behind)
        self._sources = {name: each for name, each in self._sources.items() if name in figures}
        # A new mapping, because the display is drawn by another thread.
        self._figures = figures

    @property
    def figures(self) -> Mapping[str, Figures]:
        """Those of the sources that are behind."""
        return self._figures

    def now(self) -> list[str]:
        """A line for each source that is behind."""
        return [f"{name}: {', '.join(behind_words(each))}" for name, each in self._figures.items()]


def _measure(behind: Behind) -> tuple[int, int]:
    """What is done and left, in what tells best how long it takes."""
    if behind.left_bytes is not None:
        return behind.done_bytes or 0, behind.left_bytes
    return behind.done or 0, behind.left


def behind_words(figures: Figures) -> list[str]:
    """How far a source is behind, in a few words each: amount, percent, rate, time that is left."""
    behind = figures.behind
    if behind.counting:
        return [counting_text(behind.left)]
    size = "" if behind.left_bytes is None else f" ({human_bytes(behind.left_bytes)})"
    unit = behind.unit.removesuffix("s") if behind.left == 1 else behind.unit
    words = [f"{human_count(behind.left)} {unit}{size} behind"]
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


def behind_text(behind: dict[str, Behind]) -> str:
    """All sources in one cell; a dash where nobody can tell."""
    if not behind:
        return "–"
    by_unit: dict[str, int] = {}
    for each in behind.values():
        by_unit[each.unit] = by_unit.get(each.unit, 0) + each.left
    return ", ".join(count_of(left, unit.removesuffix("s")) for unit, left in by_unit.items())
