"""Asking over HTTP: one connection, kept open, with MessagePack both ways.

Keys travel as the bytes they are stored as, so a key of any type is exactly the one that was meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import h11
import msgspec

from headrace.client.answers import AnswerInfo, Ends, Next, OlderVersion, Page, Version, WantedEpoch, Windows, refusal
from headrace.client.steps import ConnectionLost, Line, Read, Server, ServerBehind, Steps, Write
from headrace.errors import HeadraceError, StoreError
from headrace.model.keys import decode_key, key_text
from headrace.model.time import parse_time
from headrace.model.window import Window
from headrace.read.shape import Kind

PACKED: Final = "application/msgpack"
ARROW: Final = "application/vnd.apache.arrow.stream"
TROUBLED: Final = frozenset({429, 500, 502, 503})
"""What another server, or the same one a moment later, may answer better."""
MAX_WAIT_S: Final = 60.0
MORE_TIME_S: Final = 5.0
"""How much longer than the server to wait for an answer that takes its time."""
NIL: Final = b"\xc0"
"""None in MessagePack; no state keeps it."""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class HttpWire:
    """A connection of HTTP/1.1."""

    def __init__(self, server: Server, line: Line, job: str | None) -> None:
        self.server = server
        self.line = line
        self.reusable = True
        self._job = job
        self._http = h11.Connection(h11.CLIENT)
        self._events = b""

    def hello(self, timeout_s: float) -> Steps[None]:
        if self._job is not None:
            return
        answer = yield from self._ask("GET", "/v1/jobs", {}, None, timeout_s)
        jobs = [told["app"] for told in msgspec.msgpack.decode(answer.body)["jobs"]]
        if not jobs:
            raise ConnectionLost(f"{self.server} waits for the first epoch of its job")
        if len(jobs) > 1:
            raise StoreError(
                "the server answers for several jobs",
                where=str(self.server),
                expected="the name of one of them",
                found=", ".join(jobs),
                next_move='name it: hr.Client("http://…", job="…")',
            )
        self._job = jobs[0]

    # --- state

    def get(
        self, address: str, keys: list[bytes], wanted: WantedEpoch, timeout_s: float
    ) -> Steps[tuple[AnswerInfo, list[bytes | None]]]:
        told, raws = yield from self._get(address, {"keys": keys}, wanted, timeout_s)
        return told, [None if raw == NIL else raw for raw in map(bytes, raws)]

    def windows(
        self, address: str, key: bytes, wanted: WantedEpoch, timeout_s: float
    ) -> Steps[tuple[AnswerInfo, Windows]]:
        told, raws = yield from self._get(address, {"keys": [key], "windows": True}, wanted, timeout_s)
        found = msgspec.msgpack.decode(raws[0], type=list[tuple[int, int, msgspec.Raw]])
        return told, [(Window(start, end), bytes(raw)) for start, end, raw in found]  # type: ignore[arg-type]

    def _get(
        self, address: str, body: dict[str, Any], wanted: WantedEpoch, timeout_s: float
    ) -> Steps[tuple[AnswerInfo, list[msgspec.Raw]]]:
        path = f"{self._state(address)}/get"
        answer = yield from self._ask("POST", path, _epoch(wanted, timeout_s), msgspec.msgpack.encode(body), timeout_s)
        reply = msgspec.msgpack.decode(answer.body, type=_ValuesReply)
        return _answer_info(answer.headers, reply), reply.values

    def range(
        self, address: str, key: bytes, ends: Ends, after: str, count: int, wanted: WantedEpoch, timeout_s: float
    ) -> Steps[tuple[AnswerInfo, tuple[Windows, Next]]]:
        path = f"{self._state(address)}/{_part(key_text(decode_key(key)))}/windows"
        query = {"limit": str(count), **({"after": after} if after else {}), **_epoch(wanted, timeout_s)}
        query |= {name: str(end) for name, end in zip(("from", "to"), ends) if end is not None}
        answer = yield from self._ask("GET", path, query, None, timeout_s)
        body = msgspec.msgpack.decode(answer.body, type=_Range)
        windows = [(Window(start, end), bytes(raw)) for start, end, raw in body.windows]  # type: ignore[arg-type]
        return _answer_info(answer.headers), (windows, body.next)

    def page(
        self, address: str, prefix: str, after: str, count: int, wanted: WantedEpoch, timeout_s: float
    ) -> Steps[tuple[AnswerInfo, Page]]:
        query = {"limit": str(count), **({"prefix": prefix} if prefix else {}), **({"after": after} if after else {})}
        query |= _epoch(wanted, timeout_s)
        answer = yield from self._ask("GET", self._state(address), query, None, timeout_s)
        body = msgspec.msgpack.decode(answer.body, type=_Page)
        return _answer_info(answer.headers, body), ([(key, bytes(raw)) for key, raw in body.entries], body.next)

    def count(self, address: str, wanted: WantedEpoch, timeout_s: float) -> Steps[tuple[AnswerInfo, int]]:
        query = {"count": "true", **_epoch(wanted, timeout_s)}
        answer = yield from self._ask("GET", self._state(address), query, None, timeout_s)
        return _answer_info(answer.headers), int(msgspec.msgpack.decode(answer.body)["keys"])

    def kind(self, address: str, wanted: WantedEpoch, timeout_s: float) -> Steps[tuple[AnswerInfo, Kind]]:
        answer = yield from self._ask("GET", self._state(address), _epoch(wanted, timeout_s), None, timeout_s)
        kind: Kind = msgspec.msgpack.decode(answer.body)["kind"]
        return _answer_info(answer.headers), kind

    def states(self, wanted: WantedEpoch, timeout_s: float) -> Steps[tuple[AnswerInfo, list[str]]]:
        path = f"/v1/jobs/{_part(self._job)}/state"
        answer = yield from self._ask("GET", path, _epoch(wanted, timeout_s), None, timeout_s)
        return _answer_info(answer.headers), [each["state"] for each in msgspec.msgpack.decode(answer.body)["states"]]

    def arrow(self, address: str, wanted: WantedEpoch, timeout_s: float) -> Steps[tuple[AnswerInfo, bytes] | None]:
        query = {"format": "arrow", **_epoch(wanted, timeout_s)}
        answer = yield from self._ask("GET", self._state(address), query, None, timeout_s)
        return _answer_info(answer.headers), answer.body

    def wait(self, epoch: int, offsets: Mapping[str, Any], timeout_s: float) -> Steps[AnswerInfo]:
        path = f"/v1/jobs/{_part(self._job)}/state"
        query = {"wait_epoch": str(max(0, epoch)), "timeout": _seconds(timeout_s)}
        if offsets:
            query["wait_offset"] = msgspec.json.encode(offsets).decode()
        answer = yield from self._ask("HEAD", path, query, None, timeout_s + MORE_TIME_S)
        return _answer_info(answer.headers)

    # --- watching

    def watch(self, address: str, key: bytes, timeout_s: float) -> Steps[AnswerInfo]:
        self.reusable = False
        query = {"state": address, "key": key_text(decode_key(key)), "values": "msgpack"}
        path = f"/v1/jobs/{_part(self._job)}/changes"
        yield from self._send("GET", path, query, None, timeout_s)
        status, headers = yield from self._head(timeout_s)
        if status != 200:
            body = yield from self._body(timeout_s)
            raise self._problem(Answer(status, headers, body))
        return _answer_info(headers)

    def watched(self, timeout_s: float) -> Steps[tuple[AnswerInfo, bytes | None] | None]:
        while True:
            event, found = self._next_event()
            if found:
                return None if event is None else (event.info, event.value)
            part = yield from self._event(timeout_s)
            if not isinstance(part, h11.Data):
                raise ConnectionLost("the stream of changes ended")
            self._events += bytes(part.data)

    def _next_event(self) -> tuple[_Change | None, bool]:
        """The next change among the bytes that came; (None, True) for a sign of life, (None, False) for too little."""
        block, end, rest = self._events.partition(b"\n\n")
        if not end:
            return None, False
        self._events = rest
        lines = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line)
        if lines.get(b"event") == b"failed":
            # The value cannot be given. It is answered as a request for it would be.
            raise self._problem(Answer(422, {}, lines[b"data"]))
        if lines.get(b"event") != b"change":
            return None, True
        return msgspec.json.decode(lines[b"data"], type=_Change), True

    # --- requests

    def _state(self, address: str) -> str:
        return f"/v1/jobs/{_part(self._job)}/state/{_part(address)}"

    def _ask(
        self, method: str, path: str, query: dict[str, str], body: bytes | None, timeout_s: float
    ) -> Steps[Answer]:
        yield from self._send(method, path, query, body, timeout_s)
        status, headers = yield from self._head(timeout_s)
        answer = Answer(status, headers, (yield from self._body(timeout_s)))
        self.reusable = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        if self.reusable:
            self._http.start_next_cycle()
        if answer.status != 200:
            raise self._problem(answer)
        return answer

    def _send(self, method: str, path: str, query: dict[str, str], body: bytes | None, timeout_s: float) -> Steps[None]:
        target = path + ("?" + urlencode(query) if query else "")
        headers = [("Host", f"{self.server.host}:{self.server.port}"), ("Accept", PACKED)]
        if self.server.token:
            headers.append(("Authorization", f"Bearer {self.server.token}"))
        if body is not None:
            headers += [("Content-Type", PACKED), ("Content-Length", str(len(body)))]
        try:
            data = self._http.send(h11.Request(method=method, target=target, headers=headers)) or b""
            data += (self._http.send(h11.Data(data=body)) or b"") if body is not None else b""
            data += self._http.send(h11.EndOfMessage()) or b""
        except h11.LocalProtocolError as error:
            raise ConnectionLost(str(error)) from error
        yield Write(self.line, data, timeout_s)

    def _head(self, timeout_s: float) -> Steps[tuple[int, dict[str, str]]]:
        event = yield from self._event(timeout_s)
        if not isinstance(event, h11.Response):
            raise ConnectionLost("the server closed the connection")
        return event.status_code, {name.decode().lower(): value.decode("latin-1") for name, value in event.headers}

    def _body(self, timeout_s: float) -> Steps[bytes]:
        parts = []
        while isinstance(event := (yield from self._event(timeout_s)), h11.Data):
            parts.append(bytes(event.data))
        if not isinstance(event, h11.EndOfMessage):
            raise ConnectionLost("the answer broke off")
        return b"".join(parts)

    def _event(self, timeout_s: float) -> Steps[Any]:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data((yield Read(self.line, timeout_s)))
        except h11.RemoteProtocolError as error:
            raise ConnectionLost(str(error)) from error
        return event

    def _problem(self, answer: Answer) -> Exception:
        """What an answer that is an error is for the client: worth trying elsewhere, or final."""
        if answer.status == 504:
            return ServerBehind(f"{self.server} has not come that far")
        if answer.status in TROUBLED:
            refused = _refusal(self.server, answer) if answer.status == 502 else None
            if refused is not None and refused.next_move:
                # Not a proxy that does not reach the server, but a server that does not reach its archive.
                return refused
            return ConnectionLost(f"{self.server} answered with status {answer.status}")
        return _refusal(self.server, answer)


class _Change(msgspec.Struct):
    value: bytes | None
    timeline: int
    epoch: int
    store: str
    age_ms: int
    watermark: str | None

    @property
    def info(self) -> AnswerInfo:
        mark = None if self.watermark is None else parse_time(self.watermark)
        return AnswerInfo(Version(self.timeline, self.epoch, self.store), self.age_ms / 1000, mark)


class _Versions(msgspec.Struct, kw_only=True):
    """In which version each value was written, where that is an older one."""

    versions: list[int | None] = []
    newest_version: int = 0


class _ValuesReply(_Versions):
    values: list[msgspec.Raw]


class _Range(msgspec.Struct):
    windows: list[tuple[int, int, msgspec.Raw]]
    next: str | None


class _Page(_Versions):
    entries: list[tuple[bytes, msgspec.Raw]]
    next: str | None


def _epoch(wanted: WantedEpoch, timeout_s: float) -> dict[str, str]:
    """The parameters that say which epoch is wanted."""
    seen, at = wanted
    if at:
        return {"at": at}
    if seen.epoch < 0:
        return {}
    of = {"wait_epoch": str(seen.epoch), "timeline": str(seen.timeline), "store": seen.store}
    # Shorter than we wait ourselves: that it has not come so far says more than that nothing was heard.
    return {**of, "timeout": _seconds(0.8 * timeout_s)}


def _seconds(timeout_s: float) -> str:
    return f"{min(timeout_s, MAX_WAIT_S):.3f}"


def _answer_info(headers: Mapping[str, str], many: _Versions | None = None) -> AnswerInfo:
    """``many``: an answer about several keys, which says in its body what one about a single key says in headers."""
    mark = headers.get("headrace-watermark")
    versions = [] if many is None else [each for each in many.versions if each is not None]
    older = None if many is None or not versions else OlderVersion(min(versions), many.newest_version)
    if "headrace-value-version" in headers:
        older = OlderVersion(int(headers["headrace-value-version"]), int(headers["headrace-newest-version"]))
    return AnswerInfo(
        Version(int(headers["headrace-timeline"]), int(headers["headrace-epoch"]), headers["headrace-store"]),
        int(headers["headrace-age-ms"]) / 1000,
        None if mark is None else parse_time(mark),
        older,
    )


def _refusal(server: Server, answer: Answer) -> HeadraceError:
    try:
        parts = msgspec.json.decode(answer.body)["error"]
    except (msgspec.MsgspecError, KeyError, TypeError, UnicodeDecodeError):
        parts = {"what": f"the server answered with status {answer.status}"}
    return refusal(server, answer.status, parts)


def _part(text: str | None) -> str:
    return quote(text or "", safe="")
