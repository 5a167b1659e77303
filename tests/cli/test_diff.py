from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cli.calling import call, call_json
from tests.serve.made_store import MadeStore, maps, values


@pytest.fixture
def made(store_path: Path) -> MadeStore:
    store = MadeStore(store_path)
    store.epoch({"count": [values("views", [("a", 1), ("b", 2)])], "fraud": [maps("shops", [("c1", "baker", 2)])]})
    store.epoch({"count": [values("views", [("a", 10), ("b", None), ("c", 3)])]})
    store.epoch()
    return store


def test_states_that_differ_are_counted_and_the_exit_code_says_so(made: MadeStore) -> None:
    done = call("diff", f"{made.path}@0", made.path)
    assert done.exit_code == 1
    assert ["count.views", "value", "1", "1", "1"] in [line.split() for line in done.stdout.splitlines()]
    assert "the same in 1 other state" in done.stdout


def test_the_second_side_is_the_newest_epoch_where_none_is_said(made: MadeStore) -> None:
    assert call("diff", f"{made.path}@0").stdout == call("diff", f"{made.path}@0", made.path).stdout
    done = call("diff", f"{made.path}@1")
    assert (done.exit_code, done.stdout) == (0, "epoch 1 to epoch 2: the same in 2 states\n")


def test_keys_are_shown_page_by_page(made: MadeStore) -> None:
    done = call("diff", f"{made.path}@0", made.path, "--keys")
    assert "~ 1 → 10" in done.stdout and "− 2" in done.stdout and "+ 3" in done.stdout
    told, after = [], []
    while len(told) < 5:
        page = call("diff", f"{made.path}@0", made.path, "--keys", "-n", "1", "--json", *after)
        found = json.loads(page.stdout)
        told += found["keys"]
        if found["next"] is None:
            break
        after = ["--after", found["next"]]
    assert sorted((each["key"], each["change"]) for each in told) == [
        ("a", "changed"),
        ("b", "removed"),
        ("c", "added"),
    ]
    assert {each["key"]: each["parts"] for each in told}["a"] == [{"before": 1, "after": 10}]


def test_machines_get_counts(made: MadeStore) -> None:
    assert call_json("diff", f"{made.path}@1", made.path)["same"]
    done = call("diff", f"{made.path}@0", made.path, "--state", "count", "--json")
    assert done.exit_code == 1
    assert '"added": 1' in done.stdout and "fraud" not in done.stdout


def test_a_file_has_every_part_that_differs(made: MadeStore, tmp_path: Path) -> None:
    path = tmp_path / "changed.parquet"
    assert call("diff", f"{made.path}@0", made.path, "--parquet", path).exit_code == 1
    rows = {row["key"]: row for row in pq.read_table(path).to_pylist()}
    assert (rows["a"]["change"], rows["a"]["before"], rows["a"]["after"]) == ("changed", "1", "10")
    assert (len(rows), rows["b"]["after"]) == (3, None)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--after", "x"], "--after is about a list of keys"),
        (["--keys", "--after", "x"], "not where a page ended"),
        (["--keys", "--after", "count.views/00", "--parquet", "f"], "leave out --after"),
    ],
)
def test_options_that_do_not_fit_are_refused(made: MadeStore, words: list[str], what: str) -> None:
    done = call("diff", f"{made.path}@0", made.path, *words)
    assert done.exit_code == 2 and what in " ".join(done.stderr.split()).replace("│ ", "")


def test_a_side_that_is_not_there_is_an_error_of_the_store(made: MadeStore) -> None:
    done = call("diff", f"{made.path}@7", made.path)
    assert done.exit_code == 4 and "epoch 7 is not in the store" in done.stderr
