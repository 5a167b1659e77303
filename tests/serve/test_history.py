"""The history of a key: every kind of state, gaps, renames, expiry, and what is read for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.checkpoint import coordinator
from headrace.errors import StoreError
from headrace.model.job import DeclaredState
from headrace.model.keys import encode_key
from headrace.read.changes import ABSENT, PartChange, parts_changed
from headrace.read.store import Store, walk_history
from headrace.state import layout
from headrace.state.run import clear_open_runs
from headrace.state.store import LocalStore
from headrace.testing import Harness
from tests.serve.made_store import SECOND_US, START_US, MadeStore, lists, maps, timers, values
from tests.serve.tweets import Tweets, View


def versions(store: Any, name: str, key: Any, **how: Any) -> list[tuple[int, int, Any]]:
    return [(each.epoch, each.after, each.value) for each in Store(store).history(name, key, **how)]


def make(path: Path, *epochs: Any, **more: Any) -> MadeStore:
    """An epoch each second; None: one that writes nothing."""
    made = MadeStore(path)
    for number, tables in enumerate(epochs):
        made.epoch({"s": tables} if tables else None, clock_us=START_US + number * SECOND_US, **more)
    return made


def value_of(epoch: int) -> list[Any]:
    return [values("v", [("a", epoch)])]


def test_a_version_stands_for_each_epoch_that_changed_the_key(tmp_path: Path) -> None:
    one, other = [("a", 1), ("b", 1)], [("b", 2)]
    made = make(tmp_path, *([values("v", rows)] for rows in (one, other, one[:1], [("a", 3)], [("a", None)])))
    assert versions(made.path, "s.v", "a") == [(0, -1, 1), (3, 2, 3), (4, 3, None)]
    assert versions(made.path, "s.v", "b") == [(0, -1, 1), (1, 0, 2)]
    assert versions(made.path, "s.v", "nobody") == []


def test_a_history_ends_where_the_store_is_pinned_and_begins_where_it_is_said(tmp_path: Path) -> None:
    made = make(tmp_path, *map(value_of, range(5)))
    assert versions(f"{made.path}@2", "s.v", "a") == [(0, -1, 0), (1, 0, 1), (2, 1, 2)]
    assert versions(made.path, "s.v", "a", since=3) == [(3, -1, 3), (4, 3, 4)]
    assert versions(made.path, "s.v", "a", since="2024-01-01T12:00:04") == [(4, -1, 4)]


def test_every_kind_of_state_has_a_history(tmp_path: Path) -> None:
    made = make(
        tmp_path,
        [maps("m", [("a", "x", 1)]), lists("l", [("a", 0, 7)]), timers("t", [("a", START_US)])],
        [maps("m", [("a", "x", 2), ("a", "y", 1)]), lists("l", [("a", 1, 8)]), timers("t", [("b", START_US)])],
        [maps("m", [("a", None, None), ("a", "z", 5)])],
    )
    assert versions(made.path, "s.m", "a") == [(0, -1, {"x": 1}), (1, 0, {"x": 2, "y": 1}), (2, 1, {"z": 5})]
    assert versions(made.path, "s.l", "a") == [(0, -1, [7]), (1, 0, [7, 8])]
    assert versions(made.path, "s.t", "a") == [(0, -1, [START_US])]


def test_windows_of_a_key_are_told_together(tmp_path: Path) -> None:
    with Tweets(tmp_path / "store") as tweets:
        tweets.push(("a", "12:00", 2), ("a", "13:10", 5))
        tweets.push(("b", "12:00", 1))
        tweets.push(("a", "12:10", 1))
        told = Store(tweets.path).history("hourly", "a")
    assert [each.epoch for each in told] == [0, 2]
    assert [[row["impressions"] for row in (each.value or {}).values()] for each in told] == [[2, 5], [3, 5]]


def test_what_expired_is_gone_from_the_epoch_on_in_which_its_time_was_over(tmp_path: Path) -> None:
    brief = {"s": {"v": DeclaredState("value", "wall")}}
    row = values("v", [("a", 1, START_US + 2 * SECOND_US)])
    made = make(tmp_path, [row], None, None, None, states=brief)
    assert versions(made.path, "s.v", "a") == [(0, -1, 1), (2, 1, None)]


def test_a_gap_between_kept_epochs_is_told(tmp_path: Path) -> None:
    made = make(tmp_path, *map(value_of, range(5)), full=True)
    for epoch in (1, 2):
        made.files.delete(layout.manifest(0, epoch))
    assert versions(made.path, "s.v", "a") == [(0, -1, 0), (3, 0, 3), (4, 3, 4)]


def test_an_epoch_swept_meanwhile_is_passed_over(tmp_path: Path) -> None:
    made = make(tmp_path, *map(value_of, range(3)), full=True)
    reader = Store(made.path).state("s.v")._reader
    walk = walk_history(Store(made.path), reader, encode_key("a"))
    made.files.delete(layout.manifest(0, 1))
    assert [each.epoch for each in walk] == [0, 2]


def test_a_state_is_followed_under_the_names_it_had(tmp_path: Path) -> None:
    made = MadeStore(tmp_path)
    made.epoch({"s": [values("old", [("a", 1)])]}, states={"s": {"old": DeclaredState("value")}})
    made.epoch({"s": [values("new", [("a", 2)])]}, states={"s": {"new": DeclaredState("value", was=("old",))}})
    assert versions(made.path, "s.new", "a") == [(0, -1, 1), (1, 0, 2)]


def renamed_app(name: str, was: str | None = None) -> tuple[hr.App, Any]:
    app = hr.App("tweets")
    views = app.read("views", hr.source.items([]), View, time=View.at)
    views.key_by(View.tweet).aggregate(views=hr.count()).named(name, was=was).queryable()
    return app, views


def test_a_step_is_followed_under_all_the_names_it_had(tmp_path: Path) -> None:
    store = tmp_path / "store"
    for name, was in (("totals", None), ("sums", "totals"), ("sums", None), ("counts", "sums"), ("counts", None)):
        app, views = renamed_app(name, was)
        with Harness(app, store=store) as h:
            h.push(views, View("a", h.at("12:00")))
            h.epoch()
    told = Store(store).history("counts", "a")
    assert [(each.epoch, each.value["views"]) for each in told if each.value] == [(n, n + 1) for n in range(5)]
    [key] = hr.diff(f"{store}@0", f"{store}@4")
    assert (key.address, key.before["views"], key.after["views"]) == ("counts", 1, 5)


def test_a_step_is_followed_across_a_rewind_that_renames_it(tmp_path: Path) -> None:
    store = tmp_path / "store"
    app, views = renamed_app("totals")
    with Harness(app, store=store) as h:
        for _ in range(2):
            h.push(views, View("a", h.at("12:00")))
            h.epoch()
    app, views = renamed_app("sums", "totals")
    with Harness(app, store=store, start_from="0") as h:
        h.push(views, View("a", h.at("12:00")))
        h.epoch()
    told = Store(store).history("sums", "a")
    assert [(each.epoch, each.value["views"]) for each in told if each.value] == [(0, 1), (1, 2)]


def test_who_asks_by_the_name_of_another_time_is_told_the_one_of_that_epoch(tmp_path: Path) -> None:
    for name, was in (("totals", None), ("sums", "totals")):
        app, views = renamed_app(name, was)
        with Harness(app, store=tmp_path / "store") as h:
            h.push(views, View("a", h.at("12:00")))
            h.epoch()
    store = Store(tmp_path / "store")
    for view, asked, there in ((store, "totals", "sums"), (store.at(0), "sums", "totals")):
        with pytest.raises(StoreError, match=f"no step is called '{asked}' at epoch") as refused:
            view.state(asked)["a"]
        assert refused.value.next_move == f"ask for {there}: the step was renamed"
    with pytest.raises(StoreError, match="keeps state in this store"):
        store.state("nothing")["a"]


def test_where_manifests_do_not_say_former_names_the_paths_of_runs_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "derive_former_names", lambda *_: {})
    for name, was in (("totals", None), ("sums", "totals")):
        app, views = renamed_app(name, was)
        with Harness(app, store=tmp_path / "store") as h:
            # Runs that are large enough to be files.
            h.push(views, *(View(f"t-{n}", h.at("12:00")) for n in range(4000)))
            h.epoch()
    told = Store(tmp_path / "store").history("sums", "t-7")
    assert [(each.epoch, each.value["views"]) for each in told if each.value] == [(0, 1), (1, 2)]


def test_only_runs_of_the_keys_group_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make(tmp_path, *([values("v", [(f"k{n}", epoch) for n in range(64)])] for epoch in range(4)))
    reader = Store(made.path).state("s.v")._reader
    opened: list[str] = []
    open_buffer = LocalStore.open_buffer

    def noting(self: LocalStore, path: str, crc: int | None = None) -> pa.Buffer:
        opened.append(path)
        return open_buffer(self, path, crc)

    monkeypatch.setattr(LocalStore, "open_buffer", noting)
    clear_open_runs()
    assert len(list(walk_history(Store(made.path), reader, encode_key("k1")))) == 4
    assert len(opened) == 4 and len(made.files.list(layout.RUNS)) == 8


CHANGES: list[tuple[str, Any, Any, list[tuple[Any, Any, Any]]]] = [
    ("value", 1, 1, []),
    ("value", None, 1, [(None, ABSENT, 1)]),
    ("value", 1, None, [(None, 1, ABSENT)]),
    ("value", {"n": 1, "m": 2}, {"n": 3, "m": 2}, [("n", 1, 3)]),
    ("value", {"n": 1}, 7, [(None, {"n": 1}, 7)]),
    ("value", float("nan"), float("nan"), []),
    ("map", {"x": 1}, {"y": None}, [("x", 1, ABSENT), ("y", ABSENT, None)]),
    ("map", None, {"y": 1}, [("y", ABSENT, 1)]),
    ("list", [1, 2], [1, 2, 3], [(2, ABSENT, 3)]),
    ("list", [1, 2, 3], [2, 3, 4], [(0, 1, ABSENT), (2, ABSENT, 4)]),
    ("list", [1, 2, 3], [2, 3], [(0, 1, ABSENT)]),
    ("list", [1, 2], [3, 2], [(0, 1, 3)]),
    ("list", [1, 2], None, [(0, 1, ABSENT), (1, 2, ABSENT)]),
    ("list", None, [1], [(0, ABSENT, 1)]),
    ("timers", [1, 2], [2, 3], [(None, 1, ABSENT), (None, ABSENT, 3)]),
]


@pytest.mark.parametrize(("kind", "before", "after", "parts"), CHANGES)
def test_a_change_is_told_part_by_part(kind: str, before: Any, after: Any, parts: list[tuple[Any, Any, Any]]) -> None:
    assert list(parts_changed(kind, before, after)) == [PartChange(*part) for part in parts]
