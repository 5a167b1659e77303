"""The real Postgres beside ours: a cluster of its own for one measurement, and `pgbench`, which asks both alike.

Postgres is Debian's package (`apt-get install postgresql`). Nothing in this module knows Headrace.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.lib.redis_peer import free_port

_PLACES = [str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
_START_S = 60.0


class PostgresMissing(Exception):
    """There is no Postgres on this machine to compare with."""


def program(name: str) -> str:
    """Where a program of Postgres lies."""
    found = shutil.which(name, path=os.pathsep.join([*_PLACES, os.environ.get("PATH", "")]))
    if found is None:
        raise PostgresMissing(f"{name} is needed: apt-get install postgresql")
    return found


class PostgresServer:
    """A cluster on a port of its own; ends with the block. It writes nothing to disk that anybody waits for."""

    def __init__(self) -> None:
        self.port = free_port()
        self._user = "postgres" if os.geteuid() == 0 else None
        """Postgres refuses to run as root."""
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-bench-postgres-"))
        self.dsn = f"host=127.0.0.1 port={self.port} user=bench dbname=postgres"

    def __enter__(self) -> Self:
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        data = str(self._folder / "data")
        made = [program("initdb"), "-D", data, "-U", "bench", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(made, user=self._user, cwd=self._folder, check=True, stdout=subprocess.DEVNULL)
        command = [program("postgres"), "-D", data, "-p", str(self.port), "-h", "127.0.0.1", "-k", str(self._folder)]
        # All rows lie in its own memory, and it may use both cores for one query.
        for setting in (
            "shared_buffers=1GB",
            "work_mem=256MB",
            "fsync=off",
            "max_parallel_workers_per_gather=2",
            "jit=off",
        ):
            command += ["-c", setting]
        with (self._folder / "postgres.log").open("wb") as log:
            self._process = subprocess.Popen(command, user=self._user, cwd=self._folder, stdout=log, stderr=log)
        self._wait()
        return self

    def _wait(self) -> None:
        import psycopg

        ends = time.monotonic() + _START_S
        while True:
            try:
                psycopg.connect(self.dsn, connect_timeout=5).close()
            except psycopg.OperationalError:
                if time.monotonic() > ends or self._process.poll() is not None:
                    raise PostgresMissing("Postgres does not start") from None
                time.sleep(0.05)
            else:
                return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(60)
        shutil.rmtree(self._folder, ignore_errors=True)


def pgbench(port: int, database: str, script: Path, *, clients: int, seconds: float) -> float:
    """Statements per second of prepared statements."""
    command = [program("pgbench"), "-n", "-M", "prepared", "-h", "127.0.0.1", "-p", str(port), "-U", "bench"]
    command += ["-c", str(clients), "-T", str(max(1, round(seconds))), "-f", str(script), database]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"tps = ([0-9.]+)", done.stdout)
    if done.returncode or found is None:
        raise PostgresMissing(f"pgbench failed: {done.stderr[-500:]}")
    return float(found[1])
