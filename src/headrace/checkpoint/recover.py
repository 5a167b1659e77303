"""Recovery: reads the facts, asks for the decision, carries it out. Everything here happens before the first epoch."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import msgspec

from headrace.checkpoint.coordinator import adopt_runs
from headrace.checkpoint.decide import AlreadyFinal, Recovery, Refuse, ResumeFrom, decide_fresh, decide_recovery
from headrace.checkpoint.facts import RecoveryFacts, read_facts
from headrace.checkpoint.fence import Fence
from headrace.checkpoint.recovered import Hold, RecoveredJob, marks_of
from headrace.checkpoint.release import Releaser
from headrace.checkpoint.sparklog import derive_retired, drop_spark_logs, write_spark_log
from headrace.errors import Refused, StoreError
from headrace.model.job import JobFacts
from headrace.model.keys import group_range
from headrace.state import layout
from headrace.state.layout import ManifestName
from headrace.state.manifest import Manifest, read_state
from headrace.state.record import StoreRecord, new_query, read_record
from headrace.state.savepoints import list_savepoints
from headrace.state.store import StoreFiles, open_store
from headrace.upgrade.derive import derive_upgrade
from headrace.upgrade.lines import Upgrade
from headrace.upgrade.stored import RunTables
from headrace.upgrade.text import opening


def open_for_driving(url: str) -> StoreFiles:
    """The store of a run; made where it is not."""
    try:
        return open_store(url)
    except OSError as error:
        raise StoreError(
            "the store cannot be opened",
            where=url,
            found=f"{type(error).__name__}: {error}",
            next_move="give a folder that can be written to (store=… or --store)",
        ) from error


def recover(
    store: StoreFiles, job: JobFacts, fence: Fence, releaser: Releaser, *, attempt: int = 0,
    drop: Collection[str] = (), say: Callable[[str], None] | None = None,
) -> RecoveredJob:  # fmt: skip
    """Brings a store into the state from which the next epoch can run.

    Called at the start of a job, and again with the next ``attempt`` when Spark could not carry on. ``drop``: addresses
    of state that a person gives up where the program does not fit it. ``say``: is told in short what has changed.
    """
    facts = read_facts(store)
    decision = check_recovery(store, facts, job)
    upgrade = plan_upgrade(store, facts, job, drop)
    upgrade.check()
    if say is not None and facts.state is not None and upgrade.changes and is_changed(facts.state.manifest, job):
        say(opening(upgrade))
    record = facts.record or _make_record(store, job)
    run = f"{fence.number}x{attempt}"
    manifest = None if facts.state is None else facts.state.manifest
    fence.check()
    if facts.unreleased is not None and isinstance(decision, (ResumeFrom, AlreadyFinal)):
        # Released before the log says so: dying in between, the next start releases again.
        releaser.release(facts.unreleased)
    hold = _derive_hold(facts)
    planned = None if hold is None else hold.offsets
    write_spark_log(store, run, record, manifest, facts.previous_offsets, job.sources, planned)
    drop_spark_logs(store, run)
    if facts.state is None or manifest is None:
        return RecoveredJob(decision, run, None, record.timeline, upgrade=upgrade)
    cuts = [group_range(shard, job.parallelism, job.key_groups).start for shard in range(job.parallelism)]
    state = facts.state.without(upgrade.given_up).with_loops(job.loop_was)
    emptied = {name: () for name, refs in facts.state.runs.items() if refs and not state.runs[name]}
    return RecoveredJob(
        decision, run, state, record.timeline, emptied | adopt_runs(state, renamed=job.was, cuts=cuts),
        derive_retired(manifest, job.sources), hold, upgrade,
    )  # fmt: skip


def is_changed(before: Manifest, job: JobFacts) -> bool:
    """Whether a program is another one than wrote an epoch. If not, what is to be said was said at an earlier start."""
    return (before.program, before.parallelism) != (job.program, job.parallelism)


def check_recovery(store: StoreFiles, facts: RecoveryFacts, job: JobFacts) -> Recovery:
    """How a start continues what is there, whatever the program keeps. Raises Refused where it cannot."""
    decision = decide_recovery(facts, job)
    if isinstance(decision, Refuse):
        raise _refusal(store, decision)
    return decision


def plan_upgrade(store: StoreFiles, facts: RecoveryFacts, job: JobFacts, drop: Collection[str] = ()) -> Upgrade:
    """What the program does to what is in the store. Nothing is written."""
    if facts.state is None:
        return derive_upgrade(None, job, None)
    tables, released = RunTables(store, facts.state), facts.unreleased is None
    return derive_upgrade(facts.state, job, tables, store=store.url, drop=drop, released=released)


def plan_upgrade_at(store: StoreFiles, place: ManifestName, job: JobFacts, drop: Collection[str] = ()) -> Upgrade:
    """The same behind an epoch that a person names."""
    state = read_state(store, *place)
    return derive_upgrade(state, job, RunTables(store, state), store=store.url, drop=drop)


def _derive_hold(facts: RecoveryFacts) -> Hold | None:
    """What has gone out already: right behind a rewind, or of the original of a fork."""
    if (passing := facts.passing) is not None:
        return Hold(frozenset(passing.outputs), passing.offsets, passing.marks)
    shown = facts.shown
    if facts.branch is None or shown is None:
        return None
    return Hold(facts.branch.held_outputs, shown.offsets, marks_of(shown))


_OF_A_TIMELINE: Final = (layout.MANIFESTS, layout.RUNS, layout.STAGED, layout.SPARK, layout.INPUTS, layout.KEPT)


def start_over(store: StoreFiles, app: str) -> None:
    """Throws away what a store of this app holds. Raises Refused where that is not the app's to lose.

    A new timeline begins, so older drivers and sinks cannot mistake its epochs.
    """
    record = read_record(store)
    if record is None:
        return
    refused = decide_fresh(record.app, app, [savepoint.name for savepoint in list_savepoints(store)])
    if refused is not None:
        raise _refusal(store, refused)
    fresh = msgspec.structs.replace(record, timeline=record.timeline + 1, branches=())
    store.write(layout.STORE_RECORD, msgspec.json.encode(fresh))
    for folder in _OF_A_TIMELINE:
        for path in store.list(folder):
            store.delete(path)
    store.delete(layout.TICK)
    store.delete(layout.WAITING)
    store.delete(layout.RELEASED)
    store.delete(layout.UNRELEASED)


def _make_record(store: StoreFiles, job: JobFacts) -> StoreRecord:
    """Names the store and gives Spark's query its id, the same for all folders that are made for it."""
    record = StoreRecord(app=job.app, key_groups=job.key_groups, query=new_query())
    store.create(layout.STORE_RECORD, msgspec.json.encode(record))
    return record


def _refusal(store: StoreFiles, no: Refuse) -> Refused:
    return Refused(no.reason, where=store.url, expected=no.expected, found=no.found, next_move=no.next_move)
