"""One request, read with suspicion: parameters by name and range, forms of answers, bodies of bounded size.

Everything that can be wrong with a request is found here or by the router, and becomes a `Problem` with status 4xx.
"""

from __future__ import annotations

import asyncio
import math
import re
import struct
import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.requests import ClientDisconnect, Request

from headrace.errors import ProgramError, StoreError
from headrace.model.amounts import count_of
from headrace.model.keys import decode_key, key_text
from headrace.model.time import parse_time, span_us
from headrace.model.window import Window
from headrace.net.access import User
from headrace.net.problems import Problem, bad_parameter, shorten
from headrace.read.forms import JSON, JSON_US, PACKED
from headrace.read.reader import Reader
from headrace.serve.http.exporting import BY_TYPE, FORMATS
from headrace.state.moments import Moment, parse_moment

BODY_TIMEOUT_S: Final = 10.0
PACKED_TYPES: Final = frozenset({"application/msgpack", "application/vnd.msgpack", "application/x-msgpack"})
PACKED_TYPE: Final = "application/msgpack"
_YES: Final = frozenset({"1", "true", "yes", ""})
_NO: Final = frozenset({"0", "false", "no"})
TIMES: Final = "times"
"""The parameter that says how times are written in JSON and CSV."""
_ISO: Final = "iso"
_TIMES: Final = {_ISO: JSON, "us": JSON_US}
_DIGITS: Final = re.compile(r"[0-9]{1,18}")


class KeysAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST …/get``."""

    keys: list[Any]
    windows: bool = False
    """All windows of each key instead of the newest."""


class AskedRequest:
    """The parameters and headers of a request."""

    def __init__(self, request: Request, names: Mapping[str, str], user: User) -> None:
        self.request = request
        self.names = names
        self.user = user
        """Who asks."""
        self.method: str = request.method
        self.told: dict[str, str] = {}
        """What any answer says of the epoch, once it is known which one it is of; errors say it, too."""
        self._query = request.query_params
        self._since_s = time.monotonic()

    @property
    def age_s(self) -> float:
        """How long ago the request came."""
        return time.monotonic() - self._since_s

    def only(self, *known: str) -> None:
        """Refuses a parameter that nobody reads: a typo would be answered with something else than was meant."""
        for name in self._query:
            if name not in known:
                raise Problem(
                    400,
                    f"there is no parameter {shorten(name)!r} here",
                    where=shorten(self.request.url.path),
                    expected=" or ".join(known) or "none",
                    found=shorten(name),
                    next_move="`/docs` lists what can be asked",
                )

    def has(self, *names: str) -> bool:
        return any(name in self._query for name in names)

    def text(self, name: str, default: str = "") -> str:
        return self._query.get(name, default)

    def texts(self, name: str) -> list[str]:
        return self._query.getlist(name)

    def number(self, name: str, default: int, *, least: int, most: int) -> int:
        found = self._query.get(name)
        if found is None:
            return default
        if not _DIGITS.fullmatch(found) or not least <= int(found) <= most:
            raise bad_parameter(name, found, f"a number from {least} to {most}")
        return int(found)

    def flag(self, name: str) -> bool:
        found = self._query.get(name)
        if found is None:
            return False
        if found.lower() not in _YES | _NO:
            raise bad_parameter(name, found, "true or false")
        return found.lower() in _YES

    def seconds(self, name: str, default: float, most: float) -> float:
        """A span like ``5s`` or ``500ms``, or a number of seconds."""
        found = self._query.get(name)
        if found is None:
            return default
        try:
            seconds = float(found) if not found[-1:].isalpha() else span_us(found) / 1_000_000
        except (ValueError, ProgramError, OverflowError):
            seconds = math.nan
        if not 0 <= seconds <= most:
            raise bad_parameter(name, found, f"a span from 0s to {most:g}s, like 500ms or 5s")
        return seconds

    def offsets(self, name: str) -> dict[str, Any]:
        """Source → how far it has to be read, as JSON."""
        found = self.text(name, "{}")
        try:
            return msgspec.json.decode(found, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            raise bad_parameter(name, found, 'a source and an offset in its own words, like {"clicks": 41}') from None

    def moment(self, name: str) -> int | None:
        """A point in time; None where none is given."""
        found = self._query.get(name)
        if found is None:
            return None
        try:
            return _time_us(found)
        except (ValueError, OverflowError, ProgramError):
            raise bad_parameter(name, found, "a time like 2024-01-01T12:00:00Z, or microseconds since 1970") from None

    def at_moment(self, name: str) -> Moment:
        """A moment of the store: an epoch, a savepoint or a time."""
        found = self.text(name)
        try:
            return parse_moment(found)
        except StoreError as error:
            raise bad_parameter(name, found, error.expected) from None

    def window(self, name: str = "window") -> Window:
        found = self.text(name)
        try:
            start, end = found.split("/")
            return Window(_time_us(start), _time_us(end))  # type: ignore[arg-type]
        except (ValueError, OverflowError, ProgramError):
            raise bad_parameter(name, found, "start/end, each a time like 2024-01-01T12:00:00Z") from None

    # --- forms

    @property
    def form(self) -> str:
        """JSON, or MessagePack where that is asked for by name; in JSON times are text unless numbers are asked for."""
        text_form = self.text_form
        return PACKED if self._accepted() & PACKED_TYPES else text_form

    @property
    def text_form(self) -> str:
        """The form of what is text: with times as ISO text, or as numbers by ``times=us``."""
        found = self._query.get(TIMES, _ISO)
        if found not in _TIMES:
            raise bad_parameter(TIMES, found, " or ".join(_TIMES))
        return _TIMES[found]

    def export(self) -> str | None:
        """The format of a whole state; None where only a description or a page is asked for."""
        found = self._query.get("format")
        if found is None:
            return next((BY_TYPE[kind] for kind in self._accepted_in_order() if kind in BY_TYPE), None)
        if found not in FORMATS:
            raise bad_parameter("format", found, " or ".join(FORMATS))
        return found

    def _accepted_in_order(self) -> list[str]:
        parts = self.request.headers.get("accept", "")[:1000].split(",")
        return [part.partition(";")[0].strip().lower() for part in parts]

    def _accepted(self) -> frozenset[str]:
        return frozenset(self._accepted_in_order())

    # --- bodies

    async def keys(self, max_bytes: int, max_keys: int) -> KeysAsked:
        """The body of a request for many keys."""
        body = await self._body(max_bytes)
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        decode = msgspec.msgpack.decode if kind in PACKED_TYPES else msgspec.json.decode
        try:
            asked = decode(body, type=KeysAsked)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
            raise Problem(
                400,
                "the body cannot be read",
                expected='{"keys": ["one", "two"]} as JSON or MessagePack',
                found=shorten(str(error)),
                next_move="send JSON, or MessagePack with Content-Type: application/msgpack",
            ) from None
        if len(asked.keys) > max_keys:
            raise Problem(
                413,
                "too many keys in one request",
                expected=f"up to {count_of(max_keys, 'key')}",
                found=count_of(len(asked.keys), "key"),
                next_move="ask in several requests, or take the whole state with ?format=arrow",
            )
        return asked

    async def _body(self, max_bytes: int) -> bytes:
        """Reads no more than is allowed, and waits no longer than is decent."""
        held = bytearray()
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                async for part in self.request.stream():
                    held += part
                    if len(held) > max_bytes:
                        raise Problem(
                            413,
                            "the body is too large",
                            expected=f"up to {max_bytes} bytes",
                            next_move="ask for fewer keys at a time",
                            headers={"Connection": "close"},
                        )
        except TimeoutError:
            raise Problem(
                408, "the body did not come in time", expected=f"all of it within {BODY_TIMEOUT_S:g}s"
            ) from None
        except ClientDisconnect:
            raise Problem(400, "the connection was closed before the whole body had come") from None
        return bytes(held)


def parse_written_key(table: Reader, key: str) -> bytes:
    """The key in a path or parameter, as people write it."""
    try:
        return table.key(key)
    except (ValueError, RecursionError, ArithmeticError) as error:
        raise no_key(table, key, error) from None


def parse_key(table: Reader, key: Any) -> bytes:
    """The key in a document: text, JSON of another type, or its bytes as MessagePack's binary."""
    try:
        if isinstance(key, bytes):
            decode_key(key)
            return key
        if isinstance(key, str):
            return table.key(key_text(key) if table.by_text else key)
        return table.key(msgspec.json.encode(key).decode())
    except (ProgramError, ValueError, TypeError, RecursionError, ArithmeticError, struct.error) as error:
        raise no_key(table, key, error) from None


def no_key(table: Reader, key: Any, error: Exception) -> Problem:
    expected = error.expected if isinstance(error, ProgramError) else ""
    return Problem(
        400,
        "this cannot be a key of the state",
        where=table.address,
        expected=expected or "a key of the type that the stream is keyed by; text as it is, anything else as JSON",
        found=shorten(repr(key)),
        next_move='percent-encode keys in URLs; numbers are written 42, composite keys ["mill", 3]',
    )


def _time_us(text: str) -> int:
    return int(text) if text.lstrip("-").isdecimal() else parse_time(text)
