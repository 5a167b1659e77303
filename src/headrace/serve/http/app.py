"""The HTTP side of a server, as an ASGI application: who asks, what is asked, who answers, and what goes wrong.

Invariants
- Paths are split before they are decoded, so a key may hold any character, ``%2F``, too. A pattern is a path whose
  names in braces match one part each.
- Every answer is JSON unless another form was asked for, errors included.
- Nobody is told whether a state exists before it is known that they may read it.
- An exception that is not a `Problem` is a fault of ours: it is logged with its trace, and the client learns nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.errors import FunctionFailed, HeadraceError
from headrace.net.access import ANYBODY
from headrace.net.admission import Admission
from headrace.net.http_server import ABORT
from headrace.net.problems import JSON_TYPE, Problem, decode_path, problem_of, shorten
from headrace.serve.http import events, listing, openapi, reading
from headrace.serve.http.asking import AskedRequest
from headrace.serve.http.job import OWN_HEADERS
from headrace.serve.http.jobs import Jobs
from headrace.serve.service import Service

Handler = Callable[..., Awaitable[Any]]

_log: Final = logging.getLogger("headrace.http")


async def _openapi(jobs: Jobs, asked: AskedRequest) -> Response:
    return Response(openapi.openapi_json(), 200, {"Cache-Control": "max-age=300"}, JSON_TYPE)


async def _docs(jobs: Jobs, asked: AskedRequest) -> Response:
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return Response(openapi.docs_page(), 200, {"Content-Security-Policy": policy}, "text/html; charset=utf-8")


ROUTES: Final[Mapping[tuple[str, str], Handler]] = {
    ("GET", "/health"): listing.health,
    ("GET", "/metrics"): listing.read_metrics,
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
        """``origins``: web pages that may read from a browser, ``*`` for all. ``hosts``: as `Admission` has them."""
        self.jobs = Jobs(services, services[0].limits)
        self._access = services[0].access
        self._note = self._access.trail.refused
        self._admission = Admission(
            self._access,
            hosts=hosts,
            per_second=self.jobs.limits.commands_per_second,
            each="connection",
            when_too_many="ask for many keys in one request: POST …/get",
        )
        self._router = Router(ROUTES)
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

    def refused(self, peer: str, reason: str) -> None:
        """Writes the audit line of a connection or request that was refused before it came here (see `HttpServer`)."""
        self._note(peer, "", "a connection", reason)

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
        asked: AskedRequest | None = None
        try:
            raw_path = request.scope.get("raw_path") or request.scope["path"].encode()
            if len(raw_path) + len(request.scope["query_string"]) > ADDRESS_BYTES:
                raise Problem(414, "the address is too long", expected=f"up to {ADDRESS_BYTES} bytes")
            route, names = self._router.find(request.method, raw_path)
            self._admission.check_host(request)
            user = ANYBODY
            if route.handler not in OPEN:
                user = self._admission.find_user(request)
                self._admission.check_rate(request, user)
            asked = AskedRequest(request, names, user)
            response: Response = await route.handler(self.jobs, asked)
            return response
        except Problem as problem:
            return self._refusal(request, problem, asked)
        except FunctionFailed as error:
            # An aggregate that cannot be computed, as a sum beyond 64 bits: asking again changes nothing.
            return self._refusal(request, problem_of(error, 422), asked)
        except HeadraceError as error:
            # The store, not the question: a file that is damaged or gone.
            _log.warning("a store cannot be read: %s", error)
            again = "ask again in a moment; the server's log says where"
            return self._refusal(request, Problem(503, error.what, next_move=again), asked)
        except Exception:
            _log.exception("a request failed: %s %s", request.method, shorten(request.url.path))
            return _fault().response()

    def _refusal(self, request: Request, problem: Problem, asked: AskedRequest | None) -> Response:
        if asked is not None:
            problem.headers = {**asked.told, **problem.headers}
        if problem.status in AUDITED or problem.crowded:
            host, *_ = request.scope.get("client") or ("-",)
            name = "" if asked is None else asked.user.name
            self._note(str(host), name, f"{request.method} {request.scope.get('path', '')}", problem.parts["what"])
        return problem.response()


def _fault() -> Problem:
    return Problem(500, "this server failed", next_move="look at its log, and tell whoever runs it")


# --- which address leads where


class Route(NamedTuple):
    method: str
    pattern: tuple[str, ...]
    handler: Handler


class Match(NamedTuple):
    route: Route
    names: Mapping[str, str]


class Router:
    """Finds the handler of a request. ``HEAD`` goes where ``GET`` goes."""

    def __init__(self, routes: Mapping[tuple[str, str], Handler]) -> None:
        """``routes``: (method, path with names in braces) → who answers."""
        self.routes = [Route(method, split(path), handler) for (method, path), handler in routes.items()]

    def find(self, method: str, raw_path: bytes) -> Match:
        parts = decode_path(raw_path)
        wanted = "GET" if method == "HEAD" else method
        allowed = set()
        for route in self.routes:
            names = _matched(route.pattern, parts)
            if names is None:
                continue
            if route.method == wanted:
                return Match(route, names)
            allowed.add(route.method)
        if allowed:
            raise Problem(
                405,
                "this can only be read" if method in ("PUT", "PATCH", "DELETE") else "no such method here",
                where="/" + "/".join(map(shorten, parts)),
                expected=" or ".join(sorted(allowed)),
                found=shorten(method),
                next_move="state is changed by the job alone; send it events instead",
                headers={"Allow": ", ".join(sorted(allowed | ({"HEAD"} if "GET" in allowed else set())))},
            )
        raise Problem(
            404,
            "nothing is here",
            where="/" + "/".join(map(shorten, parts)),
            expected="/v1/jobs, /health, /openapi.json or /docs",
            next_move="`/docs` lists all addresses; a slash inside of a key is written %2F",
        )


def split(path: str) -> tuple[str, ...]:
    return tuple(path.split("/")[1:])


def _matched(pattern: tuple[str, ...], parts: tuple[str, ...]) -> dict[str, str] | None:
    if len(pattern) != len(parts):
        return None
    names = {}
    for wanted, part in zip(pattern, parts):
        if wanted.startswith("{"):
            names[wanted[1:-1]] = part
        elif wanted != part:
            return None
    return names
