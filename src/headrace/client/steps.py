"""What a client does, apart from how it waits: steps that ask for input and output, driven by a thread or by a loop.

Everything a client decides (what to ask, whom to ask next, what an answer means) is written once, as generators that
yield what they want done and are sent what came of it. `Blocking` and `Awaiting` do these things.

======  ===============================================  =========================================
wish    what is done                                     what is sent back
======  ===============================================  =========================================
Open    a connection to a server is made                 the `Line`
Write   all of the bytes are sent                        None
Read    waits for bytes                                  the bytes; empty: the other side is gone
Pause   some time passes                                 None
======  ===============================================  =========================================

Whatever goes wrong with a connection is thrown into the steps as `ConnectionLost`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Generator
from typing import Any, Final, NamedTuple, Protocol

from typing_extensions import TypeVar

T = TypeVar("T")


class Server(NamedTuple):
    """Where to ask, and as whom."""

    scheme: str
    """``redis``, ``rediss``, ``http`` or ``https``."""
    host: str
    port: int
    user: str = ""
    token: str = ""

    @property
    def secure(self) -> bool:
        return self.scheme in ("rediss", "https")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


class Line(Protocol):
    """An open connection; whoever drives the steps knows what it is."""

    def close(self) -> None:
        """At once, without waiting for anything."""


class Open(NamedTuple):
    server: Server
    timeout_s: float


class Write(NamedTuple):
    line: Line
    data: bytes
    timeout_s: float


class Read(NamedTuple):
    line: Line
    timeout_s: float


class Pause(NamedTuple):
    seconds: float


Wish = Open | Write | Read | Pause
Steps = Generator[Wish, Any, T]


class ConnectionLost(Exception):
    """The connection failed, or nothing came in time: worth trying elsewhere or again."""


class Silent(ConnectionLost):
    """Nothing came in time; the connection may still be good."""


class ServerBehind(Exception):
    """The server has not come as far as this client has seen already: worth trying elsewhere or again."""


# --- in a thread that waits


READ_BYTES: Final = 262_144


class Blocking:
    """Sockets that wait. May be used by any number of threads at the same time, each with steps of its own."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls

    def run(self, steps: Steps[T]) -> T:
        answer: Any = None
        lost: ConnectionLost | None = None
        try:
            while True:
                wish = steps.send(answer) if lost is None else steps.throw(lost)
                answer, lost = None, None
                try:
                    answer = self._do(wish)
                except TimeoutError:
                    lost = Silent("nothing came in time")
                except OSError as error:
                    lost = ConnectionLost(str(error) or type(error).__name__)
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


# --- in an event loop


class LineStreams(NamedTuple):
    """A connection of asyncio."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def close(self) -> None:
        # The loop may be gone already where a client outlives it.
        with contextlib.suppress(OSError, RuntimeError):
            self.writer.close()


class Awaiting:
    """Streams of asyncio. Any number of tasks may run steps at the same time."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls

    async def run(self, steps: Steps[T]) -> T:
        answer: Any = None
        lost: ConnectionLost | None = None
        try:
            while True:
                wish = steps.send(answer) if lost is None else steps.throw(lost)
                answer, lost = None, None
                try:
                    answer = await self._do(wish)
                except TimeoutError:
                    lost = Silent("nothing came in time")
                except OSError as error:
                    lost = ConnectionLost(str(error) or type(error).__name__)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            steps.close()

    async def _do(self, wish: Wish) -> Any:
        match wish:
            case Write(LineStreams(_, writer), data, timeout_s):
                async with asyncio.timeout(timeout_s):
                    writer.write(data)
                    await writer.drain()
            case Read(LineStreams(reader, _), timeout_s):
                async with asyncio.timeout(timeout_s):
                    return await reader.read(READ_BYTES)
            case Open(server, timeout_s):
                tls = (self._tls or ssl.create_default_context()) if server.secure else None
                async with asyncio.timeout(timeout_s):
                    return LineStreams(*await asyncio.open_connection(server.host, server.port, ssl=tls))
            case Pause(seconds):
                await asyncio.sleep(seconds)
        return None
