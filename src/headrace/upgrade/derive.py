"""The decision: from what a store has and what a program is to what becomes of every part. It does no I/O of its own.

What has an objection is refused, unless a person gives it up (``--drop step``, ``--drop step.state``, ``--drop loop``).
Only what would be refused is ever dropped: to drop what fits is to drop nothing, so that a start that is repeated with
the same words, as a supervisor repeats it, throws nothing away a second time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from headrace.model.job import JobFacts
from headrace.model.nearest import did_you_mean
from headrace.model.order import Dropped
from headrace.state.manifest import JobState
from headrace.upgrade.functions import function_lines
from headrace.upgrade.lines import Upgrade, UpgradeLine
from headrace.upgrade.steps import StepMatcher
from headrace.upgrade.stored import StoredTables
from headrace.upgrade.surroundings import job_lines, loop_lines, output_lines, source_lines


def derive_upgrade(
    before: JobState | None,
    job: JobFacts,
    stored: StoredTables | None,
    *,
    store: str = "STORE",
    drop: Collection[str] = (),
    released: bool = True,
) -> Upgrade:
    """What becomes of everything when ``job`` goes on behind ``before``. ``store``: as a person would write it."""
    if before is None or stored is None:
        return Upgrade(None, tuple(_fresh_lines(job)))
    manifest = before.manifest
    steps = StepMatcher(before, job, stored, store)
    lines = [
        *job_lines(manifest, job),
        *source_lines(manifest, job),
        *steps.lines(),
        *loop_lines(manifest, job, stored),
        *function_lines(before, job),
        *output_lines(manifest, job, released=released),
    ]
    judged = [_give_up(line, drop) for line in lines]
    judged += _vain_drops(judged, drop)
    return Upgrade(before.epoch, tuple(judged), _given_up(judged, before, job, steps), store)


def _fresh_lines(job: JobFacts) -> Iterator[UpgradeLine]:
    yield from (UpgradeLine("source", name, "new") for name in job.sources)
    yield from (UpgradeLine("step", name, "new") for name in job.states)
    yield from (UpgradeLine("loop", name, "new") for name in job.loops)
    yield from (UpgradeLine("output", name, "new") for name in job.sinks)


def _addresses(line: UpgradeLine) -> set[str]:
    return {line.name, line.was} - {""}


def _give_up(line: UpgradeLine, drop: Collection[str]) -> UpgradeLine:
    """The line, dropped where it is refused and its name was given, or that of its step."""
    if line.fate != "refused" or line.part not in ("step", "state", "loop") or line.objection is None:
        return line
    names = _addresses(line)
    if line.part == "state":
        names |= {name.partition(".")[0] for name in names}
    if not names & set(drop):
        return line
    notes = (f"given up: {line.objection.what}",)
    return replace(line, fate="dropped", notes=notes, objection=None)


def _vain_drops(lines: Sequence[UpgradeLine], drop: Collection[str]) -> Iterator[UpgradeLine]:
    """What a person gives up and nothing has to be given up of."""
    dropped = {name for line in lines if line.fate == "dropped" for name in _addresses(line)}
    dropped |= {name.partition(".")[0] for name in dropped}
    known = {name for line in lines for name in _addresses(line)}
    for name in sorted(set(drop) - dropped):
        why = "it goes on with what is stored"
        if name not in known:
            near = did_you_mean(name, sorted(known))
            why = f"there is nothing of this name{near and f'; {near}'}"
        yield UpgradeLine("job", f"--drop {name}", "kept", (f"nothing to drop: {why}",))


def _given_up(lines: Sequence[UpgradeLine], before: JobState, job: JobFacts, steps: StepMatcher) -> Dropped | None:
    """What the dropped lines mean for the state of the store, by the names it has there."""
    dropped = [line for line in lines if line.fate == "dropped"]
    if not dropped:
        return None
    whole: list[str] = []
    tables: dict[str, tuple[str, ...]] = {}
    for line in dropped:
        step, _, state = (line.was or line.name).partition(".")
        former = steps.matches.former.get(step) or step
        if line.part == "step":
            whole.append(former)
        elif line.part == "state":
            tables[former] = (*tables.get(former, ()), *_tables_of(before, former, state or "value"))
    loops = tuple(line.was or line.name for line in dropped if line.part == "loop")
    return Dropped(tuple(whole), tables, loops)


def _tables_of(before: JobState, step: str, state: str) -> tuple[str, ...]:
    """A table and the names under which older runs hold it."""
    declared = before.manifest.states.get(step, {}).get(state)
    return (state,) if declared is None else (state, *declared.was)
