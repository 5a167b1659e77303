"""Replies of Redis' protocol, in its second and third version, as bytes.

What only the third version knows (maps, null, pushes) is said in the words of the second where that is spoken: a map is
a list of names and values, null an empty bulk string that is not there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from headrace.errors import HeadraceError

OK: Final = b"+OK\r\n"
QUEUED: Final = b"+QUEUED\r\n"
PONG: Final = b"+PONG\r\n"
ZERO: Final = b":0\r\n"
EMPTY: Final = b"*0\r\n"
NULL2: Final = b"$-1\r\n"
NULL3: Final = b"_\r\n"

_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f]")
_MAX_ERROR_CHARS: Final = 512


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def text(value: str) -> bytes:
    return bulk(value.encode("utf-8", "replace"))


def integer(value: int) -> bytes:
    return b":%d\r\n" % value


def simple(value: str) -> bytes:
    return b"+%b\r\n" % value.encode()


def help_lines(command: str, subcommands: Mapping[str, str]) -> bytes:
    """What ``COMMAND HELP`` and others of its kind say: each subcommand, and what it is for on the line below."""
    lines = [f"{command} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"]
    for name, about in {**subcommands, "HELP": "Prints this help."}.items():
        lines += [name, f"    {about}"]
    return array(map(simple, lines))


def error(message: str) -> bytes:
    """An error; the first word says its kind. What clients sent may be part of it, so it is made harmless."""
    clean = _UNSAFE.sub(" ", message)
    if len(clean) > _MAX_ERROR_CHARS:
        clean = clean[: _MAX_ERROR_CHARS - 1] + "…"
    return b"-%b\r\n" % clean.encode("utf-8", "replace")


def problem_text(problem: HeadraceError) -> str:
    """One of our own errors on one line, without the parts it does not have."""
    parts = [f"{problem.where}: {problem.what}" if problem.where else problem.what]
    parts += [
        f"{name} {part}"
        for name, part in (("expected", problem.expected), ("found", problem.found), ("next:", problem.next_move))
        if part
    ]
    return "; ".join(parts)


def null(version: int) -> bytes:
    return NULL3 if version == 3 else NULL2


def array(items: Iterable[bytes]) -> bytes:
    """Replies as one list."""
    held = list(items)
    return b"*%d\r\n%b" % (len(held), b"".join(held))


def mapping(pairs: Collection[bytes], version: int) -> bytes:
    """Replies by name: each pair is a name and a reply, which are replies both, one behind the other."""
    head = b"%%%d\r\n" % len(pairs) if version == 3 else b"*%d\r\n" % (2 * len(pairs))
    return head + b"".join(pairs)


def members(items: Iterable[bytes], version: int) -> bytes:
    """Replies as a set."""
    held = list(items)
    return b"%b%d\r\n%b" % (b"~" if version == 3 else b"*", len(held), b"".join(held))


def push(items: Iterable[bytes], version: int) -> bytes:
    """What the server says unasked."""
    held = list(items)
    return b"%b%d\r\n%b" % (b">" if version == 3 else b"*", len(held), b"".join(held))


def plain(value: Any, version: int) -> bytes:
    """A value of plain Python: text, numbers, lists, dicts, None. For what the server tells about itself."""
    if value is None:
        return null(version)
    if isinstance(value, bool):
        return (b"#t\r\n" if value else b"#f\r\n") if version == 3 else integer(value)
    if isinstance(value, int):
        return integer(value)
    if isinstance(value, float):
        return b",%b\r\n" % repr(value).encode() if version == 3 else text(repr(value))
    if isinstance(value, bytes):
        return bulk(value)
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        return mapping([plain(name, version) + plain(each, version) for name, each in value.items()], version)
    return array(plain(each, version) for each in value)
