"""A server as a process: how it starts, what it says, how it ends, and several on one port."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from headrace.net.listening import bind
from headrace.serve.serving import Options
from tests.cli.calling import call
from tests.serve.kinds import make_kinds, publish_kinds
from tests.serve.made_store import MadeStore, values

SOURCES = str(Path(__file__).resolve().parents[2] / "src")


class Running:
    """`headrace serve` as a person starts it."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli", "serve", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": SOURCES, "PYTHONUNBUFFERED": "1"},
        )
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.lines)),
            threading.Thread(target=self._read, args=(self.process.stderr, self.errors)),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Any, into: list[str]) -> None:
        into.extend(line.rstrip("\n") for line in stream)

    def wait_line(self, pattern: str, errors: bool = False) -> re.Match[str]:
        def found() -> re.Match[str] | None:
            lines = self.errors if errors else self.lines
            return next((match for line in list(lines) if (match := re.search(pattern, line))), None)

        return wait_until(found, lambda: f"no line like {pattern!r} in {self.lines} {self.errors}")

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        for reader in self._readers:
            reader.join(60)
        return code


def wait_until(
    found: Callable[[], Any], why: Callable[[], str] = lambda: "it did not come", limit_s: float = 60
) -> Any:
    """What another process brings about in its own time."""
    ends = time.monotonic() + limit_s
    while not (seen := found()):
        assert time.monotonic() < ends, why()
        time.sleep(0.02)
    return seen


@contextlib.contextmanager
def serving(*words: str) -> Iterator[Running]:
    running = Running(*words)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
        running.process.wait()


def connect(port: int, **options: Any) -> redis.Redis:
    return redis.Redis(port=port, retry=Retry(NoBackoff(), 0), socket_timeout=90, **options)


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


# --- one process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_a_command_that_works_now_and_ends_when_told_to(store_path: Path, number: int) -> None:
    make_kinds(store_path)
    with serving(str(store_path), "--port", "0") as running:
        tried = running.wait_line(r"epoch 0 of tweets: try (redis-cli .+)")[1]
        port = int(running.wait_line(r"Redis' protocol on port (\d+)")[1])
        words = shlex.split(tried)
        assert words[:3] == ["redis-cli", "-p", str(port)]
        with connect(port, decode_responses=True) as client:
            assert client.execute_command(*words[3:]) is not None
            assert running.end(number) == 0
            with pytest.raises(redis.ConnectionError):
                client.ping()
        assert not listening(port)
        assert not running.errors


def test_machines_are_told_in_json(store_path: Path) -> None:
    make_kinds(store_path)
    with serving(str(store_path), "--port", "0", "--json") as running:
        running.wait_line('"serving"')
        listening_, serving_ = (json.loads(line) for line in running.lines)
        assert listening_["event"] == "listening"
        assert (serving_["epoch"], serving_["app"], serving_["port"]) == (0, "tweets", listening_["port"])
        assert running.end() == 0


def test_ctrl_c_ends_open_streams_of_changes_without_a_word(store_path: Path) -> None:
    make_kinds(store_path)
    with serving(str(store_path), "--port", "0", "--http-port", "0", "--json") as running:
        port = json.loads(running.wait_line('.*"serving".*')[0])["http_port"]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/v1/jobs/tweets/changes?state=count.views&key=a")
        stream = connection.getresponse()
        while stream.readline() != b"event: epoch\n":
            pass
        assert running.end(signal.SIGINT) == 0
        assert stream.read().endswith(b"\n\n"), "the stream is whole; cut off, reading would raise"
        connection.close()
        assert not running.errors


def test_a_store_that_is_not_there_yet_is_waited_for(store_path: Path) -> None:
    with serving(str(store_path), "--port", "0") as running:
        port = int(running.wait_line(r"protocol on port (\d+)")[1])
        running.wait_line("waiting: .*there is no store here", errors=True)
        with connect(port) as client:
            with pytest.raises(redis.BusyLoadingError, match="there is no store here"):
                client.get("count.views:a")
            publish_kinds(MadeStore(store_path))
            running.wait_line("epoch 0 of tweets")
            assert client.get("count.views:a") == b"1"
        assert running.end() == 0


def test_a_port_in_use_is_told_with_a_way_out(store_path: Path) -> None:
    make_kinds(store_path)
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        for processes in ("1", "2"):
            done = call("serve", store_path, "--port", port, "--processes", processes)
            assert done.exit_code == 1
            assert f"the port {port} is in use" in done.stderr
            assert f"--port {port + 1}" in done.stderr


def test_strangers_are_not_let_in_by_mistake(store_path: Path) -> None:
    done = call("serve", store_path, "--bind", "0.0.0.0")
    assert done.exit_code == 1
    assert "other machines could read everything" in done.stderr
    assert "--insecure" in done.stderr


def test_a_token_from_the_command_line_opens_the_server(store_path: Path, tmp_path: Path) -> None:
    make_kinds(store_path)
    users = tmp_path / "users.toml"
    made = call("token", "web", "--users", users, "--state", "count.*")
    token = made.stdout.strip()
    with serving(str(store_path), "--port", "0", "--users", str(users)) as running:
        port = int(running.wait_line(r"protocol on port (\d+)")[1])
        running.wait_line("epoch 0")
        with connect(port, password=token) as client:
            assert client.get("count.views:a") == b"1"
        with connect(port) as client, pytest.raises(redis.AuthenticationError):
            client.get("count.views:a")
        assert running.end() == 0
        assert any("refused" in line for line in running.errors)


def test_a_replica_in_another_folder_shows_its_lag_and_outlives_the_store(store_path: Path, tmp_path: Path) -> None:
    made = make_kinds(store_path)
    with serving(str(store_path), "--port", "0", "--cache", str(tmp_path / "cache")) as running:
        port = int(running.wait_line(r"protocol on port (\d+)")[1])
        running.wait_line("epoch 0")
        with connect(port, decode_responses=True) as client:
            made.epoch({"count": [values("views", [("a", 2)])]})
            assert client.execute_command("HEADRACE.WAIT", 1, 60_000) == 1
            assert client.get("count.views:a") == "2"
            store_path.rename(tmp_path / "elsewhere")
            wait_until(lambda: client.info("headrace")["trouble"])
            assert client.get("count.views:a") == "2"
            assert client.info("headrace")["lag_epochs"] == 0
            assert client.info("replication")["master_link_status"] == "down"
            (tmp_path / "elsewhere").rename(store_path)
            made.epoch({"count": [values("views", [("a", 3)])]})
            assert client.execute_command("HEADRACE.WAIT", 2, 60_000) == 2
        assert running.end() == 0


# --- several processes


def test_processes_share_a_port_with_nobody_else_and_one_that_dies_is_started_again(store_path: Path) -> None:
    make_kinds(store_path)
    with serving(str(store_path), "--port", "0", "--processes", "2") as running:
        port = int(running.wait_line(r"protocol on port (\d+)")[1])
        running.wait_line("epoch 0")

        def pids() -> set[int]:
            found = set()
            for _ in range(30):
                with contextlib.suppress(redis.ConnectionError), connect(port) as client:
                    found.add(client.info("server")["process_id"])
            return found

        before = wait_until(lambda: found if len(found := pids()) == 2 else None)
        other = call("serve", store_path, "--port", port, "--processes", "2")
        assert (other.exit_code, "is in use" in other.stderr) == (1, True)
        os.kill(min(before), signal.SIGKILL)
        running.wait_line("ended with code -9; starting another")
        after = wait_until(lambda: found if len(found := pids()) == 2 else None)
        assert max(before) in after and min(before) not in after
        assert running.end() == 0
        assert not any(map(alive, after))
        assert not listening(port)


def test_processes_end_with_a_parent_that_was_killed(store_path: Path) -> None:
    make_kinds(store_path)
    with serving(str(store_path), "--port", "0", "--processes", "2") as running:
        port = int(running.wait_line(r"protocol on port (\d+)")[1])
        running.wait_line("epoch 0")
        running.process.kill()
        running.process.wait()
        wait_until(lambda: not listening(port))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# --- what is loaded


def test_a_server_loads_no_pyspark_and_no_program(store_path: Path) -> None:
    make_kinds(store_path)
    code = f"""
import asyncio, socket, sys
from headrace.serve.serving import Options, serve_alone
from headrace.serve import processes

async def main():
    stop, told = asyncio.Event(), []
    options = Options(store={str(store_path)!r}, port=0, http_port=0)
    serving = asyncio.create_task(serve_alone(options, told.append, stop))
    while len(told) < 2:
        await asyncio.sleep(0.01)
    reader, writer = await asyncio.open_connection("127.0.0.1", told[0]["port"])
    writer.write(b"GET count.views:a\\r\\n")
    assert await reader.readline() == b"$1\\r\\n"
    stop.set()
    await serving

asyncio.run(main())
banned = ("pyspark", "py4j", "headrace.spark", "headrace.plan", "headrace.runtime")
heavy = [name for name in banned if name in sys.modules]
sys.exit(f"loaded: {{heavy}}" if heavy else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_options_survive_the_way_to_a_child() -> None:
    import msgspec

    from headrace.net.access import Limits

    options = Options(store="x", port=1, origins=("a",), limits=Limits(keys=3), users="u", follow_ms=2.5)
    assert msgspec.json.decode(msgspec.json.encode(options), type=Options) == options
