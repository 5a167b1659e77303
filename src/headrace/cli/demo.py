"""``headrace demo``: a minute of Headrace, from one command."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.cli.exits import Json, Trace, report_errors
from headrace.cli.json_lines import JsonLines
from headrace.cli.run import aborting, show_spark

if TYPE_CHECKING:
    from typing import Self

    from rich.console import Console

    from headrace.cli.demo_server import DemoServer
    from headrace.demo import Board
    from headrace.foreground import Opening
    from headrace.screens import Screen
    from headrace.state.manifest import Manifest
    from headrace.stop_signals import StopSignals

LOG_EVERY_S = 5.0
SERVED_WITHIN_S = 30.0
"""So long the server of an ended demo may take to read its last epoch."""
STAYS_S = 120.0
"""How long the state is served behind the end where nobody said: the demo ends by itself."""

_AT_ONCE: Final = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
"""A JVM that compiles in haste: the first epoch comes two seconds sooner, and a minute is too short for the rest."""


def demo(
    seconds: Annotated[float, typer.Option("--seconds", min=0, help="How long to play.")] = 60,
    store: Annotated[str | None, typer.Option("--store", help="Folder of the store [./.headrace/demo].")] = None,
    parallelism: Annotated[int | None, typer.Option("--parallelism", "-p", help="Number of shards.")] = None,
    rate: Annotated[float | None, typer.Option("--rate", min=1, help="Impressions per second [10000].")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget the counts of earlier plays.")] = False,
    stay: Annotated[
        bool | None,
        typer.Option("--stay/--no-stay", help="Serve the state after the end until Ctrl-C; on a terminal for a while."),
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Log lines instead of a live table.")] = False,
    as_json: Json = False,
    trace: Trace = False,
) -> None:
    """Play generated tweet impressions, counted per tweet in state and served. Played again, it resumes.

    Example: headrace demo --seconds 20
    """
    with report_errors(trace=trace, as_json=as_json):
        from headrace.cli.demo_server import DemoServer
        from headrace.demo import RATE, Board, make_demo
        from headrace.foreground import play, read_opening
        from headrace.stop_signals import StopSignals

        show_spark(trace)
        board = Board()
        app = make_demo(board, rate=rate or RATE)
        settings = app.settings(
            store=store, parallelism=parallelism, fresh=fresh or None, plain=plain or None, serve=False, spark=_AT_ONCE
        )
        opening = read_opening(settings, app.name)
        screen = _screen(board, opening, plain=settings.plain, as_json=as_json)

        def serving(tweet: str) -> None:
            screen.say(f"ask while it plays: {'   or   '.join(asked for asked, _ in server.commands(tweet))}")

        with StopSignals() as signals, DemoServer(settings.store, app.name, lambda: _leader(board), serving) as server:
            with aborting(screen):
                screen.say(_hello(opening, seconds))
                stopped = play(app, settings, "stopped", screen, signals, seconds=seconds)
                server.hush()
            if isinstance(screen, JsonLines):
                screen.end(stopped)
                return
            stays = not stopped and (sys.stdout.isatty() if stay is None else stay)
            stays_s = STAYS_S if stay is None else None
            _goodbye(board, screen, settings.store, server if stays else None, stays_s, signals)


def _hello(opening: Opening, seconds: float) -> str:
    if opening.owner:
        return str(opening)
    how = "starting" if opening.newest is None else f"resuming at epoch {opening.newest + 1}"
    return f"the demo plays for {seconds:g} s, {how} in {opening.store}; Ctrl-C ends it sooner, as cleanly"


def _screen(board: Board, opening: Opening, *, plain: bool, as_json: bool) -> Screen:
    from rich.console import Console

    console = Console(highlight=False)
    if as_json:
        return JsonLines(opening)
    if plain or not console.is_terminal:
        return BoardLines(board, Console(highlight=False, soft_wrap=True, force_terminal=False))
    from headrace.screens import TablesScreen

    return TablesScreen(console, {"board": board.draw})


class BoardLines:
    """The demo in a log: a line every few seconds."""

    def __init__(self, board: Board, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        from headrace.progress import RunProgress

        self._board = board
        self._console = console
        self._clock = clock
        self._count = RunProgress(clock)
        self._last: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def __call__(self, manifest: Manifest) -> None:
        from headrace.progress import status_line

        self._count(manifest)
        now = self._clock()
        if self._last is None or now - self._last >= LOG_EVERY_S:
            self._last = now
            self.say(status_line(manifest))
            self.say(f"  {self._board.line()}")

    def say(self, text: str) -> None:
        self._console.print(text, markup=False)

    def follow(self, waits: Callable[[], list[str]], activity: Callable[[], str]) -> None:
        """The demo writes nowhere that could be away."""

    def still(self, activity: str) -> None:
        self.say(activity)

    def summary(self) -> str:
        return self._count.summary()

    def left(self) -> list[str]:
        return []


def _goodbye(
    board: Board, screen: Screen, store: str, server: DemoServer | None, stays_s: float | None, signals: StopSignals
) -> None:
    """What happened, and commands that work now; with a server, for so long (None: for ever) or until Ctrl-C."""
    from rich.text import Text

    from headrace.cli.show import make_console

    console = make_console()
    console.print(Text.assemble(("the demo has ended: ", "bold"), screen.summary()))
    if board.top():
        console.print(board.line())
    tweet, published = _leader(board) or _first_tweet(store), _epochs(store)
    commands = _own_commands(store, tweet, published, serves=server is not None)
    asked = [] if server is None else server.commands(tweet)
    width = max(len(command) for command, _ in (*commands, *asked))

    def tell(title: str, told_of: list[tuple[str, str]]) -> None:
        console.print(Text(f"\n{title}", "bold"))
        for command, why in told_of:
            console.print(Text.assemble((f"  {command:<{width}}", "cyan"), f"   {why}"))
        sys.stdout.flush()

    tell("try next", commands)
    if server is None:
        return
    newest = published[-1] if published else 0
    served = _wait_served(server, tweet, newest, signals)
    if served is not None:
        when = "try now" if served else f"try as soon as its server has read epoch {newest}"
        long = "until Ctrl-C" if stays_s is None else f"for {stays_s / 60:g} minutes, or until Ctrl-C"
        tell(f"its state is served {long}; {when}", asked)
        ends = None if stays_s is None else time.monotonic() + stays_s
        signals.wait_while(lambda: server.alive and (ends is None or time.monotonic() < ends))


def _wait_served(server: DemoServer, tweet: str | None, epoch: int, signals: StopSignals) -> bool | None:
    """Whether the server has come to that epoch in time; None: somebody ended the waiting."""
    ends = time.monotonic() + SERVED_WITHIN_S
    served = False

    def waits() -> bool:
        nonlocal served
        served = server.answers(tweet, epoch)
        return not served and server.alive and time.monotonic() < ends

    return None if signals.wait_while(waits) else served


def _own_commands(store: str, tweet: str | None, published: list[int], *, serves: bool) -> list[tuple[str, str]]:
    """Commands of ours that go on from here, and what they give."""
    folder, name = _short(store), command_name()
    commands: list[tuple[str, str]] = [
        (f"epochs {folder}", "what each epoch did"),
        *([(f"epochs {folder} {published[-1]}", "where one epoch's time went")] if published else []),
        (f"state {folder}", "what is kept"),
        *(
            [(f"state {folder} count_views.views {tweet}", "the count of one tweet, to the last view")]
            if tweet is not None
            else []
        ),
        *([] if serves else [(f"serve {folder} --http-port 8399", "ask for it with redis-cli and curl")]),
        ("demo", f"play again: it resumes at epoch {published[-1] + 1}" if published else "play again"),
        ("demo --fresh", "forget all counts"),
    ]
    return [(f"{name} {command}", why) for command, why in commands]


def _epochs(store: str) -> list[int]:
    from headrace.read.store import Store

    return Store(store).epochs()


def _leader(board: Board) -> str | None:
    """The most viewed tweet; None before the first is on the board."""
    leaders = board.top()
    return leaders[0][0].tweet if leaders else None


def _first_tweet(store: str) -> str | None:
    """Any tweet that is counted, where a short play has put none on the board."""
    from headrace.cli.demo_server import ADDRESS
    from headrace.errors import HeadraceError
    from headrace.read.store import Store

    try:
        return next(iter(Store(store).state(ADDRESS, int)), None)
    except HeadraceError:
        return None


def _short(store: str) -> str:
    """A path as a person would write it from here."""
    path = Path(store)
    if "://" in store or not path.exists():
        return store
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return store


def command_name(argv: list[str] | None = None) -> str:
    """How this command was called, so that the next one can be copied."""
    called: Any = Path((argv or sys.argv)[0])
    if called.name != "headrace":
        return "python -m headrace.cli"
    on_path = shutil.which("headrace")
    if on_path is not None and Path(on_path).resolve() == called.resolve():
        return "headrace"
    return _short(str(called))
