"""``headrace edit`` as a person meets it: one key, a file of edits, a look beforehand, and what went wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import headrace as hr
from headrace.cli import app
from headrace.model.time import format_time
from tests.cli.calling import call_json
from tests.edit.kinds import Fraud, Shop


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("edited") / "store")
    with Shop(folder).h as h:
        h.epoch()
    shop = Shop(folder)
    with shop.h:
        shop.sell(("ann", "tea", 10), ("bob", "tea", 5))
    return folder


@pytest.fixture
def store(ran: str, tmp_path: Path) -> str:
    shutil.copytree(ran, tmp_path / "store")
    return str(tmp_path / "store")


def edit(store: str, *args: str, text: str | None = None) -> Result:
    return CliRunner().invoke(app, ["edit", store, *args], input=text)


def total(store: str, customer: str) -> int:
    shop = Shop(store)
    with shop.h:
        return int(shop.state(Fraud.total, customer))


def test_one_key_is_changed_and_before_and_after_are_shown(store: str) -> None:
    done = edit(store, "fraud.total", "ann", "--set", "5", "--why", "ticket 4711")
    assert done.exit_code == 0, done.output
    assert "before  10\n  after   5\n" in done.output
    assert f"headrace run APP.PY --store {store} --from 1" in done.output
    assert total(store, "ann") == 5


def test_a_dry_run_shows_the_same_and_changes_nothing(store: str) -> None:
    done = edit(store, "fraud.total", "ann", "--set", "5", "--dry-run")
    assert done.exit_code == 0
    assert "before  10\n  after   5\n" in done.output
    assert total(store, "ann") == 10


def test_a_file_of_edits_is_one_epoch(store: str, tmp_path: Path) -> None:
    lines = [
        '{"state": "fraud.total", "key": "ann", "set": 1}',
        "",
        '{"state": "fraud.shops", "key": "ann", "delete": true, "entry": "tea"}',
        '{"state": "fraud.quiet", "key": "bob", "set": "2030-01-01"}',
    ]
    file = tmp_path / "edits.jsonl"
    file.write_text("\n".join(lines))
    done = edit(store, "--from", str(file), "--why", "refunds", "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["epoch"] == 2
    assert [(row["key"], row["before"], row["after"]) for row in said["changes"]] == [
        ("ann", 10, 1), ("ann", 1, None), ("bob", None, "2030-01-01T00:00:00Z"),
    ]  # fmt: skip
    assert total(store, "ann") == 1
    listed = CliRunner().invoke(app, ["epochs", store])
    assert "epoch 2: edit by " in listed.output
    assert "refunds" in listed.output


def test_edits_come_from_standard_input_as_well(store: str) -> None:
    done = edit(store, "--from", "-", "--why", "x", text='{"state": "fraud.total", "key": "bob", "delete": true}\n')
    assert done.exit_code == 0, done.output
    assert "after   nothing" in done.output


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("fraud.total", "ann", "--set", "5"), 2, "--why says the reason"),
        (("--why", "x"), 2, "say one key"),
        (("fraud.total", "--set", "5", "--why", "x"), 2, "an edit is of one key"),
        (("fraud.total", "ann", "--why", "x"), 1, "an edit does one thing to a key"),
        (("fraud.total", "ann", "--set", "5", "--delete", "--why", "x"), 1, "set and delete"),
        (("fraud.total", "ann", "--set", "five", "--why", "x"), 1, "Expected `int`, got `str`"),
        (("fraud.tot", "ann", "--set", "5", "--why", "x"), 4, "no state 'fraud.tot' is declared"),
        (("hourly", "tea", "--delete", "--why", "x"), 1, "it keeps open windows"),
        (("--from", "/no/such/file", "--why", "x"), 1, "cannot be read"),
    ],
    ids=lambda case: " ".join(case) if isinstance(case, tuple) else None,
)
def test_what_is_wrong_is_told_and_changes_nothing(args: tuple[str, ...], code: int, words: str, store: str) -> None:
    done = edit(store, *args)
    assert done.exit_code == code, done.output
    assert words in " ".join(done.output.replace("│", " ").split())
    assert total(store, "ann") == 10


def test_a_line_that_is_no_edit_is_named_by_its_number(store: str) -> None:
    lines = '{"state": "fraud.total", "key": "ann", "set": 1}\n{"state": "fraud.total", "key": "ann", "put": 1}\n'
    done = edit(store, "--from", "-", "--why", "x", text=lines)
    assert done.exit_code == 1
    assert "standard input, line 2" in done.output
    assert "put" in done.output
    assert total(store, "ann") == 10


def test_an_edit_is_published_when_it_was_made_wherever_that_is_said(store: str) -> None:
    assert edit(store, "fraud.total", "ann", "--set", "5", "--why", "x").exit_code == 0
    epoch = call_json("epochs", store)[-1]
    version = hr.Store(store).history("fraud.total", "ann")[-1]
    point = call_json("savepoint", store, "--name", "edited")
    detail = call_json("savepoints", store, "edited")
    assert epoch["time"] > "2025"
    assert {point["published"], detail["published"], format_time(version.published)} == {epoch["time"]}
