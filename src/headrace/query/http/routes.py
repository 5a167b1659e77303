"""Which address leads where. Paths are split before they are decoded, so a key may hold any character, ``%2F``, too.

A pattern is a path whose names in braces match one part each. The table of patterns is also what `openapi` describes
and what ``405`` and ``404`` are decided by.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from headrace.query.http.problems import Problem, shorten

Handler = Callable[..., Awaitable[Any]]


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


def decode_path(raw_path: bytes) -> tuple[str, ...]:
    try:
        return tuple(unquote_to_bytes(part).decode() for part in raw_path.split(b"/")[1:])
    except UnicodeDecodeError as error:
        raise Problem(
            400,
            "the path is not UTF-8",
            expected="text in UTF-8, percent-encoded",
            found=repr(error.object[:80]),
        ) from None


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
