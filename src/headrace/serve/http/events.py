"""Changes as server-sent events, pushed when an epoch is published.

=========  =====================================================================================================
event      data
=========  =====================================================================================================
change     a key and its new value (null: it is gone), with state and epoch
failed     a key whose new value cannot be given, and in its place ``error``, as a request for it would be answered
epoch      all changes of the epoch before this line have been sent; it carries the ``id`` to go on from
reset      epochs were missed that nobody keeps any more, or the job began anew: read the state again
=========  =====================================================================================================

Only ``epoch`` (and a sign of life every few seconds) carries an id, so a client that loses the connection in the middle
of an epoch gets all of that epoch again, and none is left out. A client that reads more slowly than epochs are
published gets the newest value of what changed meanwhile; nothing is queued for it.

A stream of keys that were named also tells when their values expire and their windows end. One of whole states does
not: nobody writes that down, so it would have to be looked for among all keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, NamedTuple

import msgspec
from starlette.responses import Response

from headrace.errors import FunctionFailed
from headrace.model.amounts import count_of
from headrace.net.access import User
from headrace.net.problems import Problem, bad_parameter, problem_of, shorten
from headrace.read.forms import JSON, PACKED
from headrace.read.reader import Reader
from headrace.read.snapshot import Snapshot
from headrace.serve.http.asking import TIMES, AskedRequest, parse_written_key
from headrace.serve.http.job import ServedJob, headers_of, key_json, name_of, time_json, watermark_of
from headrace.serve.http.jobs import BodyStream, Jobs

ALIVE_S: Final = 10.0
"""Without changes a sign of life goes out this often, which also finds connections that are gone."""
MAX_STATES: Final = 100
KEYS_AT_ONCE: Final = 256
FORMS: Final = {"true": JSON, "msgpack": PACKED, "false": ""}
"""``values=`` → how values are told: as JSON, as MessagePack in base64, or not at all."""
EVENTS_TYPE: Final = "text/event-stream; charset=utf-8"


async def stream_changes(jobs: Jobs, asked: AskedRequest) -> Response:
    """``GET /v1/jobs/{app}/changes?state=…&key=…``."""
    asked.only("state", "key", "values", TIMES)
    job = jobs.job(asked)
    snapshot = job.snapshot()
    watch = _watch_of(jobs, asked, job, snapshot)
    headers = {**headers_of(job, snapshot), "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    if asked.method == "HEAD":
        return Response(None, 200, headers, EVENTS_TYPE)
    jobs.begin_watch()
    return BodyStream(
        watch.events(snapshot), headers, EVENTS_TYPE, unread_s=jobs.limits.unread_s, on_end=jobs.end_watch
    )


def _watch_of(jobs: Jobs, asked: AskedRequest, job: ServedJob, snapshot: Snapshot) -> Watch:
    addresses = asked.texts("state") or [each for each in snapshot.addresses if asked.user.may_read(each)]
    keys = asked.texts("key")
    if len(addresses) > MAX_STATES or len(addresses) * len(keys) > jobs.limits.keys:
        raise Problem(
            413, "too many states or keys for one stream", expected=f"up to {count_of(jobs.limits.keys, 'key')}"
        )
    for address in addresses:
        jobs.permit(asked, address)
        if snapshot.table(address) is None:
            raise jobs.missing_state(asked, snapshot, address)
    last = asked.request.headers.get("last-event-id", "")
    if (last and not last.partition("-")[0].isdecimal()) or len(last) > 40:
        raise Problem(400, "Last-Event-ID is not one of ours", expected="the id of an event", found=shorten(last))
    watched = [(address, key) for address in addresses for key in dict.fromkeys(keys)]
    for address, key in watched:
        table = snapshot.table(address)
        assert table is not None
        parse_written_key(table, key)
    form = FORMS.get(asked.text("values", "true"))
    if form is None:
        raise bad_parameter("values", asked.text("values"), " or ".join(FORMS))
    form = asked.text_form if form == JSON else form
    client = WatchingClient(asked.user, last, form, asked.text_form)
    return KeyWatch(jobs, job, client, watched) if watched else StateWatch(jobs, job, client, addresses)


class WatchingClient(NamedTuple):
    """Who listens, from where on, and in which form."""

    user: User
    last: str
    """The id of the last event that the client has seen; empty: it begins."""
    form: str
    """Of values."""
    text_form: str
    """Of keys and watermarks beside them, whatever values are."""


class Watch:
    """What one client wants to hear of."""

    def __init__(self, jobs: Jobs, job: ServedJob, client: WatchingClient) -> None:
        self._jobs = jobs
        self._job = job
        self._user, self._last, self._form, self._text_form = client

    async def events(self, snapshot: Snapshot) -> AsyncIterator[bytes]:
        """The stream, from the snapshot on (or from what the client has seen last) until client or server end it."""
        yield b"retry: 1000\n\n"
        async for part in self._begin(snapshot):
            yield part
        yield self._epoch_event(snapshot)
        while True:
            newer = await self._job.newer_than(snapshot, ALIVE_S)
            if self._job.service.stopping or not self._job.service.access.is_known(self._user):
                return
            if newer is None:
                yield f": alive\nid: {name_of(snapshot)}\n\n".encode()
                continue
            told = False
            async for part in self._between(snapshot, newer):
                told = True
                yield part
            snapshot = newer
            if told:
                yield self._epoch_event(snapshot)

    def _begin(self, snapshot: Snapshot) -> AsyncIterator[bytes]:
        raise NotImplementedError

    def _between(self, old: Snapshot | None, new: Snapshot) -> AsyncIterator[bytes]:
        raise NotImplementedError

    def _change(self, table: Reader, key: bytes, raw: bytes | None, **told: Any) -> bytes:
        shown = key_json(table, key, self._text_form)
        data: dict[str, Any] = {"state": table.address, "key": shown, "epoch": table.epoch, **told}
        if self._form == PACKED:
            # Bytes become base64.
            data["value"] = raw
        elif self._form:
            data["value"] = None if raw is None else msgspec.Raw(raw)
        return b"event: change\ndata: " + msgspec.json.encode(data) + b"\n\n"

    def _failure(self, table: Reader, key: bytes, error: FunctionFailed) -> bytes:
        data = {"state": table.address, "key": key_json(table, key, self._text_form), "epoch": table.epoch}
        problem = problem_of(error, 422).error_object()
        return b"event: failed\ndata: " + msgspec.json.encode({**data, "error": problem}) + b"\n\n"

    def _epoch_event(self, snapshot: Snapshot) -> bytes:
        data = {"epoch": snapshot.epoch, "watermark": time_json(watermark_of(snapshot, None), self._text_form)}
        return b"event: epoch\nid: " + name_of(snapshot).encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"


class KeyWatch(Watch):
    """Some keys by name: their values are compared at each epoch, so none is missed however many epochs passed."""

    def __init__(self, jobs: Jobs, job: ServedJob, client: WatchingClient, watched: list[tuple[str, str]]) -> None:
        super().__init__(jobs, job, client)
        self._watched: dict[tuple[str, str], bytes | str | None] = dict.fromkeys(watched)
        """What was told last: the value, or as text why there was none."""

    async def _begin(self, snapshot: Snapshot) -> AsyncIterator[bytes]:
        """The values as they are: whoever begins to watch need not ask for them besides."""
        async for part in self._compare(snapshot, everything=True):
            yield part

    async def _between(self, old: Snapshot | None, new: Snapshot) -> AsyncIterator[bytes]:
        if old is not None and old.line != new.line:
            yield _reset_event(new)
        async for part in self._compare(new, everything=False):
            yield part

    async def _compare(self, snapshot: Snapshot, everything: bool) -> AsyncIterator[bytes]:
        for number, ((address, text), before) in enumerate(self._watched.items()):
            if number % KEYS_AT_ONCE == KEYS_AT_ONCE - 1:
                # Most have not changed, so nothing else here would let others have their turn.
                await asyncio.sleep(0)
            table = snapshot.table(address)
            if table is None:
                continue
            try:
                key = parse_written_key(table, text)
            except Problem:
                # An empty state takes any key; the first ones that came are of another type.
                continue
            try:
                raw = table.get(key, self._form or JSON)
            except FunctionFailed as error:
                if str(error) != before:
                    self._watched[address, text] = str(error)
                    yield self._failure(table, key, error)
                continue
            if everything or raw != before:
                self._watched[address, text] = raw
                yield self._change(table, key, raw, **self._epoch_facts(snapshot, address))

    def _epoch_facts(self, snapshot: Snapshot, address: str) -> dict[str, Any]:
        """What typed clients, who ask for MessagePack, learn with a value: as much as the headers of an answer say."""
        if self._form != PACKED:
            return {}
        mark = watermark_of(snapshot, address.partition(".")[0])
        age_ms = self._job.age_ms(snapshot)
        return {
            "timeline": snapshot.timeline, "store": snapshot.store_id, "age_ms": age_ms,
            "watermark": time_json(mark, self._text_form),
        }  # fmt: skip


class StateWatch(Watch):
    """Whole states: the keys come from the deltas of the epochs, and the values from the newest of them."""

    def __init__(self, jobs: Jobs, job: ServedJob, client: WatchingClient, addresses: list[str]) -> None:
        super().__init__(jobs, job, client)
        self._addresses = frozenset(addresses)

    async def _begin(self, snapshot: Snapshot) -> AsyncIterator[bytes]:
        if not self._last:
            return
        seen = await self._job.find_seen(self._last)
        async for part in self._between(seen, snapshot):
            yield part

    async def _between(self, old: Snapshot | None, new: Snapshot) -> AsyncIterator[bytes]:
        if old is None or old.line != new.line or new.epoch < old.epoch:
            yield _reset_event(new)
            return
        changes = self._changes(old, new)
        while part := await self._jobs.in_thread(next, changes, b""):
            yield part

    def _changes(self, old: Snapshot, new: Snapshot) -> Iterator[bytes]:
        """The events of everything that changed from one epoch to another, some keys at a time."""
        if old.version == new.version:
            return
        for address, keys in new.changed(old):
            table = new.table(address)
            if table is None or address not in self._addresses:
                continue
            for start in range(0, len(keys), KEYS_AT_ONCE):
                part = keys[start : start + KEYS_AT_ONCE]
                yield b"".join(self._events_of(table, part))

    def _events_of(self, table: Reader, keys: list[bytes]) -> Iterator[bytes]:
        form = self._form or JSON
        try:
            raws = table.get_many(keys, form)
        except FunctionFailed:
            for key in keys:
                try:
                    yield self._change(table, key, table.get(key, form))
                except FunctionFailed as error:
                    yield self._failure(table, key, error)
            return
        for key, raw in zip(keys, raws):
            yield self._change(table, key, raw)


def _reset_event(snapshot: Snapshot) -> bytes:
    data = {"epoch": snapshot.epoch, "why": "epochs were missed, or the job began anew: read the state again"}
    return b"event: reset\ndata: " + msgspec.json.encode(data) + b"\n\n"
