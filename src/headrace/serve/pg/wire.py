"""Messages of Postgres' protocol 3.0, as bytes: what the server sends, and how what clients send is cut.

A message is a byte that says its kind, four bytes of length, which counts itself, and a body. What a client sends first
has no kind. Formats: https://www.postgresql.org/docs/current/protocol-message-formats.html
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

PROTOCOL: Final = 196608
SSL_REQUEST: Final = 80877103
GSS_REQUEST: Final = 80877104
CANCEL_REQUEST: Final = 80877102
MOST_STARTUP_BYTES: Final = 10_000

INT4: Final = struct.Struct(">i")
INT2: Final = struct.Struct(">h")
_HEAD: Final = struct.Struct(">ci")
_FIELD: Final = struct.Struct(">IhIhih")

NULL_CELL: Final = INT4.pack(-1)


def message(kind: bytes, body: bytes = b"") -> bytes:
    return _HEAD.pack(kind, len(body) + 4) + body


AUTHENTICATED: Final = message(b"R", INT4.pack(0))
ASK_PASSWORD: Final = message(b"R", INT4.pack(3))
PARSED: Final = message(b"1")
BOUND: Final = message(b"2")
CLOSED: Final = message(b"3")
NO_DATA: Final = message(b"n")
EMPTY_QUERY: Final = message(b"I")
SUSPENDED: Final = message(b"s")
READY: Final = {status: message(b"Z", status) for status in (b"I", b"T", b"E")}
"""Idle, in a transaction, in one that failed."""


class ResultField(NamedTuple):
    """A column of a result, as a client is told of it."""

    name: str
    oid: int
    size: int = -1
    binary: bool = False


def row_description(fields: Sequence[ResultField]) -> bytes:
    parts = [INT2.pack(len(fields))]
    for field in fields:
        name = field.name.encode().replace(b"\0", b"")
        parts.append(name + b"\0" + _FIELD.pack(0, 0, field.oid, field.size, -1, int(field.binary)))
    return message(b"T", b"".join(parts))


def parameter_description(oids: Sequence[int]) -> bytes:
    return message(b"t", INT2.pack(len(oids)) + b"".join(struct.pack(">I", oid) for oid in oids))


def parameter_status(name: str, value: str) -> bytes:
    return message(b"S", f"{name}\0{value}\0".encode())


def backend_key(process: int, secret: int) -> bytes:
    return message(b"K", struct.pack(">II", process, secret))


def command_complete(tag: str) -> bytes:
    return message(b"C", tag.encode() + b"\0")


def error_response(parts: Mapping[str, str], *, fatal: bool = False) -> bytes:
    """``parts``: ``C`` the code, ``M`` the message, ``D`` details, ``H`` a hint, ``P`` the place, from 1."""
    level = "FATAL" if fatal else "ERROR"
    fields = {"S": level, "V": level, **parts}
    body = b"".join(f"{name}{value}".replace("\0", "").encode() + b"\0" for name, value in fields.items() if value)
    return message(b"E", body + b"\0")


def notice(text: str) -> bytes:
    return message(b"N", f"SWARNING\0VWARNING\0C01000\0M{text}\0\0".encode())


class BodyReader:
    """The body of a client's message, part by part. IndexError, ValueError and struct.error where it is too short."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at >= len(self._body)

    def text(self) -> str:
        end = self._body.index(0, self._at)
        found = self._body[self._at : end].decode()
        self._at = end + 1
        return found

    def int2(self) -> int:
        (found,) = INT2.unpack_from(self._body, self._at)
        self._at += 2
        return int(found)

    def int4(self) -> int:
        (found,) = INT4.unpack_from(self._body, self._at)
        self._at += 4
        return int(found)

    def byte(self) -> bytes:
        found = self._body[self._at : self._at + 1]
        self._at += 1
        return found

    def cell(self) -> bytes | None:
        """A value with its length in front; None is null."""
        size = self.int4()
        if size < 0:
            return None
        if size > len(self._body) - self._at:
            raise ValueError("a value is longer than its message")
        found = self._body[self._at : self._at + size]
        self._at += size
        return found
