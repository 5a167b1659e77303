"""Decisions, and nothing else: from facts to what should be done. No function here reads or writes anything."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.checkpoint.facts import RecoveryFacts, SparkFacts
from headrace.model.report import TaskReport
from headrace.state.manifest import JobState


@dataclass(frozen=True)
class StartFresh:
    """Nothing was ever published, and Spark has not gone further than that."""


@dataclass(frozen=True)
class ResumeFrom:
    """Spark's log and the newest manifest agree: go on behind this epoch."""

    epoch: int


@dataclass(frozen=True)
class FinishRelease:
    """This epoch is published, and Spark was not told: it will be asked for again, and only be released."""

    epoch: int


@dataclass(frozen=True)
class RebuildSpark:
    """Spark's log does not say what the newest manifest says: it is written anew from the manifest."""

    epoch: int
    reason: str


@dataclass(frozen=True)
class AlreadyFinal:
    """The input was drained, and its last epoch is published."""

    epoch: int


@dataclass(frozen=True)
class Refuse:
    reason: str
    expected: str
    found: str
    next_move: str


Recovery = StartFresh | ResumeFrom | FinishRelease | RebuildSpark | AlreadyFinal | Refuse


def decide_recovery(facts: RecoveryFacts, *, app: str, key_groups: int) -> Recovery:
    """How a start continues what it finds."""
    if facts.record is not None:
        if facts.record.app != app:
            return Refuse(
                "the store belongs to another app", f"app {app!r}", f"app {facts.record.app!r}",
                "give this app a store of its own (store=…)",
            )  # fmt: skip
        if facts.record.key_groups != key_groups:
            return Refuse(
                "the number of key groups is fixed for the life of a store", f"{facts.record.key_groups} key groups",
                f"{key_groups}", "take the old number, or start a new store",
            )  # fmt: skip
    if facts.state is None:
        return _decide_without_manifest(facts.spark)
    if facts.state.manifest.final:
        return AlreadyFinal(facts.state.epoch)
    return _decide_with_manifest(facts.state, facts.spark)


def _decide_without_manifest(spark: SparkFacts) -> Recovery:
    if spark.committed is not None or (spark.planned or 0) > 0:
        # Starting fresh here would skip the input Spark believes is done.
        return Refuse(
            "Spark's log says that epochs were completed, but no manifest is in the store",
            "manifests of the same epochs",
            f"Spark at epoch {spark.committed if spark.committed is not None else spark.planned}, no manifest",
            "restore the whole store from a copy, or start over with --fresh",
        )
    return StartFresh()


def _decide_with_manifest(state: JobState, spark: SparkFacts) -> Recovery:
    epoch, planned, committed = state.epoch, spark.planned, spark.committed
    if planned is None or planned < epoch:
        return RebuildSpark(epoch, f"Spark's log ends before epoch {epoch}")
    if planned > epoch + 1 or (committed is not None and committed > epoch):
        return Refuse(
            "Spark's log is ahead of the newest manifest",
            f"offsets up to epoch {epoch + 1}, commits up to {epoch}",
            f"offsets up to {planned}, commits up to {committed}",
            "manifests are missing: restore the whole store from a copy, or start over with --fresh",
        )
    if spark.offsets.get(epoch) != state.manifest.offsets:
        return RebuildSpark(epoch, f"Spark's entry of epoch {epoch} is not the one the manifest was made of")
    if committed == epoch:
        return ResumeFrom(epoch)
    if planned == epoch:
        return FinishRelease(epoch)
    return RebuildSpark(epoch, f"Spark planned epoch {planned} without having been told that {epoch} is done")


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


@dataclass(frozen=True)
class ReportsDisagree:
    """The collected reports do not describe one execution of the epoch: it has to be replayed whole."""

    reason: str


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
            if report.upstream and set(report.upstream) != sent:
                return f"shard {report.shard} of level {level} read other attempts of level {level - 1} than reported"
    return ""
