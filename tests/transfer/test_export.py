"""State as files: what readers see with types, or every table as it is stored."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

import headrace as hr
from headrace.testing import Harness
from headrace.transfer.folder import MARK
from headrace.transfer.record import RECORD
from tests.cli.calling import call, call_json
from tests.transfer.till import FIRST, START_US, Rule, Till, sale


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two epochs of the till."""
    folder = tmp_path_factory.mktemp("till") / "store"
    till = Till(folder)
    till.h.push(till.rules, Rule("r", 5))
    till.epoch(*FIRST)
    till.epoch(sale("a", 8, 55))
    till.close()
    return folder


TIME = pl.Datetime("us", "UTC")


def read(folder: Path, state: str) -> pl.DataFrame:
    return pl.read_parquet(folder / state / "*.parquet")


def test_all_states_of_one_epoch_are_written_with_a_record(store: Path, tmp_path: Path) -> None:
    record = hr.Store(f"{store}@0").export(tmp_path / "out")
    states = {info.address: info.rows for info in hr.Store(store).at(0).states()}
    assert {table.state for table in record.tables} == set(states)
    assert json.loads((tmp_path / "out" / RECORD).read_text())["epoch"] == 0
    assert not (tmp_path / "out" / MARK).exists()
    assert read(tmp_path / "out", "keep.count")["value"].sum() == len(FIRST)


@pytest.mark.parametrize(
    ("state", "columns"),
    [
        ("keep.count", {"key": pl.String, "value": pl.Int64}),
        ("keep.brief", {"key": pl.String, "value": pl.Int64, "expires_at": TIME}),
        ("keep.bells", {"key": pl.String, "at": TIME}),
        ("keep.alarm", {"key": pl.String, "value": TIME}),
        ("last", {"key": pl.String, "shop": pl.String, "n": pl.Int64, "at": TIME, "price": pl.String}),
        (
            "keep.hours",
            {"key": pl.String, "entry": pl.Int64, "value": TIME, "expires_at": TIME},
        ),
        (
            "visits",
            {"shop": pl.String, "window_start": TIME, "window_end": TIME,
             "rows": pl.Int64, "n": pl.Int64},
        ),
    ],
)  # fmt: skip
def test_columns_have_the_types_of_what_is_kept(
    store: Path, tmp_path: Path, state: str, columns: dict[str, pl.DataType]
) -> None:
    hr.Store(store).export(tmp_path / "out", state)
    assert dict(read(tmp_path / "out", state).schema) == columns


def test_an_export_says_what_a_view_says(store: Path, tmp_path: Path) -> None:
    opened = hr.Store(store)
    opened.export(tmp_path / "out", "keep.trail", "keep.newest")
    trail = read(tmp_path / "out", "keep.trail").filter(pl.col("key") == "a").sort("index")
    assert trail["n"].to_list() == [each["n"] for each in opened.state("keep.trail")["a"]]
    assert trail["index"].to_list() == [0, 1, 2]
    newest = read(tmp_path / "out", "keep.newest").filter(pl.col("key") == "a")
    assert newest["at"].to_list() == [datetime.fromtimestamp(START_US / 1e6 + 55 * 60, UTC)]


class Trail(hr.Process[int, str, str]):
    trail: hr.ListState[int]

    def on_event(self, event: int, ctx: hr.Context[str]) -> None:
        self.trail.append(event)


def test_lists_longer_than_a_piece_keep_their_places(tmp_path: Path) -> None:
    app = hr.App("trails")
    numbers = app.read("numbers", hr.source.items([]), int)
    numbers.key_by(lambda n: "long" if n % 3 else "b").process(Trail()).named("step").show()
    with Harness(app, store=tmp_path / "store") as h:
        h.push(numbers, *range(40_000))
        h.epoch()
    hr.Store(tmp_path / "store").export(tmp_path / "out", "step.trail")
    for _, rows in read(tmp_path / "out", "step.trail").group_by("key"):
        ordered = rows.sort("index")
        assert ordered["index"].to_list() == list(range(len(rows)))
        assert ordered["value"].is_sorted()


def test_json_lines_say_times_as_text(store: Path, tmp_path: Path) -> None:
    record = hr.Store(store).export(tmp_path / "out", "keep.hours", format="jsonl")
    [line, *_] = (tmp_path / "out" / record.tables[0].files[0]).read_text().splitlines()
    row = json.loads(line)
    assert set(row) == {"key", "entry", "value", "expires_at"}
    assert row["value"].startswith("2024-01-01T12:")


def test_files_are_of_bounded_size(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.transfer.export.PART_ROWS", 2)
    monkeypatch.setattr("headrace.transfer.export._GROUP_ROWS", 1)
    monkeypatch.setattr("headrace.read.columns.PIECE_ROWS", 1)
    monkeypatch.setattr("headrace.read.values.PIECE_ROWS", 1)
    record = hr.Store(store).export(tmp_path / "out", "keep.count")
    assert [len(pl.read_parquet(tmp_path / "out" / file)) for file in record.tables[0].files] == [2, 2]


def test_a_folder_with_anything_else_is_left_alone(store: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(hr.HeadraceError, match="something else"):
        hr.Store(store).export(tmp_path)
    hr.Store(store).export(tmp_path / "out", "last")
    with pytest.raises(hr.HeadraceError, match="something else"):
        hr.Store(store).export(tmp_path / "out", "last")
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_an_interrupted_export_begins_again(store: Path, tmp_path: Path) -> None:
    calls = []

    def interrupt(done: int, total: int) -> None:
        calls.append(done)
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hr.Store(store).export(tmp_path / "out", "last", "keep.count", progress=interrupt)
    assert not (tmp_path / "out" / RECORD).exists()
    record = hr.Store(store).export(tmp_path / "out", "keep.count")
    assert [table.state for table in record.tables] == ["keep.count"]
    assert not (tmp_path / "out" / "last").exists() or not list((tmp_path / "out" / "last").iterdir())


def test_a_state_that_is_not_there_is_named_with_its_neighbours(store: Path, tmp_path: Path) -> None:
    with pytest.raises(hr.HeadraceError, match="no such state") as raised:
        hr.Store(store).export(tmp_path / "out", "keep.cuont")
    assert "did you mean keep.count" in str(raised.value)


def test_the_command_writes_what_was_asked_for(store: Path, tmp_path: Path) -> None:
    result = call("export", store, "last", "--to", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    assert "4 rows to" in result.stdout
    data = call_json("export", f"{store}@0", "--all", "--exact", "--to", tmp_path / "exact")
    assert data["form"] == "exact"
    assert {"keep.!event", "visits.value"} <= {each["state"] for each in data["states"]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["last", "--all"], "name the states, or give --all"),
        ([], "name the states, or give --all"),
        (["last", "--exact", "--format", "jsonl"], "JSON has no word for"),
    ],
)
def test_a_command_that_cannot_be_meant_is_refused(
    store: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    result = call("export", store, *arguments, "--to", tmp_path / "out")
    assert result.exit_code != 0
    assert words in result.stderr
