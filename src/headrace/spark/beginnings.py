"""Where a run begins, before it recovers: where the last one ended, from nothing, or at an earlier epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.checkpoint.recover import start_over
from headrace.checkpoint.rewind.request import parse_start
from headrace.checkpoint.rewind.rewinder import Rewinder
from headrace.plan.sides import all_sources

if TYPE_CHECKING:
    from headrace.checkpoint.fence import Fence
    from headrace.checkpoint.release import Releaser
    from headrace.dataflow.settings import Settings
    from headrace.plan.physical import Program
    from headrace.state.store import StoreFiles


def choose_beginning(
    store: StoreFiles, settings: Settings, program: Program, fence: Fence, releaser: Releaser,
    say: Callable[[str], None],
) -> None:  # fmt: skip
    """Takes the store there; says what was done that not every start does. The sinks have been started."""
    if settings.fresh:
        start_over(store, program.app)
    request = parse_start(
        settings.start_from, store.url, repeat=settings.repeat, hold=settings.hold, again=settings.again
    )
    sinks = {output.name: output.sink for output in program.outputs}
    rewinder = Rewinder(store, program.facts, fence, releaser, sinks, all_sources(program))
    for line in rewinder.begin(request):
        say(line)
