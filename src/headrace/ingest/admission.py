"""Who may send: tokens, rates, and requests that a web page makes behind the back of whoever looks at it.

The users are those of `headrace.query.access`; the patterns that name states there name streams here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import Final

from starlette.requests import Request

from headrace.errors import SettingsError
from headrace.query.access import ANYBODY, Access, Meter, User, is_loopback
from headrace.query.http.problems import Problem, shorten

_METERS: Final = 10_000


class Admission:
    """Lets requests in, or says why not."""

    def __init__(
        self, access: Access, *, origins: Collection[str] = (), loopback: bool = True, per_second: int = 0
    ) -> None:
        """``origins``: web pages that may send. ``loopback``: the server is meant for its own machine only.
        ``per_second``: how many requests one address may make; 0 for any."""
        self._access = access
        self._origins = frozenset(origins)
        self._loopback = loopback
        self._per_second = per_second
        self._meters: OrderedDict[object, Meter] = OrderedDict()

    def admit(self, request: Request, stream: str | None) -> None:
        """``stream``: whose events it is about; None where it is about none."""
        self._check_page(request)
        user = self._user(request)
        if stream is not None and not user.may_read(stream):
            raise Problem(403, "this token is not for that stream", where=shorten(stream))
        host, *_ = request.scope.get("client") or ("-",)
        if not (self._allows(("user", user.name), user.commands_per_second) and self._allows(host, self._per_second)):
            raise Problem(
                429,
                "too many requests",
                expected=f"up to {user.commands_per_second or self._per_second} per second",
                next_move="send more events in each request",
                headers={"Retry-After": "1"},
            )

    def _user(self, request: Request) -> User:
        if self._access.open:
            return ANYBODY
        self._access.look()
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        user = self._access.find(token.strip()) if scheme.lower() == "bearer" else None
        if user is None:
            raise Problem(
                401,
                "a token is needed" if not token else "this token is not known",
                expected="Authorization: Bearer hr_…",
                next_move="whoever runs the server makes one: headrace token NAME --users FILE",
                headers={"WWW-Authenticate": 'Bearer realm="headrace"'},
            )
        return user

    def _check_page(self, request: Request) -> None:
        """Any web page can make a browser send events here; it cannot make it leave out where it comes from."""
        origin = request.headers.get("origin")
        if origin is not None and origin not in self._origins and "*" not in self._origins:
            raise Problem(
                403, "this web page may not send events", where=shorten(origin),
                next_move="start the server with --origin and the page's address",
            )  # fmt: skip
        host = request.url.hostname or ""
        if self._loopback and self._access.open and host and not is_loopback(host):
            raise Problem(
                421, "this server does not go by that name", expected="localhost", found=shorten(host)
            )  # fmt: skip

    def _allows(self, who: object, per_second: int) -> bool:
        if not per_second:
            return True
        meter = self._meters.get(who)
        if meter is None or meter.per_second != per_second:
            meter = self._meters[who] = Meter(per_second)
            while len(self._meters) > _METERS:
                self._meters.popitem(last=False)
        self._meters.move_to_end(who)
        return meter.allows()


def check_binding(host: str, *, users: bool, tls: bool, insecure: bool) -> None:
    """Refuses to let strangers write: other machines need both tokens and TLS, or somebody who says it is meant so."""
    if is_loopback(host) or insecure or (users and tls):
        return
    missing = [name for name, there in (("users (--users)", users), ("TLS (--tls-cert, --tls-key)", tls)) if not there]
    raise SettingsError(
        "other machines could write anything into this log",
        where=f"--bind {host}",
        expected="both users with tokens and TLS, or a network that is safe by other means",
        found=f"no {' and no '.join(missing)}",
        next_move="make a token (headrace token NAME --users FILE) and give a certificate; "
        "--insecure says that the network is safe",
    )
