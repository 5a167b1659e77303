"""Servers of a log on ports of their own: in a thread of the test, or as the process that people start."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any, NamedTuple, Self

from headrace.ingest.log import Log
from headrace.ingest.serving import IngestOptions, serve_log
from headrace.ingest.streams import Streams
from tests.cli.processes import kill_group, start_headrace


class Answer(NamedTuple):
    status: int
    body: Any
    headers: dict[str, str]


class Sender:
    """One connection of a client."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, path, body, named)
        response = self._connection.getresponse()
        told = response.read()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, json.loads(told) if told else None, found)

    def send(
        self, *events: Any, stream: str = "clicks", query: str = "", key: str = "", zipped: bool = False
    ) -> Answer:
        """Events as JSON lines."""
        body = b"".join(json.dumps(each).encode() + b"\n" for each in events)
        headers = {"Content-Type": "application/x-ndjson"}
        if key:
            headers["Idempotency-Key"] = key
        if zipped:
            body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
        return self.ask("POST", f"/streams/{stream}/events{query}", body, **headers)

    def close(self) -> None:
        self._connection.close()


class Threaded:
    """A server in a thread of the test: real sockets, no second process."""

    def __init__(self, path: Path, streams: Streams | None = None, **options: Any) -> None:
        self._path = path
        self._streams = streams or Streams()
        self._options = IngestOptions(log=str(path), port=0, **options)
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self.log = Log(self._path, self._options.kept)
        for name, taken in self._streams.named.items():
            self.log.make_stream(name, taken.partitions)
        self._thread.start()
        assert self._listening.wait(60)
        self.sender = Sender(self.port)
        return self

    def __exit__(self, *_: object) -> None:
        self.sender.close()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        self._loop.close()
        self.log.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(serve_log(self._options, self._streams, self.log, self._tell, self._stop))

    def _tell(self, told: dict[str, Any]) -> None:
        if told["event"] == "listening":
            self.port = told["port"]
            self._listening.set()
        else:
            self.ended = told


class Process:
    """``headrace ingest`` as a process, which can be killed; nothing of it is left behind the block."""

    def __init__(self, path: Path, *arguments: object) -> None:
        self._process: subprocess.Popen[str] = start_headrace(
            "ingest", "--log", path, "--port", "0", "--json", *arguments, cwd=path.parent
        )
        assert self._process.stdout is not None
        first = self._process.stdout.readline()
        assert first, self._process.communicate()[1]
        self.port = int(json.loads(first)["port"])
        self.pid = self._process.pid

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *raised: object) -> None:
        kill_group(self._process)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def stop(self) -> tuple[int, dict[str, Any]]:
        """Asks it to end; its exit code, and the last that it said."""
        self._process.send_signal(signal.SIGTERM)
        told, _ = self._process.communicate(timeout=60)
        return self._process.returncode, json.loads(told.splitlines()[-1])
