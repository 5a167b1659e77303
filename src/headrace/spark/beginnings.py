"""Where a run begins, before it recovers: where the last one ended, from nothing, at an earlier epoch, or in a fork."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.checkpoint.fence import Fence, take_fence
from headrace.checkpoint.maintenance import Maintainer
from headrace.checkpoint.recover import start_over
from headrace.checkpoint.rewind.fork import begin_fork
from headrace.checkpoint.rewind.proof import ReplayKeeper
from headrace.checkpoint.rewind.request import StartRequest, parse_start
from headrace.checkpoint.rewind.rewinder import Rewinder
from headrace.model.amounts import human_bytes
from headrace.plan.sides import all_sources
from headrace.read.store import open_for_reading
from headrace.replay.restating import StateRestating

if TYPE_CHECKING:
    from headrace.checkpoint.release import Releaser
    from headrace.dataflow.settings import Settings
    from headrace.model.job import JobFacts
    from headrace.plan.physical import Program
    from headrace.state.store import StoreFiles

Say = Callable[[str], None]

_SPEAK_EVERY_S: Final = 5.0


def take_store(store: StoreFiles, settings: Settings, program: Program, say: Say) -> Fence:
    """Becomes the driver of the store, which is made first where the run is to begin with an epoch of another one."""
    facts, sources, show = program.facts, all_sources(program), _teller(say)
    asked = _start_request(store, settings)
    for line in begin_fork(store, asked, facts, sources, open_for_reading, drop=settings.drop, progress=show):
        say(line)
    return take_fence(store, takeover=settings.takeover)


def choose_beginning(
    store: StoreFiles, settings: Settings, program: Program, fence: Fence, releaser: Releaser, say: Say
) -> None:
    """Takes the store to where the run begins; says what not every start does. The sinks have been started."""
    if settings.fresh:
        start_over(store, program.app)
    sinks = {output.name: output.sink for output in program.outputs}
    restating = StateRestating(store, program)
    rewinder = Rewinder(
        store, program.facts, fence, releaser, sinks, all_sources(program), restating, drop=settings.drop
    )
    for line in rewinder.begin(_start_request(store, settings)):
        say(line)


def start_maintainer(
    store: StoreFiles, settings: Settings, program: Program, job: JobFacts, fence: Fence, releaser: Releaser
) -> Maintainer:
    """Begins to fold and sweep, and to tell sources what savepoints need of them. ``job``: the side that is read."""

    keeper = ReplayKeeper(store, all_sources(program), releaser.job)
    return Maintainer(store, job, fence.number, retain=settings.retain, swept=keeper.tell)


def _start_request(store: StoreFiles, settings: Settings) -> StartRequest | None:
    return parse_start(
        settings.start_from, store.url, repeat=settings.repeat, hold=settings.hold, again=settings.again,
        original_lost=settings.original_lost,
    )  # fmt: skip


def _teller(say: Say) -> Callable[[int, int], None]:
    """Says now and then how far a copy is."""
    spoken = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal spoken
        if time.monotonic() - spoken >= _SPEAK_EVERY_S:
            spoken = time.monotonic()
            say(f"copying: {human_bytes(done)} of {human_bytes(total)}")

    return tell
