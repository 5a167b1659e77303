"""Servers of a store on ports of their own, in a thread of the test: real sockets, no second process."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self

from headrace.net.access import Access, Limits
from headrace.net.http_server import HttpServer
from headrace.net.listening import bind
from headrace.read.follow import open_replica
from headrace.read.store import Store
from headrace.serve.http.app import HttpApp
from headrace.serve.resp.server import RespServer
from headrace.serve.service import Service

FOLLOW_S = 0.002
PATIENCE_S = 60.0
"""How long anything may take on a busy machine; nothing waits that long when all is well."""


class Served:
    """HTTP and Redis' protocol over one store, which is followed as a server follows it."""

    def __init__(
        self,
        path: str | Path,
        *,
        users: Path | None = None,
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
        port: int = 0,
        http_port: int = 0,
        held_bytes: int | None = None,
        cache: Path | None = None,
        **options: Any,
    ) -> None:
        """``held_bytes``: so few does the system hold for a client of HTTP that does not read; else it is megabytes.

        ``cache``: the folder of a replica.
        """
        self.path = path
        self._cache = cache
        self._access = Access(users)
        self._limits = limits or Limits()
        self._tls = tls
        self._options = options
        self._wanted = port, http_port
        self._held_bytes = held_bytes
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self._start())
        secure = "" if self._tls is None else "s"
        self.url = f"http{secure}://localhost:{self.http_port}"
        self.redis_url = f"redis{secure}://localhost:{self.port}"
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()

    async def _start(self) -> None:
        self.service = Service(
            lambda: Store(self.path) if self._cache is None else open_replica(self.path, self._cache),
            where=str(self.path),
            access=self._access,
            limits=self._limits,
            follow_s=FOLLOW_S,
        )
        self.app = HttpApp([self.service], **self._options)
        self.http = HttpServer(
            self.app,
            self.app.refused,
            connections=self._limits.connections,
            handshake_s=self._limits.unfinished_s,
            handshakes_per_address=self._limits.handshakes_per_address,
            tls=self._tls,
        )
        self.resp = RespServer(self.service)
        port, http_port = self._wanted
        listener, http_listener = bind("127.0.0.1", port), bind("127.0.0.1", http_port)
        if self._held_bytes is not None:
            # Every connection that is accepted has what the listening socket has.
            http_listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._held_bytes)
        self.port, self.http_port = listener.getsockname()[1], http_listener.getsockname()[1]
        await self.resp.start(listener, self._tls)
        await self.http.start(http_listener)
        self.service.start()

    async def _stop(self) -> None:
        self.service.let_go()
        await self.http.stop()
        await self.resp.stop()
        await self.service.stop()

    def wait_for(self, epoch: int) -> None:
        """Comes back when the server answers from that epoch."""
        assert self.run(self.service.wait_for_epoch(epoch, PATIENCE_S)) is not None

    def until(self, holds: Callable[[], bool]) -> None:
        """Comes back when the server has noticed something in its own time, as a client that has gone."""

        async def looking() -> None:
            async with asyncio.timeout(PATIENCE_S):
                while not holds():
                    await asyncio.sleep(0.001)

        self.run(looking())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(2 * PATIENCE_S)
