from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.calling import call
from tests.replay.replayed import NEWEST_CENTS, run_job

APP = """
from tests.replay.replayed import Doubling, program
app, _ = program({})
"""


@pytest.fixture
def job(tmp_path: Path) -> tuple[Path, Path]:
    """A program, and the store of its job."""
    run_job(tmp_path / "store")
    file = tmp_path / "cards.py"
    file.write_text(APP.format(""))
    return file, tmp_path / "store"


def test_a_replay_shows_rows_changes_outputs_and_the_verdict(job: tuple[Path, Path]) -> None:
    file, store = job
    done = call("replay", file, "--store", store, "--step", "watch", "--key", "card-1", "--from", "1", "--to", "2")
    assert done.exit_code == 0, done.stderr
    out = done.stdout
    assert "watch, key card-1: 1 epoch again, from the state of epoch 1" in out
    assert "reads 8 rows of input again" in out
    assert '  row 1  2024-01-01T12:16:00Z  {"card": "card-1"' in out
    assert "      watch.spent  ~ 35 → 51" in out
    assert "time goes on" in out and '      out  {"card": "card-1", "shop": "late"' in out
    assert "ends as production ended in epoch 2" in out


def test_a_key_that_ends_otherwise_is_told_with_both_ends(job: tuple[Path, Path]) -> None:
    file, store = job
    file.write_text(APP.format("watch=Doubling()"))
    done = call("replay", file, "--store", store, "--step", "watch", "--key", "card-1", "--from", "3")
    assert done.exit_code == 1
    assert "ends otherwise than production in epoch 4: production → replay" in done.stdout
    assert f"watch.spent  ~ {NEWEST_CENTS} →" in done.stdout


def test_a_key_that_nothing_came_for_is_said_so(job: tuple[Path, Path]) -> None:
    file, store = job
    done = call("replay", file, "--store", store, "--step", "watch", "--key", "crad-1", "--from", "1")
    assert done.exit_code == 0, done.stderr
    assert "no row of this key came, and nothing was due for it" in done.stdout


def test_machines_get_one_document(job: tuple[Path, Path]) -> None:
    file, store = job
    done = call("replay", file, "--store", store, "--step", "totals", "--key", "card-1", "--from", "3", "--json")
    told = json.loads(done.stdout)
    assert (told["same"], told["from"], told["to"], told["same_program"]) == (True, 3, 4, True)
    row = told["events"][0]
    assert row["input"]["at"] == row["at"] == "2024-01-01T12:34:00Z"
    assert row["changes"][0]["after"]["n"] == row["changes"][0]["before"]["n"] + 1


def test_the_step_is_named_where_there_are_several(job: tuple[Path, Path]) -> None:
    file, store = job
    done = call("replay", file, "--store", store, "--key", "card-1", "--from", "1")
    assert done.exit_code == 1 and "several steps of the program keep state" in done.stderr
    done = call("replay", file, "--store", store, "--step", "wach", "--key", "card-1", "--from", "1")
    assert done.exit_code == 4 and "by_shop or tens or totals or watch" in done.stderr


def test_a_row_in_which_no_code_of_the_user_runs_is_said_so(job: tuple[Path, Path]) -> None:
    file, store = job
    words = ("--step", "totals", "--key", "card-1", "--from", "3", "--break-at", "1")
    done = call("replay", file, "--store", store, *words)
    assert done.exit_code == 0 and "no code of yours ran for row 1" in done.stderr
    refused = call("replay", file, "--store", store, *words, "--json")
    assert refused.exit_code == 2
