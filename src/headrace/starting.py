"""What a start of a program would do to a store, told before anything starts: `headrace plan` and ``app.plan``.

The same facts are read and the same decisions made as at a start (`headrace.checkpoint.recover`), but nothing is
written, no fence is taken, and neither Spark nor a source is asked.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from headrace.checkpoint.facts import read_facts
from headrace.checkpoint.recover import check_recovery, plan_upgrade, plan_upgrade_at
from headrace.checkpoint.rewind.fork import find_fork
from headrace.checkpoint.rewind.request import ForkRequest, RewindRequest, parse_start
from headrace.errors import MissingStore
from headrace.plan.compile import compile_app
from headrace.plan.sides import has_seam, one_side
from headrace.read.store import open_for_reading
from headrace.state.moments import Moment, find_moment
from headrace.upgrade.derive import derive_upgrade
from headrace.upgrade.lines import Upgrade

if TYPE_CHECKING:
    from headrace.dataflow.app import App
    from headrace.dataflow.settings import Settings
    from headrace.model.job import JobFacts
    from headrace.state.store import StoreFiles


def plan_start(app: App, settings: Settings) -> Upgrade:
    """What becomes of everything in the store of these settings, behind its newest epoch or behind ``start_from``.

    Raises Refused where the store could not be gone on with whatever the program is.
    """
    program = compile_app(app, parallelism=settings.parallelism, key_groups=settings.key_groups)
    request = parse_start(settings.start_from, settings.store)
    if isinstance(request, ForkRequest):
        target = _open_if_there(settings.store)
        if target is None or find_fork(target, request) is None:
            return _plan_moment(open_for_reading(request.url), request.moment, program.facts, settings.drop)
    store = _open_if_there(settings.store)
    if store is None:
        return derive_upgrade(None, program.facts, None)
    facts = read_facts(store)
    if has_seam(program):
        from headrace.spark.seam import decide_side

        program = one_side(program, decide_side(program, None if facts.state is None else facts.state.manifest))
    if settings.fresh:
        return derive_upgrade(None, program.facts, None)
    check_recovery(store, facts, program.facts)
    if isinstance(request, RewindRequest):
        return _plan_moment(store, request.moment, program.facts, settings.drop)
    return plan_upgrade(store, facts, program.facts, settings.drop)


def _open_if_there(url: str) -> StoreFiles | None:
    try:
        return open_for_reading(url)
    except MissingStore:
        return None


def _plan_moment(store: StoreFiles, moment: Moment | None, job: JobFacts, drop: Collection[str]) -> Upgrade:
    """Behind another epoch than the newest, or one of another store."""
    return plan_upgrade_at(store, find_moment(store, moment), job, drop)
