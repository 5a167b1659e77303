"""Changes pushed to those who listen: keys, states, patterns, both versions of the protocol, slow clients."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from headrace.net.access import Limits, add_user
from headrace.read.patterns import Pattern
from tests.serve.made_store import MadeStore, maps, values
from tests.serve.served import Served


@pytest.fixture
def made(store_path: Path) -> MadeStore:
    made = MadeStore(store_path)
    made.epoch({"count": [values("views", [("a", 0), ("b", 0)])], "fraud": [maps("shops", [("c", "x", 1)])]})
    return made


def messages(listener: Any, count: int) -> list[tuple[str, str, Any]]:
    """The next messages: kind, channel, JSON of what they say."""
    found = []
    while len(found) < count:
        message = listener.get_message(timeout=60)
        assert message is not None, f"no message behind {found}"
        if message["type"] in ("message", "pmessage"):
            found.append((message["type"], message["channel"].decode(), msgspec.json.decode(message["data"])))
    return found


def listen(served: Served, protocol: int, *channels: str, patterns: tuple[str, ...] = ()) -> Any:
    listener = redis.Redis(port=served.port, protocol=protocol).pubsub()
    if channels:
        listener.subscribe(*channels)
    if patterns:
        listener.psubscribe(*patterns)
    for _ in range(len(channels) + len(patterns)):
        assert listener.get_message(timeout=60) is not None
    return listener


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_key_tells_its_new_value_with_each_epoch_that_changed_it(
    served: Served, made: MadeStore, protocol: int
) -> None:
    listener = listen(served, protocol, "count.views:a", "fraud.shops:c", "count.views:z")
    made.epoch({"count": [values("views", [("a", 1), ("b", 1)])]})
    assert messages(listener, 1) == [("message", "count.views:a", 1)]
    made.epoch({"count": [values("views", [("b", 2)])], "fraud": [maps("shops", [("c", "y", 2)])]})
    assert messages(listener, 1) == [("message", "fraud.shops:c", {"x": 1, "y": 2})]
    made.epoch({"count": [values("views", [("a", None)])]})
    assert messages(listener, 1) == [("message", "count.views:a", None)]
    listener.close()


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_state_tells_keys_with_their_values(served: Served, made: MadeStore, protocol: int) -> None:
    listener = listen(served, protocol, "count.views")
    made.epoch({"count": [values("views", [("a", 1), ("n", 5)])], "fraud": [maps("shops", [("c", "y", 2)])]})
    told = sorted((data["key"], data["value"], data["epoch"]) for _, _, data in messages(listener, 2))
    assert told == [("a", 1, 1), ("n", 5, 1)]
    listener.close()


def test_patterns_are_told_of_keys_and_states(served: Served, made: MadeStore) -> None:
    listener = listen(served, 3, patterns=("count.*:[ab]", "fraud*"))
    made.epoch({"count": [values("views", [("a", 1), ("n", 5)])], "fraud": [maps("shops", [("c", "y", 2)])]})
    found = sorted(messages(listener, 3), key=repr)
    assert found == [
        ("pmessage", "count.views:a", 1),
        ("pmessage", "fraud.shops", {"key": "c", "value": {"x": 1, "y": 2}, "epoch": 1}),
        ("pmessage", "fraud.shops:c", {"x": 1, "y": 2}),
    ]
    listener.close()


def test_messages_come_in_the_form_that_was_chosen(served: Served, made: MadeStore) -> None:
    listener = redis.Redis(port=served.port, db=1).pubsub()
    listener.subscribe("count.views:a")
    assert listener.get_message(timeout=60) is not None
    made.epoch({"count": [values("views", [("a", 7)])]})
    message = listener.get_message(timeout=60)
    assert message is not None and msgspec.msgpack.decode(message["data"]) == 7
    listener.close()


def test_only_pings_and_subscriptions_go_while_listening_in_the_second_version(served: Served) -> None:
    connection = redis.Connection(port=served.port, protocol=2, socket_timeout=90)
    connection.send_command("SUBSCRIBE", "count.views:a")
    assert connection.read_response() == [b"subscribe", b"count.views:a", 1]
    connection.send_command("GET", "count.views:a")
    with pytest.raises(redis.ResponseError, match="Can't execute 'get'"):
        connection.read_response()
    for words, answer in [
        (("PING",), [b"pong", b""]),
        (("PSUBSCRIBE", "x*"), [b"psubscribe", b"x*", 2]),
        (("UNSUBSCRIBE",), [b"unsubscribe", b"count.views:a", 1]),
        (("PUNSUBSCRIBE",), [b"punsubscribe", b"x*", 0]),
        (("UNSUBSCRIBE",), [b"unsubscribe", None, 0]),
        (("GET", "count.views:a"), b"0"),
    ]:
        connection.send_command(*words)
        assert connection.read_response() == answer
    connection.disconnect()


def test_listeners_are_counted_and_forgotten_when_they_go(served: Served) -> None:
    with redis.Redis(port=served.port) as client:
        listener = listen(served, 2, "count.views:a", patterns=("x*",))
        assert client.pubsub_channels() == [b"count.views:a"]
        assert client.pubsub_channels("nothing*") == []
        assert client.pubsub_numsub("count.views:a", "y") == [(b"count.views:a", 1), (b"y", 0)]
        assert client.pubsub_numpat() == 1
        listener.close()
        served.until(lambda: not served.resp.channels.exact and not served.resp.channels.patterns)


def test_a_listener_that_does_not_read_is_cut_off_and_others_go_on(made: MadeStore) -> None:
    limits = Limits(reply_bytes=200_000)
    with Served(made.path, limits=limits) as served:
        served.wait_for(0)
        slow = socket.create_connection(("127.0.0.1", served.port))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(b"SUBSCRIBE count.views\r\n")
        served.until(lambda: bool(served.resp.channels.exact))
        quick = listen(served, 3, "count.views:k1")
        number = 0
        while served.resp.connections > 1 and number < 200:
            number = made.next_epoch
            made.epoch({"count": [values("views", [(f"k{i}", "x" * 2000) for i in range(100)])]}, full=number % 8 == 0)
            messages(quick, 1)
        assert served.resp.connections == 1
        slow.close()
        quick.close()


def test_a_user_hears_only_of_states_they_may_read(made: MadeStore, tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    token = add_user(users, "web", ("count.*",))
    with Served(made.path, users=users) as served:
        served.wait_for(0)
        listener = redis.Redis(port=served.port, password=token).pubsub()
        with pytest.raises(redis.exceptions.NoPermissionError):
            listener.subscribe("fraud.shops:c")
            listener.get_message(timeout=60)
        listener.close()
        listener = redis.Redis(port=served.port, password=token).pubsub()
        listener.psubscribe("*")
        assert listener.get_message(timeout=60) is not None
        made.epoch({"fraud": [maps("shops", [("c", "y", 2)])]})
        made.epoch({"count": [values("views", [("a", 9)])]})
        assert ("pmessage", "count.views:a", 9) in messages(listener, 2)
        listener.close()


def test_epochs_that_come_faster_than_they_are_told_are_told_together(served: Served, made: MadeStore) -> None:
    listener = listen(served, 3, "count.views:last")
    for number in range(30):
        made.epoch(
            {"count": [values("views", [(f"k{i}", number) for i in range(300)] + [("last", number)])]}, full=True
        )
    found = [-1]
    while found[-1] != 29:
        found.append(messages(listener, 1)[0][2])
    assert found == sorted(found)
    listener.close()


def test_a_client_listens_to_many_channels_and_few_patterns(served: Served) -> None:
    with redis.Redis(port=served.port, socket_timeout=90) as client:
        listener = client.pubsub()
        listener.psubscribe(*(f"count.views:*{i}" for i in range(100)))
        listener.subscribe(*(f"count.views:{i}" for i in range(5000)))
        served.until(lambda: len(served.resp.channels.exact) == 5000 and len(served.resp.channels.patterns) == 100)
        for names, reason in (
            ([f"*{i}" for i in range(101)], "a client may listen to 100 patterns"),
            ([f"*{i}" + "x" * 1000 for i in range(9)], "all patterns of a client have at most 8192 bytes"),
        ):
            with pytest.raises(redis.ResponseError, match=reason):
                client.execute_command("PSUBSCRIBE", *names)
        with pytest.raises(redis.ResponseError, match="the name of a channel has at most 1024 bytes"):
            client.execute_command("SUBSCRIBE", "x" * 1025)
        large = client.pubsub()
        for start in range(0, 9000, 3000):
            large.subscribe(*(f"count.views:{i}" + "x" * 1000 for i in range(start, start + 3000)))
        with pytest.raises(redis.ResponseError, match="all channels of a client have at most 8388608 bytes"):
            while True:
                large.get_message(timeout=60)
        large.close()
        # The same name over and over is one name.
        again = client.pubsub()
        again.psubscribe(*["count.views:*"] * 500)
        served.until(lambda: len(served.resp.channels.patterns) == 101)


def test_others_are_answered_while_keys_are_held_against_many_patterns(
    served: Served, made: MadeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = most = 0
    matches = Pattern.matches

    def counted(pattern: Pattern, text: str) -> bool:
        nonlocal held
        held += 1
        return matches(pattern, text)

    async def look() -> None:
        """Has its turn whenever others have."""
        nonlocal most
        while held < 3 * 100 * 500:
            before = held
            await asyncio.sleep(0)
            most = max(most, held - before)

    listeners = [redis.Redis(port=served.port, socket_timeout=90).pubsub() for _ in range(3)]
    for number, listener in enumerate(listeners):
        listener.psubscribe(*(f"count.views:*{number}-{i}" for i in range(100)))
    served.until(lambda: len(served.resp.channels.patterns) == 300)
    monkeypatch.setattr(Pattern, "matches", counted)
    looking = asyncio.run_coroutine_threadsafe(look(), served.loop)
    made.epoch({"count": [values("views", [(f"k{i}", 1) for i in range(499)] + [("last-0-7", 1)])]})
    looking.result(90)
    # All of a slice of keys against all patterns would be 76,800.
    assert 0 < most < 10_000
    assert messages(listeners[0], 1) == [("pmessage", "count.views:last-0-7", 1)]
    for listener in listeners:
        listener.close()
