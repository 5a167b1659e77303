"""What a view asks for, as steps: the same for clients that wait and clients that are awaited.

Every answer is noted in the session, which sees to it that none is older than one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from typing_extensions import TypeVar

from headrace.client.answers import AnswerInfo, Ends, Page, RangeOfWindows, Wire
from headrace.client.decoding import decoder
from headrace.client.sessions import Session
from headrace.client.steps import Behind, Lost, Pause, Steps
from headrace.model.keys import decode_key, encode_key
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

    def __init__(self, session: Session, address: str, value: Any, key: Any) -> None:
        self.session = session
        self.address = address
        self.value_type = value
        self.key_type = key
        self.decode = decoder(value, f"state {address}")

    def untyped(self) -> Requests:
        """The same, with values as plain Python."""
        return Requests(self.session, self.address, None, self.key_type)

    def key(self, encoded: bytes) -> Any:
        return decode_key(encoded, self.key_type)

    @property
    def info(self) -> AnswerInfo | None:
        """What the newest answer about the state said of itself; None before the first."""
        return self.session.heard(self.address)

    # --- by key

    def get_many(self, keys: list[Any]) -> Steps[list[Any]]:
        """The values of keys in the order asked; None where there is none."""
        wanted = [encode_key(key) for key in keys]
        distinct = list(dict.fromkeys(wanted))
        found: dict[bytes, Any] = {}
        for start in range(0, len(distinct) or 1, AT_ONCE):
            part = distinct[start : start + AT_ONCE]

            def ask(wire: Wire, timeout_s: float, part: list[bytes] = part) -> Steps[list[bytes | None]]:
                told, values = yield from wire.get(self.address, part, self.session.seen, timeout_s)
                self.session.learn(told, self.address)
                return values

            raws = yield from self.session.call(ask)
            found.update((key, None if raw is None else self.decode(key, raw)) for key, raw in zip(part, raws))
        return [found[key] for key in wanted]

    def windows(self, key: Any) -> Steps[dict[Window, Any]]:
        """Every window of a key that is kept, those that end earlier first."""
        encoded = encode_key(key)

        def ask(wire: Wire, timeout_s: float) -> Steps[list[tuple[Window, bytes]]]:
            told, windows = yield from wire.windows(self.address, encoded, self.session.seen, timeout_s)
            self.session.learn(told, self.address)
            return windows

        windows = yield from self.session.call(ask)
        return {window: self.decode(encoded, raw) for window, raw in windows}

    def between(self, key: Any, ends: Ends) -> Steps[dict[Window, Any]]:
        """The windows of a key that lie between two times, those that end earlier first."""
        encoded = encode_key(key)
        found: dict[Window, Any] = {}
        after: str | None = ""
        while after is not None:

            def ask(wire: Wire, timeout_s: float, after: str = after) -> Steps[RangeOfWindows]:
                seen = self.session.seen
                page = yield from wire.range(self.address, encoded, ends, after, AT_ONCE, seen, timeout_s)
                self.session.learn(page.info, self.address)
                return page

            page = yield from self.session.call(ask)
            found.update((window, self.decode(encoded, raw)) for window, raw in page.windows)
            after = page.next
        return found

    # --- all of it

    def page(self, prefix: str, after: str) -> Steps[tuple[list[tuple[Any, Any]], str | None]]:
        """Some keys and values, and where to go on."""

        def ask(wire: Wire, timeout_s: float) -> Steps[Page]:
            seen = self.session.seen
            page = yield from wire.page(self.address, prefix, after, PAGE_KEYS, seen, timeout_s)
            self.session.learn(page.info, self.address)
            return page

        page = yield from self.session.call(ask)
        return [(self.key(key), self.decode(key, raw)) for key, raw in page.entries], page.next

    def count(self) -> Steps[int]:
        """How many keys there are."""

        def ask(wire: Wire, timeout_s: float) -> Steps[int]:
            told, keys = yield from wire.count(self.address, self.session.seen, timeout_s)
            self.session.learn(told, self.address)
            return keys

        return (yield from self.session.call(ask))

    def kind(self) -> Steps[Kind]:
        """What the state keeps per key."""

        def ask(wire: Wire, timeout_s: float) -> Steps[Kind]:
            told, kind = yield from wire.kind(self.address, self.session.seen, timeout_s)
            self.session.learn(told, self.address)
            return kind

        return (yield from self.session.call(ask))

    def arrow(self) -> Steps[bytes | None]:
        """The whole state as an Arrow stream, all of one epoch; None where the protocol has none."""

        def ask(wire: Wire, timeout_s: float) -> Steps[bytes | None]:
            found = yield from wire.arrow(self.address, self.session.seen, timeout_s)
            if found is None:
                return None
            told, stream = found
            self.session.learn(told, self.address)
            return stream

        return (yield from self.session.call(ask))


class Watching:
    """One key that is watched: its value now, and after each change. Lost connections are made anew.

    So is one whose server is behind what this client has seen elsewhere meanwhile: what it says next may be older, and
    the value as it is now may be one that it says no more about.
    """

    def __init__(self, requests: Requests, key: Any) -> None:
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
            except (Lost, Behind):
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


def wait_for(session: Session, epoch: int, offsets: Mapping[str, Any], timeout_s: float) -> Steps[AnswerInfo]:
    """Comes back when an epoch can be read, and sources are read so far."""

    def ask(wire: Wire, left_s: float) -> Steps[AnswerInfo]:
        told = yield from wire.wait(epoch, offsets, left_s)
        session.learn(told)
        return told

    return (yield from session.call(ask, timeout_s))


def states(session: Session) -> Steps[list[str]]:
    """The states that may be read."""

    def ask(wire: Wire, left_s: float) -> Steps[list[str]]:
        told, found = yield from wire.states(session.seen, left_s)
        session.learn(told)
        return found

    return (yield from session.call(ask))
