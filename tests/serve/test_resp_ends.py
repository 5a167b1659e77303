"""Keys that change though nobody writes them: who listens is told when values expire and windows end, once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

import headrace as hr
from headrace.model.job import DeclaredState
from headrace.read.follow import Follower
from headrace.read.store import Store
from headrace.serve.resp.listened import KeysListenedTo
from headrace.state.manifest import JobState
from tests.serve.made_store import SECOND_US, START_US, MadeStore, Row, maps, values
from tests.serve.served import Served
from tests.serve.test_resp_messages import listen, messages


def at(seconds: int) -> int:
    return START_US + seconds * SECOND_US


@pytest.fixture
def made(store_path: Path) -> MadeStore:
    """``a`` expires after ten seconds, an entry of ``c`` too; ``b`` stays."""
    made = MadeStore(store_path)
    shops = maps("shops", [("c", "x", 1, at(10)), ("c", "y", 2)])
    made.epoch({"count": [values("views", [("a", 1, at(10)), ("b", 0)])], "fraud": [shops]}, clock_us=at(0))
    return made


def write(made: MadeStore, seconds: int, *views: Row) -> None:
    made.epoch({"count": [values("views", views)]}, clock_us=at(seconds))


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_key_tells_that_its_value_expired_once(served: Served, made: MadeStore, protocol: int) -> None:
    listener = listen(served, protocol, "count.views:a", "count.views:b")
    write(made, 9, ("b", 9))
    assert messages(listener, 1) == [("message", "count.views:b", 9)]
    write(made, 10)
    assert messages(listener, 1) == [("message", "count.views:a", None)]
    write(made, 20, ("b", 20))
    assert messages(listener, 1) == [("message", "count.views:b", 20)]
    # What is written anew is told, and expires anew.
    write(made, 21, ("a", 5, at(30)))
    assert messages(listener, 1) == [("message", "count.views:a", 5)]
    write(made, 40, ("b", 40))
    assert sorted(messages(listener, 2), key=repr) == [
        ("message", "count.views:a", None),
        ("message", "count.views:b", 40),
    ]
    listener.close()


def test_a_value_that_is_written_again_expires_when_it_says_then(served: Served, made: MadeStore) -> None:
    listener = listen(served, 3, "count.views:a", "count.views:b")
    write(made, 5, ("a", 2, at(50)))
    assert messages(listener, 1) == [("message", "count.views:a", 2)]
    write(made, 20, ("b", 20))
    assert messages(listener, 1) == [("message", "count.views:b", 20)]
    # Sooner than the last time it was written.
    write(made, 21, ("a", 3, at(25)))
    assert messages(listener, 1) == [("message", "count.views:a", 3)]
    write(made, 26)
    assert messages(listener, 1) == [("message", "count.views:a", None)]
    write(made, 60, ("b", 60))
    assert messages(listener, 1) == [("message", "count.views:b", 60)]
    listener.close()


def test_a_value_that_is_written_as_it_expires_is_told_once(served: Served, made: MadeStore) -> None:
    listener = listen(served, 3, "count.views:a", "count.views:b")
    write(made, 10, ("a", 2, at(20)))
    assert messages(listener, 1) == [("message", "count.views:a", 2)]
    write(made, 11, ("b", 11))
    assert messages(listener, 1) == [("message", "count.views:b", 11)]
    listener.close()


def test_a_value_that_a_fold_took_away_as_it_expired_is_told(served: Served, made: MadeStore) -> None:
    listener = listen(served, 3, "count.views:a", "count.views:b")
    write(made, 5, ("b", 5))
    assert messages(listener, 1) == [("message", "count.views:b", 5)]
    # As a fold would: one run in the place of all, without what has expired.
    assert made.state is not None
    made.state = JobState(made.state.manifest, {**made.state.runs, "count": ()})
    made.epoch({"count": [values("views", [("b", 6)])]}, clock_us=at(11), full=True)
    assert sorted(messages(listener, 2), key=repr) == [
        ("message", "count.views:a", None),
        ("message", "count.views:b", 6),
    ]
    write(made, 12, ("b", 12))
    assert messages(listener, 1) == [("message", "count.views:b", 12)]
    listener.close()


def test_what_is_listened_to_in_a_store_that_was_made_anew_ends_by_its_own_times(
    served: Served, made: MadeStore
) -> None:
    listener = listen(served, 3, "count.views:a")
    write(made, 5, ("b", 5))
    write(made, 5, ("a", 2, at(500)))
    assert messages(listener, 1) == [("message", "count.views:a", 2)]
    shutil.rmtree(made.path)
    anew = MadeStore(Path(made.path), id="anew")
    write(anew, 0, ("a", 3, at(20)))
    assert messages(listener, 1) == [("message", "count.views:a", 3)]
    write(anew, 20)
    assert messages(listener, 1) == [("message", "count.views:a", None)]
    listener.close()


def test_an_entry_of_a_map_that_expires_leaves_the_others(served: Served, made: MadeStore) -> None:
    listener = listen(served, 3, "fraud.shops:c")
    write(made, 11)
    assert messages(listener, 1) == [("message", "fraud.shops:c", {"y": 2})]
    listener.close()


def test_states_and_patterns_tell_what_was_written_and_not_what_expired(served: Served, made: MadeStore) -> None:
    listener = listen(served, 3, "count.views", patterns=("count.*:a",))
    write(made, 11, ("b", 11))
    assert messages(listener, 1) == [("message", "count.views", {"key": "b", "value": 11, "epoch": 1})]
    write(made, 12, ("a", None))
    assert sorted(messages(listener, 2), key=repr) == [
        ("message", "count.views", {"key": "a", "value": None, "epoch": 2}),
        ("pmessage", "count.views:a", None),
    ]
    listener.close()


@pytest.mark.parametrize("protocol", ["redis", "http"])
def test_a_client_that_watches_a_key_hears_that_it_expired(served: Served, made: MadeStore, protocol: str) -> None:
    with hr.Client(served.redis_url if protocol == "redis" else served.url) as client:
        watching = client.state("count.views").watch("a")
        assert next(watching) == 1
        write(made, 10)
        assert next(watching) is None


class View(hr.Record):
    tweet: str
    at: hr.Timestamp


def test_a_key_tells_that_its_last_window_ended_or_is_not_kept_any_longer(store_path: Path) -> None:
    app = hr.App("windows")
    views = app.read("views", hr.source.items([]), View, time=View.at)
    by_tweet = views.key_by(View.tweet)
    by_tweet.window(hr.tumbling("10m")).aggregate(n=hr.count()).named("open").queryable()
    by_tweet.window(hr.tumbling("10m")).aggregate(n=hr.count()).named("kept").queryable(keep="10m")
    by_tweet.window(hr.session("10m")).aggregate(n=hr.count()).named("sessions").queryable()
    with hr.testing.Harness(app, start="2024-01-01T12:00", store=store_path) as h:

        def epoch(watermark: str, *tweets: tuple[str, str]) -> None:
            h.push(views, *(View(tweet, h.at(time)) for tweet, time in tweets))
            h.epoch(watermark=watermark)

        epoch("12:01", ("a", "12:01"))
        with Served(store_path) as served:
            served.wait_for(0)
            listener = listen(served, 3, "open:a", "kept:a", "sessions:a")
            epoch("12:05", ("a", "12:04"))
            assert sorted((channel, data["n"]) for _, channel, data in messages(listener, 3)) == [
                ("kept:a", 2),
                ("open:a", 2),
                ("sessions:a", 2),
            ]
            epoch("12:09", ("b", "12:08"))
            epoch("12:10")
            assert messages(listener, 1) == [("message", "open:a", None)]
            epoch("12:15", ("b", "12:14"))
            assert messages(listener, 1) == [("message", "sessions:a", None)]
            epoch("12:20")
            assert messages(listener, 1) == [("message", "kept:a", None)]
            listener.close()


# --- very many keys


def table_of(made: MadeStore, address: str) -> Any:
    snapshot = Follower(Store(made.path)).look()
    assert snapshot is not None
    return snapshot.table(address)


def test_an_epoch_costs_nothing_for_keys_that_neither_changed_nor_are_due(made: MadeStore) -> None:
    table, listened = table_of(made, "count.views"), KeysListenedTo()
    asked: list[bytes] = []
    key_of, changes_us = table.key_of, table.changes_us
    table.key_of = lambda text: asked.append(text) or key_of(text)
    table.changes_us = lambda key: asked.append(key) or changes_us(key)
    for number in range(20_000):
        listened.add(b"k%d" % number)
    listened.add(b"a")
    assert len(listened.keys(table)) == 20_001 and len(asked) == 20_001
    assert {*listened.due(table, table)} == {None}
    asked.clear()
    for _ in range(3):
        assert len(listened.keys(table)) == 20_001
        assert list(listened.due(table, table)) == []
    listened.add(b"new")
    listened.changed(b"sa")
    assert len(listened.keys(table)) == 20_002
    assert list(listened.due(table, table)) == [None, None]
    assert sorted(asked) == [b"new", b"sa", b"snew"]


def test_keys_are_read_anew_when_a_state_tells_their_type(store_path: Path) -> None:
    made = MadeStore(store_path)
    declared = {"sizes": {"value": DeclaredState("value")}}
    made.epoch({}, states=declared)
    listened = KeysListenedTo()
    listened.add(b"7")
    listened.add(b"x")
    assert sorted(listened.keys(table_of(made, "sizes.value"))) == [b"s7", b"sx"]
    made.epoch({"sizes": [values("value", [(7, 1)])]}, states=declared)
    table = table_of(made, "sizes")
    assert list(listened.keys(table)) == [table.key("7")]
    listened.drop(b"7")
    assert list(listened.keys(table)) == [] and len(listened) == 1


def test_nothing_is_left_of_channels_that_nobody_listens_to_any_more(served: Served, made: MadeStore) -> None:
    with redis.Redis(port=served.port) as client:
        listener = client.pubsub()
        listener.subscribe("count.views", *(f"count.views:k{i}" for i in range(3000)), "fraud.shops:x", "count.views:a")
        served.until(lambda: len(served.resp.channels.exact) == 3003)
        assert {name: len(each) for name, each in served.resp.channels._keys.items()} == {
            b"count.views": 3001,
            b"fraud.shops": 1,
        }
        listener.unsubscribe("count.views:k0", "fraud.shops:x", "never:heard")
        served.until(lambda: len(served.resp.channels.exact) == 3001)
        assert {name: len(each) for name, each in served.resp.channels._keys.items()} == {b"count.views": 3000}
        write(made, 10, ("k1", 3))
        while (message := listener.get_message(timeout=60)) is None or message["type"] != "message":
            pass
        told = [(message["channel"], msgspec.json.decode(message["data"]))]
        assert told == [(b"count.views:k1", 3)]
        listener.close()
        served.until(lambda: not served.resp.channels.exact)
        assert served.resp.channels._keys == {}
