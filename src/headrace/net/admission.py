"""Who sends an HTTP request, and whether they may: tokens, rates, and the name that the server is called by.

Each refusal is a `Problem` with the status that HTTP has for it: 401, 421 or 429.
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from collections.abc import Collection
from typing import Final

from starlette.requests import Request

from headrace.net.access import ANYBODY, Access, Meter, User, is_loopback
from headrace.net.problems import Problem, shorten

MOST_METERS: Final = 10_000
"""So many senders are told apart; who has asked nothing for the longest time is forgotten first."""


class Admission:
    """Lets requests in, or says why not."""

    def __init__(
        self, access: Access, *, hosts: Collection[str] | None, per_second: int, each: str, when_too_many: str
    ) -> None:
        """``hosts``: names that this server answers to, beside those of the loopback; None for any. A server that asks
        for no token must not answer to names that others can give it.

        ``per_second``: how many requests each connection or address (``each``) may make; 0 for any.
        ``when_too_many``: what somebody can do who asks too often.
        """
        self._access = access
        self._hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self._per_second = per_second
        self._each = each
        self._when_too_many = when_too_many
        self._meters: OrderedDict[object, Meter] = OrderedDict()

    def check_host(self, request: Request) -> None:
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

    def find_user(self, request: Request) -> User:
        """Whoever the token belongs to."""
        if self._access.open:
            return ANYBODY
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
        return user

    def check_rate(self, request: Request, user: User) -> None:
        client = request.scope.get("client")
        sender = client if self._each == "connection" or client is None else client[0]
        allowed = self._allows(("user", user.name), user.commands_per_second)
        if not allowed or not self._allows(sender, self._per_second):
            raise Problem(
                429,
                "too many requests",
                expected=f"up to {user.commands_per_second or self._per_second} per second",
                next_move=self._when_too_many,
                headers={"Retry-After": "1"},
            )

    def _allows(self, sender: object, per_second: int) -> bool:
        if not per_second:
            return True
        meter = self._meters.get(sender)
        if meter is None or meter.per_second != per_second:
            meter = self._meters[sender] = Meter(per_second)
            while len(self._meters) > MOST_METERS:
                self._meters.popitem(last=False)
        self._meters.move_to_end(sender)
        return meter.allows()


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
