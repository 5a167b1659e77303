"""The real Redis beside ours: a server of its own for one measurement, and `redis-benchmark`, which asks both alike.

Redis is Debian's package (`apt-get install redis-server redis-tools`). It runs as fast as it can here: nothing is
written to disk. Nothing in this module knows Headrace.
"""

from __future__ import annotations

import csv
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

CLIENTS = 50
_START_S = 10.0
_SET = b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n"


class RedisMissing(Exception):
    """There is no Redis on this machine to compare with."""


@dataclass(frozen=True)
class Measured:
    """One run of redis-benchmark."""

    per_s: float
    p50_ms: float
    p99_ms: float


class RedisServer:
    """`redis-server` on a port of its own; ends with the block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()

    def __enter__(self) -> Self:
        program = shutil.which("redis-server")
        if program is None or shutil.which("redis-benchmark") is None:
            raise RedisMissing("redis-server and redis-benchmark are needed: apt-get install redis-server redis-tools")
        self._folder.mkdir(parents=True, exist_ok=True)
        command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        command += ["--dir", str(self._folder), "--logfile", "redis.log"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        wait_for_port(self.port, self._process)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(10)

    @property
    def version(self) -> str:
        said = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
        return "redis " + said.partition("v=")[2].partition(" ")[0]

    def load(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Sets keys, as Redis' own documents advise for many."""
        command = ["redis-cli", "-p", str(self.port), "--pipe"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as loading:
            assert loading.stdin is not None
            for key, value in pairs:
                loading.stdin.write(_SET % (len(key), key, len(value), value))
        if loading.returncode:
            raise RedisMissing(f"redis-cli --pipe ended with {loading.returncode}")

    def size(self) -> int:
        """How many keys there are."""
        said = subprocess.run(["redis-cli", "-p", str(self.port), "DBSIZE"], capture_output=True, text=True, check=True)
        return int(said.stdout.split()[-1])


def redis_benchmark(port: int, command: Sequence[str], *, requests: int, keys: int, pipeline: int = 1) -> Measured:
    """Asks whatever listens on a port; `__rand_int__` in the command becomes one of `keys` numbers each time."""
    program = ["redis-benchmark", "-p", str(port), "-c", str(CLIENTS), "-n", str(requests), "-r", str(keys)]
    program += ["-P", str(pipeline), "--csv", *command]
    said = subprocess.run(program, capture_output=True, text=True, check=False)
    rows = list(csv.DictReader(line for line in said.stdout.splitlines() if line.startswith('"')))
    if said.returncode or not rows:
        raise RuntimeError(f"redis-benchmark failed: {said.stdout[-500:]} {said.stderr[-500:]}")
    row = rows[-1]
    return Measured(float(row["rps"]), float(row["p50_latency_ms"]), float(row["p99_latency_ms"]))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    """Until somebody listens."""
    ends = time.monotonic() + _START_S
    while time.monotonic() < ends and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise RedisMissing(f"redis-server does not listen on port {port}")
