"""Asking over Redis' protocol: one connection, its third version, values as MessagePack.

Headrace's own commands (`headrace.serve.resp.stored`) say with every answer which epoch it is of, and take keys as the
bytes they are stored as.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headrace.client.answers import AnswerInfo, Ends, Next, OlderVersion, Page, Version, WantedEpoch, Windows, refusal
from headrace.client.steps import ConnectionLost, Line, Read, Server, ServerBehind, Silent, Steps, Write
from headrace.errors import HeadraceError
from headrace.model.keys import decode_key, key_text
from headrace.model.packages import package
from headrace.model.time import parse_time
from headrace.model.window import Window
from headrace.read.shape import Kind

_NOTHING: Final = object()
_STATUS: Final = {
    "NOAUTH": 401, "WRONGPASS": 401, "NOPERM": 403, "NOSTATE": 404, "WRONGTYPE": 400, "ERR": 400,
    "NOEPOCH": 410, "NOARCHIVE": 502,
}  # fmt: skip
_BUSY: Final = frozenset({"LOADING", "BUSY", "TRYAGAIN", "MASTERDOWN"})
_MORE_TIME_S: Final = 5.0
"""How much longer than the server to wait for an answer that takes its time."""


class RedisWire:
    """A connection of Redis' protocol."""

    def __init__(self, server: Server, line: Line) -> None:
        self.server = server
        self.line = line
        self.reusable = True
        self._reader = _make_reader()
        self._pushed = False
        """Whether a message came since the watched key was asked for."""
        self._watching = "", b""

    def hello(self, timeout_s: float) -> Steps[None]:
        words: list[bytes | str] = ["HELLO", "3"]
        if self.server.token:
            words += ["AUTH", self.server.user or "default", self.server.token]
        yield from self._ask(timeout_s, *words)
        yield from self._ask(timeout_s, "SELECT", "1")

    # --- state

    def get(
        self, address: str, keys: list[bytes], wanted: WantedEpoch, timeout_s: float
    ) -> Steps[tuple[AnswerInfo, list[bytes | None]]]:
        if not keys:
            told, _ = yield from self._states(address, wanted, timeout_s)
            return told, []
        return (yield from self._ask_with_info(timeout_s, "HEADRACE.GET", _place(address, wanted), *keys))

    def windows(
        self, address: str, key: bytes, wanted: WantedEpoch, timeout_s: float
    ) -> Steps[tuple[AnswerInfo, Windows]]:
        told, parts = yield from self._ask_with_info(timeout_s, "HEADRACE.WINDOWS", _place(address, wanted), key)
        found = zip(parts[::3], parts[1::3], parts[2::3])
        return told, [(Window(start, end), raw) for start, end, raw in found]

    def range(
        self, address: str, key: bytes, ends: Ends, after: str, count: int, wanted: WantedEpoch, timeout_s: float
    ) -> Steps[tuple[AnswerInfo, tuple[Windows, Next]]]:
        first, last = ("-" if ends[0] is None else str(ends[0])), ("+" if ends[1] is None else str(ends[1]))
        words = ("HEADRACE.RANGE", _place(address, wanted), key, first, last, str(count), after)
        told, (following, *parts) = yield from self._ask_with_info(timeout_s, *words)
        found = zip(parts[::3], parts[1::3], parts[2::3])
        windows = [(Window(start, end), raw) for start, end, raw in found]
        return told, (windows, following.decode() or None)

    def page(
        self, address: str, prefix: str, after: str, count: int, wanted: WantedEpoch, timeout_s: float
    ) -> Steps[tuple[AnswerInfo, Page]]:
        words = ("HEADRACE.PAGE", _place(address, wanted), prefix, after or "0", str(count))
        told, (following, *parts) = yield from self._ask_with_info(timeout_s, *words)
        return told, (list(zip(parts[::2], parts[1::2])), None if following == b"-1" else following.decode())

    def count(self, address: str, wanted: WantedEpoch, timeout_s: float) -> Steps[tuple[AnswerInfo, int]]:
        return (yield from self._ask_with_info(timeout_s, "HEADRACE.COUNT", _place(address, wanted)))

    def kind(self, address: str, wanted: WantedEpoch, timeout_s: float) -> Steps[tuple[AnswerInfo, Kind]]:
        told, states = yield from self._states(address, wanted, timeout_s)
        if address.encode() not in states:
            raise self._refusal(f"NOSTATE the job keeps no state {address}; it keeps {_list_states(states)}")
        kind: Kind = states[address.encode()][b"kind"].decode()
        return told, kind

    def states(self, wanted: WantedEpoch, timeout_s: float) -> Steps[tuple[AnswerInfo, list[str]]]:
        told, found = yield from self._states("", wanted, timeout_s)
        return told, [address.decode() for address in found]

    def _states(
        self, address: str, wanted: WantedEpoch, timeout_s: float
    ) -> Steps[tuple[AnswerInfo, dict[bytes, Any]]]:
        """All states, and what this is of; the watermark is that of the one with the address."""
        moment = (wanted.at,) if wanted.at else ()
        about = ("HEADRACE.INFO", *moment), ("HEADRACE.STATES", *moment)
        facts, states = yield from self._together(timeout_s, *about)
        mark = states.get(address.encode(), {}).get(b"watermark")
        return self._info_of(facts)._replace(watermark_us=None if mark is None else parse_time(mark.decode())), states

    def arrow(self, address: str, wanted: WantedEpoch, timeout_s: float) -> Steps[tuple[AnswerInfo, bytes] | None]:
        return None
        yield

    def wait(self, epoch: int, offsets: Mapping[str, Any], timeout_s: float) -> Steps[AnswerInfo]:
        wanted: list[tuple[str, ...]] = [(str(epoch),)] if epoch >= 0 else []
        wanted += [(source, msgspec.json.encode(offset).decode()) for source, offset in offsets.items()]
        for words in wanted:
            allowed_ms = str(max(1, round(timeout_s * 1000)))
            reached = yield from self._ask(timeout_s + _MORE_TIME_S, "HEADRACE.WAIT", *words, allowed_ms)
            if reached is None:
                raise ServerBehind(f"{self.server} has not come that far")
        return self._info_of((yield from self._ask(timeout_s, "HEADRACE.INFO")))

    def _info_of(self, facts: dict[bytes, Any]) -> AnswerInfo:
        if facts[b"epoch"] < 0:
            raise ConnectionLost(f"{self.server} waits for the first epoch: {facts[b'trouble'].decode()}")
        version = Version(facts[b"timeline"], facts[b"epoch"], facts[b"store_id"].decode())
        return AnswerInfo(version, facts[b"age_ms"] / 1000)

    # --- watching

    def watch(self, address: str, key: bytes, timeout_s: float) -> Steps[AnswerInfo]:
        self.reusable = False
        self._watching = address, key
        yield from self._send(timeout_s, "SUBSCRIBE", f"{address}:{key_text(decode_key(key))}")
        told, _ = yield from self._ask_with_info(timeout_s, "HEADRACE.GET", address, key)
        return told

    def watched(self, timeout_s: float) -> Steps[tuple[AnswerInfo, bytes | None] | None]:
        """A message says that the key changed; what it is now is asked for, so that no value is older than one before.

        The first message is the confirmation, after which nothing is missed: what is asked for then is the first value.
        """
        if not self._pushed:
            try:
                yield from self._reply(timeout_s)
            except Silent:
                # A connection that is gone looks the same as one on which nothing happens.
                yield from self._ask(timeout_s, "PING")
                return None
        self._pushed = False
        address, key = self._watching
        told, (value,) = yield from self._ask_with_info(timeout_s, "HEADRACE.GET", address, key)
        return told, value

    # --- requests

    def _ask_with_info(self, timeout_s: float, *words: bytes | str) -> Steps[tuple[AnswerInfo, Any]]:
        timeline, epoch, age_ms, mark, store, older, payload = yield from self._ask(timeout_s, *words)
        version = Version(timeline, epoch, store.decode())
        return AnswerInfo(version, age_ms / 1000, mark, None if older is None else OlderVersion(*older)), payload

    def _ask(self, timeout_s: float, *words: bytes | str) -> Steps[Any]:
        yield from self._send(timeout_s, *words)
        reply = yield from self._answer(timeout_s)
        if isinstance(reply, _hiredis().ReplyError):
            raise self._refusal(str(reply))
        return reply

    def _together(self, timeout_s: float, *requests: tuple[bytes | str, ...]) -> Steps[list[Any]]:
        """The answers of several requests, all of one epoch; one round trip."""
        sent = [("MULTI",), *requests, ("EXEC",)]
        yield Write(self.line, b"".join(map(_hiredis().pack_command, sent)), timeout_s)
        replies = []
        for _ in sent:
            # All of them are read before one is found to be an error: the next request may use the connection.
            replies.append((yield from self._answer(timeout_s)))
        answers = replies[-1] if isinstance(replies[-1], list) else []
        for reply in (*replies, *answers):
            if isinstance(reply, _hiredis().ReplyError):
                raise self._refusal(str(reply))
        return answers

    def _answer(self, timeout_s: float) -> Steps[Any]:
        """The next reply that is no message."""
        while isinstance(reply := (yield from self._reply(timeout_s)), _hiredis().PushNotification):
            self._pushed = True
        return reply

    def _send(self, timeout_s: float, *words: bytes | str) -> Steps[None]:
        yield Write(self.line, _hiredis().pack_command(tuple(words)), timeout_s)

    def _reply(self, timeout_s: float) -> Steps[Any]:
        try:
            while (reply := self._reader.gets()) is _NOTHING:
                data = yield Read(self.line, timeout_s)
                if not data:
                    raise ConnectionLost("the server closed the connection")
                self._reader.feed(data)
        except _hiredis().ProtocolError as error:
            raise ConnectionLost(f"this is not Redis' protocol: {error}") from error
        return reply

    def _refusal(self, message: str) -> Exception:
        """What an error is for the client: worth trying elsewhere, or final."""
        kind, _, what = message.partition(" ")
        if kind in _BUSY:
            return ConnectionLost(f"{self.server}: {message}")
        return _refusal_of(self.server, kind, what)


def _place(address: str, wanted: WantedEpoch) -> str:
    """A state at the moment that is wanted."""
    return f"{address}@{wanted.at}" if wanted.at else address


def _refusal_of(server: Server, kind: str, what: str) -> HeadraceError:
    return refusal(server, _STATUS.get(kind, 400), {"what": what if kind in _STATUS else f"{kind} {what}"})


def _list_states(states: dict[bytes, Any]) -> str:
    return " or ".join(address.decode() for address in states) or "none"


def _hiredis() -> Any:
    with package("hiredis", extra="serve", where="hr.Client", instead='or ask over HTTP: hr.Client("http://…")'):
        import hiredis
    return hiredis


def _make_reader() -> Any:
    # An error inside of an answer is part of it, and one that is all of it is looked at by whoever asked.
    return _hiredis().Reader(notEnoughData=_NOTHING)
