"""What a person sees while a job runs: a live table of the newest epochs, or plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.catching_up import CatchingUp, human_bytes
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.time import format_time
from headrace.sinks.bands import Banded
from headrace.standstill import Standstill, WallClock, wall_clock_us
from headrace.state.manifest import Manifest

if TYPE_CHECKING:
    from typing import Self

SHOWN_EPOCHS = 12


def rows_in(manifest: Manifest) -> int:
    """Rows that entered the job in an epoch."""
    return sum(task.rows_read for task in manifest.tasks)


def rows_out(manifest: Manifest) -> int:
    return sum(rows for task in manifest.tasks for rows in task.staged.values())


def delta_bytes(manifest: Manifest) -> int:
    return sum(step.get("delta_bytes", 0) for task in manifest.tasks for step in task.steps.values())


def late_rows(manifest: Manifest) -> int:
    return sum(step.get("late", 0) for task in manifest.tasks for step in task.steps.values())


def watermark_text(manifest: Manifest) -> str:
    """The slowest step's watermark, for people."""
    watermark = min(manifest.time.steps.values(), default=MIN_TIME)
    if watermark <= MIN_TIME:
        return "–"
    return "end of time" if watermark >= MAX_TIME else format_time(watermark)


def counts_text(epochs: int, came: int, went: int) -> str:
    """What a run did.

    >>> counts_text(1, 1_200, 1)
    '1 epoch, 1,200 rows in, 1 row out'
    """
    return f"{_many(epochs, 'epoch')}, {_many(came, 'row')} in, {_many(went, 'row')} out"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


class EpochWatch:
    """Shows epochs as they are published. Use as a context manager; call it with each manifest."""

    def __init__(
        self,
        app: str,
        *,
        plain: bool = False,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: WallClock = wall_clock_us,
    ) -> None:
        self._app = app
        self._standstill = Standstill(wall)
        self._catching_up = CatchingUp(clock)
        self._followed: Callable[[], list[str]] = list
        self._console = console or Console()
        self._plain = plain or not self._console.is_terminal
        self._clock = clock
        self._recent: list[tuple[Manifest, float]] = []
        """The newest epochs; replaced, never changed, because the display is drawn by another thread."""
        self._live: Live | None = None
        self.epochs = 0
        self.rows = 0
        self.out = 0
        self._started = clock()
        self._last = self._started

    def __enter__(self) -> Self:
        if not self._plain:
            # Drawn anew also between epochs: where no row comes none is run, and time that stands still should show.
            self._live = Live(get_renderable=self._screen, console=self._console, refresh_per_second=4, transient=False)
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.refresh()
            self._live.__exit__(kind, error, trace)

    def follow(self, lines: Callable[[], list[str]]) -> None:
        """Has lines stand below the table for as long as they are given: what the job waits for."""
        self._followed = lines

    def say(self, text: str) -> None:
        """A line above the table. It is not cut where the screen ends: it may hold a command, to be copied."""
        self._console.print(Text(text), soft_wrap=True)

    def __call__(self, manifest: Manifest) -> None:
        now = self._clock()
        if not self.epochs:
            # The first epoch began when it was ordered, not when Spark was started.
            self._started = self._last = now - _epoch_ms(manifest) / 1000
        took_s, self._last = now - self._last, now
        self.epochs += 1
        self.rows += rows_in(manifest)
        self.out += rows_out(manifest)
        self._recent = [*self._recent[1 - SHOWN_EPOCHS :], (manifest, took_s)]
        self._standstill(manifest)
        self._catching_up(manifest)
        if self._live is not None:
            self._live.refresh()
        elif self._plain:
            behind = "".join(f"  {line}" for line in self._catching_up.now())
            for line in (_line(manifest, took_s) + behind, *self._standstill.news()):
                self._console.print(line, highlight=False, soft_wrap=True, markup=False)

    def left(self) -> list[str]:
        """What waits for event time at the end, and why; a line each."""
        return self._standstill.left()

    def summary(self) -> str:
        """One line for the end."""
        seconds = max(self._clock() - self._started, 0.001)
        return f"{counts_text(self.epochs, self.rows, self.out)} in {seconds:.1f} s ({self.rows / seconds:,.0f} rows/s)"

    def _screen(self) -> Group:
        waiting = (*self._followed(), *self._standstill.now())
        bars = self._catching_up.bars()
        behind = () if bars is None else (bars,)
        table = Banded(self._table(), most_lines=SHOWN_EPOCHS)
        return Group(table, Text(self.summary(), "italic"), *behind, *(Text(line, "yellow") for line in waiting))

    def _table(self) -> Table:
        table = Table(title=f"{self._app}: epochs", title_justify="left")
        for name in ("epoch", "rows in", "rows/s", "rows out", "late", "epoch ms", "delta", "watermark"):
            table.add_column(name, justify="left" if name == "watermark" else "right")
        for manifest, took_s in self._recent:
            rows = rows_in(manifest)
            table.add_row(
                str(manifest.epoch),
                f"{rows:,}",
                f"{rows / max(took_s, 0.001):,.0f}",
                f"{rows_out(manifest):,}",
                f"{late_rows(manifest):,}",
                f"{_epoch_ms(manifest):,.0f}",
                human_bytes(delta_bytes(manifest)),
                watermark_text(manifest),
            )
        return table


def _epoch_ms(manifest: Manifest) -> float:
    return sum(took for name, took in manifest.took_us.items() if name != "between") / 1000


def _line(manifest: Manifest, took_s: float) -> str:
    rows = rows_in(manifest)
    return (
        f"epoch {manifest.epoch}  rows {rows:,} in {rows_out(manifest):,} out  late {late_rows(manifest)}  "
        f"{_epoch_ms(manifest):,.0f} ms  {rows / max(took_s, 0.001):,.0f} rows/s  "
        f"delta {human_bytes(delta_bytes(manifest))}  watermark {watermark_text(manifest)}"
    )
