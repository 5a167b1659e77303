"""Redis as a sink, on a real server: every way an engine may release, zombies, kills, and servers that refuse."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.connectors.redis import guard as redis_guard
from headrace.connectors.redis import rows as redis_rows
from headrace.errors import SinkFailed, SinkUnavailable
from headrace.model.crash import Crash, planned
from headrace.testing.sinks import SinkTarget, verify_sink
from headrace.testing.staging import Staging, stage_rows
from tests.services import free_port
from tests.services.redis import Redis
from tests.sinks.redis_sales import CODEC, READERS, SALES, Sale, bound, new_sink


@pytest.fixture
def client(redis_server: Redis) -> Iterator[Any]:
    with redis_server.client() as client:
        yield client


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(tmp_path)


@pytest.fixture(params=[None, 1], ids=["an epoch at once", "a row at a time"])
def group_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """How much one script writes."""
    if request.param is not None:
        monkeypatch.setattr(redis_rows, "PACK_ROWS", request.param)
        monkeypatch.setattr(redis_guard, "GROUP_ROWS", request.param)
    rows: int | None = request.param
    return rows


@contextmanager
def failing(number: int) -> Iterator[None]:
    """Lets so many scripts of a release pass; all after them find nobody."""
    import redis

    calls, real = 0, redis.Redis.eval

    def counted(self: Any, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > number:
            raise redis.ConnectionError("Connection refused")
        return real(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis.Redis, "eval", counted)
        yield


# --- the contract


@pytest.mark.parametrize("shape", ["string", "hash", "stream"])
def test_rows_are_there_exactly_once_whatever_happens(
    redis_server: Redis, client: Any, shape: str, group_rows: int | None
) -> None:
    def new_target() -> SinkTarget:
        name = uuid.uuid4().hex
        read = lambda: READERS[shape](client, name)  # noqa: E731
        return SinkTarget(lambda: new_sink(redis_server, shape, name), read, failing=failing)

    versions = None if shape == "stream" else (Sale("a", 1, "old"), Sale("a", 2))
    verify_sink(new_target, Sale, SALES, versions=versions)


def test_a_server_that_is_stopped_and_started_gets_everything(tmp_path: Path) -> None:
    server = Redis(tmp_path / "redis")
    server.start()
    try:
        with server.client() as client:

            def new_target() -> SinkTarget:
                name = uuid.uuid4().hex
                return SinkTarget(
                    lambda: new_sink(server, "stream", name),
                    lambda: READERS["stream"](client, name),
                    stop=server.stop,
                    start=server.start,
                )

            verify_sink(new_target, Sale, SALES, staged=["inline"])
    finally:
        server.stop()


def test_a_release_that_was_killed_between_two_pieces_goes_on_where_the_server_was_killed(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_rows, "PACK_ROWS", 2)
    monkeypatch.setattr(redis_guard, "GROUP_ROWS", 2)
    server = Redis(tmp_path / "redis")
    server.start()
    pieces = 0

    def kill(point: str, epoch: int) -> None:
        nonlocal pieces
        pieces += point == "between_files"
        if pieces == 2:
            server.stop(hard=True)

    try:
        staging = Staging(tmp_path)
        sink = bound(server, "stream", name)
        parts = stage_rows(sink, CODEC, staging, 0, [SALES])
        with planned(kill), pytest.raises(SinkUnavailable):
            sink.release(parts, staging.release(0))
        server.start()
        with server.client() as client:
            assert READERS["stream"](client, name) == SALES[:4], "two pieces of two rows had been answered"
            again = bound(server, "stream", name)
            again.release(parts, staging.release(0))
            assert READERS["stream"](client, name) == SALES
    finally:
        server.stop()


# --- other drivers, other stores, a server that forgets


def test_an_epoch_is_applied_in_one_piece_and_the_guard_with_it(
    redis_server: Redis, client: Any, name: str, staging: Staging
) -> None:
    sink = bound(redis_server, "string", name)
    parts = stage_rows(sink, CODEC, staging, 3, [SALES[:3], SALES[3:]])
    before = client.info("commandstats").get("cmdstat_eval", {}).get("calls", 0)
    sink.release(parts, staging.release(3))
    assert client.info("commandstats")["cmdstat_eval"]["calls"] == before + 1
    guard = client.hgetall(f"guard-{name}")
    assert (guard[b"timeline"], guard[b"epoch"], guard[b"complete"]) == (b"0", b"3", b"1")
    assert client.ttl(f"guard-{name}") == -1


def test_a_driver_that_wakes_up_is_told_that_it_is_not_needed(
    redis_server: Redis, client: Any, name: str, staging: Staging
) -> None:
    old = bound(redis_server, "hash", name)
    first = stage_rows(old, CODEC, staging, 0, [[Sale("a", 1)]])
    new = bound(redis_server, "hash", name)
    new.release(first, staging.release(0))
    new.release(stage_rows(new, CODEC, staging, 1, [[Sale("a", 2)]]), staging.release(1))
    with pytest.raises(SinkFailed, match="later epoch") as caught:
        old.release(first, staging.release(0))
    assert f"guard-{name}" in caught.value.found
    assert READERS["hash"](client, name) == [Sale("a", 2)]
    rewound = bound(redis_server, "hash", name)
    rewound.release(stage_rows(new, CODEC, staging, 1, [[Sale("a", 3)]]), staging.release(1, timeline="1"))
    with pytest.raises(SinkFailed, match="later epoch"):
        new.release(stage_rows(new, CODEC, staging, 2, [[Sale("a", 4)]]), staging.release(2))
    assert READERS["hash"](client, name) == [Sale("a", 3)]


def test_another_store_does_not_pass_for_this_one(
    redis_server: Redis, client: Any, name: str, staging: Staging
) -> None:
    one = bound(redis_server, "stream", name)
    one.release(stage_rows(one, CODEC, staging, 0, [SALES[:2]]), staging.release(0))
    other = bound(redis_server, "stream", name)
    parts = stage_rows(other, CODEC, staging, 0, [SALES[2:4]])
    with pytest.raises(SinkFailed, match="other rows") as caught:
        other.release(parts, staging.release(0))
    assert f"DEL guard-{name}" in caught.value.next_move
    client.delete(f"guard-{name}")
    other.release(parts, staging.release(0))
    assert READERS["stream"](client, name) == SALES[:4]


def test_each_job_has_a_guard_of_its_own(redis_server: Redis, client: Any, name: str, staging: Staging) -> None:
    for job in (f"{name}-one", f"{name}-two"):
        sink = hr.sink.redis(url=redis_server.url, key=name, as_="stream").bind(CODEC, "out")
        ctx = staging.release(0)
        ctx.job = job
        parts = stage_rows(sink, CODEC, staging, 0, [SALES[:2]])
        sink.release(parts, ctx)
        sink.release(parts, ctx)
    assert len(READERS["stream"](client, name)) == 4
    assert client.exists(f"headrace:{name}-one:out", f"headrace:{name}-two:out") == 2


def test_a_server_that_forgets_while_the_job_runs_is_noticed(
    redis_server: Redis, client: Any, name: str, staging: Staging
) -> None:
    sink = bound(redis_server, "string", name)
    sink.release(stage_rows(sink, CODEC, staging, 0, [SALES[:2]]), staging.release(0))
    client.delete(f"guard-{name}", *client.keys(f"{name}:*"))
    parts = stage_rows(sink, CODEC, staging, 1, [SALES[2:4]])
    with pytest.raises(SinkFailed, match="has lost") as caught:
        sink.release(parts, staging.release(1))
    assert "--fresh" in caught.value.next_move
    assert READERS["string"](client, name) == []
    restarted = bound(redis_server, "string", name)
    restarted.release(parts, staging.release(1))
    assert sorted(row.n for row in READERS["string"](client, name)) == [2, 3]


def test_what_an_earlier_program_staged_is_written_as_it_meant_it(
    redis_server: Redis, client: Any, name: str, staging: Staging
) -> None:
    earlier = bound(redis_server, "string", name)
    parts = stage_rows(earlier, CODEC, staging, 0, [SALES[:2]])
    now = bound(redis_server, "hash", name)
    now.release(parts, staging.release(0))
    assert READERS["string"](client, name) != []


# --- what is refused


@pytest.mark.parametrize("shape", ["hash", "stream"])
def test_a_key_of_another_type_is_named_and_what_was_written_before_it_is_not_written_again(
    redis_server: Redis, client: Any, name: str, staging: Staging, shape: str, group_rows: int | None
) -> None:
    client.set(f"{name}:s3", "in the way")
    sink = bound(redis_server, shape, name, key=f"{name}:{{shop}}")
    parts = stage_rows(sink, CODEC, staging, 0, [SALES])
    for _ in range(2):
        with pytest.raises(SinkFailed, match="WRONGTYPE") as caught:
            sink.release(parts, staging.release(0))
        assert not isinstance(caught.value, SinkUnavailable)
        assert f"{name}:s3" in caught.value.what
        assert "delete or rename" in caught.value.next_move
    client.delete(f"{name}:s3")
    sink.release(parts, staging.release(0))
    sizes = [client.xlen(key) if shape == "stream" else 1 for key in client.keys(f"{name}:*")]
    assert sizes == [1] * 9


def test_a_server_without_memory_is_told_and_nothing_is_half_written(tmp_path: Path, name: str) -> None:
    server = Redis(tmp_path / "redis")
    server.start()
    try:
        staging = Staging(tmp_path)
        with server.client() as client:
            sink = bound(server, "stream", name)
            parts = stage_rows(sink, CODEC, staging, 0, [SALES])
            client.config_set("maxmemory", "100kb")
            with pytest.raises(SinkFailed, match="no memory left") as caught:
                sink.release(parts, staging.release(0))
            assert not isinstance(caught.value, SinkUnavailable)
            assert name in caught.value.what
            assert client.xlen(name) == 0
            client.config_set("maxmemory-policy", "allkeys-lru")
            with pytest.raises(SinkFailed, match="throw away any key"):
                sink.start()
            bound(server, "hash", name)
            client.config_set("maxmemory", "0")
            sink.release(parts, staging.release(0))
            assert client.xlen(name) == 9
            client.execute_command("REPLICAOF", "127.0.0.1", "1")
            more = stage_rows(sink, CODEC, staging, 1, [SALES])
            with pytest.raises(SinkUnavailable):
                sink.release(more, staging.release(1))
            client.execute_command("REPLICAOF", "NO", "ONE")
            sink.release(more, staging.release(1))
            assert client.xlen(name) == 18
    finally:
        server.stop()


def test_a_server_that_runs_a_long_script_is_waited_for(tmp_path: Path, name: str) -> None:
    import redis

    server = Redis(tmp_path / "redis")
    server.start()
    try:
        staging = Staging(tmp_path)
        with server.client() as client:
            client.config_set("busy-reply-threshold", "1")
            sink = bound(server, "string", name)
            parts = stage_rows(sink, CODEC, staging, 0, [SALES])

            def block() -> None:
                with server.client() as other, pytest.raises(redis.ResponseError):
                    other.eval("while true do end", 0)

            blocking = threading.Thread(target=block)
            blocking.start()
            busy = server.client()
            ends = time.monotonic() + 60
            with pytest.raises(redis.ResponseError):
                while time.monotonic() < ends:
                    busy.get("x")
            with pytest.raises(SinkUnavailable):
                sink.release(parts, staging.release(0))
            busy.script_kill()
            blocking.join(60)
            busy.close()
            sink.release(parts, staging.release(0))
    finally:
        server.stop()


def test_a_wrong_password_is_not_tried_again(redis_server: Redis, client: Any, name: str) -> None:
    client.execute_command("ACL", "SETUSER", "writer", "on", ">hunter2", "~*", "+@all")
    url = redis_server.url.replace("://", "://writer:hunter3@")
    with pytest.raises(SinkFailed, match="does not let") as caught:
        hr.sink.redis(url=url, key=name).bind(CODEC, "out").start()
    assert not isinstance(caught.value, SinkUnavailable)
    assert "hunter" not in str(caught.value)


def test_a_node_of_a_cluster_is_refused(tmp_path: Path, name: str) -> None:
    server = Redis(tmp_path / "redis")
    server._program = _with_cluster(tmp_path, server._program)
    server.start()
    try:
        with pytest.raises(SinkFailed, match="Cluster is not supported"):
            bound(server, "string", name)
    finally:
        server.stop()


def _with_cluster(folder: Path, program: str) -> str:
    """The server, started as a node of a cluster."""
    script = folder / "redis-node"
    script.write_text(f'#!/bin/sh\nexec {program} "$@" --cluster-enabled yes --cluster-port {free_port()}\n')
    script.chmod(0o755)
    return str(script)


def test_nothing_of_a_crash_in_a_release_is_swallowed(
    redis_server: Redis, name: str, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_rows, "PACK_ROWS", 1)
    monkeypatch.setattr(redis_guard, "GROUP_ROWS", 1)

    def die(point: str, epoch: int) -> None:
        raise Crash(point)

    sink = bound(redis_server, "string", name)
    parts = stage_rows(sink, CODEC, staging, 0, [SALES])
    with planned(die), pytest.raises(Crash):
        sink.release(parts, staging.release(0))
