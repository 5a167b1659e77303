"""`hr.Client` and `hr.AsyncClient`: state of a job that runs elsewhere, asked over the network."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping, Sequence
from copy import copy
from datetime import datetime, timedelta
from functools import cached_property, partial
from types import TracebackType
from typing import Any, Final, Self, overload
from urllib.parse import unquote, urlsplit

from typing_extensions import TypeVar

from headrace.client import requests
from headrace.client.answers import AnswerInfo
from headrace.client.requests import Requests
from headrace.client.sessions import ClientSession, MakeWire
from headrace.client.steps import Awaiting, Blocking, Server, Steps
from headrace.client.views import AsyncServedView, ServedView
from headrace.errors import ProgramError
from headrace.model.packages import package
from headrace.model.time import Span, span_us
from headrace.state.moments import Moment, moment_of

V = TypeVar("V")

DEFAULT_URL: Final = "localhost:6399"
_PORTS: Final = {"redis": 6399, "rediss": 6399, "http": 80, "https": 443}
Url = str | Sequence[str]


class _Asking:
    """What both clients share: whom they ask, and what they know of the answers."""

    _tls: ssl.SSLContext | None
    _at = ""
    """The moment of the past that all answers are of; empty: the present."""

    def __init__(
        self,
        url: Url = DEFAULT_URL,
        *,
        token: str | None = None,
        job: str | None = None,
        timeout: Span = "10s",
        tls: ssl.SSLContext | str | os.PathLike[str] | None = None,
    ) -> None:
        servers = parse_servers(url, token)
        self._tls = _tls_context(tls)
        timeout_s = span_us(timeout, what="a timeout", where="hr.Client") / 1_000_000
        self._session = ClientSession(servers, _wire_maker(servers, job), timeout_s)

    def __repr__(self) -> str:
        at = f", at {self._at}" if self._at else ""
        return f"{type(self).__name__}({', '.join(map(str, self._session.servers))!r}{at})"

    def close(self) -> None:
        """Closes its connections."""
        self._session.close()

    def _past(self, moment: int | str | datetime | Moment) -> Self:
        made = copy(self)
        made._at = str(moment_of(moment))
        return made

    def _info(self) -> Steps[AnswerInfo]:
        return requests.find_epoch(self._session, self._at) if self._at else self._wait()

    def _requests(self, name: str, value: Any, key: Any) -> Requests:
        return Requests(self._session, name, value, key, self._at)

    def _wait(
        self, epoch: int | None = None, offset: Mapping[str, Any] | None = None, timeout: Span | None = None
    ) -> Steps[AnswerInfo]:
        if self._at:
            raise ProgramError(
                "the past is not waited for",
                where=f"hr.Client, at {self._at}",
                next_move="wait with the client that reads the present",
            )
        timeout_s = self._session.timeout_s if timeout is None else span_us(timeout, what="a timeout") / 1_000_000
        return requests.wait_for(self._session, -1 if epoch is None else epoch, offset or {}, timeout_s)


class Client(_Asking):
    """State of a job, asked from a server (``headrace serve``, ``headrace run --serve``) while the job runs.

    >>> with hr.Client("localhost:6399") as client:                        # doctest: +SKIP
    ...     client.state("hourly", Hourly)["tweet-42"].impressions
    17

    ``url``: ``host:port`` or ``redis://…`` (Redis' protocol), ``http://…`` or ``https://…``; several, in a list or
    separated by commas, are replicas of one job: where one fails, the next is asked. ``token``: what the server asks
    for. ``job``: which one, where an HTTP server answers for several. ``timeout``: how long to try before giving up.
    ``tls``: a context, or the file of the authority that signed the server's certificate.

    May be used by several threads. Answers never go back in time, whatever server they come from.
    """

    @cached_property
    def _io(self) -> Blocking:
        return Blocking(self._tls)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @overload
    def state(self, name: str, value: type[V], *, key: Any = None) -> ServedView[V]: ...
    @overload
    def state(self, name: str, value: None = None, *, key: Any = None) -> ServedView[Any]: ...
    def state(self, name: str, value: Any = None, *, key: Any = None) -> ServedView[Any]:
        """A view of one state: ``step.state``, or ``step`` alone where a step keeps one.

        ``value``: the type the program declares; without it values are plain Python. ``key``: the type of the keys,
        where text and numbers are not enough (datetime, UUID, an Enum). Nothing is asked before the view is.
        """
        return ServedView(self._io, self._requests(name, value, key))

    def at(self, moment: int | str | datetime | Moment) -> Self:
        """The same job as it was at a moment: an epoch, a savepoint by its name, or a time, as `hr.Store.at` takes it.

        Only epochs that are kept can be read: the newest (``retain``), and those of savepoints. Connections are shared
        with this client, and closed with it.

        >>> client.at(41).state("hourly", Hourly)["tweet-42"].impressions        # doctest: +SKIP
        12
        """
        return self._past(moment)

    def states(self) -> list[str]:
        """The states that may be read."""
        return self._io.run(requests.states(self._session, self._at))

    @property
    def epoch(self) -> int:
        """The newest epoch that can be read, or the one given to ``at``; asks the server."""
        return self._io.run(self._info()).epoch

    @property
    def age(self) -> timedelta:
        """How long ago that epoch was published; asks the server. Grows while the job stands still."""
        return timedelta(seconds=self._io.run(self._info()).age_s)

    def wait_for(
        self, epoch: int | None = None, *, offset: Mapping[str, Any] | None = None, timeout: Span | None = None
    ) -> int:
        """Comes back when an epoch can be read, or when sources are read so far; gives the epoch that can be read.

        ``offset``: source → offset in its own words, as ``{"clicks": {"clicks": {"0": 41}}}`` of Kafka, or the id of an
        entry in a Redis stream. Whoever wrote an event and waits for its offset will read what the job made of it.

        >>> entry = redis.xadd("orders", {"shop": "anna", "cents": 250})      # doctest: +SKIP
        >>> client.wait_for(offset={"orders": entry.decode()})               # doctest: +SKIP
        41
        """
        return self._io.run(self._wait(epoch, offset, timeout)).epoch


class AsyncClient(_Asking):
    """`hr.Client` for programs that await.

    >>> async with hr.AsyncClient("localhost:6399") as client:             # doctest: +SKIP
    ...     hourly = await client.state("hourly", Hourly).get("tweet-42")
    """

    @cached_property
    def _io(self) -> Awaiting:
        return Awaiting(self._tls)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @overload
    def state(self, name: str, value: type[V], *, key: Any = None) -> AsyncServedView[V]: ...
    @overload
    def state(self, name: str, value: None = None, *, key: Any = None) -> AsyncServedView[Any]: ...
    def state(self, name: str, value: Any = None, *, key: Any = None) -> AsyncServedView[Any]:
        """A view of one state, as of `hr.Client`."""
        return AsyncServedView(self._io, self._requests(name, value, key))

    def at(self, moment: int | str | datetime | Moment) -> Self:
        """The same job as it was at a moment, as of `hr.Client`."""
        return self._past(moment)

    async def states(self) -> list[str]:
        """The states that may be read."""
        return await self._io.run(requests.states(self._session, self._at))

    async def epoch(self) -> int:
        """The newest epoch that can be read, or the one given to ``at``."""
        return (await self._io.run(self._info())).epoch

    async def age(self) -> timedelta:
        """How long ago that epoch was published."""
        return timedelta(seconds=(await self._io.run(self._info())).age_s)

    async def wait_for(
        self, epoch: int | None = None, *, offset: Mapping[str, Any] | None = None, timeout: Span | None = None
    ) -> int:
        """Comes back when an epoch can be read, or when sources are read so far, as of `hr.Client`."""
        return (await self._io.run(self._wait(epoch, offset, timeout))).epoch


# --- whom to ask


def parse_servers(url: Url, token: str | None = None) -> list[Server]:
    """The servers that a URL names, or several of them.

    >>> [str(server) for server in parse_servers("localhost, redis://b:7000")]
    ['redis://localhost:6399', 'redis://b:7000']
    """
    texts = url.split(",") if isinstance(url, str) else list(url)
    servers = [_parse_server(text.strip(), token) for text in texts]
    if not servers or len({server.scheme for server in servers}) > 1:
        raise ProgramError(
            "a client asks servers of one kind",
            where="hr.Client",
            expected="one or several of host:port, or of http://host:port",
            found=repr(url),
        )
    return servers


def _parse_server(text: str, token: str | None) -> Server:
    parts = urlsplit(text if "://" in text else f"redis://{text}")
    try:
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        port = 0
    if parts.scheme not in _PORTS or not parts.hostname or not port or parts.path.strip("/") or parts.query:
        raise ProgramError(
            "invalid address of a server",
            where="hr.Client",
            expected="host:port, redis://host:port, rediss://…, http://host:port or https://…",
            found=repr(text),
            next_move="`headrace serve` tells at its start where it answers",
        )
    given = unquote(parts.password or "")
    return Server(parts.scheme, parts.hostname, port, unquote(parts.username or ""), token or given)


def _wire_maker(servers: Sequence[Server], job: str | None) -> MakeWire:
    # Only one of both is loaded: each needs a package that the other does not.
    if servers[0].scheme.startswith("http"):
        with package("h11", extra="serve", where="hr.Client", instead="or ask over Redis' protocol"):
            from headrace.client.http_wire import HttpWire
        return partial(HttpWire, job=job)
    from headrace.client.redis_wire import RedisWire

    return RedisWire


def _tls_context(tls: ssl.SSLContext | str | os.PathLike[str] | None) -> ssl.SSLContext | None:
    if tls is None or isinstance(tls, ssl.SSLContext):
        return tls
    return ssl.create_default_context(cafile=os.fspath(tls))
