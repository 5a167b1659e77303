from __future__ import annotations

import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import headrace as hr
from headrace.dataflow import site
from headrace.dataflow.checks import reachable
from headrace.dataflow.graph import WriteNode
from headrace.errors import BadRow, ProgramError, SettingsError


class Tx(hr.Record):
    card: str
    cents: int = 0


class Fraud(hr.Process[Tx, Tx, str]):
    seen: hr.ValueState[int]

    def on_event(self, event: Tx, ctx: hr.Context[str]) -> Iterator[Tx]:
        yield event


class Notebook:
    """Plays the cells of a notebook: each `run` is a cell that was executed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = 0
        monkeypatch.setattr(site, "current_cell", lambda: self.number)
        self.app = hr.App("notes")
        self.names: dict[str, Any] = {}

    def read(self, rows: list[Tx]) -> hr.Stream[Tx]:
        self.number += 1
        return self.app.read("tx", hr.source.items(rows), Tx)

    def outputs(self) -> list[str | None]:
        return [node.name for node in self.app.nodes if isinstance(node, WriteNode)]


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    return Notebook(monkeypatch)


def test_a_cell_run_again_replaces_its_steps_and_outputs(notebook: Notebook) -> None:
    tx = notebook.read([])

    def cell() -> hr.Stream[Tx]:
        notebook.number += 1
        alerts = tx.key_by("card").process(Fraud())
        alerts.write(hr.sink.collect())
        alerts.write(hr.sink.collect())
        return alerts

    cell()
    newest = cell()
    nodes = reachable(notebook.app)
    assert [node.name for node in nodes] == ["tx", "fraud", "fraud_collect", "fraud_collect_2"]
    assert newest.node in nodes


def test_a_named_step_of_a_later_cell_takes_the_place_and_its_readers_go(notebook: Notebook) -> None:
    tx = notebook.read([])
    notebook.number += 1
    old = tx.key_by("card").latest().named("newest")
    old.where("cents > 0").write(hr.sink.console())
    notebook.number += 1
    new = tx.key_by("card").latest().named("newest")
    assert old.node not in notebook.app.nodes
    assert notebook.outputs() == []
    new.queryable()
    assert reachable(notebook.app) == (tx.node, new.node)


def test_reading_the_same_again_keeps_what_hangs_on_it(notebook: Notebook) -> None:
    first = notebook.read([Tx("a")])
    first.write(hr.sink.collect())
    again = notebook.read([Tx("a")])
    assert again.node is first.node
    assert notebook.outputs() == ["tx_collect"]


def test_reading_something_else_under_the_name_starts_over(notebook: Notebook) -> None:
    first = notebook.read([Tx("a")])
    first.write(hr.sink.collect())
    other = notebook.read([Tx("b")])
    assert other.node is not first.node
    assert notebook.outputs() == []
    assert notebook.app.nodes == (other.node,)


def test_within_one_cell_a_name_twice_is_an_error(notebook: Notebook) -> None:
    tx = notebook.read([])
    tx.key_by("card").latest().named("newest")
    with pytest.raises(ProgramError, match="two steps are named"):
        tx.key_by("card").latest().named("newest")


def test_a_step_cannot_replace_what_it_is_made_from(notebook: Notebook) -> None:
    tx = notebook.read([])
    notebook.number += 1
    with pytest.raises(ProgramError, match="two steps are named 'tx'"):
        tx.where("cents > 0").named("tx")


def test_cells_are_told_by_ipython_and_statements_by_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    assert site.current_cell() is None
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert site.current_cell() != site.current_cell()
    shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(execution_count=7))
    monkeypatch.setitem(sys.modules, "IPython", shell)  # type: ignore[arg-type]
    assert site.current_cell() == 7


# -- starting ------------------------------------------------------------------------------------------------------


def written() -> hr.App:
    app = hr.App("fraud")
    app.read("tx", hr.source.items([]), Tx).write(hr.sink.collect())
    return app


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stands in for the room that knows Spark; keeps what it was asked to start."""
    asked: list[Any] = []

    def start(app: hr.App, settings: hr.Settings, until: str, spark: Any) -> None:
        asked.append((app.name, settings, until, spark))

    monkeypatch.setitem(sys.modules, "headrace.spark.runner", SimpleNamespace(start=start))  # type: ignore[arg-type]
    return asked


def test_start_hands_over_settings(runner: list[Any]) -> None:
    written().start(until="caught_up", store="./x", parallelism=3, spark="session")
    ((name, settings, until, spark),) = runner
    assert (name, until, spark) == ("fraud", "caught_up", "session")
    assert (settings.store, settings.parallelism) == ("./x", 3)


def test_a_dict_for_spark_is_settings_of_the_session_that_is_made(runner: list[Any]) -> None:
    written().start(store="./x", spark={"driver.memory": "8g"})
    ((_, settings, _, spark),) = runner
    assert spark is None
    assert settings.spark == {"spark.driver.memory": "8g"}


def test_an_unknown_setting_or_end_is_refused_before_anything_starts(runner: list[Any]) -> None:
    with pytest.raises(SettingsError, match="did you mean parallelism"):
        written().start(paralelism=3)
    with pytest.raises(ProgramError, match="drained"):
        written().start(until="done")  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="no outputs"):
        hr.App("empty").start()
    assert runner == []


def test_a_missing_secret_stops_the_start_and_nothing_else(runner: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HR_TEST_SECRET", raising=False)
    app = hr.App("fraud")
    app.read("tx", hr.source.spark("kafka", password=hr.secret("HR_TEST_SECRET")), Tx).write(hr.sink.collect())
    assert "HR_TEST_SECRET" not in app.explain()
    with pytest.raises(SettingsError, match="'HR_TEST_SECRET' is not set") as caught:
        app.start()
    assert "test_app.py:" in caught.value.where
    assert runner == []


# -- the door ------------------------------------------------------------------------------------------------------


def test_importing_headrace_loads_nothing_heavy() -> None:
    code = "import headrace, sys; print([m for m in ('pyspark', 'pandas', 'polars', 'sqlglot') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_names_that_load_more_are_there_when_asked_for() -> None:
    assert hr.Store.__name__ == "Store"
    assert hr.testing.__name__ == "headrace.testing"
    assert "testing" in dir(hr)
    with pytest.raises(AttributeError, match="nothing_here"):
        hr.nothing_here  # type: ignore[attr-defined]


def test_building_a_program_is_quick() -> None:
    began = time.process_time()
    app = hr.App("many")
    stream: hr.Stream[Any] = app.read("tx", hr.source.items([]), Tx)
    for _ in range(100):
        stream = stream.where("cents > 0")
    stream.write(hr.sink.collect())
    reachable(app)
    assert time.process_time() - began < 2


def test_an_error_of_a_run_is_told_at_the_line_that_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Py4JError(Exception):
        __module__ = "py4j.protocol"

    def fail(*_: Any) -> None:
        raise BadRow("a row cannot be read", where="a.json:3") from Py4JError("a stack of Java's")

    monkeypatch.setitem(sys.modules, "headrace.foreground", SimpleNamespace(run_visibly=fail))  # type: ignore[arg-type]

    def frames() -> list[str]:
        with pytest.raises(BadRow) as caught:
            written().run()
        shown = "".join(traceback.format_exception(caught.value))
        assert "a.json:3: a row cannot be read" in shown
        assert ("a stack of Java's" in shown) == bool(os.environ.get("HEADRACE_TRACE"))
        return [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]

    monkeypatch.delenv("HEADRACE_TRACE", raising=False)
    assert frames() == ["frames", "run"]
    monkeypatch.setenv("HEADRACE_TRACE", "1")
    assert frames() == ["frames", "run", "run", "fail"]
