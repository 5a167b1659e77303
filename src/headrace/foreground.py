"""A program in the foreground: what a person sees from the first line to the last, and how they end it.

The job runs on a thread of its own and the calling thread waits, so that signals reach us and not Spark, which would
cancel the epoch at hand. What a signal does stands in `headrace.stop_signals`: the first one ends the run after its
epoch; a second one raises KeyboardInterrupt, and the epoch at hand is replayed at the next start.

What is shown is decided by `headrace.screens`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from headrace.checkpoint.rewind.request import RewindRequest, parse_start
from headrace.errors import SettingsError, StoreError
from headrace.model.sink_waits import tell_wait
from headrace.progress import wall_clock_us
from headrace.read.store import Store, manifest_of
from headrace.screens import Screen, choose_screen
from headrace.stop_signals import StopSignals

if TYPE_CHECKING:
    from headrace.dataflow.app import App
    from headrace.dataflow.settings import Settings
    from headrace.serve.serving import Options
    from headrace.state.manifest import Manifest

Until = Literal["stopped", "caught_up", "drained"]

_POLL_S: Final = 0.1
_STILL_S: Final = 10.0
"""After so long without an epoch, plain lines say what the job is doing."""


@dataclass(frozen=True)
class Opening:
    """How a run begins, as its store tells beforehand."""

    store: str
    newest: int | None
    """The newest published epoch that will be continued; None: there is none, or it will be thrown away."""
    final: bool = False
    fresh: bool = False
    owner: str = ""
    """Another app, whose store it is: the run will be refused."""
    start_from: str = ""
    """What it was asked to go back to."""

    def __str__(self) -> str:
        if self.owner:
            # No word of --fresh: it would throw away what is not this app's.
            return f"{self.store} is the store of another app, {self.owner}"
        if self.start_from:
            return f"{self.store} has come to epoch {self.newest}; asked to go back to {self.start_from}"
        if self.final:
            ways = "--from goes back to an earlier one, --fresh starts over"
            return f"the input was drained by epoch {self.newest}, the last in {self.store}; {ways}"
        if self.newest is not None:
            return f"resuming at epoch {self.newest + 1} from {self.store}; --fresh starts over"
        return f"starting over in {self.store}" if self.fresh else f"starting in {self.store}"


def read_opening(settings: Settings, app: str) -> Opening:
    """Looks into the store without touching it; a store that cannot be read is the job's to complain about."""
    try:
        store = Store(settings.store)
        epochs, owner = store.epochs(), store.app
        if owner != app:
            return Opening(settings.store, None, owner=owner)
        if not epochs or settings.fresh:
            return Opening(settings.store, None, fresh=settings.fresh)
        if isinstance(parse_start(settings.start_from, settings.store), RewindRequest):
            return Opening(settings.store, epochs[-1], start_from=settings.start_from)
        return Opening(settings.store, epochs[-1], final=manifest_of(store, epochs[-1]).final)
    except (StoreError, SettingsError):
        return Opening(settings.store, None)


def run_visibly(app: App, settings: Settings, until: Until, session: Any = None) -> None:
    """Runs a program to its end, with everything a person wants to see: what ``app.run`` does."""
    opening, screen = read_opening(settings, app.name), choose_screen(app, plain=settings.plain)
    with StopSignals() as signals:
        with screen:
            screen.say(str(opening))
            stopped = play(app, settings, until, screen, signals, session=session)
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
    signals: StopSignals,
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
    spoken = clock()

    def watch(manifest: Manifest) -> None:
        nonlocal spoken
        spoken = clock()
        if not began:
            began.append(spoken)
        screen(manifest)

    job = Job(app, settings, until, session, watch, screen.say)

    def waits() -> list[str]:
        # From the first epoch on, the screen knows from it how far the job is.
        pace = [job.pace_note] if job.pace_note else []
        return [*(tell_wait(wait, wall_clock_us()) for wait in job.waits), *pace, *([] if began else job.beginning)]

    screen.follow(waits, job.activity)
    with (
        signals.stopping(job.stop, screen.say, job.started.is_set) as asked,
        serving_beside(settings, screen.say),
    ):
        run = Run(job)
        asked_by = ""
        while not run.wait(_POLL_S):
            if not asked_by and (asked_by := job.asked_by):
                screen.say(f"{asked_by} asked this run to end; it does after its epoch")
            now = clock()
            if seconds is not None and began and now - began[0] >= seconds:
                job.stop()
            if now - spoken >= _STILL_S:
                spoken = now
                if activity := job.activity():
                    screen.still(activity)
        return bool(asked or job.asked_by)


@contextlib.contextmanager
def serving_beside(settings: Settings, say: Callable[[str], None]) -> Iterator[None]:
    """While inside, state is served where the settings say so: by a process of its own, which ends with this one.

    Reads go on while the job starts again from its last epoch, because the server knows the store only.
    """
    if not settings.serve.on:
        yield
        return
    from headrace.serve.processes import Workers

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
    from headrace.serve.serving import Options, check_startable, speaks_http

    told = settings.serve
    http_port = told.http_port if not isinstance(told.http_port, bool) else HTTP_PORT if told.http_port else None
    if told.http_port is True and not speaks_http():
        http_port = None
        say('state is served over Redis\' protocol alone; for HTTP: pip install "headrace[serve]"')
    options = Options(
        store=settings.store, port=told.port, http_port=http_port, bind=told.bind, processes=told.processes,
        pg_port=told.pg_port, users=told.users, tls_cert=told.tls_cert, tls_key=told.tls_key,
        insecure=told.insecure, origins=told.origins,
    )  # fmt: skip
    try:
        check_startable(options)
    except SettingsError as error:
        # What `headrace serve` calls --bind is a part of --serve here.
        error.where = error.where.replace(f"--bind {told.bind}", f"--serve {told.bind}:{told.port}")
        raise
    return options
