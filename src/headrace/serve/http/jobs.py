"""What all requests share: the jobs that are served, who may read what, how much at a time, and of which epoch.

A request names its job and state by the path, and its epoch by parameters: none for the newest, ``wait_epoch`` for one
that is not older, ``at`` for a past one that is still kept: an epoch, a savepoint by its name, or a time.

While a whole state or a stream of events is on its way the snapshot it is made from stays open; so a stream that nobody
takes from ends after `Limits.unread_s`, and only so many may be on their way at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Final, NamedTuple

from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send
from typing_extensions import ParamSpec, TypeVar

from headrace.net.access import Limits
from headrace.net.problems import Problem, shorten
from headrace.read.reader import Reader
from headrace.read.snapshot import Snapshot
from headrace.serve.http.asking import AskedRequest
from headrace.serve.http.exporting import FORMATS
from headrace.serve.http.job import ServedJob, headers_of, is_known, tag_of, waiting
from headrace.serve.service import Service, nearest_addresses

P = ParamSpec("P")
T = TypeVar("T")

EPOCH_PARAMETERS: Final = ("at", "wait_epoch", "wait_offset", "timeline", "store", "timeout")
MAX_EPOCH: Final = 10**15
WAIT_S: Final = 10.0
MAX_WAIT_S: Final = 60.0
THREADS: Final = 4
"""So many requests may walk over state at the same time in one process; the others wait for their turn."""
DOWNLOADS: Final = 8
"""So many whole states may be on their way at the same time; more are told to come back."""


class RequestedState(NamedTuple):
    """The state that a request is about."""

    job: ServedJob
    snapshot: Snapshot
    table: Reader
    headers: dict[str, str]
    unchanged: Response | None
    """304, where the asking side has this epoch already."""


class Jobs:
    """The jobs of one server, as requests reach them. A job has a name once its first epoch is published."""

    def __init__(self, services: Iterable[Service], limits: Limits) -> None:
        self.all = tuple(map(ServedJob, services))
        self.limits = limits
        self.downloads = 0
        self.watches = 0
        self._turn = asyncio.Semaphore(THREADS)

    # --- what a request is about

    def job(self, asked: AskedRequest) -> ServedJob:
        app = asked.names["app"]
        named = {job.newest.app: job for job in self.all if job.newest is not None}
        if app in named:
            return named[app]
        for job in self.all:
            if job.newest is None:
                raise waiting(job.service)
        raise Problem(
            404,
            "no such job is served here",
            where=shorten(app),
            expected=" or ".join(sorted(named)),
            next_move="`/v1/jobs` lists them",
        )

    async def await_job(self, asked: AskedRequest) -> ServedJob:
        """As `job`; a request that waits for an epoch or an offset waits for the first epoch, too."""
        if asked.has("wait_epoch", "wait_offset"):
            for job in self.all:
                if await job.service.wait_for(lambda snapshot: True, self._time_left_s(asked)) is None:
                    raise _stopping() if job.service.stopping else _too_early(job, asked)
        return self.job(asked)

    def _time_left_s(self, asked: AskedRequest) -> float:
        """How long a request may still wait."""
        return max(0.0, asked.seconds("timeout", WAIT_S, MAX_WAIT_S) - asked.age_s)

    async def snapshot(self, asked: AskedRequest, job: ServedJob) -> Snapshot:
        """The snapshot that all of a request is answered from."""
        if asked.has("at"):
            if asked.has("wait_epoch", "wait_offset"):
                raise Problem(400, "`at` and waiting exclude each other", expected="one of them")
            return await job.at(asked.at_moment("at"))
        if not asked.has("wait_epoch", "wait_offset"):
            return job.snapshot()
        epoch = asked.number("wait_epoch", 0, least=0, most=MAX_EPOCH)
        newest = job.newest
        present = newest.timeline if newest is not None else 0
        wanted = (asked.number("timeline", present, least=0, most=MAX_EPOCH), epoch)
        offsets, left_s = asked.offsets("wait_offset"), self._time_left_s(asked)
        reached = await job.reaching(wanted, offsets, left_s, asked.text("store"))
        if reached is None:
            raise _stopping() if job.service.stopping else _too_early(job, asked)
        return reached

    async def find(self, asked: AskedRequest) -> RequestedState:
        """The state of the path, at the epoch of the parameters, if the asking side may read it."""
        address = asked.names["address"]
        self.permit(asked, address)
        job = await self.await_job(asked)
        snapshot = await self.snapshot(asked, job)
        headers = headers_of(job, snapshot, address.partition(".")[0])
        asked.told = headers
        table = snapshot.table(address)
        if table is None:
            raise self.missing_state(asked, snapshot, address)
        return RequestedState(
            job, snapshot, table, {**headers, "ETag": tag_of(snapshot)}, unchanged(asked, snapshot, headers)
        )

    def missing_state(self, asked: AskedRequest, snapshot: Snapshot, address: str) -> Problem:
        readable = [each for each in snapshot.addresses if asked.user.may_read(each)]
        near = nearest_addresses(address, readable)
        meant = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        return Problem(
            404,
            "the job keeps no such state",
            where=snapshot.app,
            expected=shorten(" or ".join(readable), 1000),
            found=shorten(address),
            next_move=f"{meant}`/v1/jobs/{snapshot.app}/state` lists the states",
        )

    def permit(self, asked: AskedRequest, address: str) -> None:
        """403 where the reader may not see a state, whether it exists or not."""
        if not asked.user.may_read(address):
            raise Problem(
                403,
                "this state is not for you",
                where=shorten(address),
                found=asked.user.name,
                next_move="ask for a token that allows it",
            )

    # --- how much at a time

    async def in_thread(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Runs what may take long beside the loop, a few at a time."""
        async with self._turn:
            return await asyncio.to_thread(work, *args, **named)

    def begin_watch(self) -> None:
        if self.watches >= self.limits.connections:
            raise Problem(
                503,
                "too many streams of changes are open",
                expected=f"up to {self.limits.connections} at a time",
                next_move="close one, or watch several keys in one stream: ?key=…&key=…",
                headers={"Retry-After": "5"},
                crowded=True,
            )
        self.watches += 1

    def end_watch(self) -> None:
        self.watches -= 1

    def begin_download(self) -> None:
        if self.downloads >= DOWNLOADS:
            raise Problem(
                503,
                "too many whole states are being read",
                expected=f"up to {DOWNLOADS} at a time",
                next_move="try again in a moment",
                headers={"Retry-After": "2"},
                crowded=True,
            )
        self.downloads += 1

    def end_download(self) -> None:
        self.downloads -= 1


def unchanged(asked: AskedRequest, snapshot: Snapshot, headers: dict[str, str]) -> Response | None:
    """304, where the asking side has the answer of this epoch already."""
    if asked.method not in ("GET", "HEAD") or not is_known(asked.request.headers.get("if-none-match"), snapshot):
        return None
    return Response(None, 304, {**headers, "ETag": tag_of(snapshot)})


def _stopping() -> Problem:
    return Problem(
        503,
        "this server is being stopped",
        next_move="ask another server, or this one when it is back",
        headers={"Retry-After": "1"},
    )


def _too_early(job: ServedJob, asked: AskedRequest) -> Problem:
    newest = job.newest
    timeout_s = asked.seconds("timeout", WAIT_S, MAX_WAIT_S)
    wanted = f"epoch {asked.text('wait_epoch')}" if asked.has("wait_epoch") else "what was asked for"
    return Problem(
        504,
        f"{wanted} was not published in time",
        where=asked.names["app"],
        expected=f"{wanted} within {timeout_s:g}s",
        found="no epoch yet" if newest is None else f"epoch {newest.epoch}",
        next_move="wait longer with ?timeout=30s, or look whether the job runs",
        headers={"Retry-After": "1"},
    )


# --- answers that take their time


class BodyStream(StreamingResponse):
    """A body that is made while it is sent."""

    def __init__(
        self,
        parts: AsyncIterator[bytes],
        headers: dict[str, str],
        content_type: str,
        *,
        unread_s: float,
        on_end: Callable[[], None],
    ) -> None:
        """``unread_s``: how long the client may leave a part of it unread."""
        super().__init__(parts, 200, headers, content_type)
        self._parts = parts
        self._on_end = on_end
        self._unread_s = unread_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def patient(message: Message) -> None:
            async with asyncio.timeout(self._unread_s):
                await send(message)

        try:
            await super().__call__(scope, receive, patient)
        finally:
            self._on_end()
            close = getattr(self._parts, "aclose", None)
            if close is not None:
                await close()


async def download(jobs: Jobs, asked: AskedRequest, found: RequestedState, format: str) -> Response:
    """A whole state. What can go wrong with the request or the first rows goes wrong before the first byte."""
    form = FORMATS[format]
    name = f"{found.snapshot.app}-{found.table.address}-{found.snapshot.epoch}.{form.suffix}"
    safe = "".join(char if (char.isalnum() and char.isascii()) or char in "-_." else "_" for char in name)
    headers = {**found.headers, "Content-Disposition": f'attachment; filename="{safe}"'}
    if asked.method == "HEAD":
        return Response(None, 200, headers, form.content_type)
    jobs.begin_download()
    parts = form.write(found.table, asked.text("prefix"), asked.text_form)
    try:
        first = await jobs.in_thread(next, parts, b"")
    except BaseException:
        jobs.end_download()
        raise
    body = _in_threads(jobs, first, parts)
    return BodyStream(body, headers, form.content_type, unread_s=jobs.limits.unread_s, on_end=jobs.end_download)


async def _in_threads(jobs: Jobs, first: bytes, parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    part = first
    while part:
        yield part
        part = await jobs.in_thread(next, parts, b"")
