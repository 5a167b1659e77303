"""A server of a log as a process: port, signals, and an end that loses nothing.

Stopping: no new connections, then answers for what has come, then the log is closed. A second server on the same log is
refused by its lock, so the next one starts when this one has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.errors import SettingsError, StoreError
from headrace.ingest.log import Log, LogOptions
from headrace.ingest.streams import Streams
from headrace.model.packages import package
from headrace.query.access import Access, is_loopback, make_tls

PORT: Final = 8400
_BACKLOG: Final = 1024

Tell = Callable[[dict[str, Any]], None]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be said to ``headrace ingest``."""

    log: str
    port: int = PORT
    bind: str = "127.0.0.1"
    users: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    insecure: bool = False
    origins: tuple[str, ...] = ()
    max_rate: int = 0
    request_bytes: int = 16 * 2**20
    event_bytes: int = 2**20
    pending_bytes: int = 128 * 2**20
    kept: LogOptions = LogOptions()


def serve(options: Options, streams: Streams, tell: Tell) -> None:
    """Takes events until SIGINT or SIGTERM."""
    with package("uvicorn or starlette", extra="serve", where="headrace ingest", instead="which serves HTTP"):
        from headrace.ingest.admission import check_binding
        from headrace.query.serving import run_loop
    if (options.tls_cert is None) != (options.tls_key is None):
        raise SettingsError("TLS wants both a certificate and its key", expected="--tls-cert and --tls-key")
    tls = options.tls_cert is not None
    check_binding(options.bind, users=options.users is not None, tls=tls, insecure=options.insecure)
    log = Log(Path(options.log), options.kept)
    try:
        for name, taken in streams.named.items():
            log.make_stream(name, taken.partitions)
        run_loop(serve_log(options, streams, log, tell, asyncio.Event()))
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


async def serve_log(options: Options, streams: Streams, log: Log, tell: Tell, stop: asyncio.Event) -> None:
    """Takes events until ``stop`` is set, a signal comes, or the log breaks."""
    from headrace.ingest.admission import Admission
    from headrace.ingest.app import IngestApp, IngestLimits
    from headrace.ingest.committing import Committer
    from headrace.query.http import HttpServer
    from headrace.query.serving import bind

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, stop.set)
    access = Access(None if options.users is None else Path(options.users))
    admission = Admission(
        access, origins=options.origins, loopback=is_loopback(options.bind), per_second=options.max_rate
    )
    limits = IngestLimits(
        request_bytes=options.request_bytes, event_bytes=options.event_bytes, pending_bytes=options.pending_bytes
    )
    committer = Committer(log)
    app = IngestApp(committer, streams, admission, limits=limits, origins=options.origins)
    tls = None
    if options.tls_cert is not None and options.tls_key is not None:
        tls = make_tls(Path(options.tls_cert), Path(options.tls_key))
    listener = bind(options.bind, options.port)
    # Whoever is told of the port may connect at once; the server takes over in its own time.
    listener.listen(_BACKLOG)
    server = HttpServer(app, connections=limits.connections, tls=tls)
    committer.start()
    await server.start(listener)
    port = listener.getsockname()[1]
    tell({"event": "listening", "port": port, "log": options.log, "id": log.id, "streams": log.streams})
    try:
        waits = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(committer.broken.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
    finally:
        await server.stop()
        await committer.stop()
    tell({"event": "ended", "requests": committer.requests, "commits": committer.rounds})
