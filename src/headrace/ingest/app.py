"""HTTP for senders of events, as an ASGI application: who sends, what is sent, and what became of it.

Invariants
- 200 means that all events of the request are durable; any other status that none of them was appended by this
  request. A sender that gets no answer at all asks again, with the same ``Idempotency-Key``.
- What waits in memory is bounded, from the first byte of a body to its answer.
- Every answer is JSON, errors included.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any, Final

import msgspec
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.ingest import layout
from headrace.ingest.bodies import Unzipper, read_events
from headrace.ingest.committing import Committer
from headrace.ingest.log import Append, KeyReused
from headrace.ingest.partition import KEY_BYTES, WriteFailed
from headrace.ingest.streams import Streams, StreamSpec
from headrace.net.access import Access
from headrace.net.admission import Admission
from headrace.net.problems import JSON_TYPE, Problem, decode_path, shorten

_log: Final = logging.getLogger("headrace.ingest")
AUDITED: Final = frozenset({401, 403, 413, 421, 429})
KEY_HEADER: Final = "Idempotency-Key"
REPEATED_HEADER: Final = "Headrace-Repeated"
_ASIDE_BYTES: Final = 128 * 1024
"""A body of more is looked at beside the loop, so that others need not wait for it."""


class IngestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much may be sent."""

    request_bytes: int = 16 * 2**20
    """Of a body, after it was unpacked."""
    event_bytes: int = 2**20
    events: int = 100_000
    """Of one request."""
    pending_bytes: int = 128 * 2**20
    """Of all requests that are not answered yet."""
    connections: int = 10_000
    """Those that are in their TLS handshake count."""
    handshakes_per_address: int = 256
    """TLS handshakes of one address that are unfinished at the same time."""
    streams: int = 1000
    body_s: float = 30.0
    """How long a body may take to come."""


class IngestApp:
    """Takes events for a log."""

    def __init__(
        self,
        committer: Committer,
        streams: Streams,
        access: Access,
        *,
        limits: IngestLimits | None = None,
        origins: Collection[str] = (),
        loopback: bool = True,
        per_second: int = 0,
    ) -> None:
        """``access``: users; the patterns that name states there name streams here. ``origins``: web pages that may
        send events from a browser. ``loopback``: the server is meant for its own machine only. ``per_second``: how many
        requests one address may make; 0 for any."""
        self.limits = limits or IngestLimits()
        self._committer = committer
        self._streams = streams
        self._access = access
        self._origins = frozenset(origins)
        self._admission = Admission(
            access,
            hosts=() if loopback and access.open else None,
            per_second=per_second,
            each="address",
            when_too_many="send more events in each request",
        )
        self._pending_bytes = 0
        self._app: ASGIApp = self._answer
        if origins:
            self._app = CORSMiddleware(
                self._answer,
                allow_origins=list(origins),
                allow_methods=["GET", "POST"],
                allow_headers=["Authorization", "Content-Type", "Content-Encoding", KEY_HEADER],
                expose_headers=[REPEATED_HEADER, "Retry-After"],
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1003})

    def refused(self, peer: str, reason: str) -> None:
        """Writes the audit line of a connection that was refused before it came here (see `HttpServer`)."""
        self._access.trail.refused(peer, "", "a connection", reason)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._route(request)
        except Problem as problem:
            if problem.status in AUDITED:
                host, *_ = scope.get("client") or ("-",)
                self._access.trail.refused(
                    str(host), "", f"{request.method} {scope.get('path', '')}", problem.parts["what"]
                )
            response = problem.response()
        except Exception:
            _log.exception("a request failed: %s %s", request.method, shorten(scope.get("path", "")))
            response = Problem(500, "this server failed", next_move="look at its log").response()
        await response(scope, receive, send)

    async def _route(self, request: Request) -> Response:
        # Not `request.url.path`: that drops line ends, so that `a%0ab` would be `ab`.
        path = list(decode_path(request.scope.get("raw_path") or request.scope["path"].encode()))
        match request.method, path:
            case "GET" | "HEAD", ["health"]:
                return self._health()
            case "GET" | "HEAD", ["streams"]:
                self._admit(request, None)
                return self._list()
            case "GET" | "HEAD", ["streams", name]:
                self._admit(request, name)
                return self._describe(name)
            case "POST", ["streams", name, "events"]:
                self._admit(request, name)
                return await self._take(request, name)
            case method, ["health"] | ["streams"] | ["streams", _] | ["streams", _, "events"]:
                allowed = "POST" if path[-1] == "events" else "GET, HEAD"
                raise Problem(405, "no such method here", expected=allowed, found=method, headers={"Allow": allowed})
        raise Problem(
            404,
            "nothing is here",
            where=shorten("/" + "/".join(path)),
            expected="POST /streams/{name}/events, GET /streams, /streams/{name} or /health",
        )

    # --- who sends

    def _admit(self, request: Request, stream: str | None) -> None:
        """``stream``: whose events it is about; None where it is about none."""
        self._check_page(request)
        self._admission.check_host(request)
        self._access.look()
        user = self._admission.find_user(request)
        if stream is not None and not user.may_read(stream):
            raise Problem(403, "this token is not for that stream", where=shorten(stream))
        self._admission.check_rate(request, user)

    def _check_page(self, request: Request) -> None:
        """Any web page can make a browser send events here; it cannot make it leave out where it comes from."""
        origin = request.headers.get("origin")
        if origin is not None and origin not in self._origins and "*" not in self._origins:
            raise Problem(
                403, "this web page may not send events", where=shorten(origin),
                next_move="start the server with --origin and the page's address",
            )  # fmt: skip

    # --- about the log

    def _health(self) -> Response:
        broken = self._committer.log.broken
        told = {"status": "ok" if broken is None else "broken", "pending_bytes": self._pending_bytes}
        if broken is not None:
            told["trouble"] = str(broken)
        return _json(told, 200 if broken is None else 503)

    def _list(self) -> Response:
        there = self._committer.log.streams
        names = sorted({*there, *self._streams.named})
        return _json({"log": self._committer.log.id, "streams": {name: self._facts(name) for name in names}})

    def _describe(self, name: str) -> Response:
        if name not in self._committer.log.streams and name not in self._streams.named:
            raise Problem(404, "there is no such stream", where=shorten(name), next_move="GET /streams lists them")
        log = self._committer.log
        partitions = log.describe(name) if name in log.streams else []
        return _json({"log": log.id, "stream": name, **self._facts(name), "events": partitions})

    def _facts(self, name: str) -> dict[str, Any]:
        taken = self._streams.find(name)
        return {
            "partitions": self._committer.log.streams.get(name, 1),
            "type": None if taken is None else taken.type_name,
        }

    # --- taking events

    async def _take(self, request: Request, name: str) -> Response:
        taken = self._find(name)
        for asked in request.query_params:
            if asked not in ("partition", "key"):
                raise Problem(400, f"there is no parameter {shorten(asked)!r} here", expected="partition or key")
        key = request.headers.get(KEY_HEADER, "").encode("latin-1")
        if len(key) > KEY_BYTES:
            raise Problem(400, "the idempotency key is too long", where=KEY_HEADER, expected=f"{KEY_BYTES} bytes")
        partition = self._partition(request, name, taken)
        reserved = _ReservedBytes(self)
        try:
            body = await self._body(request, reserved)
            events = await self._events(request, body, taken)
            route = request.query_params.get("key", "").encode()
            append = Append(name, events, key=key, partition=partition, route=route)
            del body
            appended = await self._committer.append(append)
        except KeyReused:
            raise Problem(
                422,
                "this idempotency key was used for other events",
                where=KEY_HEADER,
                found=shorten(key.decode("latin-1")),
                next_move="use a new key for new events, and the same one only to send the same again",
            ) from None
        except WriteFailed as failed:
            raise _not_written(failed, name) from None
        finally:
            reserved.free()
        told = {
            "stream": name,
            "partition": appended.partition,
            "first": appended.number,
            "events": appended.events,
            "offset": self._committer.log.offset(appended),
        }
        return _json(told, headers={REPEATED_HEADER: "true"} if appended.repeated else None)

    def _find(self, name: str) -> StreamSpec:
        taken = self._streams.find(name)
        if not layout.is_stream_name(name):
            raise Problem(404, "this cannot be a stream", where=shorten(name), expected=layout.STREAM_NAMES)
        if taken is None:
            known = ", ".join(sorted(self._streams.named))
            raise Problem(404, "no events are taken for this stream", where=name, expected=f"one of {known}")
        there = self._committer.log.streams
        if name not in there and len(there) >= self.limits.streams:
            raise Problem(403, "there are too many streams", where=name, expected=f"up to {self.limits.streams}")
        return taken

    def _partition(self, request: Request, name: str, taken: StreamSpec) -> int | None:
        asked = request.query_params.get("partition")
        if asked is None:
            return None
        most = self._committer.log.streams.get(name, taken.partitions)
        if not asked.isdecimal() or int(asked) >= most:
            raise Problem(
                400, "there is no such partition", where=f"{name}, partition",
                expected=f"a number from 0 to {most - 1}", found=shorten(asked),
            )  # fmt: skip
        return int(asked)

    async def _body(self, request: Request, reserved: _ReservedBytes) -> bytes:
        """Reads no more than is allowed, and waits no longer than is decent."""
        encoding = request.headers.get("content-encoding", "identity").lower()
        if encoding not in ("identity", "gzip", ""):
            raise Problem(415, "the body is packed in a way that is not known", expected="gzip", found=encoding)
        unzip = Unzipper(self.limits.request_bytes) if encoding == "gzip" else None
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.limits.body_s):
                async for part in request.stream():
                    part = part if unzip is None else unzip.feed(part)
                    size += len(part)
                    if size > self.limits.request_bytes:
                        raise Problem(
                            413, "the body is too large", expected=f"up to {self.limits.request_bytes} bytes",
                            next_move="send the events in several requests", headers={"Connection": "close"},
                        )  # fmt: skip
                    reserved.take(len(part))
                    parts.append(part)
        except TimeoutError:
            raise Problem(408, "the body did not come in time", expected=f"within {self.limits.body_s:g}s") from None
        except ClientDisconnect:
            raise Problem(400, "the connection was closed before the whole body had come") from None
        if unzip is not None:
            unzip.finish()
        return b"".join(parts)

    async def _events(self, request: Request, body: bytes, taken: StreamSpec) -> list[bytes]:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()

        def read() -> list[bytes]:
            return read_events(
                body, kind, taken.codec, most_events=self.limits.events, most_bytes=self.limits.event_bytes
            )

        return read() if len(body) <= _ASIDE_BYTES else await asyncio.to_thread(read)


class _ReservedBytes:
    """What one request holds of the memory for all that are not answered yet."""

    def __init__(self, app: IngestApp) -> None:
        self._app = app
        self._held = 0

    def take(self, size: int) -> None:
        if self._app._pending_bytes + size > self._app.limits.pending_bytes:
            raise Problem(
                503,
                "the disk is behind: too much waits to be written",
                expected=f"up to {self._app.limits.pending_bytes} bytes of all requests together",
                next_move="send it again in a moment",
                headers={"Retry-After": "1", "Connection": "close"},
            )
        self._app._pending_bytes += size
        self._held += size

    def free(self) -> None:
        self._app._pending_bytes -= self._held
        self._held = 0


def _not_written(failed: WriteFailed, stream: str) -> Problem:
    if failed.full:
        return Problem(
            507,
            "the disk of the log is full; nothing of this request was kept, and everything before it was",
            where=stream,
            expected="room on the disk for the events",
            found=str(failed),
            next_move="make room; until then send it again later",
            headers={"Retry-After": "10"},
        )
    return Problem(
        503,
        "the log cannot be written",
        where=stream,
        expected="a disk that makes events durable",
        found=str(failed),
        next_move="send it again in a moment, with the same idempotency key",
        headers={"Retry-After": "1"},
    )


def _json(told: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(told), status, headers, JSON_TYPE)
