"""What HTTP says when it cannot answer: the four parts of every error, as JSON, with the status that fits.

Only mistakes of the asking side and the state of the store become a `Problem`; anything else is a fault of ours and is
answered with 500 and logged by `headrace.serve.http.app`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.responses import Response

from headrace.errors import HeadraceError

JSON_TYPE: Final = "application/json"


class Problem(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        what: str,
        *,
        where: str = "",
        expected: str = "",
        found: str = "",
        next_move: str = "",
        headers: Mapping[str, str] | None = None,
        crowded: bool = False,
    ) -> None:
        """``crowded``: refused because others, or the same client, ask for too much at the same time."""
        super().__init__(what)
        self.crowded = crowded
        self.status = status
        self.parts = {"what": what, "where": where, "expected": expected, "found": found, "next_move": next_move}
        self.headers = dict(headers or {})

    def response(self) -> Response:
        """``{"error": {"what": …, "where": …, "expected": …, "found": …, "next_move": …}}``, without empty parts."""
        return Response(msgspec.json.encode({"error": self.error_object()}), self.status, self.headers, JSON_TYPE)

    def error_object(self) -> dict[str, Any]:
        """The status, and the parts that are not empty."""
        return {"status": self.status, **{name: part for name, part in self.parts.items() if part}}


def problem_of(error: HeadraceError, status: int) -> Problem:
    """One of our own errors as an answer."""
    return Problem(
        status,
        error.what,
        where=error.where,
        expected=error.expected,
        found=error.found,
        next_move=error.next_move,
    )


def bad_parameter(name: str, found: str, expected: str) -> Problem:
    return Problem(400, f"the parameter {name!r} cannot be used", where=name, expected=expected, found=shorten(found))


def decode_path(raw_path: bytes) -> tuple[str, ...]:
    """The parts of a request's path, each decoded once. A part may hold any character, ``/`` and line ends, too."""
    try:
        return tuple(unquote_to_bytes(part).decode() for part in raw_path.split(b"/")[1:])
    except UnicodeDecodeError as error:
        raise Problem(
            400,
            "the path is not UTF-8",
            expected="text in UTF-8, percent-encoded",
            found=repr(error.object[:80]),
        ) from None


def shorten(text: str, size: int = 200) -> str:
    """What somebody sent, safe to send back: it may be long, or hold halves of characters."""
    clean = text.encode("utf-8", "replace").decode()
    return clean if len(clean) <= size else clean[:size] + "…"
