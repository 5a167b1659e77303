"""A line between a client and a server that tests can cut at any message."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Proxy:
    """Forwards connections to a port of this machine."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._left: int | None = None
        """Messages of clients that may still pass; None: all of them."""
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    @contextmanager
    def failing(self, calls: int) -> Iterator[None]:
        """So many messages of clients pass; the next one ends all connections, and no new one comes about."""
        with self._lock:
            self._left = calls
        try:
            yield
        finally:
            with self._lock:
                self._left = None

    def close(self) -> None:
        self._listener.close()
        self._cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._to))
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    self._open += [client, server]
                threading.Thread(target=self._forward, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._forward, args=(server, client, False), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(2**16):
                if counted and not self._may_pass():
                    self._cut()
                    return
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _may_pass(self) -> bool:
        with self._lock:
            if self._left is None:
                return True
            self._left -= 1
            return self._left >= 0

    def _cut(self) -> None:
        with self._lock:
            cut, self._open = self._open, []
        for each in cut:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
