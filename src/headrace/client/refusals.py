"""Errors of a client: what no server would answer, in the words of the server that refused it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace.client.steps import Server
from headrace.errors import Forbidden, HeadraceError, ProgramError, StoreError, Unreachable

_BY_STATUS: Final[dict[int, type[HeadraceError]]] = {400: ProgramError, 401: Forbidden, 403: Forbidden}


def refusal(server: Server, status: int, parts: Mapping[str, Any]) -> HeadraceError:
    """What a server refused for good."""
    told = {name: str(parts.get(name, "")) for name in ("expected", "found", "next_move")}
    where = f"{server}, {parts['where']}" if parts.get("where") else str(server)
    return _BY_STATUS.get(status, StoreError)(str(parts.get("what", "")), where=where, **told)


def all_behind(servers: Sequence[Server], timeout_s: float, last: str) -> Unreachable:
    """Servers answered, and what they said is older than what this client has read before."""
    return Unreachable(
        "no server has come as far as was asked for",
        where=", ".join(map(str, servers)),
        expected=f"within {timeout_s:g}s an answer that is not older than one before, and of what was waited for",
        found=last,
        next_move="look whether the job runs and the server follows its store (`headrace epochs STORE`); where the "
        "store was put back to an earlier epoch on purpose, make a new hr.Client, which has seen nothing yet",
    )


def unreachable(servers: Sequence[Server], timeout_s: float, last: str) -> Unreachable:
    """Nobody answered in time."""
    return Unreachable(
        "no server answered",
        where=", ".join(map(str, servers)),
        expected=f"an answer within {timeout_s:g}s",
        found=last,
        next_move="start one with `headrace serve STORE`, or `headrace run --serve`; look at host, port and TLS",
    )
