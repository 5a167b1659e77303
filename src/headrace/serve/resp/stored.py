"""Commands for Headrace's own clients: keys as they are stored, values of any kind, and the epoch with every answer.

Redis' own commands know keys as text and kinds as strings, hashes and lists; a typed client wants neither. Each answer
is a list: timeline, epoch, age in milliseconds, watermark of the step (or null), the id of the store, the version that
the oldest of the values was written in and the newest one (null where all are of the newest type), and what was asked
for. Beside values as MessagePack, as clients ask for them, times are microseconds; beside JSON they are ISO text.

Windows of a key over a range of time come from state and archive together. Redis keeps entries by time as streams, so
windows are told as the entries of one: the id is the end of the window, ``<milliseconds>-<microseconds within>``, the
fields are those of the result. Where an archive has to be looked into, a thread does it; others are answered meanwhile.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import FunctionFailed, HeadraceError, ProgramError
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.keys import decode_key
from headrace.model.time import format_time, parse_time
from headrace.model.window import Window
from headrace.read.forms import PACKED, encode
from headrace.read.paging import with_values
from headrace.read.patterns import Pattern
from headrace.read.ranges import MOST_WINDOWS, Place, Range, RangePage, parse_place, place_text
from headrace.read.reader import Reader
from headrace.read.windows import WindowReader
from headrace.serve.resp import replies
from headrace.serve.resp.commands import Refusal, Reply, Request, command, cursor, number, spoken
from headrace.serve.resp.moments import ADDRESS
from headrace.serve.resp.refusing import ReplyParts, check_keys, less_room, too_long
from headrace.serve.resp.scopes import WRONG_TYPE
from headrace.serve.resp.session import RespSession

if TYPE_CHECKING:
    from headrace.read.snapshot import Snapshot
    from headrace.read.stored_version import StoredVersion


_OF_STATE: Final = ("readonly", "data", ADDRESS)
_MOST_KEYS: Final = 10_000
_PAGE_BYTES: Final = 16 * 2**20
"""A page ends before its values are larger than this."""


def find_table(session: RespSession, address: bytes) -> Reader:
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


def time_reply(session: RespSession, at_us: int) -> bytes:
    """A point in time: a number beside MessagePack, text beside JSON."""
    return replies.integer(at_us) if session.form == PACKED else replies.text(format_time(at_us))


def _ends(session: RespSession, window: Window) -> list[bytes]:
    return [time_reply(session, int(window.start)), time_reply(session, int(window.end))]


def with_facts(
    session: RespSession, table: Reader, payload: bytes, snapshot: Snapshot | None = None, *, keys: Iterable[bytes] = ()
) -> bytes:
    """An answer with what it is of. ``snapshot``: where it was made from another than the newest.

    ``keys``: whose values are in it.
    """
    snapshot = snapshot or session.snapshot
    watermark = snapshot.watermark_us(table.address.partition(".")[0])
    return replies.array(
        [
            replies.integer(snapshot.timeline),
            replies.integer(snapshot.epoch),
            replies.integer(session.service.age_ms(snapshot)),
            session.null() if watermark is None else time_reply(session, watermark),
            replies.text(snapshot.store_id),
            _oldest_version(session, table, keys),
            payload,
        ]
    )


def _oldest_version(session: RespSession, table: Reader, keys: Iterable[bytes]) -> bytes:
    """Version and newest version of the step, of the oldest value that is of an older type; null where none is."""
    older = [stored for key in keys if (stored := table.stored_version(key)) is not None]
    if not older:
        return session.null()
    return replies.array(map(replies.integer, (min(each.version for each in older), older[0].newest)))


@command(
    "HEADRACE.VERSION",
    -2,
    "readonly",
    "data",
    keys=(1, -1, 1),
    group="headrace",
    summary="In which version each value was written, if its type is an older one.",
)
def headrace_version(session: RespSession, request: Request) -> bytes:
    """Of each key its version, the newest one, and the types that belong to them; null where it is of the newest."""
    check_keys(session, len(request) - 1)
    told = []
    for key in request[1:]:
        found = session.find(key)
        stored = None if found is None else found[0].stored_version(found[1])
        told.append(session.null() if stored is None else replies.plain(_version_facts(stored), session.version))
    return replies.array(told)


def _version_facts(stored: StoredVersion) -> dict[str, Any]:
    return {
        "version": stored.version, "newest": stored.newest, "type": stored.type, "newest_type": stored.newest_type
    }  # fmt: skip


@command("HEADRACE.GET", -3, *_OF_STATE, group="headrace", summary="Values of stored keys, of any kind.")
def headrace_get(session: RespSession, request: Request) -> bytes:
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
    return with_facts(session, table, replies.array(made), keys=keys)


@command("HEADRACE.WINDOWS", 3, *_OF_STATE, group="headrace", summary="Start, end and value of its windows.")
def headrace_windows(session: RespSession, request: Request) -> bytes:
    table, key = find_table(session, request[1]), checked_key(request[2])
    if not isinstance(table, WindowReader):
        raise Refusal(f"WRONGTYPE {table.address} keeps a {table.kind} per key and no windows")
    parts = ReplyParts(session)
    for window, value in table.windows(key).items():
        parts.add([*_ends(session, window), replies.bulk(encode(table.shown(value, session.form), session.form))])
    return with_facts(session, table, replies.array(parts.held), keys=[key])


@command("HEADRACE.PAGE", 5, *_OF_STATE, group="headrace", summary="PAGE state prefix from count: a page.")
def headrace_page(session: RespSession, request: Request) -> bytes:
    """Where the next page begins (−1: nowhere), then keys and values by turns. A page may be empty."""
    table, prefix = find_table(session, request[1]), request[2].decode("utf-8", "replace")
    start, count = cursor(request[3]), number(request[4])
    if not 0 < count <= _MOST_KEYS:
        raise Refusal(f"ERR a page has 1 to {_MOST_KEYS} keys")
    literal = "".join(f"\\{char}" if char in "*?[\\" else char for char in table.quoted(prefix))
    pattern = Pattern(literal + "*") if prefix else None
    limit = session.service.limits.reply_bytes
    found, following = with_values(
        table.page(start, count, pattern), partial(table.each_of, form=session.form), min(_PAGE_BYTES, limit)
    )
    if found and len(found[0][1]) > limit:
        raise Refusal(too_long(len(found[0][1]), limit))
    parts = [replies.bulk(part) for pair in found for part in pair]
    at_text = replies.text(str(-1 if following is None else following))
    return with_facts(session, table, replies.array([at_text, *parts]), keys=[key for key, _ in found])


@command("HEADRACE.COUNT", 2, *_OF_STATE, group="headrace", summary="How many keys a state has, counted.")
async def headrace_count(session: RespSession, request: Request) -> bytes:
    table, snapshot = find_table(session, request[1]), session.snapshot
    return with_facts(session, table, replies.integer(await asyncio.to_thread(table.count)), snapshot)


# --- windows over a range of time


_ID: Final = re.compile(rb"(-?\d{1,16})(?:-(\d{1,20}))?")
_LAST_OF_MS: Final = 999


def entry_id(end_us: int) -> str:
    """The id of the window that ends there.

    >>> entry_id(1_704_110_400_000_000), entry_id(1_704_110_400_000_007)
    ('1704110400000-0', '1704110400000-7')
    """
    ms, us = divmod(end_us, 1000)
    return f"{ms}-{us}"


def _end_us(word: bytes, *, last: bool) -> int:
    """The end of windows that an id names; without its second part it is the first or the last of its millisecond."""
    found = _ID.fullmatch(word)
    if found is None:
        raise Refusal("ERR Invalid stream ID specified as stream command argument")
    ms, part = int(found[1]), found[2]
    us = (_LAST_OF_MS if last else 0) if part is None else min(int(part), _LAST_OF_MS)
    return ms * 1000 + us


def _first(word: bytes) -> int:
    if word == b"-":
        return MIN_TIME
    return _end_us(word[1:], last=False) + 1 if word[:1] == b"(" else _end_us(word, last=False)


def _last(word: bytes) -> int:
    if word == b"+":
        return MAX_TIME
    return _end_us(word[1:], last=True) - 1 if word[:1] == b"(" else _end_us(word, last=True)


def _count(words: Request) -> int | None:
    if not words:
        return None
    if len(words) != 2 or words[0].upper() != b"COUNT":
        raise Refusal("ERR syntax error")
    return max(0, number(words[1]))


@command("XRANGE", -4, "readonly", "data", keys=(1, 1, 1), group="stream", summary="Windows of a key, by their ends.")
def xrange(session: RespSession, request: Request) -> Reply:
    return _stream(session, request[1], Range(_first(request[2]), _last(request[3])), _count(request[4:]))


@command("XREVRANGE", -4, "readonly", "data", keys=(1, 1, 1), group="stream", summary="The same, the latest first.")
def xrevrange(session: RespSession, request: Request) -> Reply:
    wanted = Range(_first(request[3]), _last(request[2]), reverse=True)
    return _stream(session, request[1], wanted, _count(request[4:]))


def _stream(session: RespSession, word: bytes, wanted: Range, count: int | None) -> Reply:
    found = session.find(word)
    if found is None or count == 0:
        return replies.EMPTY
    table, key = found
    if not isinstance(table, WindowReader):
        return WRONG_TYPE if table.has(key) else replies.EMPTY
    if count is not None and count > MOST_WINDOWS:
        raise Refusal(f"ERR limit: a request may ask for {MOST_WINDOWS} windows; go on behind the last id with '('")
    form = session.form

    def entry(value: dict[str, Any]) -> bytes:
        shown = table.shown(value, form).items()
        pairs = ((replies.text(name), replies.bulk(encode(each, form))) for name, each in shown)
        return replies.array(part for pair in pairs for part in pair)

    def tell(page: RangePage) -> bytes:
        made = page.encoded(entry)
        if (page.more and count is None) or len(made.windows) < len(page.windows):
            raise Refusal("ERR limit: these are too many windows for one answer; ask for fewer at a time with COUNT")
        return replies.array(
            replies.array([replies.text(entry_id(int(window.end))), fields]) for window, fields in made.windows
        )

    return _answer(table, key, wanted, count or MOST_WINDOWS, tell)


@command(
    "HEADRACE.RANGE",
    7,
    "readonly",
    ADDRESS,
    "data",
    group="headrace",
    summary="RANGE state key from to count behind: windows.",
)
def headrace_range(session: RespSession, request: Request) -> Reply:
    """Where the next page begins (empty: nowhere), then start, end and value of windows by turns."""
    table, key = find_table(session, request[1]), checked_key(request[2])
    if not isinstance(table, WindowReader):
        raise Refusal(f"WRONGTYPE {table.address} keeps a {table.kind} per key and no windows")
    first = MIN_TIME if request[3] == b"-" else _time_us(request[3])
    last = MAX_TIME if request[4] == b"+" else _time_us(request[4])
    count = number(request[5])
    if not 0 < count <= MOST_WINDOWS:
        raise Refusal(f"ERR a page has 1 to {MOST_WINDOWS} windows")
    snapshot: Snapshot = session.snapshot
    form = session.form

    def tell(page: RangePage) -> bytes:
        made = page.encoded(lambda value: replies.bulk(encode(table.shown(value, form), form)))
        parts = [replies.text("" if made.next is None else place_text(made.next))]
        for window, value in made.windows:
            parts += [*_ends(session, window), value]
        return with_facts(session, table, replies.array(parts), snapshot, keys=[key])

    return _answer(table, key, Range(first, last, first, behind=_place(request[6])), count, tell)


def _time_us(word: bytes) -> int:
    """A point in time: microseconds since 1970, or ISO text."""
    try:
        return parse_time(word.decode()) if b":" in word or word.count(b"-") == 2 else number(word)
    except (ProgramError, ValueError):
        raise Refusal(f"ERR {spoken(word)} is no time like 2024-01-01T12:00:00Z, nor microseconds since 1970") from None


def _place(word: bytes) -> Place | None:
    try:
        return parse_place(word.decode()) if word else None
    except ValueError:
        raise Refusal(f"ERR {spoken(word)} is not where a page ended") from None


def _answer(table: WindowReader, key: bytes, wanted: Range, count: int, tell: Callable[[RangePage], bytes]) -> Reply:
    """At once where everything is in state."""

    def read() -> bytes:
        try:
            return tell(table.range(key, wanted, count))
        except FunctionFailed as error:
            raise Refusal(f"ERR {replies.problem_text(error)}") from None
        except HeadraceError as error:
            # The archive: what is in state is open already. Half an answer would look like a whole.
            raise Refusal(f"NOARCHIVE {replies.problem_text(error)}") from None

    return asyncio.to_thread(read) if table.reads_archive(wanted) else read()
