"""All connections of Redis' protocol in one process: who is let in, who is cut off, and what they share."""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from headrace.net.access import Meter, User
from headrace.net.listening import Listener

# Each of these puts its commands into the table.
from headrace.serve.resp import about, channels, reading, scanning, stored, talking  # noqa: F401
from headrace.serve.resp.channels import Channels
from headrace.serve.resp.connection import Connection
from headrace.serve.resp.scopes import Scopes
from headrace.serve.resp.session import RespSession

if TYPE_CHECKING:
    from headrace.read.reader import Reader
    from headrace.serve.service import Service

TICK_S: Final = 0.5
_DISPOSE_S: Final = 0.002
_STOP_S: Final = 0.5


class RespServer:
    """Redis' protocol over one service."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.scopes = Scopes(service)
        self.channels = Channels(service)
        self.tick = 0
        """Counts half seconds: a clock that costs nothing to look at."""
        self.total_connections = 0
        self.rejected_connections = 0
        self._numbers = itertools.count(1)
        self._connections: dict[Connection, RespSession] = {}
        self._commands_before = 0
        """Of connections that have ended."""
        self._meters: dict[User, Meter] = {}
        self._counts: WeakKeyDictionary[Reader, int] = WeakKeyDictionary()
        self.listener: Listener | None = None
        self._upkeep: asyncio.Task[None] | None = None
        service.figures |= {
            "redis_connections": lambda: self.connections,
            "redis_connections_total": lambda: self.total_connections,
            "redis_rejected_connections_total": lambda: self.rejected_connections,
            "redis_commands_total": lambda: self.total_commands,
            "redis_kept_replies": lambda: self.scopes.kept_replies,
        }

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def total_commands(self) -> int:
        return self._commands_before + sum(session.commands for session in self._connections.values())

    def sessions(self) -> Iterator[RespSession]:
        return iter(list(self._connections.values()))

    # --- life

    async def start(self, bound: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Begins to answer on a bound socket."""
        limits = self.service.limits
        self.listener = Listener(
            lambda: Connection(self),
            lambda: self.connections,
            self._refused,
            connections=limits.connections,
            handshake_s=limits.unfinished_s,
            handshakes_per_address=limits.handshakes_per_address,
            tls=tls,
        )
        self.listener.start(bound)
        self._upkeep = asyncio.get_running_loop().create_task(self._keep_up())

    async def stop(self) -> None:
        """Lets nobody in any more and ends every connection."""
        if self.listener is not None:
            self.listener.close()
        for connection in list(self._connections):
            connection.close_after_replies()
            connection.transport.close()
        # Replies that are on their way may arrive; who does not take them is not waited for long.
        loop = asyncio.get_running_loop()
        ends = loop.time() + _STOP_S
        while self._connections and loop.time() < ends:
            await asyncio.sleep(0.005)
        for connection in list(self._connections):
            connection.abort()
        if self._upkeep is not None:
            self._upkeep.cancel()

    # --- connections

    def _refused(self, peer: str, reason: str) -> None:
        self.rejected_connections += 1
        self.service.access.trail.refused(peer, "", "a connection", reason)

    def admit(self, connection: Connection) -> bool:
        """Takes a connection in, or answers that there is no room."""
        self.total_connections += 1
        connection.session = session = RespSession(self, connection, next(self._numbers))
        if len(self._connections) >= self.service.limits.connections:
            self.rejected_connections += 1
            session.refused("a connection", f"more than {self.service.limits.connections} connections")
            return False
        self._connections[connection] = session
        return True

    def dismiss(self, connection: Connection) -> None:
        session = self._connections.pop(connection, None)
        if session is not None:
            self._commands_before += session.commands
            self.channels.leave(session)

    def meter_of(self, user: User | None) -> Meter | None:
        """What counts the commands of all connections of this user; None: nothing does."""
        if user is None or not user.commands_per_second:
            return None
        return self._meters.setdefault(user, Meter(user.commands_per_second))

    def count_of(self, table: Reader) -> int:
        """How many keys a state has; counted once per epoch."""
        found = self._counts.get(table)
        if found is None:
            found = self._counts[table] = table.estimate()
        return found

    # --- beside the requests

    async def _keep_up(self) -> None:
        loop = asyncio.get_running_loop()
        next_tick = loop.time() + TICK_S
        while True:
            more = self.scopes.dispose.work()
            await asyncio.sleep(_DISPOSE_S if more else min(TICK_S, max(0.0, next_tick - loop.time())))
            if loop.time() >= next_tick:
                next_tick = loop.time() + TICK_S
                self.tick += 1
                self._sweep()

    def _sweep(self) -> None:
        """Ends connections that take too long and those of users that are no longer known."""
        changed = self.service.access.look()
        self.service.access.trail.catch_up()
        limits = self.service.limits
        for connection, session in list(self._connections.items()):
            reason = _overdue(connection, self.tick, limits.unfinished_s, limits.unread_s, limits.idle_s)
            if changed and session.user is not None and not self.service.access.is_known(session.user):
                reason = "the user is not among those who may read any more"
            if reason:
                session.refused("the connection", reason)
                connection.abort()


def _overdue(connection: Connection, tick: int, unfinished_s: float, unread_s: float, idle_s: float) -> str:
    """Why a connection has to end; empty: it has not."""
    if connection.stuck_since is not None:
        waited_s = (tick - connection.stuck_since) * TICK_S
        if connection.full and waited_s > unread_s:
            return f"replies were not read for {unread_s:g} s"
        if not connection.full and waited_s > unfinished_s:
            return f"a request was not completed within {unfinished_s:g} s"
    quiet_s = (tick - connection.seen) * TICK_S
    return f"nothing was said for {idle_s:g} s" if idle_s and quiet_s > idle_s and not connection.listening else ""
