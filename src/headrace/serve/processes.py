"""Servers in processes of their own: several on one port, or some beside a job; they end with whoever started them.

A child is this module itself (``python -m``). Its options come as JSON in its first argument. What it has to say goes
to standard output, an object per line. Standard input is the parent's hand: when it closes, for whatever reason, the
child ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from types import FrameType
from typing import IO, Any, Final

import msgspec

from headrace.errors import HeadraceError, SettingsError
from headrace.net.listening import bind, port_error, run_server
from headrace.serve.serving import Options, Tell, serve_alone

STOP_S: Final = 5.0
_AGAIN_S: Final = 0.5
_MOST_DEATHS: Final = 5
"""How often in a row processes may die young before nobody believes in another try."""
_YOUNG_S: Final = 10.0


class Workers:
    """Processes that serve on one port. Those that die are started again, until `stop`."""

    def __init__(self, options: Options, tell: Tell, *, flag: str = "--port") -> None:
        """Reserves the ports, so that a busy one is told here and not by a child; ``flag`` chooses another one."""
        self._tell = tell
        self._held = [_reserve(options.bind, options.port, flag)]
        ports: dict[str, Any] = {"port": self._held[0].getsockname()[1]}
        if options.http_port is not None:
            try:
                self._held.append(_reserve(options.bind, options.http_port, "--http-port"))
            except SettingsError:
                self._held[0].close()
                raise
            ports["http_port"] = self._held[1].getsockname()[1]
        if options.pg_port is not None:
            try:
                self._held.append(_reserve(options.bind, options.pg_port, "--pg-port"))
            except SettingsError:
                for held in self._held:
                    held.close()
                raise
            ports["pg_port"] = self._held[-1].getsockname()[1]
        self.options = msgspec.structs.replace(options, **ports)
        self.last_code: int | None = None
        """What the last process ended with that was not started again."""
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
                self.last_code = code
                self._tell({"event": "ended", "code": code, "text": "a server process ends again and again; giving up"})
                return
            self._tell({"event": "restarting", "code": code})
            self._stopping.wait(_AGAIN_S)

    def _spawn(self) -> subprocess.Popen[bytes]:
        said = msgspec.json.encode(self.options).decode()
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.serve.processes", said],
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


def _reserve(host: str, port: int, flag: str) -> socket.socket:
    """Holds a port for children: nobody else may have it, and they may.

    A socket that is merely bound holds nothing: on Linux whoever reuses addresses, as servers do that start again
    quickly, may bind beside it; and those who share ports would share this one. One that has listened holds: listening
    shuts out everybody, and only then the socket is opened to children, who share, and closed to those who reuse.
    It keeps that when it stops to listen, and connections go to the children alone.
    """
    if port == 0:
        # The system takes back a port that it has chosen itself when listening ends.
        with bind(host, 0) as probe:
            port = probe.getsockname()[1]
    held = bind(host, port, flag=flag)
    try:
        held.listen()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        if sys.platform == "linux":
            held.shutdown(socket.SHUT_RD)
            return held
    except OSError as error:
        held.close()
        raise port_error(error, host, port, flag) from None
    # Elsewhere a socket cannot stop to listen; from here on, children that listen keep the port.
    held.close()
    return bind(host, port, shared=True, flag=flag)


def serve_together(options: Options, tell: Tell) -> None:
    """Several processes in the foreground, until SIGINT or SIGTERM; raises HeadraceError where none stays alive."""
    ended = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        ended.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    workers = Workers(options, tell)
    try:
        workers.start()
        while not ended.wait(0.2):
            if not workers.alive:
                raise HeadraceError(
                    "no server process stays alive",
                    where=options.store,
                    expected="processes that serve until they are told to end",
                    found=f"each ended {_MOST_DEATHS + 1} times, soon after it was started; "
                    f"the last one with code {workers.last_code}",
                    next_move="what they said stands above; --processes 1 shows the error alone",
                )
    finally:
        workers.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


# --- one of them, as a child


def main(said: str) -> None:
    options = msgspec.json.decode(said, type=Options)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    run_server(_serve(options))


async def _serve(options: Options) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hand_moved() -> None:
        if not os.read(0, 1):
            loop.remove_reader(0)
            stop.set()

    loop.add_reader(0, hand_moved)
    await serve_alone(options, _tell, stop, shared=True)


def _tell(told: dict[str, Any]) -> None:
    # A parent that has gone cannot be told, and needs not.
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
