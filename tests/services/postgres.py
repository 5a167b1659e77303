"""Postgres, for tests."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from tests.services import free_port, missing, needed, wait_for_port

PLACES = [str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]


class Postgres:
    """A cluster of its own. Postgres refuses to run as root, so there it runs as the package's user."""

    def __init__(self) -> None:
        self._postgres = needed("postgres", "postgresql", *PLACES)
        self._initdb = needed("initdb", "postgresql", *PLACES)
        self._user: str | None = None
        if os.geteuid() == 0:
            try:
                self._user = pwd.getpwnam("postgres").pw_name
            except KeyError:
                missing("Postgres does not run as root, and there is no user named postgres")
        # Not below pytest's own folder: that is closed to other users.
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-postgres-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count()
        self.port = free_port()
        self.dsn = self._dsn("postgres")
        self._make()

    def _dsn(self, database: str) -> str:
        return f"postgresql://headrace@127.0.0.1:{self.port}/{database}"

    def _make(self) -> None:
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        data = self._folder / "data"
        command = [self._initdb, "-D", str(data), "-U", "headrace", "-A", "trust", "-E", "UTF8", "--no-sync"]
        done = subprocess.run(command, user=self._user, cwd=self._folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"initdb: {done.stderr[-2000:]}")

    def start(self) -> None:
        log = self._folder / "postgres.log"
        command = [self._postgres, "-D", str(self._folder / "data"), "-p", str(self.port), "-h", "127.0.0.1"]
        command += ["-k", str(self._folder), "-c", "max_connections=60", "-c", "shared_buffers=64MB"]
        # What a killed server had committed lies in the system's memory: only a machine that dies would lose it.
        command += ["-c", "fsync=off"]
        with log.open("ab") as out:
            self._process = subprocess.Popen(command, user=self._user, cwd=self._folder, stdout=out, stderr=out)
        wait_for_port(self.port, self._process, log)
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        import psycopg

        while True:  # the port is open a moment before connections are taken; the process ends if they never are
            try:
                psycopg.connect(self.dsn, connect_timeout=5).close()
            except psycopg.OperationalError:
                if self._process is None or self._process.poll() is not None:
                    raise
            else:
                return

    def stop(self, *, hard: bool = False) -> None:
        if self._process is None:
            return
        # Fast: connections are ended, nothing waits for its clients. Hard: nothing is written any more either, so that
        # the next start has to recover. A kill would do the same, but leave processes that forbid the next start.
        self._process.send_signal(signal.SIGQUIT if hard else signal.SIGINT)
        self._process.wait(60)
        self._process = None

    def database(self) -> str:
        """The DSN of a new, empty database."""
        import psycopg

        name = f"test_{next(self._numbers)}"
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return self._dsn(name)

    def remove(self) -> None:
        self.stop(hard=True)
        # Each database is three hundred files, and every test had one: nobody waits until they are gone.
        subprocess.Popen(["rm", "-rf", str(self._folder)], start_new_session=True)
