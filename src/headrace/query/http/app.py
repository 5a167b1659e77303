"""The HTTP side of a server, as an ASGI application: who asks, what is asked, who answers, and what goes wrong.

Invariants
- Every answer is JSON unless another form was asked for, errors included.
- Nobody is told whether a state exists before it is known that they may read it.
- An exception that is not a `Problem` is a fault of ours: it is logged with its trace, and the client learns nothing.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.errors import HeadraceError
from headrace.query.access import ANYBODY, Meter, User, is_loopback
from headrace.query.http import events, listing, metrics, openapi, reading
from headrace.query.http.asking import Asked
from headrace.query.http.jobs import Jobs
from headrace.query.http.problems import JSON_TYPE, Problem, problem_of, shorten
from headrace.query.http.routes import Handler, Router
from headrace.query.http.server import ABORT
from headrace.query.http.shaping import OWN_HEADERS
from headrace.query.service import Service

_log: Final = logging.getLogger("headrace.http")


async def _openapi(jobs: Jobs, asked: Asked) -> Response:
    return Response(openapi.openapi_json(), 200, {"Cache-Control": "max-age=300"}, JSON_TYPE)


async def _docs(jobs: Jobs, asked: Asked) -> Response:
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return Response(openapi.docs_page(), 200, {"Content-Security-Policy": policy}, "text/html; charset=utf-8")


ROUTES: Final[Mapping[tuple[str, str], Handler]] = {
    ("GET", "/health"): listing.health,
    ("GET", "/metrics"): metrics.read_metrics,
    ("GET", "/openapi.json"): _openapi,
    ("GET", "/docs"): _docs,
    ("GET", "/v1/jobs"): listing.list_jobs,
    ("GET", "/v1/jobs/{app}"): listing.describe_job,
    ("GET", "/v1/jobs/{app}/epochs"): listing.list_epochs,
    ("GET", "/v1/jobs/{app}/changes"): events.stream_changes,
    ("GET", "/v1/jobs/{app}/state"): listing.list_states,
    ("GET", "/v1/jobs/{app}/state/{address}"): listing.read_state,
    ("POST", "/v1/jobs/{app}/state/{address}/get"): reading.read_keys,
    ("GET", "/v1/jobs/{app}/state/{address}/{key}"): reading.read_key,
    ("GET", "/v1/jobs/{app}/state/{address}/{key}/windows"): reading.read_windows,
}
OPEN: Final = frozenset({listing.health, _openapi, _docs})
"""What is answered without a token: nothing in it comes from a job."""
ADDRESS_BYTES: Final = 32 * 1024
AUDITED: Final = frozenset({401, 403, 405, 413, 414, 421, 429})
"""Refusals that whoever runs the server wants to know of, beside those where too much is going on already."""


class HttpApp:
    """Answers requests about some jobs."""

    def __init__(
        self,
        services: Sequence[Service],
        *,
        origins: Collection[str] = (),
        hosts: Collection[str] | None = None,
    ) -> None:
        """``origins``: web pages that may read from a browser, ``*`` for all. ``hosts``: names this server answers to;
        None for any. A server that asks for no token must not answer to names that others can give it."""
        self.jobs = Jobs(services, services[0].limits)
        self._access = services[0].access
        self._note = self._access.trail.refused
        self._meters: OrderedDict[object, Meter] = OrderedDict()
        self._router = Router(ROUTES)
        self._hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self._app: ASGIApp = self._answer
        if origins:
            self._app = CORSMiddleware(
                self._answer,
                allow_origins=list(origins),
                allow_methods=["GET", "HEAD", "POST"],
                allow_headers=["Authorization", "Content-Type", "If-None-Match", "Last-Event-ID"],
                expose_headers=[*OWN_HEADERS, "ETag"],
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1003})

    def crowded(self, host: str) -> None:
        """Takes note of a request that was refused before it came here (see `HttpServer`)."""
        self._note(host, "", "a request", f"more than {self.jobs.limits.connections} connections or requests at a time")

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        response = await self._respond(Request(scope, receive))
        try:
            await response(scope, receive, noting)
        except TimeoutError:
            host, *_ = scope.get("client") or ("-",)
            self._note(str(host), "", f"{scope['method']} {scope.get('path', '')}", "the answer was not read")
            abort = scope.get("state", {}).get(ABORT)
            if abort is not None:
                abort()
        except Exception:
            _log.exception("an answer broke off")
            if not started:
                await _fault().response()(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        asked: Asked | None = None
        try:
            raw_path = request.scope.get("raw_path") or request.scope["path"].encode()
            if len(raw_path) + len(request.scope["query_string"]) > ADDRESS_BYTES:
                raise Problem(414, "the address is too long", expected=f"up to {ADDRESS_BYTES} bytes")
            route, names = self._router.find(request.method, raw_path)
            self._check_host(request)
            user = ANYBODY if route.handler in OPEN else self._admit(request)
            asked = Asked(request, names, user)
            response: Response = await route.handler(self.jobs, asked)
            return response
        except Problem as problem:
            return self._refusal(request, problem, asked)
        except HeadraceError as error:
            # The store, not the question: a file that is damaged or gone.
            _log.warning("a store cannot be read: %s", error)
            return self._refusal(request, problem_of(error, 503), asked)
        except Exception:
            _log.exception("a request failed: %s %s", request.method, shorten(request.url.path))
            return _fault().response()

    # --- who asks

    def _admit(self, request: Request) -> User:
        """Whoever the token belongs to, if they have not asked too much already."""
        user: User | None = ANYBODY
        if not self._access.open:
            name, token = _credentials(request.headers.get("authorization", ""))
            user = self._access.find(token, name) if token else None
        if user is None:
            raise Problem(
                401,
                "a token is needed" if "authorization" not in request.headers else "this token is not known",
                expected="Authorization: Bearer hr_…",
                next_move="whoever runs the server makes one: headrace token NAME --users FILE",
                headers={"WWW-Authenticate": 'Bearer realm="headrace"'},
            )
        limits = self.jobs.limits
        spent = not self._allows(("user", user.name), user.commands_per_second)
        if spent or not self._allows(request.scope.get("client"), limits.commands_per_second):
            raise Problem(
                429,
                "too many requests",
                expected=f"up to {user.commands_per_second or limits.commands_per_second} per second",
                next_move="ask for many keys in one request: POST …/get",
                headers={"Retry-After": "1"},
            )
        return user

    def _allows(self, who: object, per_second: int) -> bool:
        if not per_second:
            return True
        meter = self._meters.get(who)
        if meter is None or meter.per_second != per_second:
            meter = self._meters[who] = Meter(per_second)
            while len(self._meters) > self.jobs.limits.connections:
                self._meters.popitem(last=False)
        self._meters.move_to_end(who)
        return meter.allows()

    def _check_host(self, request: Request) -> None:
        """A web page can make its own name point to this machine; a browser then takes us for that page's server."""
        if self._hosts is None:
            return
        host = _host_of(request.headers.get("host", ""))
        if host and host not in self._hosts and not is_loopback(host):
            raise Problem(
                421,
                "this server does not go by that name",
                expected="localhost, or a name that it was given",
                found=shorten(host),
                next_move="ask for localhost, or let the server ask for tokens",
            )

    def _refusal(self, request: Request, problem: Problem, asked: Asked | None) -> Response:
        if asked is not None:
            problem.headers = {**asked.told, **problem.headers}
        if problem.status in AUDITED or problem.crowded:
            host, *_ = request.scope.get("client") or ("-",)
            name = "" if asked is None else asked.user.name
            self._note(str(host), name, f"{request.method} {request.scope.get('path', '')}", problem.parts["what"])
        return problem.response()


def _host_of(header: str) -> str:
    """Without the port."""
    host = header.lower().strip()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


def _credentials(header: str) -> tuple[str | None, str]:
    """Name, where one is given, and token: of ``Bearer token`` or ``Basic`` with name and token."""
    scheme, _, rest = header.partition(" ")
    if scheme.lower() == "bearer":
        return None, rest.strip()
    if scheme.lower() != "basic":
        return None, ""
    try:
        name, _, token = base64.b64decode(rest.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return None, ""
    return name or None, token


def _fault() -> Problem:
    return Problem(500, "this server failed", next_move="look at its log, and tell whoever runs it")
