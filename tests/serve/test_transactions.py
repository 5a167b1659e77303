"""MULTI and EXEC: however long a transaction takes, it is of one epoch, and others are answered meanwhile."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from tests.serve.made_store import MadeStore, maps, values
from tests.serve.served import PATIENCE_S, Served
from tests.serve.wired import read_all


@pytest.fixture
def made(store_path: Path) -> MadeStore:
    """A state whose value is the epoch, and one whose keys are all dead: a scan of it takes its time."""
    made = MadeStore(store_path)
    names = [f"k{i}" for i in range(12_000)]
    made.epoch({"count": [values("views", [("a", 0)]), maps("none", [(name, "x", 1) for name in names])]})
    made.epoch({"count": [values("views", [("a", 1)]), maps("none", [(name, None, None) for name in names])]})
    return made


def scans(client: Any, count: int) -> Any:
    pipeline = client.pipeline(transaction=True)
    for _ in range(count):
        pipeline.scan(0, match="count.none:*")
    return pipeline


def test_others_have_their_turn_while_a_transaction_of_many_scans_is_answered(made: MadeStore) -> None:
    turns, answered = 0, threading.Event()

    async def look() -> None:
        """Has its turn whenever others have."""
        nonlocal turns
        while not answered.is_set():
            await asyncio.sleep(0)
            turns += answers_a_transaction()

    def answers_a_transaction() -> bool:
        return any(connection._task is not None for connection in served.resp._connections)

    with Served(made.path) as served, redis.Redis(port=served.port, socket_timeout=90) as client:
        served.wait_for(1)
        looking = asyncio.run_coroutine_threadsafe(look(), served.loop)
        told = scans(client, 60).execute()
        answered.set()
        looking.result(90)
    assert len(told) == 60 and len(set(map(repr, told))) == 1
    # None at all if it were answered in one go; how many depends on the machine.
    assert turns > 2


def test_a_transaction_that_is_answered_in_turns_is_of_one_epoch(
    made: MadeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.serve.resp.talking._TURN_S", 0.0)
    done = threading.Event()

    def publish() -> None:
        while not done.wait(0.02):
            epoch = made.next_epoch
            made.epoch({"count": [values("views", [("a", epoch)])]})

    with Served(made.path) as served, redis.Redis(port=served.port, socket_timeout=90) as client:
        served.wait_for(1)
        publisher = threading.Thread(target=publish)
        publisher.start()
        try:
            ends = time.monotonic() + PATIENCE_S
            passed = False
            while not passed:
                assert time.monotonic() < ends, "no epoch was published during a transaction"
                pipeline = client.pipeline(transaction=True)
                pipeline.execute_command("HEADRACE.EPOCH").execute_command("ROLE")
                for _ in range(500):
                    pipeline.get("count.views:a").mget("count.views:a", "count.views:b").echo("x")
                pipeline.execute_command("SELECT", 1).get("count.views:a").execute_command("SELECT", 0)
                pipeline.execute_command("HEADRACE.INFO").execute_command("ROLE")
                epoch, role, *told, _, packed, _, info, role_after = pipeline.execute()
                assert set(told[::3]) == {b"%d" % epoch}
                assert all(pair == [b"%d" % epoch, None] for pair in told[1::3])
                assert msgspec.msgpack.decode(packed) == epoch
                assert info[b"epoch"] == epoch
                passed = role[-1] != role_after[-1]
        finally:
            done.set()
            publisher.join()
        # It is held no longer than that: what comes next is of the newest epoch.
        served.wait_for(made.next_epoch - 1)
        assert client.get("count.views:a") == b"%d" % (made.next_epoch - 1)


def test_a_transaction_ends_when_its_client_has_gone_away(made: MadeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.serve.resp.connection._LAST_ANSWER_S", 0.1)
    with Served(made.path) as served, redis.Redis(port=served.port, socket_timeout=90) as other:
        served.wait_for(1)
        assert other.ping()
        connection = redis.Connection(port=served.port)
        connection.connect()
        packed = connection.pack_commands([("MULTI",), *[("SCAN", 0, "MATCH", "count.none:*")] * 5000, ("EXEC",)])
        connection.send_packed_command(packed)
        served.until(lambda: any(each._task is not None for each in served.resp._connections))
        connection.disconnect()
        served.until(lambda: served.resp.connections == 1)
        assert other.get("count.views:a") == b"1"


@pytest.mark.parametrize(
    "asked", [b"KEYS count.views:*\r\n", b"MULTI\r\nGET count.views:a\r\nSCAN 0 MATCH count.views:*\r\nEXEC\r\n"]
)
def test_a_client_that_sends_nothing_more_is_answered(
    made: MadeStore, asked: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.serve.resp.talking._TURN_S", 0.0)
    with Served(made.path) as served, socket.create_connection(("127.0.0.1", served.port)) as client:
        served.wait_for(1)
        client.sendall(asked)
        client.shutdown(socket.SHUT_WR)
        client.settimeout(60)
        assert b"count.views:a" in read_all(client)
        served.until(lambda: served.resp.connections == 0)
