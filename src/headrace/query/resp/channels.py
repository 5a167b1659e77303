"""Changes as messages: who listens to which keys and states, and what they are told when an epoch is published.

A channel is a key, ``address:key``, whose messages are its new values (``null`` where it was deleted), or a state,
``address``, whose messages are objects of ``key``, ``value`` and ``epoch``. Patterns are matched against both. Where
several epochs come at once only the last value of a key is told: what is pushed is what a read would give now.

Work is done in slices, between which requests are answered. A client that does not read its messages is cut off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from headrace.query.answers import Table
from headrace.query.forms import encode
from headrace.query.patterns import Pattern
from headrace.query.resp import replies
from headrace.query.resp.commands import Refusal, Request, command, spoken

if TYPE_CHECKING:
    from headrace.query.resp.session import Session
    from headrace.query.service import Service
    from headrace.query.snapshot import Snapshot

log = logging.getLogger("headrace.serving")

_SLICE_KEYS: Final = 256
_MOST_CHANNELS: Final = 100_000
"""Of one client."""
_MOST_NAME_BYTES: Final = 1024


_HELP: Final = {
    "CHANNELS [<pattern>]": "Channels that somebody listens to.",
    "NUMPAT": "How many patterns somebody listens to.",
    "NUMSUB [<channel> ...]": "How many listen to each channel.",
}


class Channels:
    """Everybody who listens in one process."""

    def __init__(self, service: Service) -> None:
        self.exact: dict[bytes, set[Session]] = {}
        self.patterns: dict[bytes, tuple[Pattern, set[Session]]] = {}
        self._told: Snapshot | None = None
        """The snapshot whose changes were told last."""
        self._newest: Snapshot | None = None
        self._task: asyncio.Task[None] | None = None
        service.listen(self._published)

    # --- who listens

    def join(self, session: Session, channel: bytes) -> None:
        session.channels.add(channel)
        self.exact.setdefault(channel, set()).add(session)

    def join_pattern(self, session: Session, glob: bytes) -> None:
        session.patterns.add(glob)
        if glob not in self.patterns:
            self.patterns[glob] = Pattern(glob.decode("utf-8", "replace")), set()
        self.patterns[glob][1].add(session)

    def part(self, session: Session, channel: bytes) -> None:
        session.channels.discard(channel)
        members = self.exact.get(channel, set())
        members.discard(session)
        if not members:
            self.exact.pop(channel, None)

    def part_pattern(self, session: Session, glob: bytes) -> None:
        session.patterns.discard(glob)
        members = self.patterns[glob][1] if glob in self.patterns else set()
        members.discard(session)
        if not members:
            self.patterns.pop(glob, None)

    def leave(self, session: Session) -> None:
        """Stops telling a session anything."""
        for channel in list(session.channels):
            self.part(session, channel)
        for glob in list(session.patterns):
            self.part_pattern(session, glob)

    # --- what they are told

    def _published(self, before: Snapshot | None, snapshot: Snapshot) -> None:
        if not self.exact and not self.patterns:
            self._told = self._newest = None
            return
        if self._task is None or self._task.done():
            self._told = before
            self._task = asyncio.get_running_loop().create_task(self._tell())
        # A snapshot that comes while another is being told is told after it, with all between them.
        self._newest = snapshot

    async def _tell(self) -> None:
        try:
            while self._newest is not None and self._newest is not self._told:
                since, snapshot = self._told, self._newest
                for address, keys in snapshot.changed(since):
                    for part in self._wanted(snapshot, address, keys):
                        self._tell_keys(snapshot, address, part)
                        await asyncio.sleep(0)
                self._told = snapshot
        except Exception:
            log.exception("changes cannot be told")

    def _wanted(self, snapshot: Snapshot, address: str, keys: list[bytes]) -> Iterator[list[bytes]]:
        """Keys that somebody may listen to, in slices."""
        table = snapshot.table(address)
        if table is None:
            return
        head = f"{address}:"
        all_of_it = address.encode() in self.exact or any(
            _may_match(pattern, head) for pattern, _ in self.patterns.values()
        )
        if not all_of_it:
            listened = self._keys_listened_to(table, head.encode())
            keys = [key for key in keys if key in listened]
        for start in range(0, len(keys), _SLICE_KEYS):
            yield keys[start : start + _SLICE_KEYS]

    def _keys_listened_to(self, table: Table, head: bytes) -> set[bytes]:
        found = set()
        for channel in self.exact:
            if channel.startswith(head):
                try:
                    found.add(table.key_of(channel[len(head) :]))
                except ValueError:
                    continue
        return found

    def _tell_keys(self, snapshot: Snapshot, address: str, keys: list[bytes]) -> None:
        table = snapshot.table(address)
        assert table is not None
        state = address.encode()
        for key in keys:
            text = table.text(key)
            channel = f"{address}:{text}".encode()
            told = _Told(table, key, text, snapshot.epoch)
            for session in list(self.exact.get(channel, ())):
                _send(session, address, [b"message", channel], told.value(session.form))
            for session in list(self.exact.get(state, ())):
                _send(session, address, [b"message", state], told.change(session.form))
            for glob, (pattern, sessions) in list(self.patterns.items()):
                if pattern.matches(channel.decode()):
                    for session in list(sessions):
                        _send(session, address, [b"pmessage", glob, channel], told.value(session.form))
                if pattern.matches(address):
                    for session in list(sessions):
                        _send(session, address, [b"pmessage", glob, state], told.change(session.form))


class _Told:
    """A changed key as messages; each form is made once, and only if somebody wants it."""

    def __init__(self, table: Table, key: bytes, text: str, epoch: int) -> None:
        self._table, self._key, self._text, self._epoch = table, key, text, epoch
        self._made: dict[tuple[str, str], bytes] = {}

    def value(self, form: str) -> bytes:
        found = self._made.get(("value", form))
        if found is None:
            found = self._table.get(self._key, form)
            found = encode(None, form) if found is None else found
            self._made["value", form] = found
        return found

    def change(self, form: str) -> bytes:
        found = self._made.get(("change", form))
        if found is None:
            told: dict[str, Any] = {"key": self._text, "value": self._table.value(self._key), "epoch": self._epoch}
            found = self._made["change", form] = encode(told, form)
        return found


def _send(session: Session, address: str, parts: list[bytes], message: bytes) -> None:
    if session.user is not None and session.user.may_read(address):
        session.outlet.send(replies.push(map(replies.bulk, [*parts, message]), session.version))


def _may_match(pattern: Pattern, head: str) -> bool:
    """Whether a pattern may match a key of a state, or the state itself."""
    return pattern.prefix.startswith(head) or head.startswith(pattern.prefix)


# --- commands


def _confirm(session: Session, kind: bytes, channel: bytes | None) -> bytes:
    name = session.null() if channel is None else replies.bulk(channel)
    count = len(session.channels) + len(session.patterns)
    return replies.push([replies.bulk(kind), name, replies.integer(count)], session.version)


def _check_room(session: Session, names: list[bytes]) -> None:
    if len(session.channels) + len(session.patterns) + len(names) > _MOST_CHANNELS:
        session.refused("subscriptions", f"more than {_MOST_CHANNELS} channels")
        raise Refusal(f"ERR limit: a client may listen to {_MOST_CHANNELS} channels")
    if any(len(name) > _MOST_NAME_BYTES for name in names):
        raise Refusal(f"ERR limit: the name of a channel has at most {_MOST_NAME_BYTES} bytes")


@command("SUBSCRIBE", -2, "pubsub", group="pubsub", summary="Listens to changes of keys or states.")
def subscribe(session: Session, request: Request) -> bytes:
    _check_room(session, request[1:])
    out = []
    for channel in request[1:]:
        session.check(channel.partition(b":")[0])
        session.hub.join(session, channel)
        out.append(_confirm(session, b"subscribe", channel))
    return b"".join(out)


@command("PSUBSCRIBE", -2, "pubsub", group="pubsub", summary="Listens to changes of all that matches.")
def psubscribe(session: Session, request: Request) -> bytes:
    _check_room(session, request[1:])
    out = []
    for glob in request[1:]:
        session.hub.join_pattern(session, glob)
        out.append(_confirm(session, b"psubscribe", glob))
    return b"".join(out)


@command("UNSUBSCRIBE", -1, "pubsub", group="pubsub", summary="Stops listening.")
def unsubscribe(session: Session, request: Request) -> bytes:
    out = []
    for channel in request[1:] or sorted(session.channels):
        session.hub.part(session, channel)
        out.append(_confirm(session, b"unsubscribe", channel))
    return b"".join(out) or _confirm(session, b"unsubscribe", None)


@command("PUNSUBSCRIBE", -1, "pubsub", group="pubsub", summary="Stops listening to patterns.")
def punsubscribe(session: Session, request: Request) -> bytes:
    out = []
    for glob in request[1:] or sorted(session.patterns):
        session.hub.part_pattern(session, glob)
        out.append(_confirm(session, b"punsubscribe", glob))
    return b"".join(out) or _confirm(session, b"punsubscribe", None)


@command("PUBSUB", -2, "pubsub", group="pubsub", summary="Who listens: CHANNELS, NUMSUB, NUMPAT.")
def pubsub(session: Session, request: Request) -> bytes:
    wanted = request[1].upper()
    if wanted == b"CHANNELS":
        pattern = Pattern(spoken(request[2])) if len(request) > 2 else None
        names = [
            name for name in session.hub.exact if pattern is None or pattern.matches(name.decode("utf-8", "replace"))
        ]
        return replies.array(map(replies.bulk, names))
    if wanted == b"NUMSUB":
        counts = ((replies.bulk(name), replies.integer(len(session.hub.exact.get(name, ())))) for name in request[2:])
        return replies.array(part for pair in counts for part in pair)
    if wanted == b"NUMPAT":
        return replies.integer(len(session.hub.patterns))
    if wanted == b"HELP":
        return replies.help_lines("PUBSUB", _HELP)
    raise Refusal(f"ERR unknown subcommand '{spoken(request[1])}'. Try PUBSUB HELP.")
