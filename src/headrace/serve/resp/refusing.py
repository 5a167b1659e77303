"""What is refused, and in which words: commands that write or that nobody knows, and requests for too much.

The numbers are those of `headrace.net.access.Limits`. Whoever gathers values takes from the room of a reply as they
come, so that it is refused before all of them are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from headrace.model.amounts import count_of
from headrace.serve.resp import replies
from headrace.serve.resp.commands import Refusal, Request, spoken

if TYPE_CHECKING:
    from headrace.serve.resp.session import RespSession

_SHOWN_BYTES: Final = 128

WRITING: Final = frozenset(
    b"APPEND BITFIELD BITOP BLMOVE BLMPOP BLPOP BRPOP BRPOPLPUSH BZMPOP BZPOPMAX BZPOPMIN COPY DECR DECRBY DEL EVAL "
    b"EVALSHA EXPIRE EXPIREAT FCALL FLUSHALL FLUSHDB FUNCTION GEOADD GEORADIUS GETDEL GETEX GETSET HDEL HEXPIRE "
    b"HEXPIREAT HGETDEL HGETEX HINCRBY HINCRBYFLOAT HMSET HPERSIST HPEXPIRE HPEXPIREAT HSET HSETEX HSETNX INCR INCRBY "
    b"INCRBYFLOAT LINSERT LMOVE LMPOP LPOP LPUSH LPUSHX LREM LSET LTRIM MIGRATE MOVE MSET MSETNX PERSIST PEXPIRE "
    b"PEXPIREAT PFADD PFMERGE PSETEX PUBLISH RENAME RENAMENX RESTORE RPOP RPOPLPUSH RPUSH RPUSHX SADD SCRIPT "
    b"SDIFFSTORE SET SETBIT SETEX SETNX SETRANGE SINTERSTORE SMOVE SORT SPOP SPUBLISH SREM SUNIONSTORE SWAPDB UNLINK "
    b"XACK XADD XAUTOCLAIM XCLAIM XDEL XGROUP XREADGROUP XSETID XTRIM ZADD ZDIFFSTORE ZINCRBY ZINTERSTORE ZMPOP "
    b"ZPOPMAX ZPOPMIN ZRANGESTORE ZREM ZREMRANGEBYLEX ZREMRANGEBYRANK ZREMRANGEBYSCORE ZUNIONSTORE".split()
)
"""Commands of Redis that change something."""


def refuse(session: RespSession, request: Request) -> bytes:
    """The error for a command that is not in the table."""
    if request[0].upper() in WRITING:
        session.refused(spoken(request[0]).upper(), "state is written by the stream job alone")
        return replies.error(
            f"READONLY state is written by the stream job alone: send it an event instead of "
            f"{spoken(request[0]).upper()}, and read what it made of it"
        )
    session.refused(spoken(request[0]), "no command of this server")
    shown: list[str] = []
    left = _SHOWN_BYTES
    for word in request[1:]:
        if left <= 0:
            break
        shown.append(f"'{spoken(word[:left])}' ")
        left -= len(word)
    return replies.error(f"ERR unknown command '{spoken(request[0])}', with args beginning with: {''.join(shown)}")


# --- too much

MOST_PARTS: Final = 1_000_000
"""Of one reply: keys, entries, elements."""


def check_keys(session: RespSession, count: int) -> None:
    """Refuses a request for more keys, or fields, than one may ask for."""
    limit = session.service.limits.keys
    if count > limit:
        session.refused(f"a request for {count_of(count, 'key')}", f"more than {count_of(limit, 'key')} in one request")
        raise Refusal(f"ERR limit: a request may ask for {count_of(limit, 'key')}; ask for {count} in several requests")


def less_room(session: RespSession, room: int, size: int) -> int:
    """The room that is left behind a value; refuses what is more than a reply may hold."""
    if size > room:
        limit = session.service.limits.reply_bytes
        session.refused("many values at once", f"more than {limit} bytes in one reply")
        raise Refusal(f"ERR limit: the values have more than {limit} bytes together; ask for fewer at a time")
    return room - size


def within_room(session: RespSession, parts: Iterable[bytes]) -> Iterator[bytes]:
    """Parts of a reply as they are made, until they are more than it may hold."""
    room = session.service.limits.reply_bytes
    for part in parts:
        room = less_room(session, room, len(part))
        yield part


class ReplyParts:
    """Parts of a reply that are gathered: never more, and never more bytes of them, than one reply may hold."""

    def __init__(self, session: RespSession) -> None:
        self.held: list[bytes] = []
        self._session = session
        self._room = session.service.limits.reply_bytes

    def add(self, parts: Iterable[bytes | None]) -> None:
        """What is None is left out."""
        for part in parts:
            if part is not None:
                self._room = less_room(self._session, self._room, len(part))
                self.held.append(part)
        if len(self.held) > MOST_PARTS:
            self._session.refused("many keys at once", f"more than {MOST_PARTS} parts in one reply")
            raise Refusal(f"ERR limit: the reply would have more than {MOST_PARTS} parts; read the state over HTTP")


_TOO_LONG: Final = "ERR limit: a reply may have"
_TOO_LONG_REPLY: Final = f"-{_TOO_LONG}".encode()


def too_long(size: int, limit: int) -> str:
    """What is said of a single value that one reply may not hold."""
    return f"{_TOO_LONG} {limit} bytes, and this one would have {size}; read it over HTTP"


def noted(session: RespSession, reply: bytes) -> bytes:
    """A reply that is about to be sent; one that says `too_long` is written down, wherever it was made."""
    if reply.startswith(_TOO_LONG_REPLY):
        session.refused("a large value", f"a reply may have {session.service.limits.reply_bytes} bytes")
    return reply
