"""Doing what steps wish for in a thread that waits."""

from __future__ import annotations

import socket
import ssl
import time
from typing import Any, Final

from typing_extensions import TypeVar

from headrace.client.steps import Lost, Open, Pause, Read, Silent, Steps, Wish, Write

T = TypeVar("T")

READ_BYTES: Final = 262_144


class Blocking:
    """Sockets that wait. May be used by any number of threads at the same time, each with steps of its own."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls

    def run(self, steps: Steps[T]) -> T:
        answer: Any = None
        lost: Lost | None = None
        try:
            while True:
                wish = steps.send(answer) if lost is None else steps.throw(lost)
                answer, lost = None, None
                try:
                    answer = self._do(wish)
                except TimeoutError:
                    lost = Silent("nothing came in time")
                except OSError as error:
                    lost = Lost(str(error) or type(error).__name__)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            steps.close()

    def _do(self, wish: Wish) -> Any:
        match wish:
            case Write(line, data, timeout_s):
                line.settimeout(timeout_s)  # type: ignore[attr-defined]
                return line.sendall(data)  # type: ignore[attr-defined]
            case Read(line, timeout_s):
                line.settimeout(timeout_s)  # type: ignore[attr-defined]
                return line.recv(READ_BYTES)  # type: ignore[attr-defined]
            case Open(server, timeout_s):
                return self._open(server.host, server.port, server.secure, timeout_s)
            case Pause(seconds):
                return time.sleep(seconds)

    def _open(self, host: str, port: int, secure: bool, timeout_s: float) -> socket.socket:
        plain = socket.create_connection((host, port), timeout=timeout_s)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not secure:
                return plain
            context = self._tls or ssl.create_default_context()
            return context.wrap_socket(plain, server_hostname=host)
        except BaseException:
            plain.close()
            raise
