"""HTTP on a socket, in a loop that may serve other protocols besides: uvicorn without its own process and signals.

Connections are accepted by `headrace.net.listening`, which counts them before their TLS handshake. A connection that
does not say what it wants is closed after `HEAD_TIMEOUT_S`: uvicorn itself would wait for ever.

When a server stops, answers that are on their way have `STOP_S` to finish; those that do not are cut off. Streams
without an end have to end themselves by then (see `headrace.serve.service.Service.let_go`): uvicorn would cancel them
in the middle, and report that as an error of the application.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.net.listening import Listener, Refused, cut_off

_log: Final = logging.getLogger("headrace.http")

HEAD_TIMEOUT_S: Final = 10.0
HEAD_BYTES: Final = 32 * 1024
"""What the line and the headers of a request may hold."""
KEEP_ALIVE_S: Final = 60
ABORT: Final = "abort"
"""Name in the state of a request under which its connection can be cut off."""
STOP_S: Final = 1.0
_CANCEL_S: Final = 3
"""Behind `STOP_S`: for requests that are busy with something else than their client."""


class Protocol(H11Protocol):
    """uvicorn's own, with a limit to the time until a request is whole, and headers of bounded size."""

    _head_timer: asyncio.TimerHandle | None = None
    refused: Refused
    """Is told of a request for which there is no room; uvicorn answers it with 503."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Closing would wait for a client that does not read; whoever answers may have to cut it off.
        self.app_state = {**self.app_state, ABORT: partial(cut_off, transport)}
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        cycle = self.cycle
        most = self.limit_concurrency
        full = most is not None and (len(self.connections) >= most or len(self.tasks) >= most)
        super().data_received(data)
        if self.cycle is not cycle:
            self._stop_expecting()
            if full and most is not None:
                host = self.client[0] if self.client else "-"
                self.refused(host, f"more connections or requests at a time than the limit of {most:,}")
        elif self._head_timer is None and (cycle is None or cycle.response_complete):
            # The first bytes of another request on the same connection.
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_expecting()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._give_up)

    def _stop_expecting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


class _Server(uvicorn.Server):
    """Without sockets of its own: `Listener` brings it connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.servers = []
        self.started = True
        self.ready.set()

    def make_protocol(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state={}
        )
        return made

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Signals belong to whoever runs the loop.
        yield


class HttpServer:
    """Serves an application on a bound socket."""

    def __init__(
        self,
        app: ASGIApp,
        refused: Refused,
        *,
        connections: int,
        handshake_s: float,
        handshakes_per_address: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """``refused``: is told of connections and requests for which there is no room."""

        class Mine(Protocol):
            pass

        Mine.refused = staticmethod(refused)
        config = uvicorn.Config(
            app,
            interface="asgi3",
            http=Mine,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=connections,
            h11_max_incomplete_event_size=HEAD_BYTES,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=_CANCEL_S,
        )
        self._server = _Server(config)
        self.listener = Listener(
            self._server.make_protocol,
            lambda: len(self._server.server_state.connections),
            refused,
            connections=connections,
            handshake_s=handshake_s,
            handshakes_per_address=handshakes_per_address,
            tls=tls,
        )
        self._task: asyncio.Task[Any] | None = None

    async def start(self, listening: socket.socket) -> None:
        """Begins to answer. When this returns, whoever connects is let in, if only to wait for the loop."""
        self._task = asyncio.create_task(self._server.serve())
        await self._server.ready.wait()
        self.listener.start(listening)

    async def stop(self) -> None:
        """Lets answers that are on their way finish, for a moment."""
        if self._task is None:
            return
        self.listener.close()
        self._server.should_exit = True
        ended, _ = await asyncio.wait([self._task], timeout=STOP_S)
        if not ended:
            left = list(self._server.server_state.connections)
            _log.warning("the server stops; connections cut off in the middle of an answer: %d", len(left))
            for connection in left:
                cut_off(connection.transport)
        await self._task
