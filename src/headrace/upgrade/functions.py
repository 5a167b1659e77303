"""Functions of `hr.migrate`: which stored values need them, and which may leave the program."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.model.amounts import count_of
from headrace.model.job import ROW, DeclaredState, JobFacts, derive_states, derive_version
from headrace.model.keys import group_range
from headrace.model.report import RunRef
from headrace.model.type_history import derive_change, derive_reading
from headrace.state.fold import count_rewrites
from headrace.state.manifest import JobState
from headrace.upgrade.lines import UpgradeLine


def function_lines(before: JobState, job: JobFacts) -> Iterator[UpgradeLine]:
    """What is to be said of every function of the program."""
    needs = derive_needs(before, job)
    for migration in job.migrations:
        places = needs.get(migration.name)
        if places is None:
            notes = ("no stored value needs it any more: it may be taken out, if no savepoint from before is needed",)
        else:
            folds = sum({place.partition(".")[0]: count for place, count in places.items()}.values())
            bound = (f"rewritten by {count_of(folds, 'fold')} between epochs",) if folds else ()
            notes = (f"needed by {', '.join(places)}", *bound)
        yield UpgradeLine("job", f"hr.migrate {migration.name}", "kept", notes)


def derive_needs(before: JobState, job: JobFacts) -> dict[str, dict[str, int]]:
    """Function → each state or loop whose stored values need it → how many folds will have rewritten all of them."""
    needs: dict[str, dict[str, int]] = {}
    states = derive_states(job.states, before.manifest.states, job.was)
    for step in job.states:
        refs = before.runs_of(step) or before.runs_of(job.was.get(step, step))
        folds = _rewrites(refs, job, derive_version(states[step]))
        for name, state in states[step].items():
            for function in _functions(state, refs, job):
                needs.setdefault(function, {})[f"{step}.{name}"] = folds
    before = before.with_loops(job.loop_was)
    types = before.manifest.loop_types
    for loop in job.loops:
        if before.manifest.loops.get(loop):
            change = derive_change(ROW, (types.get(loop), job.loop_types.get(loop)), job.migrations)
            for function in change.functions:
                needs.setdefault(function, {})[f"loop {loop}"] = 0
    return needs


def _functions(state: DeclaredState, refs: tuple[RunRef, ...], job: JobFacts) -> set[str]:
    changes = [derive_reading(state, version, job.migrations) for version in {ref.version for ref in refs}]
    return {function for change in changes for function in change.functions}


def _rewrites(refs: tuple[RunRef, ...], job: JobFacts, version: int) -> int:
    cuts = [group_range(shard, job.parallelism, job.key_groups).start for shard in range(job.parallelism)]
    return count_rewrites(refs, cuts, version)
