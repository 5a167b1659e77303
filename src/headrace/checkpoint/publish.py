"""Publishing: from the reports of an epoch to its manifest. `publish_manifest` is the commit point, all else pure."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from headrace.errors import AlreadyExists, EpochFailed, Fenced
from headrace.model import crash
from headrace.model.order import Loops
from headrace.model.report import RunRef, StagedPart, TaskReport
from headrace.state import layout
from headrace.state.manifest import (
    FULL_EVERY,
    JobState,
    Manifest,
    StepRuns,
    TaskStats,
    encode_manifest,
    read_manifest,
    read_seal,
)
from headrace.state.store import StoreFiles


def new_nonce() -> str:
    return os.urandom(8).hex()


def derive_steps(
    before: JobState | None,
    added: Mapping[str, list[RunRef]],
    rewritten: Mapping[str, tuple[RunRef, ...]],
    epoch: int,
    *,
    begins: bool = False,
) -> tuple[bool, dict[str, StepRuns]]:
    """How the manifest lists each step: whole where a fold or a rescale changed its list, else by what it adds.

    ``rewritten`` holds the new list of a step's older runs. ``begins``: the epoch is the first of its timeline, whose
    state is read without manifests of another.
    """
    old = {} if before is None else before.runs
    full = begins or before is None or epoch % FULL_EVERY == 0
    steps: dict[str, StepRuns] = {}
    for step in sorted({*old, *added, *rewritten}):
        new = added.get(step, [])
        if full or step in rewritten:
            older = rewritten.get(step, old.get(step, ()))
            steps[step] = StepRuns(runs=[*new, *older])
        elif new:
            steps[step] = StepRuns(added=new)
    return full, steps


def derive_added(reports: Iterable[TaskReport]) -> dict[str, list[RunRef]]:
    """Step → the runs its shards wrote in this epoch, newest first."""
    added: dict[str, list[RunRef]] = {}
    for report in reports:
        for step in report.steps:
            if step.runs:
                added.setdefault(step.step, []).extend(step.runs)
            if step.broadcast_runs:
                added.setdefault(layout.broadcast(step.step), []).extend(step.broadcast_runs)
    return added


def derive_outputs(reports: Iterable[TaskReport]) -> dict[str, list[StagedPart]]:
    """Output → its parts, in a fixed order, so that a repeated release meets the same list."""
    outputs: dict[str, list[StagedPart]] = {}
    for report in sorted(reports, key=lambda report: (report.level, report.shard)):
        for output, parts in report.staged.items():
            outputs.setdefault(output, []).extend(parts)
    return outputs


def derive_loops(before: Loops, reports: Iterable[TaskReport], loops: Iterable[str]) -> dict[str, list[StagedPart]]:
    """Loop → what was fed into it, in a fixed order. What is in loops that the program lacks stays there."""
    mine = set(loops)
    fed = {name: list(parts) for name, parts in before.items() if name not in mine}
    for report in sorted(reports, key=lambda report: (report.level, report.shard)):
        for name, parts in report.fed.items():
            fed.setdefault(name, []).extend(parts)
    return fed


def derive_counters(
    before: Mapping[str, Mapping[str, int]], reports: Iterable[TaskReport], was: Mapping[str, str]
) -> dict[str, dict[str, int]]:
    """Step → counter → total since the beginning; a renamed step goes on with its old totals."""
    totals = {step: dict(counters) for step, counters in before.items()}
    for step, old in was.items():
        if step not in totals and old in totals:
            totals[step] = totals.pop(old)
    for report in reports:
        for done in report.steps:
            counts = {**done.counters, **({"late": done.late} if done.late else {})}
            for name, value in counts.items():
                counters = totals.setdefault(done.step, {})
                counters[name] = counters.get(name, 0) + value
    return totals


def derive_hidden(before: JobState | None, steps: Iterable[str], was: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Step → dropped table → the epoch from which on its rows count, as long as older runs are listed."""
    if before is None or not before.manifest.hidden:
        return {}
    hidden: dict[str, dict[str, int]] = {}
    for step in steps:
        name = step if step in before.manifest.hidden else was.get(step, step)
        tables = before.manifest.hidden.get(name, {})
        oldest = min((ref.epoch for each in (name, step) for ref in before.runs_of(each)), default=before.epoch)
        if mine := {table: since for table, since in tables.items() if oldest < since}:
            hidden[step] = mine
    return hidden


def derive_former_names(before: JobState | None, steps: Iterable[str], was: Mapping[str, str]) -> dict[str, list[str]]:
    """Step → the names it had before, the newest first; ``was`` maps a renamed step to the last of them."""
    if before is None:
        return {}
    known, stored = before.manifest.former_names, before.manifest.states
    names: dict[str, list[str]] = {}
    for step in steps:
        old = was.get(step, "")
        if step not in stored and old in stored:
            names[step] = [old, *(each for each in known.get(old, ()) if each != step)]
        elif step in known:
            names[step] = known[step]
    return names


def derive_waits(reports: Iterable[TaskReport]) -> dict[str, int]:
    """Step → event time at which the next thing is due in any of its shards."""
    waits: dict[str, int] = {}
    for report in reports:
        for step in report.steps:
            if step.waits_for_us is not None:
                waits[step.step] = min(step.waits_for_us, waits.get(step.step, step.waits_for_us))
    return waits


def derive_waiting_rows(
    before: Mapping[str, int], reports: Iterable[TaskReport], was: Mapping[str, str]
) -> dict[str, int]:
    """Step → how many rows wait for event time in all of its shards."""
    waiting: dict[str, int] = {}
    for report in reports:
        for step in report.steps:
            if step.waiting is not None:
                known = before.get(step.step, before.get(was.get(step.step, ""), 0))
                waiting[step.step] = waiting.get(step.step, known) + step.waiting
    # Those that came with an export were never counted.
    return {step: max(rows, 0) for step, rows in waiting.items()}


def derive_stats(reports: Iterable[TaskReport]) -> list[TaskStats]:
    stats = []
    for report in sorted(reports, key=lambda report: (report.level, report.shard)):
        steps = {
            step.step: {
                "rows_in": step.rows_in,
                "rows_out": step.rows_out,
                "late": step.late,
                "fired": step.fired,
                "delta_rows": sum(run.rows for run in (*step.runs, *step.broadcast_runs)),
                "delta_bytes": sum(run.size_bytes for run in (*step.runs, *step.broadcast_runs)),
            }
            for step in report.steps
            if step.step
        }
        staged = {output: sum(part.rows for part in parts) for output, parts in report.staged.items()}
        stats.append(
            TaskStats(
                level=report.level,
                shard=report.shard,
                rows_in=report.rows_in,
                rows_read=report.rows_read,
                bytes_in=report.bytes_in,
                times_us=report.times_us,
                steps=steps,
                staged=staged,
            )
        )
    return stats


def publish_manifest(store: StoreFiles, manifest: Manifest) -> None:
    """The commit point: creates the manifest, if and only if its name is free."""
    crash.reach("before_publish", manifest.epoch)
    path = layout.manifest(manifest.timeline, manifest.epoch)
    try:
        store.create(path, encode_manifest(manifest))
    except AlreadyExists as taken:
        if (branch := read_seal(store, manifest.timeline, manifest.epoch)) is not None:
            raise Fenced(
                f"timeline {manifest.timeline} has ended: the job went back to epoch {branch.from_epoch}",
                where=f"{store.url}/{path}",
                expected="to be the only driver",
                found=f"timeline {branch.timeline}, which goes on instead",
                next_move="let the other driver run; this one has changed nothing",
            ) from taken
        other = read_manifest(store, manifest.timeline, manifest.epoch)
        if other.nonce != manifest.nonce and other.fence < manifest.fence:
            raise EpochFailed(
                f"epoch {manifest.epoch} was published by the driver before this one, at the last moment",
                where=f"{store.url}/{path}",
                next_move="go on from there: nothing is lost",
            ) from taken
        if other.nonce != manifest.nonce:
            raise Fenced(
                f"epoch {manifest.epoch} was published by another driver",
                where=f"{store.url}/{path}",
                expected=f"to be the only driver (fence {manifest.fence})",
                found=f"a manifest of fence {other.fence}",
                next_move="let the other driver run; this one has changed nothing",
            ) from taken
    crash.reach("published", manifest.epoch)
    if manifest.final:
        crash.reach("final_published", manifest.epoch)
