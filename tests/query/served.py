"""Servers of a store on ports of their own, in a thread of the test: real sockets, no second process."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self

from headrace.query.access import Access, Limits
from headrace.query.http import HttpApp, HttpServer
from headrace.query.resp.server import RespServer
from headrace.query.service import Service
from headrace.query.serving import bind
from headrace.query.store import Store

FOLLOW_S = 0.002


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
        **options: Any,
    ) -> None:
        self._path = path
        self._access = Access(users)
        self._limits = limits or Limits()
        self._tls = tls
        self._options = options
        self._wanted = port, http_port
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
        self._thread.join(10)
        self.loop.close()

    async def _start(self) -> None:
        self.service = Service(
            lambda: Store(self._path),
            where=str(self._path),
            access=self._access,
            limits=self._limits,
            follow_s=FOLLOW_S,
        )
        self.app = HttpApp([self.service], **self._options)
        self.http = HttpServer(self.app, connections=self._limits.connections, tls=self._tls)
        self.resp = RespServer(self.service)
        port, http_port = self._wanted
        listener, http_listener = bind("127.0.0.1", port), bind("127.0.0.1", http_port)
        self.port, self.http_port = listener.getsockname()[1], http_listener.getsockname()[1]
        await self.resp.start(listener, self._tls)
        await self.http.start(http_listener)
        self.service.start()

    async def _stop(self) -> None:
        await self.http.stop()
        await self.resp.stop()
        await self.service.stop()

    def wait_for(self, epoch: int) -> None:
        """Comes back when the server answers from that epoch."""
        assert self.run(self.service.wait_for_epoch(epoch, 10)) is not None

    def until(self, holds: Callable[[], bool]) -> None:
        """Comes back when the server has noticed something in its own time, as a client that has gone."""

        async def looking() -> None:
            async with asyncio.timeout(20):
                while not holds():
                    await asyncio.sleep(0)

        self.run(looking())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)
