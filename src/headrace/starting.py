"""What a start of a program would do to a store, told before anything starts: `headrace plan` and ``app.plan``.

The same facts are read and the same decisions made as at a start (`headrace.checkpoint.recover`), but nothing is
written, no fence is taken, and neither Spark nor a source is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.checkpoint.facts import read_facts
from headrace.checkpoint.recover import check_recovery, plan_upgrade
from headrace.errors import MissingStore
from headrace.plan.compile import compile_app
from headrace.plan.sides import has_seam, one_side
from headrace.read.store import open_for_reading
from headrace.state.manifest import read_state
from headrace.state.moments import find_moment, parse_moment
from headrace.upgrade.derive import derive_upgrade
from headrace.upgrade.lines import Upgrade
from headrace.upgrade.stored import RunTables

if TYPE_CHECKING:
    from headrace.dataflow.app import App
    from headrace.dataflow.settings import Settings


def plan_start(app: App, settings: Settings) -> Upgrade:
    """What becomes of everything in the store of these settings, behind its newest epoch or behind ``start_from``.

    Raises Refused where the store could not be gone on with whatever the program is.
    """
    program = compile_app(app, parallelism=settings.parallelism, key_groups=settings.key_groups)
    try:
        store = open_for_reading(settings.store)
    except MissingStore:
        return derive_upgrade(None, program.facts, None)
    facts = read_facts(store)
    if has_seam(program):
        from headrace.spark.seam import decide_side

        program = one_side(program, decide_side(program, None if facts.state is None else facts.state.manifest))
    job, drop = program.facts, settings.drop
    if settings.fresh:
        return derive_upgrade(None, job, None)
    check_recovery(store, facts, job)
    if not settings.start_from:
        return plan_upgrade(store, facts, job, drop)
    state = read_state(store, *find_moment(store, parse_moment(settings.start_from)))
    return derive_upgrade(state, job, RunTables(store, state), store=store.url, drop=drop)
