"""Servers in processes of their own: several on one port, or some beside a job; they end with whoever started them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from headrace.query.serving import Options, Tell, bind

if TYPE_CHECKING:
    import socket

STOP_S: Final = 5.0
_AGAIN_S: Final = 0.5
_MOST_DEATHS: Final = 5
"""How often in a row processes may die young before nobody believes in another try."""
_YOUNG_S: Final = 10.0


class Workers:
    """Processes that serve on one port. Those that die are started again, until `stop`."""

    def __init__(self, options: Options, tell: Tell) -> None:
        """Binds the port, so that a busy one is told here and not by a child."""
        self._tell = tell
        self._held = [_reserve(options.bind, options.port)]
        ports: dict[str, Any] = {"port": self._held[0].getsockname()[1]}
        if options.http_port is not None:
            self._held.append(_reserve(options.bind, options.http_port))
            ports["http_port"] = self._held[1].getsockname()[1]
        self.options = msgspec.structs.replace(options, **ports)
        self._count = options.processes
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stopping = threading.Event()
        self._told: set[str] = set()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for number in range(self._count):
            thread = threading.Thread(target=self._keep, name=f"headrace-server-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Ends all processes, and waits for that."""
        self._stopping.set()
        with self._lock:
            running = list(self._processes)
        for process in running:
            # Closing its input is what a child ends by; the signal is for one that does not look.
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        for process in running:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
        for thread in self._threads:
            thread.join(STOP_S)
        for held in self._held:
            held.close()

    @property
    def alive(self) -> bool:
        """Whether any of them is kept running."""
        return any(thread.is_alive() for thread in self._threads)

    def pids(self) -> list[int]:
        with self._lock:
            return [process.pid for process in self._processes if process.poll() is None]

    # --- one process, again and again

    def _keep(self) -> None:
        deaths = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            process = self._spawn()
            assert process.stdout is not None
            self._listen(process.stdout)
            code = process.wait()
            with self._lock:
                self._processes.remove(process)
            if self._stopping.is_set():
                return
            deaths = deaths + 1 if time.monotonic() - began < _YOUNG_S else 1
            if deaths > _MOST_DEATHS:
                self._tell({"event": "ended", "code": code, "text": "a server process ends again and again; giving up"})
                return
            self._tell({"event": "restarting", "code": code})
            self._stopping.wait(_AGAIN_S)

    def _spawn(self) -> subprocess.Popen[bytes]:
        said = msgspec.json.encode(self.options).decode()
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.query.worker", said],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C is for the parent, which decides what ends when.
            start_new_session=True,
            env=os.environ,
        )
        with self._lock:
            self._processes.append(process)
            stopping = self._stopping.is_set()
        if stopping and process.stdin is not None:
            process.stdin.close()
        return process

    def _listen(self, lines: IO[bytes]) -> None:
        for line in lines:
            with contextlib.suppress(msgspec.DecodeError):
                told = msgspec.json.decode(line, type=dict[str, Any])
                # Every process says the same; once is enough.
                with self._lock:
                    first = told.get("event", "") not in self._told
                    self._told.add(told.get("event", ""))
                if first:
                    self._tell(told)


def _reserve(host: str, port: int) -> socket.socket:
    """Holds a port for children: nobody else may have it, and they may."""
    # Without sharing first: with it, a server that somebody else started in the same way would not be noticed.
    probe = bind(host, port)
    found = probe.getsockname()[1]
    probe.close()
    return bind(host, found, shared=True)


def serve_together(options: Options, tell: Tell) -> None:
    """Several processes in the foreground, until SIGINT or SIGTERM."""
    ended = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        ended.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    workers = Workers(options, tell)
    try:
        workers.start()
        while not ended.wait(0.2) and workers.alive:
            pass
    finally:
        workers.stop()
        for number, handler in before.items():
            signal.signal(number, handler)
