"""``headrace run``: a program in the foreground, from its file to its last epoch."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

from headrace.cli import options
from headrace.cli.exits import Exit, Json, Trace, report_errors
from headrace.cli.json_lines import JsonLines

if TYPE_CHECKING:
    from headrace.dataflow.app import App
    from headrace.dataflow.settings import Settings
    from headrace.screens import Screen


class RunCommand(TyperCommand):
    """Lets ``--serve`` stand alone, or before a port, or before an address and a port."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from headrace.dataflow.serve_settings import is_place

        end = args.index("--") if "--" in args else len(args)
        flags = args[:end]
        spelled = [
            "--serve=true" if word == "--serve" and not is_place(following) else word
            for word, following in zip_longest(flags, flags[1:], fillvalue="")
        ]
        return super().parse_args(ctx, spelled + args[end:])


def run(
    file: options.File,
    store: options.StorePath = None,
    parallelism: options.Parallelism = None,
    epoch: options.EpochEvery = None,
    master: options.Master = None,
    until: options.Until = "stopped",
    fresh: options.Fresh = False,
    start_from: options.StartFrom = None,
    repeat: options.Repeat = None,
    hold: options.Hold = None,
    again: options.Again = False,
    original_lost: options.OriginalLost = False,
    drop: options.Drop = None,
    takeover: options.Takeover = False,
    serve: options.Serve = None,
    http_port: options.HttpPort = None,
    pg_port: options.PgPort = None,
    processes: options.Processes = None,
    users: options.Users = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    insecure: options.Insecure = False,
    origin: options.Origins = None,
    profile: options.Profile = None,
    var: options.Vars = None,
    plain: options.Plain = False,
    as_json: Json = False,
    trace: Trace = False,
) -> None:
    """Run a program. Ctrl-C ends it after the current epoch; the next run goes on from there.

    Example: headrace run tweets.py --store ./state --parallelism 2

    Example: headrace run tweets.py --until caught_up --var folder=events/

    Example: headrace run tweets.py --from before-v2 --hold alerts

    Example: headrace run tweets_v2.py --store ./v2 --from ./state@before-v2

    Example: headrace run tweets.py --store /mnt/copy --original-lost

    Example: headrace run tweets.py --drop totals.seen

    Example: headrace run tweets.py --serve

    Example: headrace run tweets.py --serve 0.0.0.0:6399 --users users.toml --tls-cert cert.pem --tls-key key.pem
    """
    with report_errors(trace=trace, as_json=as_json):
        from headrace.cli.loading import load_app, parse_vars

        show_spark(trace)
        variables = parse_vars(var or [])
        app = load_app(file, variables=variables, profile=profile)
        serving = _serving(
            serve, http_port=http_port, pg_port=pg_port, processes=processes, users=users, tls_cert=tls_cert,
            tls_key=tls_key, insecure=insecure or None, origins=origin or None,
        )  # fmt: skip
        # A flag that was not given says nothing: the setting is then that of headrace.toml or of the environment.
        settings = app.settings(
            profile=profile, store=store, parallelism=parallelism, epoch=epoch, master=master, vars=variables or None,
            fresh=fresh or None, takeover=takeover or None, plain=plain or None, serve=serving,
            start_from=start_from, repeat=repeat or None, hold=hold or None, again=again or None,
            original_lost=original_lost or None, drop=drop or None,
        )  # fmt: skip
        app._check_runnable(until)
        _play(app, settings, until, as_json)


def _play(app: App, settings: Settings, until: options.Until, as_json: bool) -> None:
    """The run itself, on a screen or as lines of JSON."""
    from headrace.foreground import play, read_opening
    from headrace.screens import choose_screen
    from headrace.stop_signals import StopSignals

    opening = read_opening(settings, app.name)
    screen = JsonLines(opening) if as_json else choose_screen(app, plain=settings.plain)
    with StopSignals() as signals:
        with aborting(screen):
            screen.say(str(opening))
            stopped = play(app, settings, until, screen, signals)
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
