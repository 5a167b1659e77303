"""What is refused, and why: commands that write, and those that nobody knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.query.resp import replies
from headrace.query.resp.commands import Request, spoken

if TYPE_CHECKING:
    from headrace.query.resp.session import Session

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


def refuse(session: Session, request: Request) -> bytes:
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
