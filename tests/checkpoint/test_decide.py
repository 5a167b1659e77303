"""Recovery as a table: facts in, decision out. No disk, no Spark."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.checkpoint.decide import (
    AlreadyFinal,
    Apart,
    Recovery,
    Refuse,
    ResumeFrom,
    RunEpoch,
    SkipEpoch,
    StartFresh,
    decide_broadcast,
    decide_epoch,
    decide_fresh,
    decide_looped,
    decide_recovery,
    decide_reports,
)
from headrace.checkpoint.facts import RecoveryFacts
from headrace.model.job import JobFacts
from headrace.model.report import StepReport, TaskReport
from headrace.state.manifest import JobState, Manifest
from headrace.state.record import StoreRecord


def state(epoch: int, *, final: bool = False, offsets: str = "") -> JobState:
    manifest = Manifest(
        app="a", timeline=0, epoch=epoch, nonce="n", fence=1, program="p", parallelism=2, key_groups=128, clock_us=0,
        offsets=offsets or f"o{epoch}", final=final,
    )  # fmt: skip
    return JobState(manifest, {})


JOB = JobFacts("a", "p", parallelism=2, key_groups=128, levels=1, timed=(), step_sources={})


def facts(at: JobState | None, committed: int | None, *, app: str = "a", previous: bool = True) -> RecoveryFacts:
    return RecoveryFacts(StoreRecord(app, 128, "{}"), at, "before" if previous else None, committed)


@pytest.mark.parametrize(
    ("at", "committed", "decision"),
    [
        (None, None, StartFresh()),
        (state(0), None, ResumeFrom(0, released=False)),
        (state(4), 4, ResumeFrom(4, released=True)),
        (state(4), 3, ResumeFrom(4, released=False)),
        (state(4), None, ResumeFrom(4, released=False)),
        (state(4, final=True), 3, AlreadyFinal(4, released=False)),
        (state(4, final=True), 4, AlreadyFinal(4, released=True)),
    ],
)
def test_the_newest_manifest_is_where_a_job_goes_on(
    at: JobState | None, committed: int | None, decision: Recovery
) -> None:
    assert decide_recovery(facts(at, committed), JOB) == decision


@pytest.mark.parametrize(("at", "committed"), [(None, 0), (None, 4), (state(4), 5)])
def test_missing_manifests_are_never_started_over_silently(at: JobState | None, committed: int | None) -> None:
    assert isinstance(decide_recovery(facts(at, committed), JOB), Refuse)


def test_a_log_cannot_be_made_without_the_manifest_before() -> None:
    assert isinstance(decide_recovery(facts(state(4), 4, previous=False), JOB), Refuse)


def test_the_store_of_another_app_is_refused() -> None:
    decision = decide_recovery(facts(None, None, app="b"), JOB)
    assert isinstance(decision, Refuse)
    assert "another app" in decision.reason


@pytest.mark.parametrize(
    ("owner", "savepoints", "words"),
    [("b", [], "another app"), ("a", ["before-v2"], "savepoints keep"), ("a", [], "")],
)
def test_only_a_store_of_ones_own_that_nothing_is_kept_in_is_thrown_away(
    owner: str, savepoints: list[str], words: str
) -> None:
    refused = decide_fresh(owner, "a", savepoints)
    assert refused is None if not words else refused is not None and words in refused.reason


def test_key_groups_are_fixed_for_the_life_of_a_store() -> None:
    assert isinstance(decide_recovery(facts(None, None), replace(JOB, key_groups=64)), Refuse)


def test_an_epoch_is_skipped_only_when_its_offsets_are_equal() -> None:
    assert decide_epoch(4, "o4", state(4)) == SkipEpoch()
    assert isinstance(decide_epoch(4, "others", state(4)), Refuse)
    assert decide_epoch(5, "o5", state(4)) == RunEpoch()
    assert decide_epoch(0, "o0", None) == RunEpoch()
    assert isinstance(decide_epoch(6, "o6", state(4)), Refuse)


def report(
    level: int, shard: int, attempt: str, *, upstream: list[str] | None = None, watermark: int = 7
) -> TaskReport:
    return TaskReport(level=level, shard=shard, attempt=attempt, epoch=5, parent="n", watermarks={"s": watermark},
                      upstream=upstream or [])  # fmt: skip


def check(reports: list[TaskReport]) -> str:
    return decide_reports(reports, epoch=5, parent="n", levels=2, parallelism=2)


def test_complete_reports_are_accepted() -> None:
    first = [report(0, 0, "c"), report(1, 0, "a", upstream=["c"]), report(1, 1, "b", upstream=["c"])]
    second = [report(2, 0, "x", upstream=["a", "b"]), report(2, 1, "y", upstream=["a", "b"])]
    assert check([*first, *second]) == ""


def test_a_missing_shard_is_not_published() -> None:
    assert "shards [0]" in check([report(1, 0, "a")])


def test_two_attempts_of_one_shard_are_not_published() -> None:
    reports = [report(1, 0, "a"), report(1, 0, "b"), report(1, 1, "c")]
    assert "shards [0, 0, 1]" in check(reports)


def test_shards_that_read_different_attempts_are_not_published() -> None:
    reports = [report(1, 0, "a"), report(1, 1, "b"),
               report(2, 0, "x", upstream=["a", "b"]), report(2, 1, "y", upstream=["old", "b"])]  # fmt: skip
    assert "other attempts" in check(reports)


def test_disagreeing_watermarks_are_not_published() -> None:
    assert "different watermarks" in check([report(1, 0, "a"), report(1, 1, "b", watermark=8)])


def told(shard: int, **digests: str) -> TaskReport:
    report = TaskReport(level=1, shard=shard, attempt=f"a{shard}", epoch=1, parent="p")
    report.steps.append(StepReport("match", broadcast=digests))
    return report


def test_broadcast_states_that_are_the_same_on_all_shards_are_fine() -> None:
    assert decide_broadcast([told(0, rules="x", names="y"), told(1, names="y", rules="x")]) is None
    assert decide_broadcast([told(0), told(1)]) is None


@pytest.mark.parametrize("other", [{"rules": "z"}, {}, {"rules": "x", "more": "y"}])
def test_a_broadcast_state_that_differs_is_named_with_its_shard(other: dict[str, str]) -> None:
    found = decide_broadcast([told(2, **other), told(1, rules="x"), told(0, rules="x")])
    assert found == Apart("match", "more" if "more" in other else "rules", 2)


@pytest.mark.parametrize(
    ("read", "expected", "problem"),
    [
        ([{"again": 3}, {"again": 2, "other": 1}], {"again": 5, "other": 1}, ""),
        ([{}, {"again": 0}], {}, ""),
        ([{"again": 3}], {"again": 5}, "tasks read 3 rows of the loop 'again', which has 5"),
        ([{"again": 3}, {"again": 3}], {"again": 3}, "tasks read 6 rows of the loop 'again', which has 3"),
        ([], {"again": 1}, "tasks read 0 rows of the loop 'again', which has 1"),
    ],
)
def test_all_rows_of_a_loop_are_read_once(read: list[dict[str, int]], expected: dict[str, int], problem: str) -> None:
    reports = [TaskReport(level=0, shard=i, attempt="", epoch=1, parent="", looped=rows) for i, rows in enumerate(read)]
    assert decide_looped(reports, expected) == problem
