"""Commands for Headrace's own clients: keys as they are stored, values of any kind, and the epoch with every answer.

Redis' own commands know keys as text and kinds as strings, hashes and lists; a typed client wants neither. Each answer
is a list: timeline, epoch, age in milliseconds, watermark of the step in microseconds (or null), the id of the store,
and what was asked for.
"""

from __future__ import annotations

import asyncio
import struct
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.errors import ProgramError
from headrace.model.keys import decode_key
from headrace.read.forms import encode
from headrace.read.paging import with_values
from headrace.read.patterns import Pattern
from headrace.read.reader import Reader
from headrace.read.windows import WindowReader
from headrace.serve.resp import replies
from headrace.serve.resp.commands import Refusal, Request, command, cursor, number
from headrace.serve.resp.refusing import ReplyParts, check_keys, less_room, too_long
from headrace.serve.resp.session import Session

if TYPE_CHECKING:
    from headrace.read.snapshot import Snapshot

_MOST_KEYS: Final = 10_000
_PAGE_BYTES: Final = 16 * 2**20
"""A page ends before its values are larger than this."""


def find_table(session: Session, address: bytes) -> Reader:
    """A state by its address; refused where there is none."""
    table = session.scope.tables.get(address)
    if table is None:
        session.check(address)
        raise Refusal(f"NOSTATE {session.no_state(address)}")
    return table


def checked_key(key: bytes) -> bytes:
    """The bytes of a key, if they are."""
    try:
        decode_key(key)
    except (ProgramError, ValueError, ArithmeticError, RecursionError, struct.error):
        raise Refusal("ERR these are not the bytes of a key") from None
    return key


def with_facts(session: Session, table: Reader, payload: bytes, snapshot: Snapshot | None = None) -> bytes:
    """An answer with what it is of. ``snapshot``: where it was made from another than the newest."""
    snapshot = snapshot or session.snapshot
    watermark = snapshot.watermark_us(table.address.partition(".")[0])
    return replies.array(
        [
            replies.integer(snapshot.timeline),
            replies.integer(snapshot.epoch),
            replies.integer(session.service.age_ms(snapshot)),
            session.null() if watermark is None else replies.integer(watermark),
            replies.text(snapshot.store_id),
            payload,
        ]
    )


@command("HEADRACE.GET", -3, "readonly", "data", group="headrace", summary="Values of stored keys, of any kind.")
def headrace_get(session: Session, request: Request) -> bytes:
    table, keys = find_table(session, request[1]), [checked_key(key) for key in request[2:]]
    check_keys(session, len(keys))
    nothing = session.null()
    limit = room = session.service.limits.reply_bytes
    made: list[bytes] = []
    for value in table.each_of(keys, session.form):
        reply = nothing if value is None else replies.bulk(value)
        if len(reply) > limit:
            raise Refusal(too_long(len(reply), limit))
        room = less_room(session, room, len(reply))
        made.append(reply)
    return with_facts(session, table, replies.array(made))


@command("HEADRACE.WINDOWS", 3, "readonly", "data", group="headrace", summary="Start, end and value of its windows.")
def headrace_windows(session: Session, request: Request) -> bytes:
    table, key = find_table(session, request[1]), checked_key(request[2])
    if not isinstance(table, WindowReader):
        raise Refusal(f"WRONGTYPE {table.address} keeps a {table.kind} per key and no windows")
    parts = ReplyParts(session)
    for window, value in table.windows(key).items():
        ends = replies.integer(int(window.start)), replies.integer(int(window.end))
        parts.add([*ends, replies.bulk(encode(value, session.form))])
    return with_facts(session, table, replies.array(parts.held))


@command("HEADRACE.PAGE", 5, "readonly", "data", group="headrace", summary="PAGE state prefix from count: a page.")
def headrace_page(session: Session, request: Request) -> bytes:
    """Where the next page begins (−1: nowhere), then keys and values by turns. A page may be empty."""
    table, prefix = find_table(session, request[1]), request[2].decode("utf-8", "replace")
    start, count = cursor(request[3]), number(request[4])
    if not 0 < count <= _MOST_KEYS:
        raise Refusal(f"ERR a page has 1 to {_MOST_KEYS} keys")
    pattern = Pattern("".join(f"\\{char}" if char in "*?[\\" else char for char in prefix) + "*") if prefix else None
    limit = session.service.limits.reply_bytes
    found, following = with_values(
        table.page(start, count, pattern), partial(table.each_of, form=session.form), min(_PAGE_BYTES, limit)
    )
    if found and len(found[0][1]) > limit:
        raise Refusal(too_long(len(found[0][1]), limit))
    parts = [replies.bulk(part) for pair in found for part in pair]
    at_text = replies.text(str(-1 if following is None else following))
    return with_facts(session, table, replies.array([at_text, *parts]))


@command("HEADRACE.COUNT", 2, "readonly", "data", group="headrace", summary="How many keys a state has, counted.")
async def headrace_count(session: Session, request: Request) -> bytes:
    table, snapshot = find_table(session, request[1]), session.snapshot
    return with_facts(session, table, replies.integer(await asyncio.to_thread(table.count)), snapshot)
