"""Clients as people have them, unchanged: redis-cli, redis-benchmark, and those of Node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.kinds import make_kinds
from tests.serve.served import Served
from tests.services import fetch, missing

NODE_PACKAGES = ("redis@6.3.1", "ioredis@6.0.0")


def needed(program: str) -> str:
    """The path of a program; without it tests are skipped on a laptop and fail in CI."""
    found = shutil.which(program)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"{program} is missing; tools/services.sh installs it")
        pytest.skip(f"{program} is missing; `make services` installs it")
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = make_kinds(tmp_path_factory.mktemp("clients") / "store")
    with Served(made.path) as server:
        server.wait_for(0)
        yield server


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """A folder with Node's clients, fetched once per machine."""
    needed("node")
    npm = needed("npm")
    folder = Path(tempfile.gettempdir()) / f"headrace-node-{os.getuid()}-{'-'.join(NODE_PACKAGES).replace('@', '-')}"
    if not (folder / "complete").exists():
        folder.mkdir(exist_ok=True)
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), *NODE_PACKAGES]
        if (reason := fetch(command, folder)) is not None:
            missing(f"Node's clients cannot be fetched: {reason}")
        (folder / "complete").touch()
    return folder / "node_modules"


def cli(served: Served, *words: str, stdin: str | None = None) -> str:
    done = subprocess.run(
        [needed("redis-cli"), "-p", str(served.port), *words],
        input=stdin, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- redis-cli


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["PING"], "PONG\n"),
        (["GET", "count.views:a"], "1\n"),
        (["GET", "count.views:none"], "\n"),
        (["HGETALL", "fraud.shops:c1"], "baker\n2\nbank\n1\n"),
        (["-3", "HGETALL", "fraud.shops:c1"], "baker 2\nbank 1\n"),
        (["LRANGE", "fraud.recent:c1", "0", "1"], '"first"\n"second"\n'),
        (["GET", 'pairs:["mill", 3]'], "1\n"),
        (["-n", "1", "--no-raw", "GET", "count.views:a"], '"\\x01"\n'),
        (["HEADRACE.EPOCH"], "0\n"),
        (["SET", "a", "b"], "READONLY state is written by the stream job alone: send it an event instead of SET, and "
                            "read what it made of it\n\n"),
    ],
)  # fmt: skip
def test_redis_cli_asks_and_is_answered(served: Served, words: list[str], answer: str) -> None:
    assert cli(served, *words) == answer


def test_redis_cli_walks_over_keys(served: Served) -> None:
    found = cli(served, "--scan", "--pattern", "count.*").split("\n")
    assert sorted(filter(None, found)) == [
        "count.brief:ever", "count.brief:soon", "count.views:a", "count.views:b", "count.views:ü:x y"
    ]  # fmt: skip


def test_redis_cli_takes_commands_from_a_pipe(served: Served) -> None:
    asked = "GET count.views:a\nGET count.views:b\nTYPE fraud.shops:c1\n"
    assert cli(served, stdin=asked).split() == ["1", "2", "hash"]


def test_redis_cli_sees_latency_and_statistics(served: Served) -> None:
    assert "epoch:0" in cli(served, "INFO")
    assert "Biggest" in cli(served, "--bigkeys")


# --- redis-benchmark


@pytest.mark.parametrize("depth", [1, 16])
def test_redis_benchmark_runs_to_its_end(served: Served, depth: int) -> None:
    done = subprocess.run(
        [needed("redis-benchmark"), "-p", str(served.port), "-n", "20000", "-c", "20", "-P", str(depth), "-q", "--csv",
         "GET", "count.views:a"],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = done.stdout.strip().split("\n")[-1].split(",")
    assert float(figures[1].strip('"')) > 0, done.stdout


# --- Node


def test_clients_of_node_work_unchanged(served: Served, node_modules: Path) -> None:
    done = subprocess.run(
        [needed("node"), str(Path(__file__).with_name("node_clients.js")), str(served.port)],
        env=os.environ | {"NODE_PATH": str(node_modules)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    for version in ("resp2", "resp3"):
        asked = said[version]
        assert asked.pop("refused").startswith("READONLY state is written by the stream job")
        assert asked == {
            "ping": "PONG",
            "get": "1",
            "none": None,
            "mget": ["1", "2"],
            "hash": {"baker": "2", "bank": "1"},
            "list": ['"first"', '"second"', '"third"'],
            "type": "hash",
            "keys": ["count.views:a", "count.views:b", "count.views:ü:x y"],
            "multi": ["1", "2"],
            "epoch": 0,
            "scan": ["fraud.checks:c1", "fraud.recent:c1", "fraud.shops:c1", "fraud.shops:c2"],
        }
    assert said["ioredis"].pop("refused").startswith("READONLY")
    assert said["ioredis"] == {"get": "1", "hash": {"baker": "2", "bank": "1"}, "pipeline": ["1", 3]}
