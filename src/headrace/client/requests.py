"""What a view asks for, as steps: the same for clients that wait and clients that are awaited.

Every answer is noted in the session, which sees to it that none is older than one before.

Values come as MessagePack and become the types that were asked for (`decoder`).
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import msgspec
from typing_extensions import TypeVar

from headrace.client.answers import AnswerInfo, Ends, Next, WantedEpoch, Windows, Wire
from headrace.client.sessions import ClientSession
from headrace.client.steps import ConnectionLost, Pause, ServerBehind, Steps
from headrace.errors import ProgramError, StoreError
from headrace.model.column_numbers import Convert, spans_and_datetimes_of
from headrace.model.key_bytes import as_type, plain_type
from headrace.model.keys import decode_key, encode_key, key_text
from headrace.model.values import type_name, value_codec
from headrace.model.window import Window
from headrace.read.shape import Kind

T = TypeVar("T")

AT_ONCE: Final = 10_000
"""Keys that are asked for in one request; of one epoch are those of one request."""
PAGE_KEYS: Final = 1_000
ALIVE_S: Final = 30.0
"""A watched connection on which nothing is heard for so long is tried, or made anew."""


class Requests:
    """Everything that can be asked about one state."""

    def __init__(self, session: ClientSession, address: str, value: Any, key: Any, at: str = "") -> None:
        """``at``: a moment of the past that all answers are of; empty: the present."""
        self.session = session
        self.address = address
        self.at = at
        self.value_type = value
        self.key_type = key
        self.decode = decoder(value, f"state {address}")

    def untyped(self) -> Requests:
        """The same, with values as plain Python."""
        return Requests(self.session, self.address, None, self.key_type, self.at)

    def key(self, encoded: bytes) -> Any:
        return decode_key(encoded, self.key_type)

    @property
    def info(self) -> AnswerInfo | None:
        """What the newest answer about the state said of itself; None before the first."""
        return self.session.heard(self.address, self.at)

    # --- by key

    def get_many(self, keys: list[Any]) -> Steps[list[Any]]:
        """The values of keys in the order asked; None where there is none."""
        wanted = [encode_key(key) for key in keys]
        distinct = list(dict.fromkeys(wanted))
        found: dict[bytes, Any] = {}
        for start in range(0, len(distinct) or 1, AT_ONCE):
            part = distinct[start : start + AT_ONCE]
            raws = yield from self._get(part)
            found.update((key, None if raw is None else self.decode(key, raw)) for key, raw in zip(part, raws))
        return [found[key] for key in wanted]

    def windows(self, key: Any) -> Steps[dict[Window, Any]]:
        """Every window of a key that is kept, those that end earlier first."""
        encoded = encode_key(key)
        windows = yield from self._ask(lambda wire, left_s: wire.windows(self.address, encoded, self._epoch, left_s))
        return {window: self.decode(encoded, raw) for window, raw in windows}

    def between(self, key: Any, ends: Ends) -> Steps[dict[Window, Any]]:
        """The windows of a key that lie between two times, those that end earlier first."""
        encoded = encode_key(key)
        found: dict[Window, Any] = {}
        after: str | None = ""
        while after is not None:
            windows, after = yield from self._range(encoded, ends, after)
            found.update((window, self.decode(encoded, raw)) for window, raw in windows)
        return found

    # --- all of it

    def page(self, prefix: str, after: str) -> Steps[tuple[list[tuple[Any, Any]], str | None]]:
        """Some keys and values, and where to go on."""
        entries, following = yield from self._ask(
            lambda wire, left_s: wire.page(self.address, prefix, after, PAGE_KEYS, self._epoch, left_s)
        )
        return [(self.key(key), self.decode(key, raw)) for key, raw in entries], following

    def count(self) -> Steps[int]:
        """How many keys there are."""
        return self._ask(lambda wire, left_s: wire.count(self.address, self._epoch, left_s))

    def kind(self) -> Steps[Kind]:
        """What the state keeps per key."""
        return self._ask(lambda wire, left_s: wire.kind(self.address, self._epoch, left_s))

    def arrow(self) -> Steps[bytes | None]:
        """The whole state as an Arrow stream, all of one epoch; None where the protocol has none."""

        def asked(wire: Wire, left_s: float) -> Steps[bytes | None]:
            answer = yield from wire.arrow(self.address, self._epoch, left_s)
            if answer is None:
                return None
            self.session.learn(answer[0], self.address, self.at)
            return answer[1]

        return self.session.call(asked)

    # --- asking

    @property
    def _epoch(self) -> WantedEpoch:
        return WantedEpoch(self.session.seen, self.at)

    def _get(self, keys: list[bytes]) -> Steps[list[bytes | None]]:
        return self._ask(lambda wire, left_s: wire.get(self.address, keys, self._epoch, left_s))

    def _range(self, key: bytes, ends: Ends, after: str) -> Steps[tuple[Windows, Next]]:
        return self._ask(lambda wire, left_s: wire.range(self.address, key, ends, after, AT_ONCE, self._epoch, left_s))

    def _ask(self, request: Callable[[Wire, float], Steps[tuple[AnswerInfo, T]]]) -> Steps[T]:
        return ask(self.session, request, address=self.address, at=self.at)


class Watching:
    """One key that is watched: its value now, and after each change. Lost connections are made anew.

    So is one whose server is behind what this client has seen elsewhere meanwhile: what it says next may be older, and
    the value as it is now may be one that it says no more about.
    """

    def __init__(self, requests: Requests, key: Any) -> None:
        if requests.at:
            raise ProgramError(
                "the past does not change",
                where=f"state {requests.address}, at {requests.at}",
                next_move="watch the key with the client that reads the present",
            )
        self._requests = requests
        self._session = requests.session
        self._key = encode_key(key)
        self._wire: Wire | None = None
        self._last: bytes | object | None = self
        """What was given last; nothing yet."""

    def next(self) -> Steps[Any]:
        """The next value that differs from the last one; None where the key is gone."""
        pause_s = 0.02
        while True:
            try:
                if self._wire is None:
                    self._wire = yield from self._session.call(self._begin, own=True)
                found = yield from self._wire.watched(ALIVE_S)
                if found is None:
                    continue
                told, raw = found
                self._session.learn(told, self._requests.address)
            except (ConnectionLost, ServerBehind):
                self.close()
                yield Pause(pause_s)
                pause_s = min(1.0, pause_s * 2)
                continue
            if raw != self._last:
                self._last = raw
                return None if raw is None else self._requests.decode(self._key, raw)

    def _begin(self, wire: Wire, timeout_s: float) -> Steps[Wire]:
        told = yield from wire.watch(self._requests.address, self._key, timeout_s)
        self._session.learn(told)
        return wire

    def close(self) -> None:
        if self._wire is not None:
            self._wire.line.close()
            self._wire = None


def ask(
    session: ClientSession,
    request: Callable[[Wire, float], Steps[tuple[AnswerInfo, T]]],
    timeout_s: float | None = None,
    *,
    address: str = "",
    at: str = "",
) -> Steps[T]:
    """Asks until somebody answers; what the answer says of itself is noted before it is given to anybody."""

    def asked(wire: Wire, left_s: float) -> Steps[T]:
        told, answer = yield from request(wire, left_s)
        session.learn(told, address, at)
        return answer

    return session.call(asked, timeout_s)


def wait_for(session: ClientSession, epoch: int, offsets: Mapping[str, Any], timeout_s: float) -> Steps[AnswerInfo]:
    """Comes back when an epoch can be read, and sources are read so far."""

    def waited(wire: Wire, left_s: float) -> Steps[tuple[AnswerInfo, AnswerInfo]]:
        told = yield from wire.wait(epoch, offsets, left_s)
        return told, told

    return ask(session, waited, timeout_s)


def states(session: ClientSession, at: str = "") -> Steps[list[str]]:
    """The states that may be read."""
    return ask(session, lambda wire, left_s: wire.states(WantedEpoch(session.seen, at), left_s), at=at)


def find_epoch(session: ClientSession, at: str) -> Steps[AnswerInfo]:
    """What an answer about a moment of the past is of."""

    def about(wire: Wire, left_s: float) -> Steps[tuple[AnswerInfo, AnswerInfo]]:
        told, _ = yield from wire.states(WantedEpoch(session.seen, at), left_s)
        return told, told

    return ask(session, about, at=at)


# --- from MessagePack to the types that were asked for


Decode = Callable[[bytes], Any]
DecodeOf = Callable[[bytes, bytes], Any]
"""From the stored bytes of a key and those of its value."""


def decoder(annotation: Any, where: str) -> DecodeOf:
    """How values of a state become what was asked for; without a type plain Python."""
    if annotation is None or annotation is Any:
        return lambda key, raw: msgspec.msgpack.decode(raw)
    decode = _decoder_of(annotation, where)

    def checked(key: bytes, raw: bytes) -> Any:
        try:
            return decode(raw)
        except msgspec.MsgspecError as error:
            raise StoreError(
                "a stored value does not fit the type it was asked for as",
                where=f"{where}, key {key_text(decode_key(key))}",
                expected=type_name(annotation),
                found=str(error),
                next_move="ask for the type the program declares, or for none to get plain Python",
            ) from error

    return checked


def _decoder_of(annotation: Any, where: str) -> Decode:
    parts = typing.get_args(annotation)
    if typing.get_origin(annotation) is dict and _is_time(parts[0]):
        # Names of entries are keys, in which times are numbers.
        decode = value_codec(dict[int, parts[1]], where=where).decode  # type: ignore[valid-type]
        return lambda raw: {as_type(name, parts[0]): value for name, value in decode(raw).items()}
    decode, convert = value_codec(annotation, where=where).decode, spans_and_datetimes_of(annotation)
    return decode if convert is None else partial(_decode_either, decode, convert, annotation)


def _decode_either(decode: Decode, convert: Convert, annotation: Any, raw: bytes) -> Any:
    """Values have datetimes and spans as such, results that are read off columns have numbers for them."""
    try:
        return decode(raw)
    except msgspec.ValidationError:
        return msgspec.convert(convert(msgspec.msgpack.decode(raw)), annotation)


def _is_time(annotation: Any) -> bool:
    kind = plain_type(annotation)
    return isinstance(kind, type) and issubclass(kind, datetime | timedelta)
