"""A server of a log as a process: port, signals, and an end that loses nothing.

Stopping: no new connections, then answers for what has come, then the log is closed. A second server on the same log is
refused by its lock, so the next one starts when this one has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.errors import StoreError
from headrace.ingest.committing import Committer
from headrace.ingest.log import Log, LogOptions
from headrace.ingest.streams import Streams
from headrace.model.packages import package
from headrace.net.access import Access, check_binding, is_loopback, tls_of
from headrace.net.listening import affordable_connections, bind, run_server, stop_on_signals

PORT: Final = 8400
_TRAIL_S: Final = 1.0
"""How often refusals that were too many for a line each are counted in the log."""

Tell = Callable[[dict[str, Any]], None]


class IngestOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be said to ``headrace ingest``."""

    log: str
    port: int = PORT
    bind: str = "127.0.0.1"
    users: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    insecure: bool = False
    handshake_s: float = 30.0
    """How long a TLS handshake may take."""
    origins: tuple[str, ...] = ()
    max_rate: int = 0
    request_bytes: int = 16 * 2**20
    event_bytes: int = 2**20
    pending_bytes: int = 128 * 2**20
    kept: LogOptions = LogOptions()


def serve(options: IngestOptions, streams: Streams, tell: Tell) -> None:
    """Takes events until SIGINT or SIGTERM."""
    with package("uvicorn or starlette", extra="serve", where="headrace ingest", instead="which serves HTTP"):
        import_module("headrace.ingest.app")
    check_binding(
        options.bind,
        users=options.users is not None,
        tls=options.tls_cert is not None,
        insecure=options.insecure,
        danger="write anything into this log",
    )
    tls_of(options.tls_cert, options.tls_key)
    log = Log(Path(options.log), options.kept)
    try:
        for name, taken in streams.named.items():
            log.make_stream(name, taken.partitions)
        run_server(serve_log(options, streams, log, tell, asyncio.Event()))
        broken = log.broken
    finally:
        log.close()
    if broken is not None:
        raise StoreError(
            "the log could not be written any more, so the server has ended",
            where=options.log,
            found=str(broken),
            next_move="look at the disk, then start it again: everything that was answered is there",
        )


async def serve_log(options: IngestOptions, streams: Streams, log: Log, tell: Tell, stop: asyncio.Event) -> None:
    """Takes events until ``stop`` is set, a signal comes, or the log breaks."""
    from headrace.ingest.app import IngestApp, IngestLimits
    from headrace.net.http_server import HttpServer

    stop_on_signals(stop)
    access = Access(None if options.users is None else Path(options.users))
    limits = IngestLimits(
        request_bytes=options.request_bytes, event_bytes=options.event_bytes, pending_bytes=options.pending_bytes
    )
    committer = Committer(log)
    app = IngestApp(
        committer,
        streams,
        access,
        limits=limits,
        origins=options.origins,
        loopback=is_loopback(options.bind),
        per_second=options.max_rate,
    )
    listener = bind(options.bind, options.port)
    server = HttpServer(
        app,
        app.refused,
        connections=affordable_connections(limits.connections, 1),
        handshake_s=options.handshake_s,
        handshakes_per_address=limits.handshakes_per_address,
        tls=tls_of(options.tls_cert, options.tls_key),
    )
    committer.start()
    await server.start(listener)
    port = listener.getsockname()[1]
    tell({"event": "listening", "port": port, "log": options.log, "id": log.id, "streams": log.streams})
    try:
        waits = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(committer.broken.wait())]
        while not any(wait.done() for wait in waits):
            await asyncio.wait(waits, timeout=_TRAIL_S, return_when=asyncio.FIRST_COMPLETED)
            access.trail.catch_up()
        for wait in waits:
            wait.cancel()
    finally:
        await server.stop()
        await committer.stop()
    tell({"event": "ended", "requests": committer.requests, "commits": committer.rounds})
