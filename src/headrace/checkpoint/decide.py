"""Decisions, and nothing else: from facts to what should be done. No function here reads or writes anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.checkpoint.facts import RecoveryFacts
from headrace.errors import EndlessLoop
from headrace.model.amounts import count_of
from headrace.model.job import JobFacts
from headrace.model.order import ENDLESS_EPOCHS
from headrace.model.report import TaskReport
from headrace.state.manifest import JobState


@dataclass(frozen=True)
class StartFresh:
    """Nothing was ever published, and Spark was never told that anything was."""


@dataclass(frozen=True)
class ResumeFrom:
    """Go on behind this epoch, the newest that is published. Whatever Spark had planned beyond it never happened."""

    epoch: int
    released: bool
    """Spark was told of its end, so its outputs are out."""


@dataclass(frozen=True)
class AlreadyFinal:
    """The input was drained, and its last epoch is published."""

    epoch: int
    released: bool


@dataclass(frozen=True)
class Refuse:
    reason: str
    expected: str
    found: str
    next_move: str


Recovery = StartFresh | ResumeFrom | AlreadyFinal | Refuse


def decide_recovery(facts: RecoveryFacts, job: JobFacts) -> Recovery:
    """How a start continues what it finds."""
    if facts.record is not None:
        if facts.record.app != job.app:
            return _of_another_app(facts.record.app, job.app)
        if facts.record.key_groups != job.key_groups:
            return Refuse(
                "the number of key groups is fixed for the life of a store", f"{facts.record.key_groups} key groups",
                f"{job.key_groups}",
                "take the old number; or rewrite the store: headrace rewrite STORE --to NEW --key-groups "
                f"{job.key_groups}",
            )  # fmt: skip
    if facts.state is None:
        if facts.committed is not None:
            # Starting fresh here would read all input again and write every output twice.
            return Refuse(
                "Spark's log says that epochs were completed, but no manifest is in the store",
                "manifests of the same epochs",
                f"Spark at epoch {facts.committed}, no manifest",
                "restore the whole store from a copy, or start over with --fresh",
            )
        return StartFresh()
    epoch = facts.state.epoch
    if facts.shown is not None and facts.shown.program != job.program:
        return Refuse(
            f"the job went back to epoch {epoch} and holds outputs, and the program has changed since",
            f"the program of epoch {facts.shown.epoch} (fingerprint {facts.shown.program}), until what had gone out is "
            "repeated",
            f"another program (fingerprint {job.program})",
            "start the program of then once more, until its first epoch is published; or go back further with other "
            "choices: --from",
        )
    if facts.state.manifest.final:
        return AlreadyFinal(epoch, facts.released)
    if facts.committed is not None and facts.committed > epoch:
        return Refuse(
            "Spark's log is ahead of the newest manifest",
            f"commits up to epoch {epoch}",
            f"commits up to {facts.committed}",
            "manifests are missing: restore the whole store from a copy, or start over with --fresh",
        )
    if epoch > 0 and facts.previous_offsets is None:
        return Refuse(
            f"Spark's log cannot be made for epoch {epoch}",
            f"the manifest of epoch {epoch - 1} as well",
            "it is gone",
            "restore the whole store from a copy",
        )
    return ResumeFrom(epoch, facts.released)


def decide_fresh(owner: str, app: str, savepoints: Sequence[str]) -> Refuse | None:
    """Why a store cannot be thrown away to start over. ``owner``: the app that it belongs to."""
    if owner != app:
        return _of_another_app(owner, app)
    if savepoints:
        return Refuse(
            "starting over would throw away epochs that savepoints keep",
            "a store without savepoints",
            ", ".join(savepoints),
            "give this run another store; or delete them with headrace savepoints STORE NAME --delete, and copy first "
            "what is still wanted: headrace savepoint STORE@NAME --copy-to URL",
        )
    return None


def _of_another_app(owner: str, app: str) -> Refuse:
    return Refuse(
        "the store belongs to another app", f"app {app!r}", f"app {owner!r}",
        "give this app a store of its own (store=…)",
    )  # fmt: skip


@dataclass(frozen=True)
class RunEpoch:
    """The epoch is new."""


@dataclass(frozen=True)
class SkipEpoch:
    """The epoch is published with the same offsets: only its release is repeated."""


EpochDecision = RunEpoch | SkipEpoch | Refuse


def decide_epoch(epoch: int, offsets: str, state: JobState | None) -> EpochDecision:
    """What to do when Spark asks for an epoch. Skipping trusts content, not numbers."""
    last = -1 if state is None else state.epoch
    if state is not None and state.manifest.final and epoch > last:
        return Refuse(
            "the input was drained, and its last epoch is published", "no further epoch", f"epoch {epoch}",
            "start over with --fresh",
        )  # fmt: skip
    if epoch == last + 1:
        return RunEpoch()
    if state is not None and epoch == last and state.manifest.offsets == offsets:
        return SkipEpoch()
    return Refuse(
        f"Spark asks for epoch {epoch} after epoch {last} was published",
        f"epoch {last + 1}, or epoch {last} with the offsets of its manifest",
        f"epoch {epoch}" + (" with other offsets" if epoch == last else ""),
        "stop whatever else writes to this store, and start again: the log is rebuilt from the last manifest",
    )


def decide_reports(reports: list[TaskReport], *, epoch: int, parent: str, levels: int, parallelism: int) -> str:
    """Why reports cannot be published, or an empty text: P per level, shards 0…P−1, one attempt each, same parent."""
    for report in reports:
        if report.epoch != epoch or report.parent != parent:
            return (
                f"a task of level {report.level} worked on epoch {report.epoch} after {report.parent or 'nothing'}, "
                f"not on epoch {epoch} after {parent or 'nothing'}"
            )
    for level in range(1, levels + 1):
        mine = [report for report in reports if report.level == level]
        shards = sorted(report.shard for report in mine)
        if shards != list(range(parallelism)):
            return f"level {level} reported shards {shards}, expected each of 0 to {parallelism - 1} once"
        if len({tuple(sorted(report.watermarks.items())) for report in mine}) > 1:
            return f"tasks of level {level} computed different watermarks"
        sent = {report.attempt for report in reports if report.level == level - 1}
        for report in mine:
            if set(report.upstream) != sent:
                return f"shard {report.shard} of level {level} read other attempts of level {level - 1} than reported"
    return ""


def decide_looped(reports: Sequence[TaskReport], expected: Mapping[str, int]) -> str:
    """Why the rows of loops were not read back as they should, or an empty text. ``expected``: loop → rows in it."""
    found: dict[str, int] = {}
    for report in reports:
        for name, rows in report.looped.items():
            found[name] = found.get(name, 0) + rows
    for name in sorted({*found, *expected}):
        if found.get(name, 0) != expected.get(name, 0):
            was_read = count_of(found.get(name, 0), "row")
            return f"tasks read {was_read} of the loop {name!r}, which has {expected.get(name, 0):,}"
    return ""


@dataclass(frozen=True)
class Apart:
    """Shards that should have done the same did not."""

    step: str
    what: str
    """A broadcast state, or ``!rows``."""
    shard: int
    """One that differs from the first."""


def decide_broadcast(reports: Sequence[TaskReport]) -> Apart | None:
    """Where broadcast rows did not lead to the same on every shard, if anywhere."""
    first: dict[str, Mapping[str, str]] = {}
    for report in sorted(reports, key=lambda report: report.shard):
        for step in report.steps:
            told = first.setdefault(step.step, step.broadcast)
            for what in sorted({*told, *step.broadcast}):
                if told.get(what) != step.broadcast.get(what):
                    return Apart(step.step, what, report.shard)
    return None


def endless_loop(circling: Mapping[str, int], where: str) -> EndlessLoop:
    """What to say of a run that is to end and cannot. ``circling``: loop → rows in it."""
    found = ", ".join(f"{count_of(rows, 'row')} in {name!r}" for name, rows in sorted(circling.items()))
    return EndlessLoop(
        f"rows are still in loops after {ENDLESS_EPOCHS} epochs without any input",
        where=where,
        expected="rows to leave their loop after some rounds, so that a run over bounded input can end",
        found=found,
        next_move="feed only rows that have something left to do: stream.where(…).feed(loop); a field may count rounds",
    )
