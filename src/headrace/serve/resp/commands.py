"""The table of commands: what each is called, how many arguments it takes, and who answers it.

Modules that answer commands put them in here with `command`; the same table is what ``COMMAND`` tells clients. A
function is given the session that asks and the whole request, and returns the reply; what cannot be answered at once
(a wait, a walk over all keys) returns a coroutine, during which the connection's further requests wait.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

from typing_extensions import TypeVar

Request = list[bytes]
Reply = bytes | Coroutine[Any, Any, bytes]
Handler = Callable[..., Reply]
"""Is given the session that asks and the whole request. Sessions are built on this module, so it does not name them."""
H = TypeVar("H", bound=Handler)


class Command(NamedTuple):
    """One command."""

    name: str
    answer: Handler
    arity: int
    """Number of words with the name; negative: at least so many."""
    flags: frozenset[str]
    """As Redis tells them, and ``data``: needs a published epoch."""
    keys: tuple[int, int, int]
    """First key, last key (negative: from the end) and step among the words; zeros: none."""
    group: str
    summary: str

    def takes(self, words: int) -> bool:
        """Whether a request of so many words is complete."""
        return words == self.arity if self.arity >= 0 else words >= -self.arity


_WHOLE: Final = re.compile(rb"0|-?[1-9][0-9]{0,19}")

COMMANDS: Final[dict[bytes, Command]] = {}
"""Name in capitals → command."""


class Refusal(Exception):
    """A request that cannot be answered; the text is the error that the client gets."""


def command(
    name: str,
    arity: int,
    *flags: str,
    keys: tuple[int, int, int] = (0, 0, 0),
    group: str,
    summary: str,
) -> Callable[[H], H]:
    """Puts a function into the table."""

    def add(answer: H) -> H:
        COMMANDS[name.encode()] = Command(name.lower(), answer, arity, frozenset(flags), keys, group, summary)
        return answer

    return add


def find_command(name: bytes) -> Command | None:
    return COMMANDS.get(name) or COMMANDS.get(name.upper())


def number(word: bytes, what: str = "value is not an integer or out of range") -> int:
    """A whole number, as Redis reads it: no plus, no leading zeros, 64 bits."""
    value = int(word) if _WHOLE.fullmatch(word) else None
    if value is None or not -(2**63) <= value < 2**63:
        raise Refusal(f"ERR {what}")
    return value


def cursor(word: bytes) -> int:
    """Where a walk goes on. It is made of a hash, so it needs all of 64 bits, and has no sign."""
    value = int(word) if _WHOLE.fullmatch(word) else None
    if value is None or not 0 <= value < 2**64:
        raise Refusal("ERR invalid cursor")
    return value


def wrong_words(request: Request) -> Refusal:
    return Refusal(f"ERR wrong number of arguments for '{spoken(request[0]).lower()}' command")


def spoken(word: bytes) -> str:
    """What a client sent, to be said in an error."""
    return word[:128].decode("utf-8", "replace")
