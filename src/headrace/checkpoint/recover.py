"""Recovery: reads the facts, asks for the decision, carries it out. Everything here happens before the first epoch."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

import msgspec

from headrace.checkpoint.coordinator import adopt_runs
from headrace.checkpoint.decide import AlreadyFinal, FinishRelease, RebuildSpark, Recovery, Refuse, decide_recovery
from headrace.checkpoint.facts import StoreRecord, read_facts
from headrace.checkpoint.release import Releaser
from headrace.checkpoint.sparklog import rebuild_spark_log
from headrace.errors import Refused
from headrace.model.job import JobFacts
from headrace.model.keys import group_range
from headrace.model.report import RunRef
from headrace.state import layout
from headrace.state.manifest import JobState
from headrace.state.store import Store


@dataclass(frozen=True)
class Recovered:
    decision: Recovery
    state: JobState | None
    timeline: int = 0
    adopted: dict[str, tuple[RunRef, ...]] = field(default_factory=dict)


def recover(store: Store, job: JobFacts, releaser: Releaser) -> Recovered:
    """Brings a store into the state from which the next epoch can run."""
    facts = read_facts(store)
    decision = decide_recovery(facts, app=job.app, key_groups=job.key_groups)
    if isinstance(decision, Refuse):
        raise Refused(
            decision.reason, where=store.url, expected=decision.expected, found=decision.found,
            next_move=decision.next_move,
        )  # fmt: skip
    record = facts.record or _make_record(store, job)
    if facts.state is None:
        return Recovered(decision, None, record.timeline)
    match decision:
        case RebuildSpark():
            rebuild_spark_log(store, record, facts)
        case FinishRelease() | AlreadyFinal():
            pass
    # The last epoch may have been published and not released; releasing it twice is harmless.
    releaser.release(facts.state.manifest)
    cuts = [group_range(shard, job.parallelism, job.key_groups).start for shard in range(job.parallelism)]
    return Recovered(decision, facts.state, record.timeline, adopt_runs(facts.state, renamed=job.was, cuts=cuts))


def _make_record(store: Store, job: JobFacts) -> StoreRecord:
    """Names the store and gives Spark's query its id, so that its folder can be made anew with the same one."""
    record = StoreRecord(app=job.app, key_groups=job.key_groups, query=f'{{"id":"{uuid.uuid4()}"}}')
    store.create(layout.STORE_RECORD, msgspec.json.encode(record))
    store.write(layout.spark_metadata(), record.query.encode())
    return record
