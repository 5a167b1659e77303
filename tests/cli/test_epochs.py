from __future__ import annotations

from pathlib import Path

import pytest

from headrace.model.pace import EpochCost
from headrace.state.manifest import EpochNote
from tests.cli.calling import call, call_json
from tests.serve.made_store import MadeStore, busy_epoch, values


@pytest.fixture
def made(store_path: Path) -> MadeStore:
    store = MadeStore(store_path)
    for _ in range(3):
        busy_epoch(store)
    return store


def test_the_list_tells_rows_late_time_delta_and_watermark_of_each_epoch(made: MadeStore) -> None:
    out = call("epochs", made.path).stdout
    lines = [line.split() for line in out.splitlines() if line.strip()]
    assert lines[0] == ["tweets:", "epochs"]
    assert [line[0] for line in lines[-3:]] == ["0", "1", "2"]
    last = lines[-1]
    assert last[1:] == ["2024-01-01T12:00:02Z", "1,200", "14", "2", "112.0", "4.1", "KB", "2024-01-01T11:59:55Z"]


def test_the_list_for_machines_has_numbers_and_iso_times(made: MadeStore) -> None:
    first, *_, last = call_json("epochs", made.path)
    assert (first["epoch"], last["epoch"]) == (0, 2)
    assert last == {
        "epoch": 2,
        "time": "2024-01-01T12:00:02Z",
        "rows_in": 1200,
        "rows_out": 14,
        "late": 2,
        "took_ms": 112.0,
        "cost": None,
        "delta_bytes": 4096,
        "watermark": "2024-01-01T11:59:55Z",
        "held_back": [],
        "behind": {},
        "released_ms": None,
        "waiting_for": [],
        "final": False,
    }


def test_the_newest_epochs_are_shown_and_zero_means_all(made: MadeStore) -> None:
    assert [each["epoch"] for each in call_json("epochs", made.path, "-n", 2)] == [1, 2]
    assert [each["epoch"] for each in call_json("epochs", made.path, "-n", 0)] == [0, 1, 2]


def test_one_epoch_in_detail_tells_every_task_step_and_output(made: MadeStore) -> None:
    out = call("epochs", made.path, 1).stdout
    for words in ("epoch 1", "order 2.0, tasks 110.0", "open ms", "process ms", "write ms", "count_views", "totals"):
        assert words in out
    rows = [line.split() for line in out.splitlines()]
    assert ["1", "0", "600", "24.0", "KB", "1.0", "20.0", "3.0"] in rows
    assert ["count_views", "1", "600", "7", "1", "2", "40", "2.0", "KB"] in [row[:9] for row in rows]


def test_one_epoch_for_machines_has_tasks_state_and_outputs(made: MadeStore) -> None:
    found = call_json("epochs", made.path, 1)
    assert [(task["level"], task["shard"]) for task in found["tasks"]] == [(0, 0), (1, 0), (1, 1)]
    assert found["tasks"][1]["times_us"] == {"open": 1000, "process": 20_000, "write": 3000}
    assert found["tasks"][1]["steps"]["count_views"]["delta_bytes"] == 2048
    assert found["outputs"] == {"totals": {"rows": 14, "bytes": 560, "parts": 1}}
    assert found["state"]["count_views"]["runs"] >= 2
    assert found["watermarks"]["steps"] == {"count_views": "2024-01-01T11:59:55Z"}


def test_an_epoch_that_is_not_kept_is_a_problem_of_the_store(made: MadeStore) -> None:
    result = call("epochs", made.path, 99)
    assert result.exit_code == 4
    assert "epoch 99 is not in the store" in result.stderr
    assert "0–2" in result.stderr


def test_a_store_without_epochs_says_so(store_path: Path) -> None:
    made = MadeStore(store_path)
    assert "no epoch has been published yet" in call("epochs", made.path).stdout
    assert call_json("epochs", made.path) == []


def test_the_last_epoch_of_drained_input_is_marked(made: MadeStore) -> None:
    made.epoch({"count_views": [values("views", [("a", 1)])]}, watermark_us=2**63 - 1, final=True)
    out = call("epochs", made.path).stdout
    assert "3 final" in out
    assert "end of time" in out
    assert call_json("epochs", made.path)[-1]["watermark"] == "end"


def test_the_share_of_the_time_that_an_epoch_costs_by_itself_stands_beside_it(store_path: Path) -> None:
    made = MadeStore(store_path)
    busy_epoch(made)
    assert "own cost" not in call("epochs", made.path).stdout
    made.epoch(paced=EpochCost(100_000, 25_000, 500_000))
    first, second = call_json("epochs", made.path)
    assert first["cost"] == {"own_ms": 100.0, "work_ms": 25.0, "period_ms": 500.0, "share": 0.2}
    assert second["cost"] is None
    assert "20%" in call("epochs", made.path).stdout
    assert "20%: 100.0 of 500.0 ms until the next one; its rows cost 25.0 ms" in call("epochs", made.path, 0).stdout


def test_what_people_did_is_counted_in_keys_and_a_bootstrap_in_rows(store_path: Path) -> None:
    made = MadeStore(store_path)
    made.epoch(notes=[EpochNote(kind="bootstrap", by="ann", at_us=0, why="history", changed={"seen": 3})])
    made.epoch(notes=[EpochNote(kind="erase", by="ann", at_us=0, changed={"seen": 1})])
    lines = call("epochs", made.path).stdout.splitlines()
    assert "  epoch 0: bootstrap by ann at 1970-01-01T00:00:00Z, 3 rows of seen: history" in lines
    assert "  epoch 1: erase by ann at 1970-01-01T00:00:00Z, 1 key of seen" in lines
