"""Every gap in which everything may die, and the tests that strike there: a table to read, and the proof that it is
whole.

A gap has one or more named points (`headrace.model.crash`), where production code lets a test end the world. Each of
them is struck without a JVM, where results, state, counters and files can be looked at closely. And by SIGKILL with
Spark, in one long run in which workers die, too (`test_connector_kills`, or `test_kills` where its servers are
missing): one point of each kind in a check, every point in a soak.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from headrace.model import crash
from tests.crash.processes import ROOT
from tests.crash.strikes import LATE, SAME_ON_DISK, strikes

KILLS = "tests/crash/test_kills.py::test_a_run_killed_at_every_point_in_turn_loses_and_doubles_nothing"
CONNECTOR_KILLS = (
    "tests/crash/test_connector_kills.py::test_readers_of_kafka_postgres_and_files_see_each_row_once_whatever_is_killed"
)
KILLED_WORKER = "tests/crash/test_kills.py::test_a_killed_worker_costs_a_retry_and_nothing_else"
PLAYED = "tests/testing/test_crashes.py::test_dying_at_a_point_in_two_epochs_changes_nothing"
HALF = "tests/crash/test_half_written.py"
ATTEMPTS = "tests/crash/test_attempts.py"
UPKEEP = "tests/crash/test_upkeep.py"
LOST = "tests/crash/test_lost_log.py"
SAVEPOINTS = "tests/state/test_savepoints.py"
COPYING = "tests/state/test_copying.py"
REWIND = "tests/checkpoint/test_rewind.py"
OFFLINE = "tests/checkpoint/test_offline.py"


class Gap(NamedTuple):
    where: str
    points: tuple[str, ...]
    proofs: tuple[str, ...]
    """Tests, beside the long run with SIGKILL, in which every point is struck."""


GAPS = (
    Gap(
        "offsets written",
        ("offsets_written",),
        (PLAYED, f"{LOST}::test_an_epoch_that_was_planned_and_forgotten_is_planned_anew"),
    ),
    Gap("in a task while it opens state (worker killed)", ("state_opening",), (PLAYED, KILLED_WORKER)),
    Gap(
        "in user code with two attempts overlapping",
        ("in_function",),
        (
            PLAYED,
            KILLED_WORKER,
            f"{ATTEMPTS}::test_an_attempt_that_begins_while_another_is_in_user_code_does_not_touch_it",
            f"{ATTEMPTS}::test_of_two_overlapping_attempts_one_counts_and_the_others_files_are_swept",
            f"{ATTEMPTS}::test_readers_of_different_attempts_are_refused_and_the_epoch_is_run_again",
            f"{ATTEMPTS}::test_operators_that_began_another_attempt_give_the_first_one_up",
        ),
    ),
    Gap(
        "delta half written",
        ("delta_half_written",),
        (
            PLAYED,
            f"{HALF}::test_a_writer_killed_half_way_leaves_half_a_file_and_no_name",
            f"{HALF}::test_half_a_delta_is_never_named_and_the_epoch_is_run_again",
            f"{HALF}::test_a_sweep_removes_the_halves_of_dead_writers_and_leaves_those_of_live_ones",
        ),
    ),
    Gap("outputs staged, no report yet", ("outputs_staged",), (PLAYED, KILLED_WORKER)),
    Gap("reports collected", ("reports_collected", "before_publish"), (PLAYED,)),
    Gap(
        "manifest's temporary file written, not linked",
        ("manifest_written",),
        (PLAYED, f"{HALF}::test_a_death_before_linking_leaves_the_whole_manifest_in_a_temporary_file"),
    ),
    Gap(
        "manifest created, answer lost",
        ("manifest_answer_lost",),
        (PLAYED, "tests/state/test_store.py::test_a_death_while_publishing_leaves_a_manifest_whole_or_absent"),
    ),
    Gap(
        "published, not released",
        ("published",),
        (PLAYED, f"{LOST}::test_an_epoch_that_spark_forgot_is_neither_run_again_nor_lost"),
    ),
    Gap("between two sinks", ("between_sinks",), (PLAYED,)),
    Gap(
        "between two files of one sink, and Spark's whole folder deleted",
        ("between_files",),
        (PLAYED, "tests/sinks/test_files.py::test_keeps_every_promise_of_a_sink"),
    ),
    Gap(
        "released, Spark not told; also with Spark's offsets entry deleted",
        ("released",),
        (
            PLAYED,
            f"{LOST}::test_an_epoch_that_spark_forgot_is_neither_run_again_nor_lost",
            f"{LOST}::test_sparks_folder_is_made_from_the_manifests_whatever_was_left_of_it",
            f"{LOST}::test_spark_asking_again_for_an_epoch_it_was_not_told_of_gets_a_release_and_no_tasks",
        ),
    ),
    Gap(
        "base written, not referenced",
        ("base_written",),
        (
            f"{UPKEEP}::test_dying_with_a_written_base_in_every_epoch_changes_nothing",
            f"{UPKEEP}::test_a_base_that_no_manifest_names_is_not_read_and_is_swept",
        ),
    ),
    Gap(
        "in the middle of a sweep",
        ("sweeping",),
        (
            f"{UPKEEP}::test_dying_in_the_sweep_behind_every_epoch_changes_nothing",
            f"{UPKEEP}::test_a_sweep_that_died_half_way_leaves_every_epoch_readable_and_is_completed",
            "tests/state/test_sweep.py::"
            "test_a_sweep_killed_anywhere_leaves_every_epoch_readable_and_is_finished_by_the_next",
        ),
    ),
    Gap(
        "savepoint written, not verified",
        ("savepoint_pinned",),
        (f"{SAVEPOINTS}::test_dying_behind_the_pin_leaves_a_savepoint_that_is_whole_when_its_epoch_is",),
    ),
    Gap(
        "the savepoint of a stopped run taken, who asked for it not told",
        ("stop_pinned",),
        ("tests/spark/test_ending.py::test_dying_behind_the_pin_leaves_the_savepoint_and_no_answer",),
    ),
    Gap(
        "a store in the making, and behind the record that makes it one",
        ("making", "store_made"),
        ("tests/transfer/test_bootstrap.py::test_a_bootstrap_that_died_is_no_store_and_begins_again",),
    ),
    Gap(
        "in the middle of a copy, and before the record that makes it a store",
        ("copying", "copy_written"),
        (f"{COPYING}::test_a_copy_that_died_anywhere_is_no_store_and_goes_on_where_it_was",),
    ),
    Gap(
        "a fork made, the original's epoch still pinned for it",
        ("fork_made",),
        ("tests/checkpoint/test_fork.py::test_a_fork_that_died_while_it_was_made_goes_on",),
    ),
    Gap(
        "runs of an epoch without Spark written, not published",
        ("offline_written",),
        (f"{OFFLINE}::test_dying_before_it_is_published_changes_nothing",),
    ),
    Gap(
        "in the middle of an erasure: new files written, some manifests replaced, some old files deleted",
        ("erase_rewritten", "erase_manifest", "erase_deleting"),
        (
            "tests/edit/test_erasing.py::"
            "test_dying_anywhere_leaves_a_store_that_reads_and_runs_and_is_erased_by_the_same_command",
        ),
    ),
    Gap(
        "in the middle of taking back what went out",
        ("forgetting",),
        ("tests/sinks/test_files_forget.py::test_a_death_at_every_point_of_a_rewind_is_made_good_by_the_start_alone",),
    ),
    Gap(
        "in the middle of a refill",
        ("refilling",),
        (
            "tests/cli/test_refill.py::test_a_refill_that_died_is_completed_by_the_next",
            "tests/cli/test_refill_range.py::test_a_refill_that_died_behind_an_epoch_is_completed_by_the_next",
        ),
    ),
    Gap(
        "between any two steps of a rewind",
        (
            "rewind_proved",
            "rewind_sealed",
            "rewind_pinned",
            "rewind_forgetting",
            "rewind_forgotten",
            "rewind_recorded",
        ),
        (f"{REWIND}::test_a_death_at_any_step_of_a_rewind_is_made_good_by_the_next_start",),
    ),
    Gap(
        "rows of a rewind are staged",
        ("rewind_staged",),
        ("tests/checkpoint/test_restated.py::test_whatever_dies_on_the_way_the_target_is_what_it_was",),
    ),
    Gap(
        "last epoch of drained input published",
        ("final_published",),
        (
            "tests/testing/test_crashes.py::"
            "test_dying_when_the_last_epoch_of_drained_input_is_published_changes_nothing",
            f"{LOST}::test_drained_input_stays_drained_when_spark_forgot",
        ),
    ),
)


def claims_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def reached(path: Path) -> Iterator[str]:
    """Points that a module comes to: first arguments of `reach`, also through a function of its own."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if "crash" in text else ():
        if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        point = node.args[0].value
        if name in ("reach", "_reach") and isinstance(point, str):
            yield point


def test_every_point_lies_in_one_gap() -> None:
    assert sorted(point for gap in GAPS for point in gap.points) == sorted(crash.POINTS)


@pytest.mark.parametrize("gap", GAPS, ids=lambda gap: gap.where)
def test_every_gap_has_tests_that_are_there(gap: Gap) -> None:
    for proof in (KILLS, CONNECTOR_KILLS, *gap.proofs):
        path, _, name = proof.partition("::")
        assert name in claims_of(ROOT / path), proof


def test_every_point_is_struck_by_sigkill_in_a_soak_and_one_of_each_kind_in_a_check() -> None:
    assert {*(strike.point for strike in strikes(every_point=True)), *LATE} == set(crash.POINTS) - crash.ASKED
    struck = {strike.point for strike in strikes(every_point=False)}
    assert all(len(struck & {*group}) == 1 for group in SAME_ON_DISK)


def test_production_code_comes_to_every_point_but_the_one_in_user_code() -> None:
    sources = (ROOT / "src" / "headrace").rglob("*.py")
    assert {point for path in sources for point in reached(path)} == set(crash.POINTS) - {"in_function"}
    assert "in_function" in set(reached(ROOT / "tests" / "crash" / "program.py"))
