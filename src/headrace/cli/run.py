"""``headrace run``: a program in the foreground, from its file to its last epoch."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from headrace.cli.exits import Exit, Json, Trace, told

if TYPE_CHECKING:
    from typing import Self

    from headrace.foreground import Opening, Screen
    from headrace.state.manifest import Manifest

Profile = Annotated[str | None, typer.Option("--profile", help="Profile of headrace.toml.")]
Vars = Annotated[list[str] | None, typer.Option("--var", metavar="NAME=VALUE", help="What hr.var gives; repeatable.")]
File = Annotated[str, typer.Argument(metavar="APP.PY[:NAME]", help="The program; :NAME picks one of several apps.")]


BESIDE = "The server beside the job"


class RunCommand(TyperCommand):
    """Lets ``--serve`` stand alone, or before a port, or before an address and a port."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from headrace.dataflow.serve_settings import is_place

        end = args.index("--") if "--" in args else len(args)
        spelled = [
            "--serve=true" if word == "--serve" and not is_place(following) else word
            for word, following in zip(args[:end], [*args[1:end], ""], strict=True)
        ]
        return super().parse_args(ctx, spelled + args[end:])


def run(
    file: File,
    store: Annotated[str | None, typer.Option("--store", help="Folder or URL of the checkpoint store.")] = None,
    parallelism: Annotated[int | None, typer.Option("--parallelism", "-p", help="Number of shards.")] = None,
    epoch: Annotated[str | None, typer.Option("--epoch", help="How often an epoch begins: 500ms, 1s.")] = None,
    master: Annotated[
        str | None, typer.Option("--master", help="Where Spark runs: local[2], spark://host:7077.")
    ] = None,
    until: Annotated[
        Literal["stopped", "caught_up", "drained"],
        typer.Option("--until", help="End when told to, when the input of now is read, or at the end of all input."),
    ] = "stopped",
    fresh: Annotated[bool, typer.Option("--fresh", help="Throw away what is in the store and start over.")] = False,
    takeover: Annotated[bool, typer.Option("--takeover", help="End another driver that runs on this store.")] = False,
    serve: Annotated[
        str | None,
        typer.Option(
            "--serve",
            metavar="[[ADDRESS:]PORT]",
            help="Serve state beside the job: Redis' protocol on 127.0.0.1:6399 by default, and HTTP.",
        ),
    ] = None,
    http_port: Annotated[
        int | None, typer.Option("--http-port", help="For HTTP [8399].", rich_help_panel=BESIDE)
    ] = None,
    processes: Annotated[
        int | None, typer.Option("--processes", help="How many share the ports [1].", rich_help_panel=BESIDE)
    ] = None,
    users: Annotated[
        str | None,
        typer.Option("--users", metavar="FILE", help="Users with tokens and states, in TOML.", rich_help_panel=BESIDE),
    ] = None,
    tls_cert: Annotated[
        str | None,
        typer.Option("--tls-cert", metavar="FILE", help="Certificate chain, PEM.", rich_help_panel=BESIDE),
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option("--tls-key", metavar="FILE", help="Its key, PEM.", rich_help_panel=BESIDE)
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Listen for other machines without tokens or TLS.", rich_help_panel=BESIDE),
    ] = False,
    origin: Annotated[
        list[str] | None,
        typer.Option("--origin", help="A web page that may read over HTTP; repeatable.", rich_help_panel=BESIDE),
    ] = None,
    profile: Profile = None,
    var: Vars = None,
    plain: Annotated[bool, typer.Option("--plain", help="Log lines instead of a live table.")] = False,
    as_json: Json = False,
    trace: Trace = False,
) -> None:
    """Run a program. Ctrl-C ends it after the current epoch; the next run goes on from there.

    Example: headrace run tweets.py --store ./state --parallelism 2

    Example: headrace run tweets.py --until caught_up --var folder=events/

    Example: headrace run tweets.py --serve

    Example: headrace run tweets.py --serve 0.0.0.0:6399 --users users.toml --tls-cert cert.pem --tls-key key.pem
    """
    with told(trace=trace, as_json=as_json):
        from headrace.cli.loading import load_app, parse_vars
        from headrace.foreground import choose_screen, play, read_opening

        show_spark(trace)
        variables = parse_vars(var or [])
        app = load_app(file, variables=variables, profile=profile)
        arguments: dict[str, Any] = {
            "store": store, "parallelism": parallelism, "epoch": epoch, "master": master, "vars": variables or None,
            "fresh": fresh or None, "takeover": takeover or None, "plain": plain or None,
            "serve": _serving(
                serve, http_port=http_port, processes=processes, users=users, tls_cert=tls_cert, tls_key=tls_key,
                insecure=insecure or None, origins=origin or None,
            ),
        }  # fmt: skip
        settings = app.settings(profile=profile, **arguments)
        app._check_runnable(until)
        opening = read_opening(settings)
        screen = JsonLines(opening) if as_json else choose_screen(app, plain=settings.plain)
        with aborting(screen):
            screen.say(str(opening))
            stopped = play(app, settings, until, screen)
        _close(screen, stopped)


def _serving(place: str | None, **words: Any) -> str | dict[str, Any] | None:
    """The setting ``serve`` from the flags; None where none was given. Each of them says that state is served."""
    from headrace.dataflow.serve_settings import serve_words

    given = {name: word for name, word in words.items() if word is not None}
    if not given:
        return place
    return given if place is None else serve_words(place, "--serve") | given


def show_spark(trace: bool) -> None:
    """With ``--trace`` Spark's own log is shown, too."""
    if trace:
        os.environ["HEADRACE_TRACE"] = "1"


@contextlib.contextmanager
def aborting(screen: Screen) -> Iterator[None]:
    """An interrupted run ends the process at once: Spark's threads would not be quick to end."""
    try:
        with screen:
            yield
    except KeyboardInterrupt:
        # Not on standard error, which is not ours while Spark starts.
        screen.say("interrupted; what was not published yet is replayed at the next start")
        sys.stdout.flush()
        os._exit(Exit.INTERRUPTED)


def _close(screen: Screen, stopped: bool) -> None:
    """The last lines."""
    from headrace.foreground import say_end

    if isinstance(screen, JsonLines):
        screen.end(stopped)
    else:
        say_end(screen, stopped)


class JsonLines:
    """A run for machines: one line when it starts, one per epoch, one at the end."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        from headrace.standstill import Standstill

        self._standstill = Standstill()
        self._epochs = 0
        self._rows_in = 0
        self._rows_out = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def say(self, text: str) -> None:
        from headrace.cli.show import print_json_line

        newest = self._opening.newest
        where = {"store": self._opening.store, "resumes_at": None if newest is None else newest + 1}
        print_json_line({"event": "says", "text": text, **where})

    def follow(self, lines: Callable[[], list[str]]) -> None:
        """The log says it, on standard error."""

    def __call__(self, manifest: Manifest) -> None:
        from headrace.cli.epochs import summary
        from headrace.cli.show import print_json_line

        told_of = summary(manifest)
        self._standstill(manifest)
        self._epochs += 1
        self._rows_in += told_of["rows_in"]
        self._rows_out += told_of["rows_out"]
        print_json_line({"event": "epoch", **told_of})

    def summary(self) -> str:
        return f"{self._epochs:,} epochs, {self._rows_in:,} rows in, {self._rows_out:,} rows out"

    def left(self) -> list[str]:
        return self._standstill.left()

    def end(self, stopped: bool) -> None:
        from headrace.cli.show import print_json_line

        totals = {"epochs": self._epochs, "rows_in": self._rows_in, "rows_out": self._rows_out}
        print_json_line({"event": "end", "stopped": stopped, **totals, "waiting": self.left()})
