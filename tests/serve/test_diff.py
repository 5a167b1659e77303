"""The difference of two epochs: every kind of state, whatever cut, folded or renamed it, reading what is not shared."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import StoreError
from headrace.model.job import DeclaredState
from headrace.model.keys import encode_key
from headrace.read import unshared
from headrace.read.diff import StateDiff, StoreDiff, cursor_of
from headrace.state import layout
from headrace.testing import Harness
from tests.serve.made_store import SECOND_US, START_US, MadeStore, lists, maps, timers, values
from tests.serve.tweets import Tweets, View


def counts(found: StoreDiff) -> dict[str, tuple[int, int, int]]:
    return {each.address: (each.added, each.removed, each.changed) for each in found.states}


def changes(found: StoreDiff) -> dict[Any, tuple[Any, Any]]:
    return {each.key: (each.before, each.after) for each in found}


def make(path: Path, *epochs: Iterable[Any], **more: Any) -> MadeStore:
    made = MadeStore(path, **more)
    for number, tables in enumerate(epochs):
        made.epoch({"s": tables} if tables else None, clock_us=START_US + number * SECOND_US)
    return made


def test_keys_are_added_removed_and_changed(tmp_path: Path) -> None:
    rows = [("a", 1), ("b", 1), ("c", 1), ("d", 1)]
    made = make(tmp_path, [values("v", rows)], [values("v", [("b", 2), ("c", None), ("d", 1), ("e", 5)])])
    found = hr.diff(f"{made.path}@0", made.path)
    assert found.states == [StateDiff("s.v", "value", 1, 1, 1)] and not found.same
    assert changes(found) == {"b": (1, 2), "c": (1, None), "e": (None, 5)}
    assert {each.key: each.change for each in found} == {"b": "changed", "c": "removed", "e": "added"}
    assert counts(hr.diff(made.path, f"{made.path}@0")) == {"s.v": (1, 1, 1)}
    assert hr.diff(made.path, hr.Store(made.path)).same


def test_entries_elements_and_timers_are_told_part_by_part(tmp_path: Path) -> None:
    made = make(
        tmp_path,
        [maps("m", [("a", "x", 1), ("a", "y", 2)]), lists("l", [("a", 0, 7)]), timers("t", [("a", START_US)])],
        [maps("m", [("a", "x", 3), ("b", None, None)]), lists("l", [("a", 1, 8)]), timers("t", [("a", START_US + 1)])],
    )
    found = hr.diff(f"{made.path}@0", made.path)
    assert counts(found) == {"s.l": (0, 0, 1), "s.m": (0, 0, 1), "s.t": (0, 0, 1)}
    rows = {tuple(row) for row in found.to_polars().rows()}
    assert ("s.m", "a", "changed", "x", "1", "3") in rows
    assert ("s.l", "a", "changed", "1", None, "8") in rows
    assert ("s.t", "a", "changed", None, None, '"2024-01-01T12:00:00.000001Z"') in rows


def test_windows_are_compared_one_by_one(tmp_path: Path) -> None:
    with Tweets(tmp_path / "store") as tweets:
        tweets.push(("a", "12:00", 2), ("a", "13:10", 5), ("b", "12:00", 1))
        tweets.push(("a", "12:10", 1))
        found = hr.diff(f"{tweets.path}@0", tweets.path, state="hourly")
        [key] = found
        rows = [[row["impressions"] for row in side.values()] for side in (key.before, key.after)]
    assert (key.key, rows) == ("a", [[2, 5], [3, 5]])
    assert [row[3] for row in found.to_polars().rows()] == ["2024-01-01T12:00:00Z/2024-01-01T13:00:00Z"]


def test_only_rows_that_are_not_shared_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make(tmp_path, [values("v", [(f"k{n}", n) for n in range(5000)])], [values("v", [("k7", 0)])], [])
    looked: list[int] = []
    read_keys = unshared.read_keys
    monkeypatch.setattr("headrace.read.pairs.read_keys", lambda s: looked.append(len(read_keys(s))) or read_keys(s))
    assert changes(hr.diff(f"{made.path}@0", made.path)) == {"k7": (7, 0)}
    assert looked == [1]
    assert hr.diff(f"{made.path}@1", made.path).same and looked == [1]


def test_what_expired_in_between_is_removed(tmp_path: Path) -> None:
    made = MadeStore(tmp_path)
    brief = {"s": {"v": DeclaredState("value", "wall")}}
    made.epoch({"s": [values("v", [("a", 1, START_US + SECOND_US), ("b", 2)])]}, clock_us=START_US, states=brief)
    made.epoch(clock_us=START_US + 2 * SECOND_US, states=brief)
    assert changes(hr.diff(f"{made.path}@0", made.path)) == {"a": (1, None)}


def test_a_state_that_was_renamed_is_held_against_what_it_became(tmp_path: Path) -> None:
    made = MadeStore(tmp_path)
    made.epoch({"s": [values("old", [("a", 1), ("b", 1)])]}, states={"s": {"old": DeclaredState("value")}})
    made.epoch({"s": [values("new", [("a", 2)])]}, states={"s": {"new": DeclaredState("value", was=("old",))}})
    found = hr.diff(f"{made.path}@0", made.path)
    assert found.states == [StateDiff("s.new", "value", 0, 0, 1, was="s.old")]
    assert changes(found) == {"a": (1, 2)}
    assert hr.diff(made.path, f"{made.path}@0").states == [StateDiff("s.old", "value", 0, 0, 1, was="s.new")]


def test_a_state_of_one_side_alone_is_said_so(tmp_path: Path) -> None:
    made = MadeStore(tmp_path)
    made.epoch({"s": [values("v", [("a", 1)])]})
    made.epoch({"t": [values("w", [("a", 1), ("b", 1)])]})
    found = hr.diff(f"{made.path}@0", made.path)
    assert found.states == [StateDiff("s.v", "value", 0, 0, 0), StateDiff("t.w", "value", 2, 0, 0, only="second")]
    assert hr.diff(made.path, f"{made.path}@0").states[1] == StateDiff("t.w", "value", 0, 2, 0, only="first")


def test_an_unknown_state_is_refused_with_those_there_are(tmp_path: Path) -> None:
    made = make(tmp_path, [values("v", [("a", 1)])])
    with pytest.raises(StoreError, match=r"no step keeps a state 's.w'(.|\n)*expected: s.v"):
        hr.diff(made.path, made.path, state="s.w")


def test_two_stores_with_the_same_content_are_the_same_whatever_cut_and_folded_them(tmp_path: Path) -> None:
    app = hr.App("tweets")
    views = app.read("views", hr.source.items([]), View, time=View.at)
    by_tweet = views.key_by(View.tweet)
    by_tweet.aggregate(views=hr.count(), mean=hr.avg("n")).named("totals").queryable()
    by_tweet.window(hr.tumbling("1h")).aggregate(n=hr.sum("n")).named("hourly").queryable(keep="24h")
    rows = [(f"t-{n % 40}", f"12:{n % 60:02}", n) for n in range(400)]
    for name, shards, cuts in (("one", 1, 1), ("many", 3, 8)):
        with Harness(app, start="2024-01-01T12:00", parallelism=shards, store=tmp_path / name) as h:
            for cut in range(cuts):
                h.push(views, *(View(tweet, h.at(at), n) for tweet, at, n in rows[cut::cuts]))
                h.epoch(watermark="12:00")
            if name == "many":
                h.push(views, View("t-0", h.at("12:00"), 1))
                h.epoch(watermark="12:00")
    assert hr.diff(tmp_path / "one", f"{tmp_path / 'many'}@7").same
    assert counts(hr.diff(tmp_path / "one", tmp_path / "many")) == {"hourly": (0, 0, 1), "totals": (0, 0, 1)}


@pytest.mark.parametrize("seed", range(6))
def test_a_difference_is_that_of_all_that_both_sides_say(tmp_path: Path, seed: int) -> None:
    """Random epochs, on shards that change, compared with everything that readers of both sides give."""
    rng = random.Random(seed)
    made = MadeStore(tmp_path)
    for _ in range(6):
        made.parallelism = rng.choice((1, 2, 3))
        keys = rng.sample(range(60), rng.randrange(30))
        cells = [(key, rng.choice((None, 1, 2))) for key in keys]
        entries = [(key, rng.choice((None, "x", "y")), rng.choice((None, 1, 2))) for key in keys]
        entries = [(key, entry, None if entry is None else value) for key, entry, value in entries]
        made.epoch({"s": [values("v", cells), maps("m", entries)]} if keys else None, clock_us=START_US)
    first, second = (hr.Store(made.path).at(rng.randrange(6)) for _ in range(2))
    for state in ("s.v", "s.m"):
        before, after = (dict(store.state(state, empty_ok=True).scan()) for store in (first, second))
        expected = {
            key: (before.get(key), after.get(key)) for key in {*before, *after} if before.get(key) != after.get(key)
        }
        known = {each.address for each in hr.diff(first, second).states}
        assert (changes(hr.diff(first, second, state=state)) if state in known else {}) == expected, seed


def test_stretches_are_bounded_and_miss_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unshared, "STRETCH_ROWS", 64)
    made = make(tmp_path, [values("v", [(n, 0) for n in range(1000)])], [values("v", [(n, 1) for n in range(1000)])])
    found = hr.diff(f"{made.path}@0", made.path)
    assert len(found.pairs[0].stretches) > 10
    assert sorted(each.key for each in found) == list(range(1000))


def test_a_walk_goes_on_where_one_before_ended(tmp_path: Path) -> None:
    rows = [(n, 0) for n in range(50)]
    made = make(tmp_path, [values("v", []), values("w", [])], [values("v", rows), values("w", rows)])
    found = hr.diff(f"{made.path}@0", made.path)
    keys = [cursor_of(pair, key) for pair, key, *_ in found.walk()]
    assert len(keys) == 100
    for place in (0, 30, 49, 50, 99):
        assert [cursor_of(pair, key) for pair, key, *_ in found.walk(keys[place])] == keys[place + 1 :]


def test_a_file_that_is_gone_is_an_error_before_anything_is_said(tmp_path: Path) -> None:
    made = make(tmp_path, [values("v", [("a", 1)])], [values("v", [("a", 2)])])
    for path in made.files.list(layout.RUNS)[:1]:
        made.files.delete(path)
    with pytest.raises(hr.HeadraceError, match="not there"):
        hr.diff(f"{made.path}@0", made.path)


def test_the_order_of_keys_is_that_of_their_hashes(tmp_path: Path) -> None:
    made = make(tmp_path, [], [values("v", [(n, 0) for n in range(20)])])
    walked = [key for _, key, *_ in hr.diff(f"{made.path}@0", made.path).walk()]
    assert len(walked) == 20 and {*walked} == {encode_key(n) for n in range(20)}
