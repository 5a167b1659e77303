"""Commands that walk over keys: SCAN, KEYS, HSCAN, DBSIZE.

A cursor is one number of 64 bits: which state, in the upper twelve, and from which hash on, in the others. So it is
good in any epoch and in any process: a key that is there from the first page to the last is given once, whatever is
published meanwhile. Long walks are done in slices, between which others are answered; a page that would take long ends
early, with few keys or none, and says where to go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import xxhash

from headrace.read.forms import encode
from headrace.read.paging import MOST_ROWS
from headrace.read.patterns import Pattern
from headrace.read.reader import Reader
from headrace.serve.resp import replies
from headrace.serve.resp.commands import Refusal, Reply, Request, command, cursor, number
from headrace.serve.resp.reading import KINDS, with_fields
from headrace.serve.resp.refusing import ReplyParts, within_room
from headrace.serve.resp.session import RespSession

_STATE_BITS: Final = 12
_HASH_BITS: Final = 64 - _STATE_BITS
_STATES: Final = 2**_STATE_BITS - 1
_SLICE_KEYS: Final = 2000
_MOST_COUNT: Final = 10_000


class ScanOptions:
    """What stands behind the cursor of SCAN and HSCAN."""

    def __init__(self, words: list[bytes], *, types: bool = True) -> None:
        self.pattern: Pattern | None = None
        self.count = 10
        self.type = ""
        self.values = True
        rest = list(words)
        while rest:
            word = rest.pop(0).upper()
            if word == b"NOVALUES" and not types:
                self.values = False
                continue
            if not rest or word not in (b"MATCH", b"COUNT", *((b"TYPE",) if types else ())):
                raise Refusal("ERR syntax error")
            value = rest.pop(0)
            if word == b"MATCH":
                self.pattern = pattern_of(value)
            elif word == b"COUNT":
                self.count = min(number(value), _MOST_COUNT)
                if self.count < 1:
                    raise Refusal("ERR syntax error")
            else:
                self.type = value.decode("utf-8", "replace").lower()


def pattern_of(word: bytes) -> Pattern | None:
    """A pattern; None where it matches everything."""
    return None if word == b"*" else Pattern(word.decode("utf-8", "replace"))


def numbered(tables: dict[bytes, Reader]) -> list[tuple[int, str, Reader]]:
    """Every state with a number that does not depend on the others, but where two would have the same; in order."""
    taken: dict[int, tuple[str, Reader]] = {}
    for address in sorted(tables):
        place = 1 + xxhash.xxh64_intdigest(address) % _STATES
        while place in taken:
            place = place % _STATES + 1
        taken[place] = address.decode(), tables[address]
    return [(place, *taken[place]) for place in sorted(taken)]


def _within(pattern: Pattern | None, address: str) -> Pattern | bool | None:
    """What a pattern over ``address:key`` asks of the keys of a state: a pattern, None for all, False for none."""
    if pattern is None:
        return None
    head = f"{address}:"
    if pattern.prefix.startswith(head):
        if pattern.prefix_only and pattern.prefix == head:
            return None
        return _Behind(pattern, head)
    if head.startswith(pattern.prefix) and not pattern.literal:
        return None if pattern.prefix_only else _Behind(pattern, head)
    return False


class _Behind(Pattern):
    """A pattern over whole keys, asked of what stands behind the address."""

    def __init__(self, whole: Pattern, head: str) -> None:
        super().__init__("*")
        self._whole = whole
        self._head = head

    def matches(self, text: str) -> bool:
        return self._whole.matches(self._head + text)


@command("SCAN", -2, "readonly", "data", group="generic", summary="Keys, page by page, over all states.")
def scan(session: RespSession, request: Request) -> bytes:
    at = cursor(request[1])
    options = ScanOptions(request[2:])
    place, from_hash = at >> _HASH_BITS, (at << _STATE_BITS) % 2**64
    looked_at = 0
    for number_, address, table in numbered(session.scope.tables):
        if number_ < place or (options.type and KINDS[table.kind] != options.type):
            continue
        wanted = _within(options.pattern, address)
        if wanted is False:
            continue
        assert not isinstance(wanted, bool)
        page = table.page(from_hash if number_ == place else 0, options.count, wanted)
        keys = [f"{address}:{table.text(key)}" for key in page.keys]
        if page.next_hash is not None:
            return _page(session, number_ << _HASH_BITS | page.next_hash >> _STATE_BITS, keys)
        looked_at += page.looked_at
        # Pages may be empty: many states of dead keys are not looked through in one go.
        if keys or looked_at > MOST_ROWS:
            following = [each for each, _, _ in numbered(session.scope.tables) if each > number_]
            return _page(session, following[0] << _HASH_BITS if following else 0, keys)
    return _page(session, 0, [])


def _page(session: RespSession, following: int, keys: list[str]) -> bytes:
    names = within_room(session, map(replies.text, keys))
    return replies.array([replies.bulk(b"%d" % following), replies.array(names)])


@command("KEYS", 2, "readonly", "data", group="generic", summary="All keys that match; SCAN is the better way.")
async def keys(session: RespSession, request: Request) -> bytes:
    found = ReplyParts(session)
    for names in _walk(session, pattern_of(request[1])):
        found.add(map(replies.text, names))
        await asyncio.sleep(0)
    return replies.array(found.held)


def _walk(session: RespSession, pattern: Pattern | None) -> Iterator[list[str]]:
    """Keys that match, slice by slice."""
    # One snapshot for the whole walk, whatever is published meanwhile.
    for _, address, table in numbered(session.scope.tables):
        wanted = _within(pattern, address)
        if wanted is False:
            continue
        assert not isinstance(wanted, bool)
        at: int | None = 0
        while at is not None:
            page = table.page(at, _SLICE_KEYS, wanted)
            yield [f"{address}:{table.text(key)}" for key in page.keys]
            at = page.next_hash


@command("DBSIZE", 1, "readonly", "fast", "data", group="server", summary="How many keys; of large states an estimate.")
def dbsize(session: RespSession, request: Request) -> bytes:
    return replies.integer(count_keys(session))


def count_keys(session: RespSession) -> int:
    """Keys of all states that the client may read; counted once per epoch."""
    return sum(session.server.count_of(table) for table in session.scope.tables.values())


@command("HSCAN", -3, "readonly", "data", keys=(1, 1, 1), group="hash", summary="Entries of a key; all on one page.")
def hscan(session: RespSession, request: Request) -> Reply:
    # All entries are on one page, so a cursor leads nowhere; one that is none is a mistake all the same.
    cursor(request[2])
    options = ScanOptions(request[3:], types=False)

    form = session.form

    def make(name: str, value: Any) -> bytes | None:
        if options.pattern is not None and not options.pattern.matches(name):
            return None
        return replies.text(name) + (replies.bulk(encode(value, form)) if options.values else b"")

    def tell(parts: list[bytes]) -> bytes:
        items = b"*%d\r\n%b" % (len(parts) * (1 + options.values), b"".join(parts))
        return replies.array([replies.bulk(b"0"), items])

    return with_fields(session, request[1], make, tell)
