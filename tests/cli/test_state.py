from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from headrace.cli.finding_keys import find_key
from headrace.read import Store
from tests.cli.calling import call, call_json
from tests.serve.made_store import START_US, MadeStore, lists, maps, timers, values


@pytest.fixture
def made(store_path: Path) -> MadeStore:
    store = MadeStore(store_path)
    store.epoch({"count": [values("views", [("tweet-1", 1), ("tweet-2", 2), ("user-1", 3)])]})
    store.epoch({
        "count": [values("views", [("tweet-1", 10)])],
        "fraud": [
            maps("shops", [("c1", "baker", 2)]),
            timers("checks", [("c1", START_US)]),
            lists("recent", [("c1", 1, "x")]),
        ],
    })  # fmt: skip
    return store


def test_without_a_step_the_states_are_listed_with_kind_and_size(made: MadeStore) -> None:
    out = call("state", made.path).stdout
    assert "state at epoch 1" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["count.views", "value", "4"] in [row[:3] for row in rows]
    assert ["fraud.shops", "map", "1"] in [row[:3] for row in rows]
    found = call_json("state", made.path)
    assert found["epoch"] == 1
    assert [each["state"] for each in found["states"]] == ["count.views", "fraud.checks", "fraud.recent", "fraud.shops"]


def test_with_a_state_its_keys_and_values_are_listed(made: MadeStore) -> None:
    found = call_json("state", made.path, "count.views")
    assert {each["key"]: each["value"] for each in found["entries"]} == {"tweet-1": 10, "tweet-2": 2, "user-1": 3}
    assert found["more"] is False
    rows = [line.split() for line in call("state", made.path, "count.views").stdout.splitlines()]
    assert ["tweet-1", "10"] in rows


def test_a_prefix_narrows_and_a_limit_says_that_there_is_more(made: MadeStore) -> None:
    found = call_json("state", made.path, "count.views", "--prefix", "tweet-")
    assert {each["key"] for each in found["entries"]} == {"tweet-1", "tweet-2"}
    found = call_json("state", made.path, "count.views", "-n", 2)
    assert (len(found["entries"]), found["more"]) == (2, True)
    assert "more keys" in call("state", made.path, "count.views", "-n", 2).stdout
    assert len(call_json("state", made.path, "count.views", "-n", 0)["entries"]) == 3


def test_one_key_prints_its_value_and_nothing_else(made: MadeStore) -> None:
    assert call("state", made.path, "count.views", "tweet-1").stdout == "10\n"
    assert call("state", made.path, "fraud.shops", "c1").stdout == '{"baker": 2}\n'
    assert call("state", made.path, "fraud.recent", "c1").stdout == '["x"]\n'
    assert call("state", made.path, "fraud.checks", "c1").stdout == '["2024-01-01T12:00:00Z"]\n'


def test_a_step_with_one_state_needs_no_state_name(made: MadeStore) -> None:
    assert call("state", made.path, "count", "tweet-1").stdout == "10\n"


def test_a_past_epoch_is_shown_as_it_was(made: MadeStore) -> None:
    assert call("state", made.path, "count.views", "tweet-1", "--at", 0).stdout == "1\n"
    assert call("state", f"{made.path}@1", "count.views", "tweet-1", "--at", 0).exit_code == 2
    assert call_json("state", made.path, "--at", 0)["states"] == [
        {
            "state": "count.views",
            "kind": "value",
            "rows": 3,
            "old_rows": 0,
            "bytes": pytest.approx(1000, abs=3000),
            "about": False,
        }
    ]


def test_a_key_that_is_not_there_ends_with_one_and_says_so(made: MadeStore) -> None:
    result = call("state", made.path, "count.views", "nobody")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nothing for the key 'nobody'" in result.stderr
    result = call("state", made.path, "count.views", "nobody", "--json")
    assert result.exit_code == 1
    assert '"value": null' in result.stdout


def test_an_unknown_state_is_a_problem_of_the_store_and_lists_the_known(made: MadeStore) -> None:
    result = call("state", made.path, "count.clicks")
    assert result.exit_code == 4
    assert "count.views" in result.stderr


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("plain", "plain"),
        ("12", "12"),
        (12, "12"),
        (-1.5, "-1.5"),
        (True, "true"),
        (None, "null"),
        (("a", 1), '["a", 1]'),
        (("a", date(2024, 1, 2)), '["a", "2024-01-02"]'),
        (date(2024, 1, 2), "2024-01-02"),
        (b"\x01\x02", "AQI="),
        ("[brackets]", "[brackets]"),
    ],
)
def test_a_key_is_found_by_what_a_person_writes_for_it(store_path: Path, key: object, text: str) -> None:
    made = MadeStore(store_path)
    made.epoch({"count": [values("views", [(key, 7)])]})
    assert find_key(Store(made.path).state("count.views"), text) == (key, 7)
    # What starts with a dash is an option unless two dashes stand before it.
    assert call("state", made.path, "count.views", "--", text).stdout == "7\n"


def test_markup_in_keys_and_values_is_shown_as_it_is(store_path: Path) -> None:
    made = MadeStore(store_path)
    made.epoch({"count": [values("note", [("[red]", "[bold]x[/bold]")])]})
    out = call("state", made.path, "count.note").stdout
    assert "[red]" in out
    assert "[bold]x[/bold]" in out


def test_a_history_shows_what_changed_in_each_epoch(made: MadeStore) -> None:
    out = call("state", made.path, "count.views", "tweet-1", "--history").stdout
    assert "count.views, key tweet-1" in out
    assert "+ 1" in out and "~ 1 → 10" in out
    told = call_json("state", made.path, "fraud.shops", "c1", "--history")
    [version] = told["versions"]
    assert (version["epoch"], version["after"], version["value"], told["more"]) == (1, 0, {"baker": 2}, False)


def test_a_history_is_cut_to_its_newest_versions(made: MadeStore) -> None:
    assert "1 earlier change;" in call("state", made.path, "count.views", "tweet-1", "--history", "-n", "1").stdout
    told = call_json("state", made.path, "count.views", "tweet-1", "--history", "-n", "1")
    assert [each["value"] for each in told["versions"]] == [10] and told["more"]


def test_a_key_without_a_history_is_said_so(made: MadeStore) -> None:
    done = call("state", made.path, "count.views", "nobody", "--history")
    assert done.exit_code == 1
    assert "nothing for the key nobody in any epoch that is kept" in done.stderr


@pytest.mark.parametrize("words", [["--history"], ["tweet-1", "--since", "0"]])
def test_a_history_is_of_one_key(made: MadeStore, words: list[str]) -> None:
    done = call("state", made.path, "count.views", *words)
    assert done.exit_code == 2 and "about one KEY" in done.stderr


@pytest.mark.parametrize("how", [["@0"], ["", "--at", "0"], ["@2024-01-01T12:00:00"]])
def test_a_state_is_shown_as_it_was(made: MadeStore, how: list[str]) -> None:
    behind, *options = how
    value = "10" if behind.startswith("@2") else "1"
    assert call("state", f"{made.path}{behind}", "count.views", "tweet-1", *options).stdout.strip() == value
