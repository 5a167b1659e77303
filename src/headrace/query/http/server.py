"""HTTP on a socket, in a loop that may serve other protocols besides: uvicorn without its own process and signals.

A connection that does not say what it wants is closed after `HEAD_TIMEOUT_S`: uvicorn itself would wait for ever, and
a few thousand such connections would be all that a server has.

When a server stops, answers that are on their way have `STOP_S` to finish; those that do not are cut off. Streams
without an end have to end themselves by then (see `headrace.query.service.Service.let_go`): uvicorn would cancel them
in the middle, and report that as an error of the application.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.query.cutting import cut_off

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
_BACKLOG: Final = 2048


class Protocol(H11Protocol):
    """uvicorn's own, with a limit to the time until a request is whole, and headers of bounded size."""

    _head_timer: asyncio.TimerHandle | None = None
    crowded: Callable[[str], None] | None = None
    """Is told the host of a request for which there is no room; uvicorn answers it with 503."""

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
            if full and self.crowded is not None:
                self.crowded(self.client[0] if self.client else "-")
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
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Signals belong to whoever runs the loop.
        yield


class HttpServer:
    """Serves an application on a bound socket."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        connections: int,
        tls: ssl.SSLContext | None = None,
        crowded: Callable[[str], None] | None = None,
    ) -> None:
        """``crowded``: is told the host of each request for which there is no room."""

        class Mine(Protocol):
            pass

        if crowded is not None:
            Mine.crowded = staticmethod(crowded)
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
            ssl_context_factory=None if tls is None else lambda config, default: tls,
        )
        self._server = _Server(config)
        self._task: asyncio.Task[Any] | None = None

    async def start(self, listening: socket.socket) -> None:
        """Begins to answer. When this returns, whoever connects is let in, if only to wait for the loop."""
        # uvicorn listens when its task has had its turn; somebody who was told the port must not be refused until then.
        listening.listen(_BACKLOG)
        self._task = asyncio.create_task(self._server.serve([listening]))

    async def stop(self) -> None:
        """Lets answers that are on their way finish, for a moment."""
        if self._task is None:
            return
        self._server.should_exit = True
        ended, _ = await asyncio.wait([self._task], timeout=STOP_S)
        if not ended:
            left = list(self._server.server_state.connections)
            _log.warning("the server stops; connections cut off in the middle of an answer: %d", len(left))
            for connection in left:
                cut_off(connection.transport)
        await self._task
