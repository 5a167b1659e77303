"""A server of state as a process: ports, signals, several processes on one port, and one beside a job.

`serve` runs in the foreground until it is told to end. With several processes each of them binds the same port
(``SO_REUSEPORT``) and answers for itself; a parent starts them, starts those again that die, and ends them. A child
also ends when its parent is gone, however that came about: its standard input is a pipe that only the parent holds.

What a child has to say it writes to its standard output, one JSON object per line.

What this module deliberately does not do: answer requests (see `headrace.serve.service` and the protocols).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.errors import SettingsError
from headrace.model.packages import package
from headrace.net.access import Access, Limits, check_binding, is_loopback, tls_of
from headrace.net.listening import affordable_connections, bind, run_server, stop_on_signals
from headrace.read.follow import open_replica
from headrace.read.store import Store
from headrace.serve.resp.server import RespServer
from headrace.serve.service import Service
from headrace.state.moments import parse_address, plain_address

if TYPE_CHECKING:
    import ssl

    from headrace.read.snapshot import Snapshot

PORT: Final = 6399
LOOPBACK: Final = "127.0.0.1"
FIRST_LOOK_S: Final = 5.0
"""So long a server that starts waits for the store before it lets anybody in. A browser whose stream of changes is
answered with an error, as before the first epoch, does not try again; one that is not let in does."""
_ANY: Final = ("0.0.0.0", "::")
"""Every address of the machine: from here, the loopback answers for it."""

Tell = Callable[[dict[str, Any]], None]
"""Is given what happens: ``listening`` on which ports, ``serving`` from the first epoch on, with something to try."""


class Options(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that can be said to ``headrace serve``."""

    store: str
    port: int = PORT
    http_port: int | None = None
    pg_port: int | None = None
    """For Postgres' protocol; None: it is not spoken."""
    bind: str = LOOPBACK
    processes: int = 1
    follow_ms: float = 5.0
    cache: str | None = None
    """Folder for fetched files: makes this a replica."""
    users: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    insecure: bool = False
    origins: tuple[str, ...] = ()
    """Web pages that may read over HTTP from a browser."""
    memory_mb: int = 384
    """For answers that a process keeps ready."""
    sql_memory_mb: int = 512
    """For a statement of SQL, and as much again for columns that were read."""
    sql_timeout_s: float = 60.0
    """How long a statement of SQL may take."""
    limits: Limits = Limits()

    def check(self) -> None:
        """Refuses what cannot work, or should not."""
        if self.processes < 1:
            raise SettingsError(
                "--processes must be 1 or more", found=str(self.processes), next_move="leave it out for one process"
            )
        address = parse_address(self.store)
        if address.moment is not None:
            raise SettingsError(
                "a server follows the job",
                where=self.store,
                expected="a store without a moment",
                found=f"@{address.moment}",
                next_move=f"serve {plain_address(address.url)}; readers ask for the past: ?at={address.moment} over "
                f"HTTP, step@{address.moment}:key over Redis' protocol, hr.Client(…).at(…)",
            )
        check_binding(
            self.bind,
            users=self.users is not None,
            tls=self.tls_cert is not None,
            insecure=self.insecure,
            danger="read everything here",
        )
        self.tls()

    def tls(self) -> ssl.SSLContext | None:
        return tls_of(self.tls_cert, self.tls_key)

    def open_store(self) -> Store:
        """The store that is followed; raises StoreError while it is not there."""
        if self.cache is not None:
            return open_replica(self.store, self.cache)
        return Store(self.store)


def speaks_http() -> bool:
    """Whether the packages for HTTP are installed; loads none of them."""
    return all(find_spec(name) is not None for name in ("starlette", "uvicorn", "h11"))


def check_startable(options: Options) -> None:
    """Refuses what no server could be started with, before one is: files that cannot be used, packages that are not."""
    options.check()
    if options.users is not None:
        Access(Path(options.users))
    if options.http_port is not None and not speaks_http():
        with _needs_http():
            import_module("headrace.serve.http.app")
    if options.pg_port is not None:
        with _needs_duckdb():
            import_module("duckdb")


def serve(options: Options, tell: Tell) -> None:
    """Serves until SIGINT or SIGTERM."""
    check_startable(options)
    if options.processes > 1:
        from headrace.serve.processes import serve_together

        serve_together(options, tell)
        return
    run_server(serve_alone(options, tell, asyncio.Event()))


async def serve_alone(options: Options, tell: Tell, stop: asyncio.Event, *, shared: bool = False) -> None:
    """One process: everything it answers, until ``stop`` is set or a signal comes."""
    stop_on_signals(stop)
    more = [port for port in (options.http_port, options.pg_port) if port is not None]
    connections = affordable_connections(options.limits.connections, 1 + len(more))
    limits = msgspec.structs.replace(options.limits, connections=connections)
    service = make_service(msgspec.structs.replace(options, limits=limits))
    listener = bind(options.bind, options.port, shared=shared)
    tls = options.tls()
    resp = RespServer(service)
    faces = [resp.stop]
    ports = {"port": listener.getsockname()[1]}
    http: socket.socket | None = None
    if options.http_port is not None:
        http = bind(options.bind, options.http_port, shared=shared, flag="--http-port")
        ports["http_port"] = http.getsockname()[1]
    pg: socket.socket | None = None
    if options.pg_port is not None:
        pg = bind(options.bind, options.pg_port, shared=shared, flag="--pg-port")
        ports["pg_port"] = pg.getsockname()[1]
    first = _First(options, ports, tell)
    service.listen(first)
    service.start()
    # Others may answer on a shared port already: whoever connects must not meet one that has read nothing yet.
    await _first_look(service, stop, None if shared else FIRST_LOOK_S)
    await resp.start(listener, tls)
    if http is not None:
        faces.append(await _start_http(options, service, http, tls))
    if pg is not None:
        faces.append(await _start_pg(options, service, pg, tls))
    tell({"event": "listening", **ports})
    first.let_out()
    try:
        await stop.wait()
    finally:
        service.let_go()
        for end in faces:
            await end()
        await service.stop()


async def _first_look(service: Service, stop: asyncio.Event, timeout_s: float | None) -> None:
    """Comes back when the store was looked at once, when the server is to end, or when the time is up."""
    looking = asyncio.ensure_future(service.looked())
    ending = asyncio.ensure_future(stop.wait())
    await asyncio.wait([looking, ending], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    looking.cancel()
    ending.cancel()


def make_service(options: Options) -> Service:
    return Service(
        options.open_store,
        where=options.store,
        access=Access(None if options.users is None else Path(options.users)),
        limits=options.limits,
        follow_s=options.follow_ms / 1000,
        memory_bytes=options.memory_mb * 2**20,
    )


async def _start_http(
    options: Options, service: Service, listener: socket.socket, tls: ssl.SSLContext | None
) -> Callable[[], Coroutine[Any, Any, None]]:
    with _needs_http():
        from headrace.net.http_server import HttpServer
        from headrace.serve.http.app import HttpApp
    # Who asks for no token must not answer to names that a web page can make point here.
    hosts = None if not service.access.open or not is_loopback(options.bind) else (options.bind,)
    app = HttpApp([service], origins=options.origins, hosts=hosts)
    server = HttpServer(
        app,
        app.refused,
        connections=service.limits.connections,
        handshake_s=service.limits.unfinished_s,
        handshakes_per_address=service.limits.handshakes_per_address,
        tls=tls,
    )
    await server.start(listener)
    return server.stop


async def _start_pg(
    options: Options, service: Service, listener: socket.socket, tls: ssl.SSLContext | None
) -> Callable[[], Coroutine[Any, Any, None]]:
    with _needs_duckdb():
        from headrace.serve.pg.server import PgServer
        from headrace.snapshots.session import Engine
    engine = Engine(
        memory_mb=options.sql_memory_mb,
        kept_bytes=options.sql_memory_mb * 2**20,
        statement_s=options.sql_timeout_s,
    )
    server = PgServer(service, engine, tls)
    await server.start(listener)
    return server.stop


def _needs_duckdb() -> contextlib.AbstractContextManager[None]:
    return package("duckdb", extra="sql", where="--pg-port", instead="which answers SELECTs")


def _needs_http() -> contextlib.AbstractContextManager[None]:
    return package("uvicorn or starlette", extra="serve", where="--http-port", instead="which serves HTTP")


class _First:
    """Tells that there is something to ask for, once, and not before it can be asked for."""

    def __init__(self, options: Options, ports: dict[str, int], tell: Tell) -> None:
        self._options, self._ports, self._tell = options, ports, tell
        self._one = threading.Lock()
        self._listening = False
        self._held: dict[str, Any] | None = None

    def __call__(self, before: Snapshot | None, snapshot: Snapshot) -> None:
        if before is not None:
            return
        facts = {"app": snapshot.app, "epoch": snapshot.epoch, "states": list(snapshot.addresses)}
        works = what_works(self._options, self._ports, snapshot)
        with self._one:
            self._held = {"event": "serving", **facts, **self._ports, "try": works}
        self._say()

    def let_out(self) -> None:
        """The ports are listened on from now."""
        self._listening = True
        self._say()

    def _say(self) -> None:
        with self._one:
            held = self._held if self._listening else None
            if held is None:
                return
            self._held = None
        self._tell(held)


def what_works(options: Options, ports: dict[str, int], snapshot: Snapshot) -> list[str]:
    """Commands that a person can try now, with a key that is there; where users are asked for, TOKEN is theirs."""
    works = _keys_that_work(options, ports, snapshot)
    if "pg_port" in ports and snapshot.addresses:
        works.append(_psql(options, ports["pg_port"], snapshot))
    return works


def _psql(options: Options, port: int, snapshot: Snapshot) -> str:
    host = LOOPBACK if options.bind in _ANY else options.bind
    token = "PGPASSWORD=TOKEN " if options.users else ""
    step, _, state = snapshot.addresses[0].partition(".")
    table = f"{step}.{state}" if state else step
    asked = _quoted(f"SELECT * FROM {table} LIMIT 10")
    return f"{token}psql -h {host} -p {port} {snapshot.app} -c {asked}"


def _keys_that_work(options: Options, ports: dict[str, int], snapshot: Snapshot) -> list[str]:
    redis, http, path = _redis_cli(options, ports["port"]), "", f"v1/jobs/{snapshot.app}"
    if "http_port" in ports:
        http = f"{_curl(options, ports['http_port'])}/{path}"
    for address, table in snapshot.tables().items():
        page = table.page(0, 1)
        if page.keys:
            text = table.text(page.keys[0])
            asking = {"map": "HGETALL {}", "list": "LRANGE {} 0 -1", "timers": "LRANGE {} 0 -1"}.get(
                table.kind, "GET {}"
            )
            redis = f"{redis} {asking.format(_quoted(f'{address}:{text}'))}"
            return [redis, f"{http}/state/{address}/{_escaped(text)}"] if http else [redis]
    return [f"{redis} HEADRACE.INFO", *([http] if http else [])]


def _redis_cli(options: Options, port: int) -> str:
    host = "" if options.bind in (LOOPBACK, *_ANY) else f" -h {options.bind}"
    secure = " --tls --insecure" if options.tls_cert else ""
    token = " -a TOKEN" if options.users else ""
    return f"redis-cli -p {port}{host}{secure}{token}"


def _curl(options: Options, port: int) -> str:
    host = LOOPBACK if options.bind in _ANY else f"[{options.bind}]" if ":" in options.bind else options.bind
    secure = " -k" if options.tls_cert else ""
    token = " -H 'Authorization: Bearer TOKEN'" if options.users else ""
    return f"curl{secure}{token} {'https' if options.tls_cert else 'http'}://{host}:{port}"


def _quoted(word: str) -> str:
    import shlex

    return shlex.quote(word)


def _escaped(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")
