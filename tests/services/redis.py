"""Redis, for tests."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from tests.services import end, free_port, needed, wait_for_port


class Redis:
    """`redis-server` that writes every change to its disk before it answers, so that it can be killed."""

    def __init__(self, folder: Path) -> None:
        self._program = needed("redis-server", "redis-server")
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        folder.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        log = self._folder / "redis.log"
        command = [self._program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"]
        command += ["--appendfsync", "always", "--dir", str(self._folder)]
        with log.open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out)
        wait_for_port(self.port, self._process, log)

    def client(self, **options: Any) -> Any:
        """Waits long: the library's own 5 s end in a second try, and what is not idempotent is done twice."""
        import redis

        return redis.Redis(port=self.port, **{"socket_timeout": 60, **options})

    def stop(self, *, hard: bool = False) -> None:
        if self._process is not None:
            end(self._process, hard=hard)
            self._process = None
