"""Answers are of what is published, whatever fails on the way, a program changes, or takes the place of a store."""

from __future__ import annotations

import logging
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import headrace as hr
from headrace.errors import StoreError
from headrace.model.job import DeclaredState
from headrace.model.report import RunRef
from headrace.read.follow import RECORD_EVERY_S, Follower
from headrace.read.forms import JSON
from headrace.read.snapshot import Snapshot
from headrace.read.store import Store, store_over
from headrace.serve.resp.scopes import Disposer, ReplyScope, find_changes
from headrace.state import layout
from headrace.state.store import LocalStore
from tests.serve.made_store import MadeStore, values
from tests.serve.served import Served
from tests.serve.test_http_events import Listener
from tests.serve.tweets import fetch

KEYS = 1200
"""So many kept replies are worth care; fewer are dropped with each epoch."""


def connect(served: Served) -> redis.Redis:
    return redis.Redis(port=served.port, retry=Retry(NoBackoff(), 0))


def many(first: int = 0) -> list[tuple[str, int]]:
    return [(f"k{number}", first + number) for number in range(KEYS)]


def ask_all(client: redis.Redis) -> list[int]:
    return [int(value or -1) for value in client.mget([f"count.views:k{number}" for number in range(KEYS)])]


# --- epochs that cannot be opened at once


class DamagedStore(MadeStore):
    """Its runs can be written with a flipped bit, and mended later."""

    damaging = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._whole: dict[str, bytes] = {}

    def _write_run(self, *args: Any) -> RunRef:
        ref = super()._write_run(*args)
        if self.damaging:
            whole = bytes(self.files.read(ref.file))
            place = len(whole) // 2
            self._whole[ref.file] = whole
            self.files.write(ref.file, whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        return ref

    def mend(self) -> None:
        for file, whole in self._whole.items():
            self.files.write(file, whole)


def test_an_epoch_that_cannot_be_opened_is_tried_until_it_can_and_there_is_trouble_all_the_time(
    store_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace.serving")
    made = DamagedStore(store_path)
    made.epoch({"count": [values("views", many())]})
    with Served(made.path) as served, connect(served) as client:
        served.wait_for(0)
        assert ask_all(client) == list(range(KEYS))
        made.damaging = True
        made.epoch({"count": [values("views", [("k1", 1001)])]})
        served.until(lambda: "damaged" in served.service.trouble)
        made.damaging = False
        made.epoch({"count": [values("views", [("k2", 1002)])]})
        served.until(lambda: served.service.lag_epochs == 2)
        info = client.info("headrace")
        assert (info["epoch"], info["lag_epochs"]) == (0, 2)
        assert "damaged" in info["trouble"]
        assert ask_all(client) == list(range(KEYS)), "the last epoch that could be opened is answered from"
        assert "the store can be read" not in caplog.messages
        made.mend()
        served.wait_for(2)
        served.until(lambda: not served.service.trouble)
        assert [client.get(f"count.views:k{number}") for number in (1, 2, 3)] == [b"1001", b"1002", b"3"]
        assert client.info("headrace")["lag_epochs"] == 0


def test_what_could_not_be_handed_over_is_found_again_at_once_however_it_was_found(store_path: Path) -> None:
    now = [0.0]
    handed: list[tuple[Snapshot | None, Snapshot]] = []
    failing = [False]

    def hand_over(before: Snapshot | None, snapshot: Snapshot) -> None:
        if failing[0]:
            raise OSError(12, "Cannot allocate memory")
        handed.append((before, snapshot))

    made = MadeStore(store_path, id="old")
    made.epoch({"count": [values("views", [("a", 1)])]})
    follower = Follower(Store(made.path), on_new=hand_over, clock=lambda: now[0])
    first = follower.look()
    made.epoch({"count": [values("views", [("a", 2)])]})
    failing[0] = True
    for _ in range(3):
        with pytest.raises(OSError, match="memory"):
            follower.look()
        assert (follower.snapshot, follower.lag_epochs) == (first, 1)
    failing[0] = False
    second = follower.look()
    assert handed[1] == (first, second), "told from the one before that was handed over"

    shutil.rmtree(made.path)
    MadeStore(store_path, id="new").epoch({"count": [values("views", [("a", 7)])]})
    now[0] += RECORD_EVERY_S
    failing[0] = True
    for _ in range(3):
        with pytest.raises(OSError, match="memory"):
            follower.look()
    failing[0] = False
    third = follower.look()
    assert handed[2] == (second, third)


def test_replies_prepared_for_an_epoch_that_was_given_up_do_no_harm(store_path: Path) -> None:
    made = MadeStore(store_path)
    made.epoch({"count": [values("views", many())]})
    follower = Follower(Store(made.path))
    before = follower.look()
    assert before is not None
    scope = ReplyScope(("*",), JSON, 2, Disposer())
    scope.advance(before, 2**20)
    assert scope.get(b"count.views:k1") == b"$1\r\n1\r\n"
    made.epoch({"count": [values("views", [("k1", 5)])]})
    given_up, handed_over = (Snapshot(made.files, made.app, made.state, before) for _ in range(2) if made.state)
    for changes in (None, find_changes(before, given_up)):
        scope.prepare(given_up, changes)
    scope.prepare(handed_over, find_changes(before, handed_over))
    assert scope.get(b"count.views:k1") == b"$1\r\n1\r\n"
    scope.advance(handed_over, 2**20)
    assert scope.get(b"count.views:k1") == b"$1\r\n5\r\n"
    assert not scope._coming and not scope._since, "nothing is remembered any longer"


# --- states that become others


def test_a_state_whose_first_keys_are_no_text_is_not_answered_from_what_was_kept(store_path: Path) -> None:
    made = MadeStore(store_path)
    states = {"sizes": {"total": DeclaredState(kind="value")}}
    made.epoch({"count": [values("views", many())]}, states=states)
    with Served(made.path) as served, connect(served) as client:
        served.wait_for(0)
        ask_all(client)
        assert client.get("sizes.total:42") is None
        made.epoch({"sizes": [values("total", [(42, 7)])], "count": [values("views", [("k1", 5)])]}, states=states)
        served.wait_for(1)
        assert client.get("sizes.total:42") == b"7"
        assert client.mget("sizes.total:42", "count.views:k1") == [b"7", b"5"]


def test_a_changed_program_is_not_answered_from_what_was_kept_of_the_one_before(store_path: Path) -> None:
    made = MadeStore(store_path)

    def totals(**results: list[Any]) -> dict[str, dict[str, DeclaredState]]:
        return {"totals": {"value": DeclaredState(kind="aggregate", results=results, key=("tweet",))}}

    made.epoch(
        {"totals": [values("value", [(f"k{i}", {"views": i}) for i in range(KEYS)])]}, states=totals(views=["count"])
    )
    with Served(made.path) as served, connect(served) as client:
        served.wait_for(0)
        client.mget([f"totals:k{number}" for number in range(KEYS)])
        assert client.get("totals:k7") == b'{"tweet":"k7","views":7}'
        made.epoch(
            {"totals": [values("value", [("k1", {"views": 5, "n": 5})])]}, states=totals(views=["count"], n=["sum", 0])
        )
        served.wait_for(1)
        assert client.get("totals:k1") == b'{"tweet":"k1","views":5,"n":5}'
        assert client.get("totals:k7") == b'{"tweet":"k7","views":7,"n":0}'


def test_replies_outlive_epochs_in_which_only_a_state_that_is_never_kept_fills_and_empties(store_path: Path) -> None:
    """A state with expiring values and keys that are no text comes and goes; what is kept of others stays."""
    made = MadeStore(store_path)
    states = {"sizes": {"total": DeclaredState(kind="value", clock="wall")}}
    made.epoch({"count": [values("views", many())], "sizes": [values("total", [(1, 1, 2**60)])]}, states=states)
    follower = Follower(Store(made.path))
    before = follower.look()
    assert before is not None
    scope = ReplyScope(("*",), JSON, 2, Disposer())
    scope.advance(before, 2**20)
    kept = scope.get(b"count.views:k1")
    assert scope.get(b"sizes.total:1") == b"$1\r\n1\r\n"
    made.epoch({"sizes": [values("total", [("one", 2, 2**60)])]}, states=states)
    after = follower.look()
    assert after is not None
    scope.prepare(after, find_changes(before, after))
    scope.advance(after, 2**20)
    assert scope.get(b"count.views:k1") is kept


# --- another store in the same place


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def old(store_path: Path) -> MadeStore:
    made = MadeStore(store_path, id="old")
    for number in range(6):
        made.epoch({"count": [values("views", [("a", 100 + number), ("b", number)])]})
    return made


@pytest.fixture
def follower(old: MadeStore, now: list[float]) -> Follower:
    follower = Follower(Store(old.path), clock=lambda: now[0])
    assert look(follower).epoch == 5
    return follower


def look(follower: Follower) -> Snapshot:
    found = follower.look()
    assert found is not None
    return found


def read(snapshot: Snapshot, key: str) -> bytes | None:
    table = snapshot.table("count.views")
    assert table is not None
    return table.get(table.key(key))


def remade(old: MadeStore, epochs: int, id: str = "new") -> MadeStore:
    shutil.rmtree(old.path)
    made = MadeStore(Path(old.path), id=id)
    for number in range(epochs):
        made.epoch({"count": [values("views", [("a", number)])]})
    return made


@pytest.mark.parametrize("epochs", [1, 6, 9], ids=["behind", "as far", "further"])
def test_a_store_that_was_removed_and_made_anew_is_noticed_wherever_it_is(
    old: MadeStore, follower: Follower, now: list[float], epochs: int
) -> None:
    before = look(follower)
    made = remade(old, epochs)
    now[0] += RECORD_EVERY_S
    after = look(follower)
    assert (after.epoch, read(after, "a"), read(after, "b")) == (epochs - 1, b"%d" % (epochs - 1), None)
    assert after.is_newer_than(before) and not before.is_newer_than(after)
    assert find_changes(before, after) is None, "what is kept of the other store says nothing of this one"
    assert follower.lag_epochs == 0
    now[0] += RECORD_EVERY_S
    assert look(follower) is after, "it is told once"
    made.epoch({"count": [values("views", [("a", 50)])]})
    following = look(follower)
    assert (following.line, read(following, "a")) == (after.line, b"50")


def test_a_store_without_an_id_is_told_by_epochs_that_are_gone(store_path: Path, now: list[float]) -> None:
    made = MadeStore(store_path)
    for number in range(3):
        made.epoch({"count": [values("views", [("a", 100 + number)])]})
    follower = Follower(Store(made.path), clock=lambda: now[0])
    before = look(follower)
    remade(made, 2, id="")
    now[0] += RECORD_EVERY_S
    after = look(follower)
    assert (after.epoch, read(after, "a"), after.is_newer_than(before)) == (1, b"1", True)


def test_a_store_that_was_restored_from_an_older_copy_is_followed_from_there(
    old: MadeStore, follower: Follower, now: list[float], tmp_path: Path
) -> None:
    before = look(follower)
    copy = tmp_path / "copy"
    shutil.copytree(old.path, copy)
    for epoch in range(4, 6):
        (copy / layout.manifest(0, epoch)).unlink()
    shutil.rmtree(old.path)
    shutil.copytree(copy, old.path)
    now[0] += RECORD_EVERY_S
    after = look(follower)
    assert (after.epoch, read(after, "a"), after.is_newer_than(before)) == (3, b"103", True)


def test_a_store_that_is_removed_is_trouble_and_what_was_there_is_answered_from(
    old: MadeStore, follower: Follower, now: list[float]
) -> None:
    before = look(follower)
    shutil.rmtree(old.path)
    now[0] += RECORD_EVERY_S
    for _ in range(2):
        with pytest.raises(StoreError, match="there is no store here"):
            follower.look()
    assert follower.snapshot is before
    MadeStore(Path(old.path), id="new")
    assert look(follower) is before, "until something else is published"


def test_a_follower_that_slept_while_epochs_were_swept_goes_on_with_the_newest(
    old: MadeStore, follower: Follower, now: list[float]
) -> None:
    before = look(follower)
    for number in range(6, 10):
        old.epoch({"count": [values("views", [(f"n{number}", number)])]}, full=number == 9)
    for epoch in range(9):
        old.files.delete(layout.manifest(0, epoch))
    now[0] += RECORD_EVERY_S
    after = look(follower)
    assert (after.epoch, after.line, read(after, "n6")) == (9, before.line, b"6")
    changed = {after.table("count.views").text(key) for _, keys in after.changed(before) for key in keys}  # type: ignore[union-attr]
    assert changed == {"n6", "n7", "n8", "n9"}


class CountingStore(LocalStore):
    """Counts what it is asked."""

    asked: int = 0

    def exists(self, path: str) -> bool:
        self.asked += 1
        return super().exists(path)

    def read(self, path: str) -> bytes:
        self.asked += 1
        return super().read(path)

    def list(self, prefix: str = "") -> list[str]:
        self.asked += 1
        return super().list(prefix)


def test_a_look_asks_for_one_name_and_once_a_second_for_two_files_more(old: MadeStore, now: list[float]) -> None:
    files = CountingStore(Path(old.path), durable=False)
    follower = Follower(store_over(files, Store), clock=lambda: now[0])
    look(follower)
    files.asked = 0
    for _ in range(200):
        look(follower)
    assert files.asked == 200
    now[0] += RECORD_EVERY_S
    look(follower)
    assert files.asked == 203


def test_nothing_of_a_store_that_was_made_anew_is_answered_from_the_one_before(store_path: Path) -> None:
    made = MadeStore(store_path, id="old")
    made.epoch({"count": [values("views", many())]})
    for number in (1, 2):
        made.epoch({"count": [values("views", [("old", number)])]})
    changes = "/v1/jobs/tweets/changes?state=count.views"
    with Served(made.path) as served, connect(served) as client, ExitStack() as listening:
        served.wait_for(2)
        watching = [listening.enter_context(Listener(served, path)) for path in (changes, f"{changes}&key=k1")]
        assert [listener.epoch() for listener in watching] == [[], [("k1", 1)]]
        assert ask_all(client) == list(range(KEYS))
        assert fetch(served.url, "/v1/jobs/tweets/state/count.views/k1?at=0").json == 1
        fresh = store_path.with_name("fresh")
        new = MadeStore(fresh, id="new")
        new.epoch({"count": [values("views", many(5000))]})
        new.epoch({"count": [values("views", [("new", 1)])]})
        shutil.rmtree(made.path)
        fresh.rename(made.path)
        served.until(lambda: served.service.snapshot is not None and served.service.snapshot.epoch == 1)
        assert ask_all(client) == list(range(5000, 5000 + KEYS))
        assert client.get("count.views:old") is None
        assert fetch(served.url, "/v1/jobs/tweets/state/count.views/k1?at=0").json == 5001
        with hr.Client(served.url) as typed:
            assert typed.state("count.views", int)["k1"] == 5001
        assert [listener.epoch() for listener in watching] == [[("reset", 1)], [("reset", 1), ("k1", 5001)]]
