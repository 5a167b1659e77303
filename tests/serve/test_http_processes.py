"""Several server processes on one port, read while the job goes on and while servers die: no answer is ever wrong."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.serve.tweets import Tweets, fetch

pytestmark = [pytest.mark.filterwarnings("ignore::headrace.HeadraceWarning"), pytest.mark.slow]
SEEN = "/v1/jobs/tweets/state/watch.seen/a"


@contextmanager
def serving(path: Path, processes: int) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """``headrace serve`` on free ports, and what it tells when it has an epoch to answer from."""
    words = ["serve", str(path), "--port", "0", "--http-port", "0", "--processes", str(processes), "--json"]
    server = subprocess.Popen([sys.executable, "-m", "headrace.cli", *words], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        told: dict[str, Any] = {}
        while told.get("event") != "serving":
            told = json.loads(server.stdout.readline())
        yield server, told
    finally:
        server.terminate()
        assert server.wait(60) == 0


def children_of(process: subprocess.Popen[bytes]) -> list[int]:
    tasks = Path(f"/proc/{process.pid}/task")
    return [int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()]


def test_the_commands_that_a_server_tells_work(tmp_path: Path) -> None:
    with Tweets(tmp_path / "store") as tweets:
        tweets.push(("a", "12:01", 1))
        with serving(tmp_path / "store", 1) as (_, told):
            curl = next(words for words in told["try"] if words.startswith("curl"))
            done = subprocess.run(
                ["curl", "-sS", "--fail", *curl.split()[1:]], capture_output=True, check=True, timeout=60
            )
            assert json.loads(done.stdout) is not None


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes by /proc")
def test_readers_see_nothing_wrong_while_epochs_are_published_and_servers_die(tmp_path: Path) -> None:
    wrong: list[str] = []
    read = [0] * 4
    stop = threading.Event()

    def check(epoch: int, value: int, before: int, who: str) -> None:
        if value != epoch + 1 or value < before:
            wrong.append(f"{who}: {value} in epoch {epoch} after {before}")

    def ask_plainly(url: str) -> None:
        while not stop.is_set():
            try:
                answer = fetch(url, SEEN)
            except (OSError, http.client.HTTPException):  # also one that died in the middle of its answer
                continue
            if answer.status == 200:
                check(int(answer.headers["headrace-epoch"]), answer.json, 0, "curl")
                read[0] += 1

    def ask_typed(number: int, url: str) -> None:
        with hr.Client(url, timeout="60s") as client:
            view = client.state("watch.seen", int)
            before = 0
            while not stop.is_set():
                [value] = view.get_many(["a"])
                assert value is not None
                check(value - 1, value, before, url)
                before = value
                read[number] += 1

    with Tweets(tmp_path / "store") as tweets:
        tweets.push(("a", "12:01", 1))
        with serving(tmp_path / "store", 2) as (server, told):
            url, redis = f"http://127.0.0.1:{told['http_port']}", f"127.0.0.1:{told['port']}"
            threads = [threading.Thread(target=ask_plainly, args=(url,))]
            threads += [threading.Thread(target=ask_typed, args=(n, at)) for n, at in ((1, url), (2, url), (3, redis))]
            for thread in threads:
                thread.start()
            pushed, ends = 0, time.monotonic() + 60
            # On a busy machine a reader may get its turn late: until all have read, or it is clear that one cannot.
            while pushed < 24 or (min(read) <= 10 and time.monotonic() < ends):
                tweets.push(("a", "12:02", 1))
                pushed += 1
                if pushed in (7, 15):
                    os.kill(children_of(server)[0], signal.SIGKILL)
            with hr.Client(url, timeout="60s") as client:
                client.wait_for(pushed)
                assert client.state("watch.seen", int)["a"] == pushed + 1
            stop.set()
            for thread in threads:
                thread.join(60)
    assert not wrong
    assert all(count > 10 for count in read), read
