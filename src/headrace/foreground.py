"""A program in the foreground: what a person sees from the first line to the last, and how they end it.

The job runs on a thread of its own and the calling thread waits, so that signals reach us and not Spark, which would
cancel the epoch at hand. The first Ctrl-C or SIGTERM asks the job to end: the current epoch finishes, the next start
resumes. A second one, or one that comes while Spark is still starting, waits for nothing and raises KeyboardInterrupt:
the epoch at hand is dropped and replayed at the next start, so that is safe, too.

This module does not decide what is shown: a screen is given, or chosen by `choose_screen`.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from headrace.catching_up import CatchingUp, human_bytes
from headrace.errors import SettingsError, StoreError
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.sink_waits import tell_wait
from headrace.model.time import format_time
from headrace.progress import EpochWatch, counts_text, delta_bytes, rows_in, rows_out
from headrace.query.store import Store
from headrace.sinks.console import ConsoleSink
from headrace.standstill import Standstill, wall_clock_us

if TYPE_CHECKING:
    from typing import Self

    from headrace.dataflow.app import App
    from headrace.dataflow.settings import Settings
    from headrace.query.serving import Options
    from headrace.state.manifest import Manifest

Until = Literal["stopped", "caught_up", "drained"]

_POLL_S = 0.1
STOPPING = "stopping after this epoch; Ctrl-C again gives up waiting"


class Screen(Protocol):
    """Where a run is shown. Called with each published manifest, on the job's thread."""

    def __enter__(self) -> Any: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def __call__(self, manifest: Manifest) -> None: ...
    def say(self, text: str) -> None: ...
    def follow(self, lines: Callable[[], list[str]]) -> None:
        """Gives lines that are worth showing for as long as they are there: what the job waits for."""

    def summary(self) -> str: ...
    def left(self) -> list[str]:
        """What waits for event time at the end, and why; a line each."""


@dataclass(frozen=True)
class Opening:
    """How a run begins, as its store tells beforehand."""

    store: str
    newest: int | None
    """The newest published epoch that will be continued; None: there is none, or it will be thrown away."""
    final: bool = False
    fresh: bool = False

    def __str__(self) -> str:
        if self.final:
            return f"the input was drained by epoch {self.newest}, the last in {self.store}; --fresh starts over"
        if self.newest is not None:
            return f"resuming at epoch {self.newest + 1} from {self.store}; --fresh starts over"
        return f"starting over in {self.store}" if self.fresh else f"starting in {self.store}"


def read_opening(settings: Settings) -> Opening:
    """Looks into the store without touching it; a store that cannot be read is the job's to complain about."""
    try:
        store = Store(settings.store)
        epochs = store.epochs()
        if not epochs or settings.fresh:
            return Opening(settings.store, None, fresh=settings.fresh)
        return Opening(settings.store, epochs[-1], final=store.manifest(epochs[-1]).final)
    except StoreError:
        return Opening(settings.store, None)


def run_visibly(app: App, settings: Settings, until: Until, session: Any = None) -> None:
    """Runs a program to its end, with everything a person wants to see: what ``app.run`` does."""
    opening, screen = read_opening(settings), choose_screen(app, plain=settings.plain)
    with screen:
        screen.say(str(opening))
        stopped = play(app, settings, until, screen, session=session)
    say_end(screen, stopped)


def say_end(screen: Screen, stopped: bool) -> None:
    """The last lines: what was done, and what has not come out and why."""
    for line in (f"{'stopped' if stopped else 'done'}: {screen.summary()}", *screen.left()):
        screen.say(line)


def play(
    app: App,
    settings: Settings,
    until: Until,
    screen: Screen,
    *,
    session: Any = None,
    seconds: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Runs a program to its end; answers whether somebody asked it to stop. ``seconds``: ends by itself after that.

    The seconds count from the first published epoch, so that starting Spark takes nothing away from them.
    """
    from headrace.spark.job import Job
    from headrace.spark.runner import Run

    began: list[float] = []

    def watch(manifest: Manifest) -> None:
        if not began:
            began.append(clock())
        screen(manifest)

    job = Job(app, settings, until, session, watch)

    def lines() -> list[str]:
        # From the first epoch on, the screen knows from it how far the job is.
        return [*(tell_wait(wait, wall_clock_us()) for wait in job.waits), *([] if began else job.beginning)]

    screen.follow(lines)
    with _signals(job.stop, screen.say, job.started.is_set) as asked, serving_beside(settings, screen.say):
        run = Run(job)
        while not run.wait(_POLL_S):
            if seconds is not None and began and clock() - began[0] >= seconds:
                job.stop()
        return bool(asked)


@contextlib.contextmanager
def serving_beside(settings: Settings, say: Callable[[str], None]) -> Iterator[None]:
    """While inside, state is served where the settings say so: by a process of its own, which ends with this one.

    Reads go on while the job starts again from its last epoch, because the server knows the store only.
    """
    if not settings.serve.on:
        yield
        return
    from headrace.query.processes import Workers

    def tell(told: Mapping[str, Any]) -> None:
        match told.get("event"):
            case "serving":
                say(f"state is served: {'   or   '.join(told['try'])}")
            case "restarting":
                say(f"the server of state ended with code {told['code']}; starting another")
            case "ended":
                say(f"the server of state ends again and again, with code {told['code']}; the job goes on without it")

    options = _serve_options(settings, say)
    workers = Workers(options, tell, flag="--serve")
    workers.start()
    try:
        yield
    finally:
        workers.stop()


def _serve_options(settings: Settings, say: Callable[[str], None]) -> Options:
    """How the server beside a job is started; raises where it could not be, or should not."""
    from headrace.dataflow.serve_settings import HTTP_PORT
    from headrace.query.serving import Options, check_startable, speaks_http

    told = settings.serve
    http_port = told.http_port if not isinstance(told.http_port, bool) else HTTP_PORT if told.http_port else None
    if told.http_port is True and not speaks_http():
        http_port = None
        say('state is served over Redis\' protocol alone; for HTTP: pip install "headrace[serve]"')
    options = Options(
        store=settings.store, port=told.port, http_port=http_port, bind=told.bind, processes=told.processes,
        users=told.users, tls_cert=told.tls_cert, tls_key=told.tls_key, insecure=told.insecure, origins=told.origins,
    )  # fmt: skip
    try:
        check_startable(options)
    except SettingsError as error:
        # What `headrace serve` calls --bind is a part of --serve here.
        error.where = error.where.replace(f"--bind {told.bind}", f"--serve {told.bind}:{told.port}")
        raise
    return options


@contextlib.contextmanager
def _signals(stop: Callable[[], None], say: Callable[[str], None], started: Callable[[], bool]) -> Iterator[list[int]]:
    """While inside, the first signal stops and the second interrupts; yields the list of signals that came.

    Before the job has started there is nothing to finish, so the first one interrupts.
    """
    asked: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if len(asked) > 1 or not started():
            raise KeyboardInterrupt
        # Not here: whatever the interrupted line holds (a lock of the screen, say) may be needed for this.
        threading.Thread(target=_ask_to_stop, args=(stop, say), daemon=True).start()

    if threading.current_thread() is not threading.main_thread():
        # Only the main thread may handle signals; whoever started this one has to.
        yield asked
        return
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ask_to_stop(stop: Callable[[], None], say: Callable[[str], None]) -> None:
    stop()
    say(STOPPING)


class TablesScreen:
    """Tables that sinks fill, with one line about the epochs below them; on a terminal only."""

    def __init__(self, console: Console, tables: Mapping[str, Callable[[], RenderableType]] | None = None) -> None:
        """``tables``: what is drawn anew with each epoch."""
        self._console = console
        self._makers = dict(tables or {})
        self._count = EpochCount()
        self._standstill = Standstill()
        self._catching_up = CatchingUp()
        self._followed: Callable[[], list[str]] = list
        self._tables: dict[str, RenderableType] = {}
        self._status: RenderableType = Spinner("dots", Text("starting Spark …", "dim"))
        # Drawn anew also between epochs: where no row comes none is run, and time that stands still should show.
        self._live = Live(get_renderable=self._group, console=console, refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def follow(self, lines: Callable[[], list[str]]) -> None:
        self._followed = lines

    def show(self, name: str, table: RenderableType) -> None:
        """Puts a table on the screen, in place of the one of the same name."""
        self._tables[name] = table
        self._draw()

    def __call__(self, manifest: Manifest) -> None:
        self._count(manifest)
        self._standstill(manifest)
        self._catching_up(manifest)
        self._tables.update({name: make() for name, make in self._makers.items()})
        self._status = Text.assemble((status_line(manifest), "cyan"), "\n", (self.summary(), "dim"))
        self._draw()

    def say(self, text: str) -> None:
        # It may hold a command, to be copied: not cut where the screen ends.
        self._console.print(Text(text), soft_wrap=True)

    def summary(self) -> str:
        return self._count.summary()

    def left(self) -> list[str]:
        return self._standstill.left()

    def _group(self) -> Group:
        bars = self._catching_up.bars()
        behind = () if bars is None else (bars,)
        waiting = [Text(line, "yellow") for line in (*self._followed(), *self._standstill.now())]
        return Group(*list(self._tables.values()), self._status, *behind, *waiting)

    def _draw(self) -> None:
        self._live.refresh()


class EpochCount:
    """Counts epochs and rows from the start of the first epoch on: starting Spark is not held against them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: float | None = None
        self.epochs = 0
        self.rows_in = 0
        self.rows_out = 0

    def __call__(self, manifest: Manifest) -> None:
        if self._began is None:
            self._began = self._clock() - took_us(manifest) / 1e6
        self.epochs += 1
        self.rows_in += rows_in(manifest)
        self.rows_out += rows_out(manifest)

    def summary(self) -> str:
        """One line for the end."""
        if self._began is None:
            return "no epoch was published"
        seconds = max(self._clock() - self._began, 0.001)
        counts = counts_text(self.epochs, self.rows_in, self.rows_out)
        return f"{counts} in {seconds:.1f} s ({self.rows_in / seconds:,.0f} rows/s)"


def took_us(manifest: Manifest) -> int:
    """From Spark's question to the publishing of an epoch."""
    return sum(took for name, took in manifest.took_us.items() if name != "between")


def status_line(manifest: Manifest) -> str:
    """One line about an epoch."""
    took_ms = took_us(manifest) / 1000
    return (
        f"epoch {manifest.epoch}: {rows_in(manifest):,} rows in, {rows_out(manifest):,} out, {took_ms:,.0f} ms, "
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


def choose_screen(app: App, *, plain: bool = False, console: Console | None = None) -> Screen:
    """The live table of epochs, the tables of the program's console sinks, or plain lines where nobody is looking."""
    from headrace.dataflow.graph import WriteNode, reachable

    console = console or Console()
    sinks = [node.sink for node in reachable(app) if isinstance(node, WriteNode) and isinstance(node.sink, ConsoleSink)]
    if plain or not console.is_terminal:
        for sink in sinks:
            sink.console = Console(force_terminal=False, soft_wrap=True)
        return EpochWatch(app.name, plain=True, console=console)
    if not sinks:
        return EpochWatch(app.name, console=console)
    screen = TablesScreen(console)
    for sink in sinks:
        sink.show = _placer(screen, sink)
    return screen


def _placer(screen: TablesScreen, sink: ConsoleSink) -> Callable[[RenderableType], None]:
    return lambda table: screen.show(sink.output, table)
