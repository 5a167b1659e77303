"""The plan before the start: the same words in Python, on the command line and in what a start refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import headrace as hr
from headrace.checkpoint.recover import is_changed
from headrace.cli import app as command_line
from headrace.errors import StoreError, UpgradeRefused
from headrace.plan.compile import compile_app
from headrace.state.manifest import read_manifest
from headrace.state.store import open_store
from headrace.testing import Harness

V1 = """
import headrace as hr


class Hit(hr.Record):
    page: str
    n: int = 1


app = hr.App("pages")
hits = app.read("hits", hr.source.items([]), Hit)
totals = hits.key_by(Hit.page).aggregate(total=hr.sum("n")).named("totals").queryable()
totals.write(hr.sink.console())
"""
RENAMED = V1.replace('named("totals")', 'named("sums")')


@pytest.fixture
def store(tmp_path: Path) -> Path:
    names: dict[str, object] = {}
    exec(V1, names)
    app, hits, hit = names["app"], names["hits"], names["Hit"]
    with Harness(app, store=tmp_path / "store") as h:  # type: ignore[arg-type]
        h.push(hits, *(hit(f"page-{i}") for i in range(9)))  # type: ignore[arg-type, operator]
        h.epoch()
    (tmp_path / "v1.py").write_text(V1)
    (tmp_path / "renamed.py").write_text(RENAMED)
    return tmp_path / "store"


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(command_line, ["plan", *words], env={"COLUMNS": "200"})
    return done.exit_code, done.stdout


def test_a_program_that_is_what_it_was_has_nothing_refused(store: Path) -> None:
    code, text = run(str(store.parent / "v1.py"), "--store", str(store))
    assert code == 0
    assert "the program goes on behind epoch 0" in text


def test_what_is_refused_ends_with_a_code_of_its_own_and_says_the_way_out(store: Path) -> None:
    done = CliRunner().invoke(command_line, ["plan", str(store.parent / "renamed.py"), "--store", str(store)])
    assert done.exit_code == 5
    assert 'say .named("sums", was="totals"); or drop it: --drop totals' in done.stderr
    assert "Traceback" not in done.stderr


def test_machines_get_every_line_with_its_fate(store: Path) -> None:
    code, text = run(str(store.parent / "renamed.py"), "--store", str(store), "--drop", "totals", "--json")
    plan = json.loads(text)
    assert code == 0 == plan["refused"]
    fates = {(line["part"], line["name"]): line["fate"] for line in plan["lines"]}
    assert fates["step", "totals"] == "dropped"
    assert fates["step", "sums"] == "new"
    assert fates["source", "hits"] == "kept"


def test_a_migration_is_planned_with_its_rows_and_an_estimate_of_the_work(store: Path) -> None:
    (store.parent / "wider.py").write_text(V1.replace("n: int = 1", "n: float = 1.0"))
    words = [str(store.parent / "wider.py"), "--store", str(store)]
    [line] = [line for line in json.loads(run(*words, "--json")[1])["lines"] if line["fate"] == "migrated"]
    assert (line["name"], line["rows"]) == ("totals", 9)
    assert 0 <= line["cost_s"] < 1
    assert "up to 9 keys of an older type; less than 1 s of work" in " ".join(run(*words)[1].split())


def test_a_plan_counts_only_what_is_still_of_an_older_type(store: Path) -> None:
    names: dict[str, object] = {}
    wider = V1.replace("n: int = 1", "n: float = 1.0")
    exec(wider, names)
    app, hits, hit = names["app"], names["hits"], names["Hit"]
    with Harness(app, store=store) as h:  # type: ignore[arg-type]
        h.push(hits, *(hit(f"page-{i}") for i in range(4)))  # type: ignore[arg-type, operator]
        h.epoch()
        [line] = [line for line in app.plan(str(store)).lines if line.fate == "migrated"]  # type: ignore[attr-defined]
        assert (line.name, line.rows, line.by_key) == ("totals", 9, True)


def test_a_plan_makes_no_store(tmp_path: Path) -> None:
    (tmp_path / "v1.py").write_text(V1)
    code, text = run(str(tmp_path / "v1.py"), "--store", str(tmp_path / "none"))
    assert code == 0
    assert "the store is new" in text
    assert not (tmp_path / "none").exists()


def test_a_plan_may_begin_at_an_older_moment(store: Path) -> None:
    assert run(str(store.parent / "v1.py"), "--store", str(store), "--from", "0")[0] == 0
    assert run(str(store.parent / "v1.py"), "--store", str(store), "--from", "7")[0] == 4


def test_python_gets_the_same_plan_and_a_start_refuses_with_it(store: Path) -> None:
    names: dict[str, object] = {}
    exec(RENAMED, names)
    app = names["app"]
    assert isinstance(app, hr.App)
    plan = app.plan(str(store))
    assert [line.name for line in plan.refused] == ["totals"]
    assert "refused: the state of the step 'totals' is stored" in str(plan)
    with pytest.raises(UpgradeRefused) as refused:
        Harness(app, store=store)
    assert isinstance(refused.value, StoreError)
    assert refused.value.plan.refused[0].objection == plan.refused[0].objection
    assert not app.plan(str(store), drop=["totals"]).refused


def test_a_plan_of_a_fork_speaks_of_the_store_that_the_state_lies_in(store: Path) -> None:
    words = [str(store.parent / "renamed.py"), "--store", str(store.parent / "fork"), "--from", f"{store}@0"]
    done = CliRunner().invoke(command_line, ["plan", *words], env={"COLUMNS": "200"})
    assert done.exit_code == 5
    assert f"where     {store}\n" in done.stderr
    assert not (store.parent / "fork").exists()


def test_a_plan_of_a_fork_that_is_there_goes_on_behind_its_own_epochs(store: Path) -> None:
    names: dict[str, object] = {}
    exec(V1, names)
    app, hits, hit = names["app"], names["hits"], names["Hit"]
    fork = store.parent / "fork"
    with Harness(app, store=fork, start_from=f"{store}@0") as h:  # type: ignore[arg-type]
        h.push(hits, hit("page-1"))  # type: ignore[arg-type, operator]
        h.epoch()
    words = [str(store.parent / "v1.py"), "--store", str(fork), "--from"]
    assert "goes on behind epoch 1" in run(*words, f"{store}@0")[1]
    done = CliRunner().invoke(command_line, ["plan", *words, str(store)])
    assert done.exit_code == 4
    assert "there is another store already where the fork is to begin" in done.stderr


def test_a_start_speaks_of_changes_only_where_the_program_is_another_one(store: Path) -> None:
    before = read_manifest(open_store(str(store)), 0, 0)
    same, renamed = (compile_app(named_app(text), parallelism=2, key_groups=128).facts for text in (V1, RENAMED))
    assert not is_changed(before, same)
    assert is_changed(before, renamed)
    assert is_changed(before, replace(same, parallelism=3))


def named_app(program: str) -> hr.App:
    names: dict[str, hr.App] = {}
    exec(program, names)
    return names["app"]
