"""A server of a store over Postgres' protocol on a port of its own, in a thread of the test."""

from __future__ import annotations

import asyncio
import ssl
import threading
from pathlib import Path
from typing import Any, Self

from headrace.net.access import Access, Limits
from headrace.net.listening import bind
from headrace.read.store import Store
from headrace.serve.pg.server import PgServer
from headrace.serve.service import Service
from headrace.snapshots.session import Engine

PATIENCE_S = 60.0


class PgServed:
    """Follows a store, and answers."""

    def __init__(
        self,
        path: str | Path,
        *,
        users: Path | None = None,
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
        engine: Engine | None = None,
    ) -> None:
        self._how = path, users, tls, limits or Limits(), engine or Engine()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self._start())
        self.dsn = f"host=127.0.0.1 port={self.port} user=me dbname=tweets"
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()

    async def _start(self) -> None:
        path, users, tls, limits, engine = self._how
        self.service = Service(
            lambda: Store(path), where=str(path), access=Access(users), limits=limits, follow_s=0.002
        )
        self.server = PgServer(self.service, engine, tls)
        listener = bind("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        self.service.start()
        await self.service.looked()
        await self.server.start(listener)

    async def _stop(self) -> None:
        self.service.let_go()
        await self.server.stop()
        await self.service.stop()

    def wait_for(self, epoch: int) -> None:
        assert self.run(self.service.wait_for_epoch(epoch, PATIENCE_S)) is not None

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(2 * PATIENCE_S)
