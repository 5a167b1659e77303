"""What one client may ask for over Redis' protocol, and how those are ended who take too much or too long."""

from __future__ import annotations

import gc
import resource
import socket
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace.net.access import Limits, Meter, add_user
from tests.serve.made_store import MadeStore, lists, maps, values
from tests.serve.served import Served
from tests.serve.wired import connect, read_all

# --- memory


def test_refused_requests_leave_no_memory_behind(store: str) -> None:
    # Two arguments of a megabyte are there when the third is refused.
    big = b"*4\r\n$4\r\nMGET\r\n" + 2 * (b"$1000000\r\n" + bytes(1_000_000) + b"\r\n") + b"$-7\r\n"
    queued = b"MULTI\r\n*2\r\n$3\r\nGET\r\n$2000000\r\n" + bytes(2_000_000) + b"\r\n"
    gc.collect()
    gc.disable()
    try:
        with Served(store) as served:
            served.wait_for(0)
            before = resident_bytes()
            for request in 60 * (big, queued):
                with socket.create_connection(("127.0.0.1", served.port), timeout=60) as client:
                    client.sendall(request)
                    client.shutdown(socket.SHUT_WR)
                    assert b"-ERR Protocol error" in (told := read_all(client)) or b"+QUEUED" in told
            served.until(lambda: served.resp.connections == 0)
            assert resident_bytes() - before < 50 * 10**6, "of 240 megabytes"
    finally:
        gc.enable()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_who_has_not_named_themselves_sends_short_requests_only(store: str, tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    token = add_user(users, "web", ())
    long = b"*2\r\n$4\r\nECHO\r\n$100000\r\n" + bytes(100_000) + b"\r\n"
    with Served(store, users=users) as served:
        with socket.create_connection(("127.0.0.1", served.port), timeout=60) as stranger:
            stranger.sendall(long)
            assert read_all(stranger) == b"-ERR Protocol error: invalid bulk length\r\n"
        with connect(served, password=token) as client:
            assert client.echo(bytes(100_000)) == bytes(100_000)


@pytest.mark.parametrize("allowed", [(), ("last",)], ids=["every state", "one state"])
def test_a_refused_address_of_megabytes_costs_no_more_than_a_short_one(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, audited: list[str], allowed: tuple[str, ...]
) -> None:
    compared: list[int] = []

    def near(name: str, *others: Any, **options: Any) -> list[str]:
        compared.append(len(name))
        return get_close_matches(name, *others, **options)

    monkeypatch.setattr("headrace.model.nearest.get_close_matches", near)
    users = tmp_path / "users.toml"
    token = add_user(users, "web", allowed)
    address = "count.view" * 200_000
    with Served(store, users=users) as served, connect(served, password=token) as client:
        served.wait_for(0)
        with pytest.raises(redis.ResponseError, match="may not read the state" if allowed else "no state") as refused:
            client.get(f"{address}:a")
    assert "count.viewcount.view" in str(refused.value)
    assert len(str(refused.value)) < 300
    assert compared == ([] if allowed else [201])
    assert all(len(line) < 500 for line in audited)


def test_a_transaction_counts_what_its_arguments_need_in_memory(store: str, audited: list[str]) -> None:
    with Served(store) as served, connect(served) as client, client.pipeline() as pipeline:
        for _ in range(4):
            pipeline.execute_command("MGET", *[b""] * 60_000)
        with pytest.raises(redis.ResponseError, match="too many commands"):
            pipeline.execute()
    assert any("refused a transaction" in line for line in audited)


# --- rates


def test_a_meter_lets_through_what_it_is_told_and_no_more() -> None:
    now = [0.0]
    meter = Meter(10, clock=lambda: now[0])
    assert [meter.allows() for _ in range(12)] == [True] * 10 + [False] * 2
    now[0] = 0.5
    assert [meter.allows() for _ in range(6)] == [True] * 5 + [False]
    now[0] = 100
    assert [meter.allows() for _ in range(11)] == [True] * 10 + [False]


def test_commands_beyond_the_rate_are_refused(store: str, tmp_path: Path, audited: list[str]) -> None:
    with Served(store, limits=Limits(commands_per_second=20)) as served, connect(served) as client:
        served.wait_for(0)
        with client.pipeline(transaction=False) as pipeline:
            for _ in range(1000):
                pipeline.get("count.views:a")
            answers = pipeline.execute(raise_on_error=False)
        refused = [each for each in answers if isinstance(each, redis.ResponseError)]
        assert 500 <= len(refused) <= 990, "even where they took some seconds"
        assert "more than 20 commands per second" in str(refused[0])
    assert any("commands per second" in line for line in audited)


@pytest.mark.parametrize("word", ["SELECT 0", "HELLO 3", "RESET"])
def test_the_rate_of_a_connection_counts_whatever_is_chosen_meanwhile(store: str, word: str) -> None:
    # None of the second's worth comes back while the test runs.
    with Served(store, limits=Limits(commands_per_second=30)) as served, connect(served) as client:
        served.wait_for(0)
        with client.pipeline(transaction=False) as pipeline:
            for _ in range(100):
                pipeline.get("count.views:a").execute_command(*word.split()).get("count.views:a")
            told = pipeline.execute(raise_on_error=False)
        refused = [
            each for each in told if isinstance(each, redis.ResponseError) and "30 commands per second" in str(each)
        ]
        assert len(refused) > 150


def test_the_rate_of_a_user_counts_over_all_their_connections(store: str, tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    token = add_user(users, "web", ())
    users.write_text(users.read_text().replace('states = ["*"]', 'states = ["*"]\ncommands_per_second = 30'))
    with Served(store, users=users) as served:
        served.wait_for(0)
        refused = 0
        # No connection alone says too much, and all together do even within some seconds.
        for _ in range(40):
            with connect(served, password=token) as client, client.pipeline(transaction=False) as pipeline:
                for _ in range(20):
                    pipeline.get("count.views:a")
                try:
                    answers = pipeline.execute(raise_on_error=False)
                except redis.ResponseError:
                    refused += 20
                    continue
                refused += sum(isinstance(each, redis.ResponseError) for each in answers)
        assert refused >= 20


# --- sizes


def test_more_keys_than_allowed_are_refused(store: str, audited: list[str]) -> None:
    with Served(store, limits=Limits(keys=50)) as served, connect(served) as client:
        served.wait_for(0)
        assert len(client.mget([f"count.views:{i}" for i in range(50)])) == 50
        for words in (("MGET",), ("EXISTS",), ("HMGET", "fraud.shops:c1")):
            with pytest.raises(redis.ResponseError, match="may ask for 50 keys"):
                client.execute_command(*words, *(f"count.views:{i}" for i in range(51)))
    assert len([line for line in audited if "more than 50 keys" in line]) == 3


def test_larger_values_than_a_reply_may_hold_are_refused_in_the_same_words(
    store_path: Path, audited: list[str]
) -> None:
    def refusal(*words: bytes | str) -> str:
        with pytest.raises(redis.ResponseError) as refused:
            client.execute_command(*words)
        return str(refused.value)

    made = MadeStore(store_path)
    views = values("views", [("a", "x" * 4000), ("b", "y" * 5000), ("c", "z" * 10_000)])
    made.epoch({"count": [views, maps("by_page", [("a", "home", "x" * 4000)])]})
    with Served(made.path, limits=Limits(reply_bytes=10_000)) as served, connect(served) as client:
        served.wait_for(0)
        found = client.execute_command("HEADRACE.GET", "count.views", b"sa", b"sb", b"snone")[-1]
        assert [None if value is None else len(value) for value in found] == [4002, 5002, None]
        long = refusal("HEADRACE.GET", "count.views", b"sc")
        assert long == refusal("GET", "count.views:c")
        assert "a reply may have 10000 bytes" in long
        many = refusal("MGET", *["count.views:a"] * 3)
        assert "the values have more than 10000 bytes together" in many
        # Few keys are looked up one by one, and more in several goes.
        for count in (3, 2500):
            assert refusal("HEADRACE.GET", "count.views", *[b"sa"] * count) == many
            assert refusal("HMGET", "count.by_page:a", *["home"] * count) == many
    assert len([line for line in audited if "more than 10000 bytes in one reply" in line]) == 5


def test_a_transaction_gives_no_more_than_any_reply_may_hold(store_path: Path, audited: list[str]) -> None:
    made = MadeStore(store_path)
    made.epoch({"count": [values("views", [("a", "x" * 3000)])]})
    with Served(made.path, limits=Limits(reply_bytes=10_000)) as served, connect(served) as client:
        served.wait_for(0)
        for count in (3, 4, 1000):
            with client.pipeline() as pipeline:
                for _ in range(count):
                    pipeline.get("count.views:a")
                if count == 3:
                    assert [len(value) for value in pipeline.execute()] == [3002] * 3
                    continue
                with pytest.raises(redis.ResponseError, match="the values have more than 10000 bytes together"):
                    pipeline.execute()
        assert len(client.get("count.views:a")) == 3002
    assert len([line for line in audited if "more than 10000 bytes in one reply" in line]) == 2


def test_no_key_however_many_entries_it_has_makes_a_larger_reply_than_allowed(
    store_path: Path, audited: list[str]
) -> None:
    made = MadeStore(store_path)
    entries, elements = [("k", f"e{i}", "x" * 50) for i in range(4000)], [("k", i, "x" * 50) for i in range(4000)]
    few = [("few", f"e{i}", "x" * 50) for i in range(400)]
    made.epoch({"big": [maps("map", entries + few), lists("list", elements), values("values", [("k" * 9000, 1)])]})
    with Served(made.path, limits=Limits(reply_bytes=10_000)) as served, connect(served) as client:
        served.wait_for(0)
        assert client.hlen("big.map:k") == client.llen("big.list:k") == 4000
        assert len(client.lrange("big.list:k", -50, -1)) == 50
        assert client.hget("big.map:k", "e7") == client.lindex("big.list:k", 7) == b'"%b"' % (b"x" * 50)
        asked = [("HGETALL", "big.map:k"), ("HGETALL", "big.map:few"), ("HVALS", "big.map:k"), ("HKEYS", "big.map:k")]
        asked += [
            ("HSCAN", "big.map:k", "0"),
            ("LRANGE", "big.list:k", "0", "-1"),
            ("LRANGE", "big.list:k", "9", "900"),
        ]
        for words in asked:
            with pytest.raises(redis.ResponseError, match="more than 10000 bytes together"):
                client.execute_command(*words)
        assert [len(key) for key in client.keys("big.values:*")] == [9011]
    assert len([line for line in audited if "more than 10000 bytes in one reply" in line]) == len(asked)


def test_longer_requests_than_allowed_end_the_connection(store: str, audited: list[str]) -> None:
    with Served(store, limits=Limits(request_bytes=1000)) as served:
        served.wait_for(0)
        with connect(served) as client:
            assert client.get("count.views:" + "x" * 900) is None
        connection = redis.Connection(port=served.port, socket_timeout=90)
        connection.send_command("GET", "x" * 1200)
        with pytest.raises(redis.ResponseError, match="invalid bulk length"):
            connection.read_response()
        with pytest.raises(redis.ConnectionError):
            connection.read_response()
        connection.disconnect()
    assert any("invalid bulk length" in line for line in audited)


# --- connections


def test_connections_beyond_the_limit_are_told_so(store: str, audited: list[str]) -> None:
    with Served(store, limits=Limits(connections=2)) as served:
        served.wait_for(0)
        held = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(2)]
        served.until(lambda: served.resp.connections == 2)
        with socket.create_connection(("127.0.0.1", served.port)) as third:
            third.settimeout(60)
            assert b"max number of clients reached" in read_all(third)
        held.pop().close()
        served.until(lambda: served.resp.connections == 1)
        with connect(served) as client:
            assert client.ping()
            assert client.info("stats")["rejected_connections"] == 1
        held.pop().close()
    assert any("more than 2 connections" in line for line in audited)


# --- slow clients


@pytest.mark.parametrize(
    ("limits", "sent"),
    [
        (Limits(unfinished_s=0.5), b"*2\r\n$3\r\nGET\r\n$10\r\nabc"),
        (Limits(unfinished_s=0.5), b"PIN"),
        (Limits(idle_s=0.5), b"PING\r\n"),
        (Limits(idle_s=0.5), b""),
    ],
)
def test_clients_that_keep_a_connection_for_nothing_are_ended(store: str, limits: Limits, sent: bytes) -> None:
    with Served(store, limits=limits) as served, socket.create_connection(("127.0.0.1", served.port)) as client:
        client.sendall(sent)
        client.settimeout(60)
        read_all(client)
        served.until(lambda: served.resp.connections == 0)


def test_clients_that_never_name_themselves_are_ended(store: str, tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    add_user(users, "web", ())
    limits = Limits(unfinished_s=0.5)
    with (
        Served(store, users=users, limits=limits) as served,
        socket.create_connection(("127.0.0.1", served.port)) as client,
    ):
        client.settimeout(60)
        assert read_all(client) == b""


def test_a_client_that_asks_and_does_not_read_is_held_up_and_then_ended(tmp_path: Path) -> None:
    made = MadeStore(tmp_path / "store")
    made.epoch({"count": [values("views", [("big", "x" * 200_000)])]})
    limits = Limits(unread_s=1.0)
    with Served(made.path, limits=limits) as served, socket.create_connection(("127.0.0.1", served.port)) as client:
        served.wait_for(0)
        served.until(lambda: served.resp.connections == 1)
        [connection] = list(served.resp._connections)
        request = b"*2\r\n$3\r\nGET\r\n$15\r\ncount.views:big\r\n"
        client.setblocking(False)
        sent = 0
        with pytest.raises(BlockingIOError):
            while sent < 2**30:
                sent += client.send(request * 1000)
        served.until(lambda: connection.full)
        assert connection.transport.get_write_buffer_size() < 8 * 2**20, "what is asked for is not answered ahead"
        with connect(served) as other:
            assert other.ping(), "others are not held up"
        served.until(lambda: served.resp.connections <= 1 and connection not in served.resp._connections)


def test_a_client_that_reads_late_gets_everything(tmp_path: Path) -> None:
    made = MadeStore(tmp_path / "store")
    made.epoch({"count": [values("views", [("big", "x" * 200_000)])]})
    with Served(made.path) as served, socket.create_connection(("127.0.0.1", served.port)) as client:
        served.wait_for(0)
        client.sendall(b"*2\r\n$3\r\nGET\r\n$15\r\ncount.views:big\r\n" * 300 + b"*1\r\n$4\r\nQUIT\r\n")
        [connection] = list(served.resp._connections)
        served.until(lambda: connection.full)
        client.settimeout(60)
        answer = read_all(client)
        assert answer.endswith(b"+OK\r\n")
        assert answer.count(b"$200002\r\n") == 300
