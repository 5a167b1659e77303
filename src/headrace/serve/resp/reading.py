"""Commands that read keys: values, fields, entries, windows, elements, expiry.

A key is ``address:key``. What a state keeps decides what can be asked of it: values and the newest window are strings;
maps, the windows of a key and Records are hashes; lists and timers are lists. A key that is not there is of no kind, so
any command answers as Redis does for an absent key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import islice, starmap
from typing import Any, Final, TypeGuard

from headrace.read.entries import EntryReader
from headrace.read.forms import encode
from headrace.read.reader import Reader
from headrace.serve.resp import replies
from headrace.serve.resp.commands import Refusal, Reply, Request, command, number
from headrace.serve.resp.refusing import ReplyParts, check_keys, less_room, within_room
from headrace.serve.resp.scopes import WRONG_TYPE, asked, key_asked
from headrace.serve.resp.session import RespSession

_NO_KEY: Final = -2
_NO_EXPIRY: Final = -1
_FEW: Final = 1000
"""Up to this many keys are looked for one by one, as in `headrace.read.values`."""
_AT_ONCE: Final = 2000
"""More are looked for in several goes, so that large values are noticed before they are all there."""
_MANY: Final = 2000
"""Keys with more entries than this are gathered in slices, between which others are answered."""
KINDS: Final = {"value": "string", "windows": "hash", "map": "hash", "list": "list", "timers": "list"}
"""What a state keeps → what Redis calls it."""


# --- strings


@command("GET", 2, "readonly", "fast", "data", keys=(1, 1, 1), group="string", summary="The value of a key.")
def get(session: RespSession, request: Request) -> bytes:
    reply = session.scope.get(request[1])
    if reply is None:
        session.check_state(request[1].partition(b":")[0])
        return session.null()
    return reply


@command("MGET", -2, "readonly", "fast", "data", keys=(1, -1, 1), group="string", summary="The values of several keys.")
def mget(session: RespSession, request: Request) -> bytes:
    keys = request[1:]
    check_keys(session, len(keys))
    made = mget_asked(session, [asked(key) for key in keys], keys)
    assert made is not None
    return made


def mget_asked(session: RespSession, pieces: Sequence[bytes], keys: Sequence[bytes] | None = None) -> bytes | None:
    """The reply for keys as they stand in a request; None where one is no whole key. ``keys``: where they are known."""
    scope = session.scope
    # Looked up once: an epoch that is being prepared takes replies out meanwhile.
    found = list(map(scope.kept.get, pieces))
    missing: dict[bytes, bytes] = {}
    for place, reply in enumerate(found):
        if reply is None:
            key = key_asked(pieces[place]) if keys is None else keys[place]
            if key is None:
                return None
            missing[pieces[place]] = key
    made = _make_many(session, missing) if missing else {}
    nothing = scope.null
    told = [reply or made.get(piece, nothing) for piece, reply in zip(pieces, found)]
    # One value may be asked for many times.
    less_room(session, session.service.limits.reply_bytes, sum(map(len, told)))
    return b"*%d\r\n%b" % (len(told), b"".join(told))


def _make_many(session: RespSession, missing: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Replies that are not kept, by keys as they are asked for; nothing for keys that are not there."""
    scope = session.scope
    made: dict[bytes, bytes] = {}
    room = session.service.limits.reply_bytes
    if len(missing) <= _FEW:
        for piece, key in missing.items():
            reply = scope.make(piece, key)
            if reply is None:
                session.check_state(key.partition(b":")[0])
            elif not reply.startswith(b"-"):
                made[piece] = reply
                room = less_room(session, room, len(reply))
            elif reply is not WRONG_TYPE:
                raise Refusal(reply[1:-2].decode())
        return made
    wanted: dict[Reader, dict[bytes, bytes]] = {}
    for piece, key in missing.items():
        found = session.find(key)
        if found is not None and found[0].kind in ("value", "windows"):
            wanted.setdefault(found[0], {})[piece] = found[1]
    for table, stored in wanted.items():
        pairs = iter(stored.items())
        while part := dict(islice(pairs, _AT_ONCE)):
            values = table.get_many(list(part.values()), session.form)
            told = {piece: replies.bulk(value) for piece, value in zip(part, values) if value is not None}
            for reply in told.values():
                room = less_room(session, room, len(reply))
            if table.stable and table.by_text:
                scope.keep(told)
            made |= told
    return made


@command("STRLEN", 2, "readonly", "fast", "data", keys=(1, 1, 1), group="string", summary="The length of a value.")
def strlen(session: RespSession, request: Request) -> bytes:
    found = session.find(request[1])
    if found is None:
        return replies.ZERO
    table, key = found
    if table.kind not in ("value", "windows"):
        return WRONG_TYPE if table.has(key) else replies.ZERO
    return replies.integer(len(table.get(key, session.form) or b""))


# --- any kind


@command("EXISTS", -2, "readonly", "fast", "data", keys=(1, -1, 1), group="generic", summary="How many keys are there.")
@command("TOUCH", -2, "readonly", "fast", "data", keys=(1, -1, 1), group="generic", summary="The same as EXISTS here.")
def exists(session: RespSession, request: Request) -> bytes:
    check_keys(session, len(request) - 1)
    pairs = (session.find(key) for key in request[1:])
    return replies.integer(sum(1 for found in pairs if found is not None and found[0].has(found[1])))


@command("TYPE", 2, "readonly", "fast", "data", keys=(1, 1, 1), group="generic", summary="What kind a key is of.")
def type_(session: RespSession, request: Request) -> bytes:
    found = session.find(request[1])
    there = found is not None and found[0].has(found[1])
    return replies.simple(KINDS[found[0].kind] if found is not None and there else "none")


def _expires_ms(session: RespSession, key: bytes) -> int:
    """When a key ends, in milliseconds since 1970; −1: never, −2: there is no such key."""
    found = session.find(key)
    if found is None or not found[0].has(found[1]):
        return _NO_KEY
    ends = found[0].expires_us(found[1])
    return _NO_EXPIRY if ends is None else max(0, ends // 1000)


def _left_ms(session: RespSession, key: bytes) -> int:
    """How long a key will still be there, by the clock that it expires by."""
    ends = _expires_ms(session, key)
    if ends < 0:
        return ends
    found = session.find(key)
    assert found is not None
    now_us = found[0].now_us
    wall_us = session.snapshot.clock_us
    # Time goes on after the epoch where it is the wall clock; event time stands still until the next one.
    now_ms = session.service.clock() * 1000 if now_us == wall_us else (now_us or 0) / 1000
    return max(0, round(ends - now_ms))


@command(
    "PTTL", 2, "readonly", "fast", "data", keys=(1, 1, 1), group="generic", summary="Milliseconds until a key ends."
)
def pttl(session: RespSession, request: Request) -> bytes:
    return replies.integer(_left_ms(session, request[1]))


@command("TTL", 2, "readonly", "fast", "data", keys=(1, 1, 1), group="generic", summary="Seconds until a key ends.")
def ttl(session: RespSession, request: Request) -> bytes:
    left = _left_ms(session, request[1])
    return replies.integer(left if left < 0 else round(left / 1000))


@command("EXPIRETIME", 2, "readonly", "fast", "data", keys=(1, 1, 1), group="generic", summary="When a key ends.")
def expiretime(session: RespSession, request: Request) -> bytes:
    ends = _expires_ms(session, request[1])
    return replies.integer(ends if ends < 0 else ends // 1000)


@command(
    "PEXPIRETIME", 2, "readonly", "fast", "data", keys=(1, 1, 1), group="generic", summary="When a key ends, in ms."
)
def pexpiretime(session: RespSession, request: Request) -> bytes:
    return replies.integer(_expires_ms(session, request[1]))


# --- hashes: entries of a map, windows of a key, fields of a Record


def with_fields(
    session: RespSession, key: bytes, make: Callable[[str, Any], bytes | None], tell: Callable[[list[bytes]], bytes]
) -> Reply:
    """What is told of the parts of a key, of none where it is not there; `make` gives what a reply has of a part.

    Very many are gathered little by little, and no more than a reply may hold.
    """
    found = session.find(key)
    if found is None:
        return tell([])
    table, stored = found
    if _has_many(table, stored) and table.kind == "map":
        return _tell_slowly(session, starmap(make, table.walk_fields(stored, session.form)), tell)
    parts = ReplyParts(session)
    parts.add(starmap(make, _fields_of(session, table, stored).items()))
    return tell(parts.held)


def _has_many(table: Reader, stored: bytes) -> TypeGuard[EntryReader]:
    return isinstance(table, EntryReader) and table.rows_of(stored) > _MANY


def _fields_of(session: RespSession, table: Reader, stored: bytes) -> dict[str, Any]:
    try:
        return table.fields(stored, session.form) or {}
    except TypeError:
        raise Refusal(WRONG_TYPE[1:-2].decode()) from None


async def _slices(parts: Iterator[Any]) -> AsyncIterator[list[Any]]:
    """Many things in lists of some, between which others are answered."""
    while held := list(islice(parts, _MANY)):
        yield held
        await asyncio.sleep(0)


async def _tell_slowly(
    session: RespSession, made: Iterator[bytes | None], tell: Callable[[list[bytes]], bytes]
) -> bytes:
    parts = ReplyParts(session)
    async for some in _slices(made):
        parts.add(some)
    return tell(parts.held)


async def _count(things: Iterator[Any]) -> int:
    return sum([len(some) async for some in _slices(things)])


async def _count_slowly(things: Iterator[Any]) -> bytes:
    return replies.integer(await _count(things))


def _field_of(session: RespSession, key: bytes, name: bytes) -> Any:
    found = session.find(key)
    if found is None:
        return None
    try:
        return found[0].field(found[1], name.decode(), session.form)
    except UnicodeDecodeError:
        return None
    except TypeError:
        raise Refusal(WRONG_TYPE[1:-2].decode()) from None


def value_reply(session: RespSession, value: Any) -> bytes:
    return session.null() if value is None else replies.bulk(encode(value, session.form))


@command("HGET", 3, "readonly", "fast", "data", keys=(1, 1, 1), group="hash", summary="One entry, window or field.")
def hget(session: RespSession, request: Request) -> bytes:
    return value_reply(session, _field_of(session, request[1], request[2]))


@command("HMGET", -3, "readonly", "fast", "data", keys=(1, 1, 1), group="hash", summary="Several entries or fields.")
def hmget(session: RespSession, request: Request) -> Reply:
    check_keys(session, len(request) - 2)
    found = session.find(request[1])
    if found is None or found[0].kind == "map":
        values = (value_reply(session, _field_of(session, request[1], name)) for name in request[2:])
        return replies.array(within_room(session, values))
    fields = _fields_of(session, *found)
    values = (value_reply(session, fields.get(name.decode("utf-8", "replace"))) for name in request[2:])
    return replies.array(within_room(session, values))


@command("HGETALL", 2, "readonly", "data", keys=(1, 1, 1), group="hash", summary="All entries, windows or fields.")
def hgetall(session: RespSession, request: Request) -> Reply:
    form = session.form
    return with_fields(
        session,
        request[1],
        lambda name, value: replies.text(name) + replies.bulk(encode(value, form)),
        lambda pairs: replies.mapping(pairs, session.version),
    )


@command("HKEYS", 2, "readonly", "data", keys=(1, 1, 1), group="hash", summary="Names of entries, windows or fields.")
def hkeys(session: RespSession, request: Request) -> Reply:
    return with_fields(session, request[1], lambda name, _: replies.text(name), replies.array)


@command("HVALS", 2, "readonly", "data", keys=(1, 1, 1), group="hash", summary="Values of entries, windows or fields.")
def hvals(session: RespSession, request: Request) -> Reply:
    form = session.form
    return with_fields(session, request[1], lambda _, value: replies.bulk(encode(value, form)), replies.array)


@command("HLEN", 2, "readonly", "fast", "data", keys=(1, 1, 1), group="hash", summary="How many entries or windows.")
def hlen(session: RespSession, request: Request) -> Reply:
    found = session.find(request[1])
    if found is None:
        return replies.ZERO
    table, stored = found
    if _has_many(table, stored) and table.kind == "map":
        return _count_slowly(table.walk_fields(stored))
    return replies.integer(len(_fields_of(session, table, stored)))


@command("HEXISTS", 3, "readonly", "fast", "data", keys=(1, 1, 1), group="hash", summary="Whether an entry is there.")
def hexists(session: RespSession, request: Request) -> bytes:
    return replies.integer(_field_of(session, request[1], request[2]) is not None)


@command("HSTRLEN", 3, "readonly", "fast", "data", keys=(1, 1, 1), group="hash", summary="The length of an entry.")
def hstrlen(session: RespSession, request: Request) -> bytes:
    value = _field_of(session, request[1], request[2])
    return replies.integer(0 if value is None else len(encode(value, session.form)))


# --- lists: elements, times of timers


def _elements_of(session: RespSession, key: bytes) -> list[Any] | tuple[EntryReader, bytes]:
    """The elements of a key, none where it is not there; of very many, where they are."""
    found = session.find(key)
    if found is None:
        return []
    table, stored = found
    if table.kind not in ("list", "timers"):
        if table.has(stored):
            raise Refusal(WRONG_TYPE[1:-2].decode())
        return []
    return (table, stored) if _has_many(table, stored) else table.elements(stored, session.form) or []


@command("LLEN", 2, "readonly", "fast", "data", keys=(1, 1, 1), group="list", summary="How many elements.")
def llen(session: RespSession, request: Request) -> Reply:
    elements = _elements_of(session, request[1])
    if isinstance(elements, list):
        return replies.integer(len(elements))
    table, stored = elements
    return _count_slowly(table.walk_elements(stored))


@command("LINDEX", 3, "readonly", "data", keys=(1, 1, 1), group="list", summary="One element; −1 is the last.")
def lindex(session: RespSession, request: Request) -> Reply:
    elements = _elements_of(session, request[1])
    if not elements:
        return session.null()
    # Read only here, as Redis does it: what is no list, and what is not there, is told first.
    place = number(request[2])
    if not isinstance(elements, list):
        return _index_slowly(session, *elements, place)
    inside = -len(elements) <= place < len(elements)
    return value_reply(session, elements[place]) if inside else session.null()


@command("LRANGE", 4, "readonly", "data", keys=(1, 1, 1), group="list", summary="Elements from one to another.")
def lrange(session: RespSession, request: Request) -> Reply:
    start, stop = number(request[2]), number(request[3])
    elements = _elements_of(session, request[1])
    if not isinstance(elements, list):
        return _range_slowly(session, *elements, start, stop)
    first, last = _places(start, stop, len(elements))
    chosen = (replies.bulk(encode(value, session.form)) for value in elements[first : last + 1])
    return replies.array(within_room(session, chosen))


def _places(start: int, stop: int, length: int) -> tuple[int, int]:
    """Negative places count from the end; those before the first are the first, or nothing at the other side."""
    return max(0, start + length) if start < 0 else start, max(-1, stop + length) if stop < 0 else stop


async def _between(
    session: RespSession, table: EntryReader, stored: bytes, first: int, last: int
) -> AsyncIterator[list[Any]]:
    """Elements from one place to another, both from the beginning, some at a time."""
    seen = 0
    async for some in _slices(table.walk_elements(stored, session.form)):
        if seen > last:
            return
        yield some[max(0, first - seen) : last + 1 - seen]
        seen += len(some)


async def _index_slowly(session: RespSession, table: EntryReader, stored: bytes, place: int) -> bytes:
    if place < 0:
        place += await _count(table.walk_elements(stored))
    if place >= 0:
        async for some in _between(session, table, stored, place, place):
            if some:
                return value_reply(session, some[0])
    return session.null()


async def _range_slowly(session: RespSession, table: EntryReader, stored: bytes, start: int, stop: int) -> bytes:
    length = await _count(table.walk_elements(stored)) if start < 0 or stop < 0 else 0
    parts = ReplyParts(session)
    async for some in _between(session, table, stored, *_places(start, stop, length)):
        parts.add(replies.bulk(encode(value, session.form)) for value in some)
    return replies.array(parts.held)
