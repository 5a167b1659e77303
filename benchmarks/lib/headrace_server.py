"""Servers of a store for one measurement, started as `headrace serve` starts them: processes of their own, one port."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.serve.processes import Workers
from headrace.serve.serving import Options

_START_S = 120.0


class HeadraceServer:
    """Listens when the block is entered, and answers for the store once it has an epoch; ends with the block."""

    def __init__(self, store: Path, *, processes: int = 1, pg_port: int | None = None) -> None:
        self._listening = threading.Event()
        self._workers = Workers(Options(store=str(store), port=0, pg_port=pg_port, processes=processes), self._hear)
        self.port: int = self._workers.options.port
        self.pg_port = self._workers.options.pg_port or 0

    def _hear(self, told: dict[str, Any]) -> None:
        if told["event"] == "listening":
            self._listening.set()

    def __enter__(self) -> Self:
        self._workers.start()
        if not self._listening.wait(_START_S):
            self._workers.stop()
            raise TimeoutError("no server of Headrace listens")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._workers.stop()

    def wait_for(self, key: str, timeout_s: float = _START_S) -> bytes:
        """The value of a key, as soon as there is one."""
        ends = time.monotonic() + timeout_s
        while time.monotonic() < ends:
            value = ask_once(self.port, key)
            if value is not None:
                return value
            time.sleep(0.05)
        raise TimeoutError(f"there is no {key} after {timeout_s:g} s")


class Asking:
    """One connection that gets one key at a time, for watching values change: as little work as a client can have."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._socket.close()

    def get(self, key: str) -> bytes | None:
        """The value; None where there is none, or nothing that could be asked yet."""
        name = key.encode()
        self._socket.sendall(b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(name), name))
        return self._value()

    def get_many(self, keys: list[str]) -> list[bytes | None]:
        parts = [b"$%d\r\n%b\r\n" % (len(name), name) for name in (key.encode() for key in keys)]
        self._socket.sendall(b"*%d\r\n$4\r\nMGET\r\n" % (len(keys) + 1) + b"".join(parts))
        head = self._file.readline()
        return [self._value() for _ in keys] if head.startswith(b"*") else [None] * len(keys)

    def _value(self) -> bytes | None:
        head = self._file.readline()
        if not head:
            raise ConnectionError("the server closed the connection")
        if not head.startswith(b"$") or head == b"$-1\r\n":
            return None
        return self._file.read(int(head[1:]) + 2)[:-2]


def ask_once(port: int, key: str) -> bytes | None:
    with Asking(port) as asking:
        return asking.get(key)
