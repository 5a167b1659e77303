"""The setting ``serve``: what is served beside a job, in the words of ``headrace serve``.

It is said in short, or as a table whose names are merged over the places that settings come from:

    serve = true                  # the usual ports
    serve = 7000                  # Redis' protocol there
    serve = "0.0.0.0:7000"        # for other machines
    [serve]
    port = 7000
    http_port = 8399
    users = "users.toml"

Whether a server can be started like that (who may read, which ports are free) is not decided here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headrace.errors import SettingsError
from headrace.model.nearest import did_you_mean

PORT: Final = 6399
HTTP_PORT: Final = 8399
_LAST_PORT: Final = 65_535
_PLACE: Final = re.compile(r"(?:(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:]*):)?(?P<port>[0-9]{1,5})")
_SAYS: Final = {"": False, "false": False, "no": False, "off": False, "true": True, "yes": True, "on": True}


class Serving(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is served beside a job. A table means that something is, unless it says ``on = false``."""

    on: bool = True
    """Whether anything is served; false keeps the other words for a run with ``--serve``."""
    port: int = PORT
    """For Redis' protocol; 0 takes a free one."""
    http_port: bool | int = True
    """For HTTP; true: 8399, where the packages for HTTP are installed; false: none; 0 takes a free one."""
    pg_port: int | None = None
    """For Postgres' protocol; without it there is none; 0 takes a free one."""
    bind: str = "127.0.0.1"
    """Address to listen on."""
    processes: int = 1
    """How many processes share the ports."""
    users: str | None = None
    """File of users with tokens and states."""
    tls_cert: str | None = None
    """Certificate chain, PEM."""
    tls_key: str | None = None
    """Its key, PEM."""
    insecure: bool = False
    """Whether to listen for other machines without tokens or TLS."""
    origins: tuple[str, ...] = ()
    """Web pages that may read over HTTP from a browser."""


def is_place(text: str) -> bool:
    """Whether this is a port, or an address and a port."""
    return _PLACE.fullmatch(text) is not None


def serve_words(told: Any, origin: str) -> dict[str, Any]:
    """The setting in whatever form it was given, as the words of a table; a wrong one is a SettingsError.

    >>> serve_words("0.0.0.0:7000", "here")
    {'on': True, 'bind': '0.0.0.0', 'port': 7000}
    """
    if isinstance(told, str) and told.lstrip().startswith("{"):
        try:
            told = msgspec.json.decode(told, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise _wrong_form(told, origin, str(error)) from None
    words = {"on": True, **told} if isinstance(told, Mapping) else _short(told, origin)
    for name in words:
        if name not in Serving.__struct_fields__:
            raise SettingsError(
                f"there is no setting {name!r} in the table 'serve'",
                where=origin,
                expected=f"one of {', '.join(Serving.__struct_fields__)}",
                found=name,
                next_move=did_you_mean(name, Serving.__struct_fields__, "remove it"),
            )
    try:
        checked = msgspec.convert(words, Serving, strict=False)
    except msgspec.ValidationError as error:
        raise _wrong_form(told, origin, str(error)) from None
    for port in (checked.port, checked.http_port, checked.pg_port or 0):
        if not 0 <= port <= _LAST_PORT:
            raise _wrong_form(told, origin, f"{port}, which is no port")
    return {str(name): getattr(checked, name) for name in words}


def _short(told: Any, origin: str) -> dict[str, Any]:
    text = str(told).strip()
    if text.lower() in _SAYS:
        return {"on": _SAYS[text.lower()]}
    place = _PLACE.fullmatch(text)
    if place is None:
        raise _wrong_form(told, origin)
    host = (place["host"] or "").strip("[]")
    return {"on": True, **({"bind": host} if host else {}), "port": int(place["port"])}


def _wrong_form(told: Any, origin: str, found: str = "") -> SettingsError:
    return SettingsError(
        "the setting 'serve' has the wrong form",
        where=origin,
        expected="true, a port such as 7000, address:port, or a table of port, http_port, bind, users, …",
        found=f"{told!r}: {found}" if found else repr(told),
    )
