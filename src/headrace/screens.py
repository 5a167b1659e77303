"""What a person sees while a job runs: a live table of the newest epochs, tables of sinks, or plain lines.

A screen is called with each published manifest, on the job's thread. What it says about the run is
`headrace.progress.RunProgress`; what the job is doing at this moment, and what it waits for, it asks the job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from headrace.connectors.console.bands import BandedTable
from headrace.connectors.console.sink import ConsoleSink
from headrace.model.amounts import human_bytes
from headrace.progress import (
    CatchingUp,
    RunProgress,
    WallClock,
    behind_words,
    delta_bytes,
    late_rows,
    rows_in,
    rows_out,
    status_line,
    time_text,
    took_us,
    watermark_of,
)

if TYPE_CHECKING:
    from typing import Self

    from headrace.dataflow.app import App
    from headrace.state.manifest import Manifest

SHOWN_EPOCHS: Final = 12
_WIDEST_BAR: Final = 30
_NARROWEST_BAR: Final = 8
"""On a narrow screen the bar makes room for the words."""


class Screen(Protocol):
    """Where a run is shown."""

    def __enter__(self) -> Any: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def __call__(self, manifest: Manifest) -> None: ...
    def say(self, text: str) -> None: ...
    def follow(self, waits: Callable[[], list[str]], activity: Callable[[], str]) -> None:
        """Who to ask, whenever the screen is drawn: a line for each thing the job waits for, and what it is doing."""

    def still(self, activity: str) -> None:
        """Nothing was published for a while: what the job is doing. A screen that is drawn anew shows it anyhow."""

    def summary(self) -> str: ...
    def left(self) -> list[str]:
        """What waits for event time at the end, and why; a line each."""


class LiveScreen:
    """A part of the terminal, drawn anew four times a second: between epochs, time that stands still should show."""

    def __init__(self, console: Console, progress: RunProgress) -> None:
        """Draws a first frame: whatever `_body` needs has to be there already."""
        self._console = console
        self._progress = progress
        self._waits: Callable[[], list[str]] = list
        self._activity: Callable[[], str] = lambda: "starting Spark"
        self._spinner = Spinner("dots")
        self._live = Live(get_renderable=self._frame, console=console, refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._activity = str
        self._live.__exit__(kind, error, trace)

    def __call__(self, manifest: Manifest) -> None:
        self._progress(manifest)

    def follow(self, waits: Callable[[], list[str]], activity: Callable[[], str]) -> None:
        self._waits, self._activity = waits, activity

    def still(self, activity: str) -> None:
        pass

    def say(self, text: str) -> None:
        """A line above what is drawn. It is not cut where the screen ends: it may hold a command, to be copied."""
        self._console.print(Text(text), soft_wrap=True)

    def summary(self) -> str:
        return self._progress.summary()

    def left(self) -> list[str]:
        return self._progress.standstill.left()

    def _body(self) -> Iterator[RenderableType]:
        """What stands above the lines about the run."""
        raise NotImplementedError

    def _frame(self) -> Group:
        parts = list(self._body())
        if activity := self._activity():
            self._spinner.update(text=Text(f"{activity} …", "dim"))
            parts.append(self._spinner)
        if (bars := draw_bars(self._progress.catching_up)) is not None:
            parts.append(bars)
        parts += [Text(line, "yellow") for line in (*self._waits(), *self._progress.standstill.now())]
        # An empty last line: a terminal echoes Ctrl-C behind the last character. Behind a full line the echo would
        # begin another, and the next frame would be drawn one line too low, below a piece of this one.
        return Group(*parts, Text(""))


class TablesScreen(LiveScreen):
    """Tables that sinks fill, with one line about the epochs below them."""

    def __init__(self, console: Console, tables: Mapping[str, Callable[[], RenderableType]] | None = None) -> None:
        """``tables``: what is drawn anew with each epoch."""
        self._makers = dict(tables or {})
        self._tables: dict[str, RenderableType] = {}
        self._status: Text | None = None
        super().__init__(console, RunProgress())

    def show(self, name: str, table: RenderableType) -> None:
        """Puts a table on the screen, in place of the one of the same name."""
        self._tables[name] = table
        self._live.refresh()

    def __call__(self, manifest: Manifest) -> None:
        super().__call__(manifest)
        self._tables.update({name: make() for name, make in self._makers.items()})
        self._status = Text.assemble((status_line(manifest), "cyan"), "\n", (self.summary(), "dim"))
        self._live.refresh()

    def _body(self) -> Iterator[RenderableType]:
        yield from list(self._tables.values())
        if self._status is not None:
            yield self._status


class EpochTable(LiveScreen):
    """A table of the newest epochs."""

    def __init__(
        self,
        app: str,
        console: Console,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: WallClock | None = None,
    ) -> None:
        self._app = app
        self._pace = _Pace(clock)
        self._recent: list[tuple[Manifest, float]] = []
        """The newest epochs; replaced, never changed, because the display is drawn by another thread."""
        super().__init__(console, RunProgress(clock, wall))

    def __call__(self, manifest: Manifest) -> None:
        super().__call__(manifest)
        self._recent = [*self._recent[1 - SHOWN_EPOCHS :], (manifest, self._pace.took_s(manifest))]
        self._live.refresh()

    def _body(self) -> Iterator[RenderableType]:
        if self._recent:
            yield BandedTable(self._table(), most_lines=SHOWN_EPOCHS)
            yield Text(self.summary(), "italic")

    def _table(self) -> Table:
        table = Table(title=f"{self._app}: epochs", title_justify="left")
        for name in ("epoch", "rows in", "rows/s", "rows out", "late", "epoch ms", "delta", "watermark"):
            table.add_column(name, justify="left" if name == "watermark" else "right")
        for manifest, took_s in self._recent:
            rows = rows_in(manifest)
            table.add_row(
                str(manifest.epoch),
                f"{rows:,}",
                f"{rows / took_s:,.0f}",
                f"{rows_out(manifest):,}",
                f"{late_rows(manifest):,}",
                f"{took_us(manifest) / 1000:,.0f}",
                human_bytes(delta_bytes(manifest)),
                time_text(watermark_of(manifest)),
            )
        return table


class EpochLines:
    """A line per epoch, for logs and pipes."""

    def __init__(
        self,
        console: Console,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: WallClock | None = None,
    ) -> None:
        self._console = console
        self._progress = RunProgress(clock, wall)
        self._pace = _Pace(clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def __call__(self, manifest: Manifest) -> None:
        progress = self._progress
        progress(manifest)
        behind = "".join(f"  {line}" for line in progress.catching_up.now())
        for line in (_line(manifest, self._pace.took_s(manifest)) + behind, *progress.standstill.news()):
            self.say(line)

    def follow(self, waits: Callable[[], list[str]], activity: Callable[[], str]) -> None:
        """The log says what is waited for."""

    def still(self, activity: str) -> None:
        self.say(activity)

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def summary(self) -> str:
        return self._progress.summary()

    def left(self) -> list[str]:
        return self._progress.standstill.left()


class _Pace:
    """How long each epoch took, from the one before it to its own publishing."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: float | None = None

    def took_s(self, manifest: Manifest) -> float:
        now = self._clock()
        # The first epoch began when it was ordered, not when Spark was started.
        before = now - took_us(manifest) / 1e6 if self._last is None else self._last
        self._last = now
        return max(now - before, 0.001)


def _line(manifest: Manifest, took_s: float) -> str:
    rows = rows_in(manifest)
    return (
        f"epoch {manifest.epoch}  rows {rows:,} in {rows_out(manifest):,} out  late {late_rows(manifest)}  "
        f"{took_us(manifest) / 1000:,.0f} ms  {rows / took_s:,.0f} rows/s  "
        f"delta {human_bytes(delta_bytes(manifest))}  watermark {time_text(watermark_of(manifest))}"
    )


def draw_bars(catching_up: CatchingUp) -> RenderableType | None:
    """A bar for each source that is behind; None where there is none."""
    figures = catching_up.figures
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
        share = "" if percent is None else f"{percent} %"
        words = [word for word in behind_words(each) if word != share]
        grid.add_row(Text(name, "cyan"), bar, Text(share), Text(", ".join(words), "cyan"))
    return grid


def choose_screen(app: App, *, plain: bool = False, console: Console | None = None) -> Screen:
    """The live table of epochs, the tables of the program's console sinks, or plain lines where nobody is looking."""
    from headrace.dataflow.checks import reachable
    from headrace.dataflow.graph import WriteNode

    console = console or Console()
    sinks = [node.sink for node in reachable(app) if isinstance(node, WriteNode) and isinstance(node.sink, ConsoleSink)]
    if plain or not console.is_terminal:
        for sink in sinks:
            sink.console = Console(force_terminal=False, soft_wrap=True)
        return EpochLines(console)
    if not sinks:
        return EpochTable(app.name, console)
    screen = TablesScreen(console)
    for sink in sinks:
        sink.show = _placer(screen, sink)
    return screen


def _placer(screen: TablesScreen, sink: ConsoleSink) -> Callable[[RenderableType], None]:
    return lambda table: screen.show(sink.output, table)


def epochs_html(app: str, state: str, manifests: Sequence[Manifest]) -> str:
    """A run for a notebook: its state in one line, and a table of epochs. Names are escaped."""
    head = f"<div><b>{escape(app)}</b>: {escape(state)}</div>"
    if not manifests:
        return f"{head}<div>no epoch was published yet</div>"
    rows = []
    for manifest in reversed(manifests):
        came, ms = rows_in(manifest), took_us(manifest) / 1000
        cells = (manifest.epoch, f"{came:,}", f"{came / max(ms, 1) * 1000:,.0f}", f"{rows_out(manifest):,}",
                 f"{ms:,.0f}", time_text(watermark_of(manifest)))  # fmt: skip
        rows.append(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in cells)}</tr>")
    columns = ("epoch", "rows in", "rows/s", "rows out", "ms", "watermark")
    names = "".join(f"<th>{name}</th>" for name in columns)
    return f"{head}<table><thead><tr>{names}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
