"""All connections of Postgres' protocol in one process: who is let in, who is cut off, and what they share."""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from headrace.errors import NoSuchMoment
from headrace.net.access import Meter, User
from headrace.net.listening import Listener
from headrace.serve.pg.catalog import PgCatalog
from headrace.serve.pg.connection import PgConnection
from headrace.serve.sql_source import ServedSnapshots
from headrace.state.moments import parse_moment

if TYPE_CHECKING:
    from headrace.serve.service import Service
    from headrace.snapshots.session import Engine, SqlSession

TICK_S: Final = 0.5
_STOP_S: Final = 0.5
_THREADS: Final = 8
"""So many statements run at a time; others wait."""


class PgServer:
    """Postgres' protocol over one service."""

    def __init__(self, service: Service, engine: Engine, tls: ssl.SSLContext | None = None) -> None:
        self.service = service
        self.engine = engine
        self.tls = tls
        self.limits = service.limits
        self.access = service.access
        self.threads = ThreadPoolExecutor(_THREADS, "headrace-sql")
        self.listener: Listener | None = None
        self._numbers = itertools.count(1)
        self._connections: dict[int, PgConnection] = {}
        self._catalogs: dict[str, PgCatalog] = {}
        self._meters: dict[object, Meter] = {}
        self._upkeep: asyncio.Task[None] | None = None
        self._snapshots: ServedSnapshots | None = None
        service.figures["postgres_connections"] = lambda: len(self._connections)

    def next_number(self) -> int:
        return next(self._numbers)

    def now_s(self) -> float:
        return time.monotonic()

    # --- life

    async def start(self, bound: socket.socket) -> None:
        """Begins to answer on a bound socket."""
        loop = asyncio.get_running_loop()
        self._snapshots = ServedSnapshots(self.service, loop)
        # TLS begins when a client asks for it, behind its first message: the listener knows nothing of it.
        self.listener = Listener(
            lambda: PgConnection(self),
            lambda: len(self._connections),
            lambda peer, reason: self.access.trail.refused(peer, "", "a connection", reason),
            connections=self.limits.connections,
            handshake_s=self.limits.unfinished_s,
            handshakes_per_address=self.limits.handshakes_per_address,
        )
        self.listener.start(bound)
        self._upkeep = loop.create_task(self._keep_up())

    async def stop(self) -> None:
        """Lets nobody in any more and ends every connection."""
        if self.listener is not None:
            self.listener.close()
        for connection in list(self._connections.values()):
            connection.cancel()
            connection.finish()
        loop = asyncio.get_running_loop()
        ends = loop.time() + _STOP_S
        while self._connections and loop.time() < ends:
            await asyncio.sleep(0.005)
        for connection in list(self._connections.values()):
            connection.abort()
        if self._upkeep is not None:
            self._upkeep.cancel()
        self.threads.shutdown(wait=False, cancel_futures=True)

    # --- connections

    def admit(self, connection: PgConnection) -> None:
        self._connections[connection.number] = connection

    def dismiss(self, connection: PgConnection) -> None:
        self._connections.pop(connection.number, None)

    def crowded(self) -> str:
        """Why nobody more is let in; empty: there is room."""
        most = self.limits.connections
        return f"more than {most} connections" if len(self._connections) > most else ""

    def refused(self, connection: PgConnection, request: str, reason: str) -> None:
        self.access.trail.refused(connection.peer, connection.user.name if connection.user else "", request, reason)

    def cancel(self, number: int, secret: int) -> None:
        """Ends the statement of a connection, for who knows its secret."""
        connection = self._connections.get(number)
        if connection is not None and connection.secret == secret:
            connection.cancel()

    def allows(self, connection: PgConnection) -> bool:
        """Whether a connection, and its user, may ask now."""
        user = connection.user
        if not self.limits.commands_per_second and (user is None or not user.commands_per_second):
            return True
        limits = ((connection.number, self.limits.commands_per_second), (user, user.commands_per_second if user else 0))
        for asker, per_second in limits:
            if per_second and not self._meters.setdefault(asker, Meter(per_second)).allows():
                return False
        return True

    # --- sessions

    def open_session(self, user: User, database: str) -> tuple[SqlSession, str]:
        """A session of a user. ``database``: the app, and a moment behind an @ where one is wanted."""
        assert self._snapshots is not None
        name, _, moment = database.partition("@")
        snapshot = self.service.snapshot
        app = name if snapshot is None else snapshot.app
        if snapshot is None and moment:
            raise NoSuchMoment("no epoch has been published yet")
        may_read = None if user.everything else user.may_read
        session = self.engine.session(self._snapshots, may_read, None if may_read is None else user)
        if moment:
            session.moment = parse_moment(moment)
        return session, app

    def catalog(self, database: str) -> PgCatalog:
        return self._catalogs.setdefault(database, PgCatalog(database))

    # --- beside the statements

    async def _keep_up(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            changed = self.access.look()
            self.access.trail.catch_up()
            now_s = self.now_s()
            for connection in list(self._connections.values()):
                reason = connection.overdue(now_s)
                if changed and connection.user is not None and not self.access.is_known(connection.user):
                    reason = "the user is not among those who may read any more"
                if reason:
                    self.refused(connection, "the connection", reason)
                    connection.abort()
            for asker in [each for each in self._meters if isinstance(each, int) and each not in self._connections]:
                del self._meters[asker]
