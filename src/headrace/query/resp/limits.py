"""How much one request may ask for, and one reply may hold: where that is refused, and in which words.

The numbers are those of `headrace.query.access.Limits`. Whoever gathers values takes from the room of a reply as they
come, so that it is refused before all of them are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from headrace.query.resp.commands import Refusal

if TYPE_CHECKING:
    from headrace.query.resp.session import Session

MOST_PARTS: Final = 1_000_000
"""Of one reply: keys, entries, elements."""


def check_keys(session: Session, count: int) -> None:
    """Refuses a request for more keys, or fields, than one may ask for."""
    limit = session.service.limits.keys
    if count > limit:
        session.refused(f"a request for {count} keys", f"more than {limit} keys in one request")
        raise Refusal(f"ERR limit: a request may ask for {limit} keys; ask for {count} in several requests")


def less_room(session: Session, room: int, size: int) -> int:
    """The room that is left behind a value; refuses what is more than a reply may hold."""
    if size > room:
        limit = session.service.limits.reply_bytes
        session.refused("many values at once", f"more than {limit} bytes in one reply")
        raise Refusal(f"ERR limit: the values have more than {limit} bytes together; ask for fewer at a time")
    return room - size


def within_room(session: Session, parts: Iterable[bytes]) -> Iterator[bytes]:
    """Parts of a reply as they are made, until they are more than it may hold."""
    room = session.service.limits.reply_bytes
    for part in parts:
        room = less_room(session, room, len(part))
        yield part


class Parts:
    """Parts of a reply that are gathered: never more, and never more bytes of them, than one reply may hold."""

    def __init__(self, session: Session) -> None:
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


def noted(session: Session, reply: bytes) -> bytes:
    """A reply that is about to be sent; one that says `too_long` is written down, wherever it was made."""
    if reply.startswith(_TOO_LONG_REPLY):
        session.refused("a large value", f"a reply may have {session.service.limits.reply_bytes} bytes")
    return reply
