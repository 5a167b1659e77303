"""Changes as messages: who listens to which keys and states, and what they are told when an epoch is published.

A channel is a key, ``address:key``, whose messages are its new values (``null`` where it was deleted), or a state,
``address``, whose messages are objects of ``key``, ``value`` and ``epoch``. Patterns are matched against both. Where
several epochs come at once only the last value of a key is told: what is pushed is what a read would give now. Of a
value that a read refuses, as a sum beyond 64 bits, there is no message: a channel of a key has no form for an error.

Whoever listens to a key is also told when its value expires or its last window ends, with the first epoch whose time
has come so far. Whoever listens to a state or a pattern is not: nobody writes that down, so what expired would have to
be looked for among all keys, and the end of an hour would be a message for each of them.

Work is done in slices, between which requests are answered: by keys times patterns, because every changed key is held
against every pattern that anybody listens to. A client that does not read its messages is cut off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import FunctionFailed
from headrace.model.keys import decode_key, key_text
from headrace.read.forms import PACKED, encode
from headrace.read.patterns import Pattern
from headrace.read.reader import Reader
from headrace.serve.resp import replies
from headrace.serve.resp.commands import Refusal, Request, command, spoken
from headrace.serve.resp.listened import KeysListenedTo

if TYPE_CHECKING:
    from headrace.read.snapshot import Snapshot
    from headrace.serve.resp.session import RespSession
    from headrace.serve.service import Service

log = logging.getLogger("headrace.serving")

_SLICE_WORK: Final = 2048
"""So much is done before others are answered, in patterns that are held against a key; a key by itself costs …"""
_KEY_WORK: Final = 8
_PATTERNS_AT_ONCE: Final = 256
_MOST_CHANNELS: Final = 100_000
"""Of one client; all their names together have at most …"""
_MOST_BYTES: Final = 8 * 2**20
_MOST_PATTERNS: Final = 100
"""Of one client. Channels are looked up, but each pattern costs something for every key that changes."""
_MOST_PATTERN_BYTES: Final = 8192
_MOST_NAME_BYTES: Final = 1024


_HELP: Final = {
    "CHANNELS [<pattern>]": "Channels that somebody listens to.",
    "NUMPAT": "How many patterns somebody listens to.",
    "NUMSUB [<channel> ...]": "How many listen to each channel.",
}


class Channels:
    """Everybody who listens in one process."""

    def __init__(self, service: Service) -> None:
        self.exact: dict[bytes, set[RespSession]] = {}
        self.patterns: dict[bytes, tuple[Pattern, set[RespSession]]] = {}
        self._keys: dict[bytes, KeysListenedTo] = {}
        """Address of a state → its keys among the channels."""
        self._told: Snapshot | None = None
        """The snapshot whose changes were told last."""
        self._newest: Snapshot | None = None
        self._task: asyncio.Task[None] | None = None
        service.listen(self._published)

    # --- who listens

    def join(self, session: RespSession, channel: bytes) -> None:
        if channel not in session.channels:
            session.channels.add(channel)
            session.channel_bytes += len(channel)
        if channel not in self.exact:
            self.exact[channel] = set()
            address, divided, text = channel.partition(b":")
            if divided:
                self._keys.setdefault(address, KeysListenedTo()).add(text)
        self.exact[channel].add(session)

    def join_pattern(self, session: RespSession, glob: bytes) -> None:
        session.patterns.add(glob)
        if glob not in self.patterns:
            self.patterns[glob] = Pattern(glob.decode("utf-8", "replace")), set()
        self.patterns[glob][1].add(session)

    def part(self, session: RespSession, channel: bytes) -> None:
        if channel in session.channels:
            session.channels.discard(channel)
            session.channel_bytes -= len(channel)
        members = self.exact.get(channel)
        if members is None:
            return
        members.discard(session)
        if not members:
            del self.exact[channel]
            address, divided, text = channel.partition(b":")
            if divided:
                self._keys[address].drop(text)
                if not self._keys[address]:
                    del self._keys[address]

    def part_pattern(self, session: RespSession, glob: bytes) -> None:
        session.patterns.discard(glob)
        members = self.patterns[glob][1] if glob in self.patterns else set()
        members.discard(session)
        if not members:
            self.patterns.pop(glob, None)

    def leave(self, session: RespSession) -> None:
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
                    table = snapshot.table(address)
                    if table is not None:
                        await self._tell_state(table, snapshot.epoch, keys)
                await self._tell_ends(since, snapshot)
                self._told = snapshot
        except Exception:
            log.exception("changes cannot be told")

    async def _tell_state(self, table: Reader, epoch: int, keys: list[bytes]) -> None:
        """Tells everybody who listens of the changed keys of one state."""
        address, head = table.address, f"{table.address}:"
        state = address.encode()
        listening = [
            _Listening(glob, pattern, sessions)
            for glob, (pattern, sessions) in self.patterns.items()
            if _may_match(pattern, head)
        ]
        over_state = [each for each in listening if each.pattern.matches(address)]
        known = self._keys.get(state)
        listened = () if known is None else known.keys(table)
        if not listening and state not in self.exact:
            keys = [key for key in keys if key in listened]
        turns = _Turns()
        for key in keys:
            text = table.text(key)
            channel = f"{head}{text}".encode()
            told = _KeyMessages(table, key, text, epoch)
            if known is not None and key in listened:
                known.changed(key)
                self._tell_key(state, key, told)
            for session in list(self.exact.get(state, ())):
                _send(session, address, [b"message", state], told.change(session.form))
            for each in over_state:
                for session in list(each.sessions):
                    _send(session, address, [b"pmessage", each.glob, state], told.change(session.form))
            await turns.spend(_KEY_WORK + len(over_state))
            for start in range(0, len(listening), _PATTERNS_AT_ONCE):
                part = listening[start : start + _PATTERNS_AT_ONCE]
                for each in part:
                    if each.sessions and each.pattern.matches(head + text):
                        for session in list(each.sessions):
                            _send(session, address, [b"pmessage", each.glob, channel], told.value(session.form))
                await turns.spend(len(part))

    async def _tell_ends(self, since: Snapshot | None, snapshot: Snapshot) -> None:
        """Tells those who listen to keys of values that expired and of windows that ended between two epochs."""
        turns = _Turns()
        for address, known in list(self._keys.items()):
            if since is None or since.line != snapshot.line:
                known.begin_anew()
                continue
            table, before = (each.table(address.decode("utf-8", "replace")) for each in (snapshot, since))
            if table is None or before is None:
                continue
            known.keys(table)
            for key in known.due(before, table):
                await turns.spend(_KEY_WORK)
                if key is None:
                    continue
                text = table.text(key)
                old = _KeyMessages(before, key, text, since.epoch)
                new = _KeyMessages(table, key, text, snapshot.epoch)
                if old.value(PACKED) != new.value(PACKED):
                    self._tell_key(address, key, new)

    def _tell_key(self, address: bytes, key: bytes, told: _KeyMessages) -> None:
        """Tells those who listen to a key of its new value, under the channel that they named."""
        known = self._keys.get(address)
        for text in known.texts(key) if known is not None else ():
            channel = b"%b:%b" % (address, text)
            for session in list(self.exact.get(channel, ())):
                _send(session, told.address, [b"message", channel], told.value(session.form))


class _Listening(NamedTuple):
    """Who listens to a pattern."""

    glob: bytes
    pattern: Pattern
    sessions: set[RespSession]
    """Those who do now: whoever stops is taken out of it."""


class _Turns:
    """Lets others have their turn whenever so much work was done."""

    def __init__(self) -> None:
        self._left = _SLICE_WORK

    async def spend(self, work: int) -> None:
        self._left -= work
        if self._left <= 0:
            self._left = _SLICE_WORK
            await asyncio.sleep(0)


class _KeyMessages:
    """A changed key as messages, each made once, and only if somebody wants it; None where its value is refused."""

    def __init__(self, table: Reader, key: bytes, text: str, epoch: int) -> None:
        self.address = table.address
        self._table, self._key, self._text, self._epoch = table, key, text, epoch
        self._made: dict[tuple[Callable[[str], bytes], str], bytes | None] = {}

    def value(self, form: str) -> bytes | None:
        return self._message(self._value, form)

    def change(self, form: str) -> bytes | None:
        return self._message(self._change, form)

    def _message(self, make: Callable[[str], bytes], form: str) -> bytes | None:
        if (make, form) not in self._made:
            try:
                self._made[make, form] = make(form)
            except FunctionFailed as error:
                log.info("a change in epoch %d cannot be told: %s", self._epoch, replies.problem_text(error))
                self._made[make, form] = None
        return self._made[make, form]

    def _value(self, form: str) -> bytes:
        value = self._table.get(self._key, form)
        return encode(None, form) if value is None else value

    def _change(self, form: str) -> bytes:
        value = self._table.shown(self._table.value(self._key), form)
        # Times in it are numbers in one form and text in the other, as those of the value.
        text = key_text(decode_key(self._key)) if form == PACKED else self._text
        return encode({"key": text, "value": value, "epoch": self._epoch}, form)


def _send(session: RespSession, address: str, parts: list[bytes], message: bytes | None) -> None:
    """Sends a message to a session that may read the state; None: there is none."""
    if message is not None and session.user is not None and session.user.may_read(address):
        session.outlet.send(replies.push(map(replies.bulk, [*parts, message]), session.version))


def _may_match(pattern: Pattern, head: str) -> bool:
    """Whether a pattern may match a key of a state, or the state itself."""
    return pattern.prefix.startswith(head) or head.startswith(pattern.prefix)


# --- commands


def _confirm(session: RespSession, kind: bytes, channel: bytes | None) -> bytes:
    name = session.null() if channel is None else replies.bulk(channel)
    count = len(session.channels) + len(session.patterns)
    return replies.push([replies.bulk(kind), name, replies.integer(count)], session.version)


def _check_room(session: RespSession, names: list[bytes], *, patterns: bool = False) -> None:
    """Refuses more names, or more bytes of them, than one client may listen to."""
    what, most, most_bytes = ("channels", _MOST_CHANNELS, _MOST_BYTES)
    held, held_bytes = session.channels, session.channel_bytes
    if patterns:
        what, most, most_bytes = ("patterns", _MOST_PATTERNS, _MOST_PATTERN_BYTES)
        held, held_bytes = session.patterns, sum(map(len, session.patterns))
    added = {name for name in names if name not in held}
    limit = ""
    if len(held) + len(added) > most:
        limit = f"a client may listen to {most} {what}"
    elif any(len(name) > _MOST_NAME_BYTES for name in added):
        limit = f"the name of a channel has at most {_MOST_NAME_BYTES} bytes"
    elif held_bytes + sum(map(len, added)) > most_bytes:
        limit = f"the names of all {what} of a client have at most {most_bytes} bytes"
    if limit:
        session.refused(f"{len(added)} {what}", limit)
        raise Refusal(f"ERR limit: {limit}")


@command("SUBSCRIBE", -2, "pubsub", group="pubsub", summary="Listens to changes of keys or states.")
def subscribe(session: RespSession, request: Request) -> bytes:
    _check_room(session, request[1:])
    for channel in request[1:]:
        session.check_state(channel.partition(b":")[0])
    out = []
    for channel in request[1:]:
        session.hub.join(session, channel)
        out.append(_confirm(session, b"subscribe", channel))
    return b"".join(out)


@command("PSUBSCRIBE", -2, "pubsub", group="pubsub", summary="Listens to changes of all that matches.")
def psubscribe(session: RespSession, request: Request) -> bytes:
    _check_room(session, request[1:], patterns=True)
    out = []
    for glob in request[1:]:
        session.hub.join_pattern(session, glob)
        out.append(_confirm(session, b"psubscribe", glob))
    return b"".join(out)


@command("UNSUBSCRIBE", -1, "pubsub", group="pubsub", summary="Stops listening.")
def unsubscribe(session: RespSession, request: Request) -> bytes:
    out = []
    for channel in request[1:] or sorted(session.channels):
        session.hub.part(session, channel)
        out.append(_confirm(session, b"unsubscribe", channel))
    return b"".join(out) or _confirm(session, b"unsubscribe", None)


@command("PUNSUBSCRIBE", -1, "pubsub", group="pubsub", summary="Stops listening to patterns.")
def punsubscribe(session: RespSession, request: Request) -> bytes:
    out = []
    for glob in request[1:] or sorted(session.patterns):
        session.hub.part_pattern(session, glob)
        out.append(_confirm(session, b"punsubscribe", glob))
    return b"".join(out) or _confirm(session, b"punsubscribe", None)


@command("PUBSUB", -2, "pubsub", group="pubsub", summary="Who listens: CHANNELS, NUMSUB, NUMPAT.")
def pubsub(session: RespSession, request: Request) -> bytes:
    wanted = request[1].upper()
    if wanted == b"CHANNELS":
        pattern = Pattern(spoken(request[2])) if len(request) > 2 else None
        names = [
            name
            for name in session.hub.exact
            if (pattern is None or pattern.matches(name.decode("utf-8", "replace"))) and _may_hear(session, name)
        ]
        return replies.array(map(replies.bulk, names))
    if wanted == b"NUMSUB":
        counts = (len(session.hub.exact.get(name, ())) if _may_hear(session, name) else 0 for name in request[2:])
        pairs = zip(map(replies.bulk, request[2:]), map(replies.integer, counts))
        return replies.array(part for pair in pairs for part in pair)
    if wanted == b"NUMPAT":
        return replies.integer(len(session.hub.patterns))
    if wanted == b"HELP":
        return replies.help_lines("PUBSUB", _HELP)
    raise Refusal(f"ERR unknown subcommand '{spoken(request[1])}'. Try PUBSUB HELP.")


def _may_hear(session: RespSession, channel: bytes) -> bool:
    """Whether the client may know that somebody listens: keys that others ask for are their business."""
    user = session.user
    if user is None or user.everything:
        return True
    return channel in session.channels or user.may_read(channel.partition(b":")[0].decode("utf-8", "replace"))
