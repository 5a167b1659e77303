"""Replies that are kept ready: never older than the epoch, never more than the budget, back when they are wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.net.access import User
from headrace.read.follow import Follower
from headrace.read.forms import JSON
from headrace.read.snapshot import Snapshot
from headrace.read.store import Store
from headrace.serve.resp.scopes import MOST_CHANGES, Disposer, ReplyScope, find_changes
from tests.serve.made_store import START_US, MadeStore, values


@pytest.fixture
def made(store_path: Path) -> MadeStore:
    made = MadeStore(store_path)
    made.epoch({"count": [values("views", [(f"k{i}", i) for i in range(2000)])]})
    return made


def open_scope(snapshot: Snapshot, budget: int = 2**20) -> ReplyScope:
    scope = ReplyScope(("*",), JSON, 2, Disposer())
    scope.advance(snapshot, budget)
    return scope


def look(made: MadeStore) -> Snapshot:
    found = Follower(Store(made.path)).look()
    assert found is not None
    return found


def ask(scope: ReplyScope, key: str) -> bytes | None:
    return scope.get(f"count.views:{key}".encode())


def kept_bytes(scope: ReplyScope) -> int:
    held = [*scope.kept.items(), *scope._older.items()]
    return sum(len(key) + len(reply) + 160 for key, reply in held)


def test_a_reply_is_kept_and_the_same_as_one_made_anew(made: MadeStore) -> None:
    scope = open_scope(look(made))
    first = ask(scope, "k7")
    assert first == b"$1\r\n7\r\n"
    assert ask(scope, "k7") is first
    assert ask(scope, "none") == b"$-1\r\n"
    assert scope.get(b"other:k7") is None


def test_what_is_kept_never_exceeds_the_budget_and_what_is_asked_for_often_stays(made: MadeStore) -> None:
    budget = 60_000
    scope = open_scope(look(made), budget)
    hot = ask(scope, "k0")
    for number in range(2000):
        assert ask(scope, f"k{number}") == b"$%d\r\n%d\r\n" % (len(str(number)), number)
        assert ask(scope, "k0") is hot, "it was asked for all the time"
        assert kept_bytes(scope) <= budget
    assert len(scope.kept) + len(scope._older) > 50


def test_changed_keys_are_forgotten_and_others_stay(made: MadeStore) -> None:
    before = look(made)
    scope = open_scope(before)
    kept = {key: ask(scope, key) for key in ("k1", "k2", "none")}
    made.epoch({"count": [values("views", [("k1", 100), ("none", 5)])]})
    after = look(made)
    scope.prepare(after, find_changes(before, after))
    assert ask(scope, "k1") == kept["k1"], "until the epoch begins the one before is answered from"
    scope.advance(after, 2**20)
    assert ask(scope, "k2") is kept["k2"]
    assert (ask(scope, "k1"), ask(scope, "none")) == (b"$3\r\n100\r\n", b"$1\r\n5\r\n")


def test_values_that_may_expire_are_kept_for_one_epoch_only(made: MadeStore) -> None:
    made.epoch({"count": [values("views", [("k1", 1, START_US + 10)])]})
    before = look(made)
    scope = open_scope(before)
    assert ask(scope, "k1") == b"$1\r\n1\r\n"
    assert not scope.kept
    made.epoch({}, clock_us=START_US + 11)
    after = look(made)
    scope.prepare(after, find_changes(before, after))
    scope.advance(after, 2**20)
    assert ask(scope, "k1") == b"$-1\r\n"


def test_dictionaries_are_freed_little_by_little() -> None:
    dispose = Disposer()
    dead = {b"%d" % i: b"" for i in range(5000)}
    dispose.add(dead)
    dispose.add({})
    steps = 0
    while dispose.work():
        steps += 1
    assert steps > 2 and not dead


def test_a_flood_of_changes_is_not_looked_at_one_by_one(made: MadeStore) -> None:
    before = look(made)
    scope = open_scope(before)
    assert ask(scope, "k1") == b"$1\r\n1\r\n"
    rows = MOST_CHANGES + 1
    made.epoch({"count": [values("views", [(f"n{i}", i) for i in range(rows)] + [("k1", 5)])]})
    after = look(made)
    assert find_changes(before, after) is None
    scope.prepare(after, None)
    scope.advance(after, 2**20)
    assert not scope.kept
    assert ask(scope, "k1") == b"$1\r\n5\r\n"


def test_epochs_that_were_prepared_and_passed_over_count(made: MadeStore) -> None:
    snapshots = [look(made)]
    scope = open_scope(snapshots[0])
    for key in ("k1", "k2", "k3"):
        ask(scope, key)
    for number, key in enumerate(("k1", "k2")):
        made.epoch({"count": [values("views", [(key, 100 + number)])]})
        snapshots.append(look(made))
        scope.prepare(snapshots[-1], find_changes(snapshots[-2], snapshots[-1]))
        assert [ask(scope, each) for each in ("k1", "k2")] == [b"$1\r\n1\r\n", b"$1\r\n2\r\n"]
    scope.advance(snapshots[2], 2**20)
    assert [ask(scope, key) for key in ("k1", "k2", "k3")] == [b"$3\r\n100\r\n", b"$3\r\n101\r\n", b"$1\r\n3\r\n"]


def test_a_snapshot_that_nobody_prepared_begins_with_nothing(made: MadeStore) -> None:
    scope = open_scope(look(made))
    ask(scope, "k1")
    made.epoch({"count": [values("views", [("k1", 5)])]})
    scope.advance(look(made), 2**20)
    assert ask(scope, "k1") == b"$1\r\n5\r\n"


def test_keys_that_can_be_written_in_several_ways_are_never_stale(store_path: Path) -> None:
    made = MadeStore(store_path)
    made.epoch({"pairs": [values("value", [(("mill", 3), 1)])]})
    before = look(made)
    scope = open_scope(before)
    spellings = [b'pairs:["mill", 3]', b'pairs:["mill",3]', b'pairs:[ "mill" , 3 ]']
    assert {scope.get(each) for each in spellings} == {b"$1\r\n1\r\n"}
    made.epoch({"pairs": [values("value", [(("mill", 3), 2)])]})
    after = look(made)
    scope.prepare(after, find_changes(before, after))
    scope.advance(after, 2**20)
    assert {scope.get(each) for each in spellings} == {b"$1\r\n2\r\n"}


def test_a_user_with_patterns_sees_a_scope_of_their_own(made: MadeStore) -> None:
    assert User(states=("count.*",)).may_read("count.views")
    scope = ReplyScope(("other.*",), JSON, 2, Disposer())
    scope.advance(look(made), 2**20)
    assert scope.tables == {}
    assert ask(scope, "k1") is None
