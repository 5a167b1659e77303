"""One client as commands see it: who it is, what it speaks, what it subscribed to, and what it may read.

What a session deliberately does not know: sockets. The connection that owns it is told through `Outlet`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from headrace.net.access import ANYBODY, Meter, User
from headrace.net.problems import shorten
from headrace.read.forms import JSON
from headrace.read.reader import Reader
from headrace.serve.resp import replies
from headrace.serve.resp.commands import Refusal, Request
from headrace.serve.service import nearest_addresses

if TYPE_CHECKING:
    from headrace.read.snapshot import Snapshot
    from headrace.serve.resp.channels import Channels
    from headrace.serve.resp.scopes import ReplyScope, Scopes
    from headrace.serve.service import Service
    from headrace.state.moments import Moment


class Outlet(Protocol):
    """What a session needs of its connection."""

    peer: str

    def send(self, data: bytes) -> None:
        """Writes something that was not asked for; a client that does not read is cut off."""

    def close_after_replies(self) -> None: ...


class Host(Protocol):
    """What a session, and commands through it, need of the server: what all connections share."""

    service: Service
    scopes: Scopes
    channels: Channels
    total_connections: int
    rejected_connections: int

    @property
    def connections(self) -> int: ...

    @property
    def total_commands(self) -> int: ...

    def sessions(self) -> Iterator[RespSession]: ...

    def meter_of(self, user: User | None) -> Meter | None:
        """What counts the commands of all connections of this user; None: nothing does."""

    def count_of(self, table: Reader) -> int:
        """How many keys a state has."""


class RespSession:
    """The state of one client's conversation."""

    def __init__(self, server: Host, outlet: Outlet, number: int) -> None:
        self.server = server
        self.service = server.service
        self.outlet = outlet
        self.number = number
        self.name = ""
        self.library: dict[str, str] = {}
        """What the client says of itself: ``lib-name``, ``lib-ver``."""
        self.version = 2
        self.form = JSON
        self.user: User | None = ANYBODY if server.service.access.open else None
        """None: the client has not named itself yet, and has to."""
        self.queued: list[Request] | None = None
        """Requests between MULTI and EXEC …"""
        self.queued_bytes = 0
        """… and how much they hold."""
        self.broken = False
        """Whether one of them was refused, so that EXEC will be."""
        self.channels: set[bytes] = set()
        self.channel_bytes = 0
        """Of the names of them."""
        self.patterns: set[bytes] = set()
        self.commands = 0
        self.since_s = server.service.clock()
        self.scope: ReplyScope = server.scopes.of(self.user or ANYBODY, self.form, self.version)
        self._pinned = False
        """Whether it stays with the snapshot it is at, whatever is published."""
        self.moment: Moment | None = None
        """The moment of the past that the client set its connection to."""
        rate = server.service.limits.commands_per_second
        self._meter = Meter(rate) if rate else None
        """Counts what comes over this connection, whoever it comes from and whatever is chosen meanwhile."""
        self.meters: tuple[Meter, ...] = ()
        self.settle()

    @property
    def listening(self) -> bool:
        return bool(self.channels or self.patterns)

    @property
    def plain(self) -> bool:
        """Whether a GET is answered from the newest snapshot at once, whoever sends it."""
        special = self.queued is not None or self.moment is not None or (self.listening and self.version == 2)
        return not (self.user is None or self.meters or special)

    @property
    def hub(self) -> Channels:
        return self.server.channels

    @property
    def snapshot(self) -> Snapshot:
        """What this request is answered from."""
        snapshot = self.scope.snapshot
        if snapshot is None:
            raise Refusal(loading(self.service))
        return snapshot

    def settle(self) -> None:
        """Who asks, or in what form, has changed."""
        scopes, seen = self.server.scopes, (self.user or ANYBODY, self.form, self.version)
        self.scope = scopes.pinned(self.scope.snapshot, *seen) if self._pinned else scopes.of(*seen)
        self.meters = tuple(meter for meter in (self._meter, self.server.meter_of(self.user)) if meter is not None)

    @contextlib.contextmanager
    def pinned(self, snapshot: Snapshot | None) -> Iterator[None]:
        """Answers from a snapshot until it ends, whatever is published meanwhile."""
        before = self._pinned, self.scope
        self._pinned = True
        self.scope = self.server.scopes.pinned(snapshot, self.user or ANYBODY, self.form, self.version)
        try:
            yield
        finally:
            # A transaction that is held at its epoch may have requests about others.
            self._pinned, self.scope = before
            if not self._pinned:
                self.settle()

    def reset(self) -> None:
        """As if the client had just connected."""
        self.hub.leave(self)
        self.queued, self.broken = None, False
        self.name, self.version, self.form, self.moment = "", 2, JSON, None
        self.user = ANYBODY if self.service.access.open else None
        self.settle()

    def find(self, key: bytes) -> tuple[Reader, bytes] | None:
        """The state and the stored key that a client means; None where there can be no such key."""
        address, _, text = key.partition(b":")
        table = self.scope.tables.get(address)
        if table is None:
            self.check_state(address)
            return None
        try:
            return table, table.key_of(text)
        except ValueError:
            return None

    def check(self, address: bytes) -> None:
        """Refuses a state that this user may not read, whether there is such a state or not."""
        if self.user is None or self.user.everything:
            return
        name = address.decode("utf-8", "replace")
        if not self.user.may_read(name):
            self.refused(f"read {shorten(name)}", "the user may not read this state")
            raise Refusal(f"NOPERM user {self.user.name} may not read the state {shorten(name)}")

    def check_state(self, address: bytes) -> None:
        """Refuses a state that this user may not read, and one that the job does not keep."""
        self.check(address)
        snapshot = self.scope.snapshot
        if snapshot is not None and not snapshot.knows(address.decode("utf-8", "replace")):
            raise Refusal(f"ERR {self.no_state(address)}")

    def no_state(self, address: bytes) -> str:
        """What is said of an address that is wrong: states that may be meant, of those that the client may read."""
        name = address.decode("utf-8", "replace")
        readable = sorted(each.decode() for each in self.scope.tables)
        near = nearest_addresses(name, readable)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        return f"no state {shorten(name)!r}{hint}"

    def refused(self, request: str, reason: str) -> None:
        """Writes the audit line of a refused request."""
        self.service.access.trail.refused(
            self.outlet.peer, self.user.name if self.user is not None else "", request, reason
        )

    def null(self) -> bytes:
        return replies.NULL3 if self.version == 3 else replies.NULL2


def loading(service: Service) -> str:
    return f"LOADING {service.trouble or 'waiting for the first epoch'}"
