"""A job as HTTP sees it: its newest snapshot, those of the past that are kept, and waiting for what is to come.

Waiting costs a request no queue: a client that waits or reads slowly holds no memory but its own connection.

Headers of every answer about a job
- ``Headrace-Epoch``, ``Headrace-Timeline``, ``Headrace-Store``: the epoch that all of the answer is of.
- ``Headrace-Age-Ms``: how long ago it was published. It grows while the job stands still.
- ``Headrace-Watermark``: how far event time had come in the step, as ISO text; left out where there is none.
- ``Headrace-Lag-Epochs``: how many published epochs this server has not fetched yet; left out where there are none.
- ``Headrace-Value-Version``, ``Headrace-Newest-Version``: of an answer about one key, in which version of its step it
  was written, and the newest; left out where its type is the newest.
- ``ETag``: the epoch, named beyond doubt; with ``If-None-Match`` an answer of the same epoch is 304.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.responses import Response

from headrace.errors import NoSuchMoment
from headrace.model.keys import decode_key, key_text
from headrace.model.time import format_time
from headrace.net.problems import JSON_TYPE, Problem
from headrace.read.forms import JSON, JSON_US, PACKED, encode
from headrace.read.reader import Reader
from headrace.read.snapshot import Snapshot, reaches
from headrace.read.store import Store, newest_manifests, store_over
from headrace.serve.http.asking import PACKED_TYPE
from headrace.serve.service import Service
from headrace.state.manifest import Manifest
from headrace.state.moments import AtEpoch, AtSavepoint, Moment

NEWEST_EPOCHS: Final = 1000
"""How many manifests one request may ask for."""

Version = tuple[int, int]
"""Timeline and epoch: a place in the history of a job; later places are greater."""


def name_of(snapshot: Snapshot) -> str:
    """Names the epoch beyond doubt: a store that was made anew counts epochs from the beginning."""
    return f"{snapshot.epoch}-{snapshot.state.manifest.nonce[:8]}"


class ServedJob:
    """One store that is followed and served."""

    def __init__(self, service: Service) -> None:
        self.service = service

    # --- the present

    @property
    def newest(self) -> Snapshot | None:
        return self.service.snapshot

    @property
    def lag_epochs(self) -> int:
        return self.service.lag_epochs

    def snapshot(self) -> Snapshot:
        """The newest snapshot; 503 while there is none."""
        newest = self.service.snapshot
        if newest is None:
            raise waiting(self.service)
        return newest

    def age_ms(self, snapshot: Snapshot) -> int:
        """How long ago the epoch was published, by this machine's clock."""
        return self.service.age_ms(snapshot)

    # --- the future

    async def newer_than(self, known: Snapshot, timeout_s: float) -> Snapshot | None:
        """The next snapshot after one; None when nothing came in time."""
        return await self.service.wait_for(lambda snapshot: snapshot is not known, timeout_s)

    async def reaching(
        self, wanted: Version, offsets: Mapping[str, Any], timeout_s: float, store: str = ""
    ) -> Snapshot | None:
        """The first snapshot at or after a version that has read so far; None when it did not come in time.

        ``store``: the id of the store that the version is of. Another one counts anew, so it is not waited for there.
        """

        def reached(snapshot: Snapshot) -> bool:
            elsewhere = store not in ("", snapshot.store_id)
            return (elsewhere or snapshot.version >= wanted) and all(
                reaches(snapshot.offsets.get(source, ""), offset) for source, offset in offsets.items()
            )

        return await self.service.wait_for(reached, timeout_s)

    # --- the past

    async def at(self, moment: Moment) -> Snapshot:
        """A past epoch; 410 where it is not kept any more, 404 where there never was such a one."""
        newest = self.snapshot()
        try:
            return await self.service.past.at(moment)
        except NoSuchMoment as error:
            never = isinstance(moment, AtSavepoint) or (isinstance(moment, AtEpoch) and moment.epoch > newest.epoch)
            # Where the store lies is nobody's business here.
            raise Problem(
                404 if never else 410, error.what, where=newest.app, expected=error.expected, found=error.found,
                next_move=error.next_move,
            ) from error  # fmt: skip

    async def find_seen(self, name: str) -> Snapshot | None:
        """The epoch that somebody says to have seen, if it is of this line of epochs and still kept."""
        epoch, mark, _ = name.partition("-")
        if int(epoch) > self.snapshot().epoch:
            return None
        try:
            past = await self.at(AtEpoch(int(epoch)))
        except Problem:
            return None
        return past if not mark or name_of(past) == name else None

    def manifests(self, limit: int) -> list[Manifest]:
        """Of the newest epochs, the newest first. Reads files: not for the loop."""
        return newest_manifests(store_over(self.snapshot().files, Store), min(limit, NEWEST_EPOCHS))[::-1]


def waiting(service: Service) -> Problem:
    return Problem(
        503,
        "no epoch has been published yet",
        found=service.trouble,
        next_move="ask again when the job has run its first epoch",
        headers={"Retry-After": "1"},
    )


# --- answers as bytes


TYPES: Final = {JSON: JSON_TYPE, JSON_US: JSON_TYPE, PACKED: PACKED_TYPE}
OWN_HEADERS: Final = (
    "Headrace-Epoch", "Headrace-Timeline", "Headrace-Store", "Headrace-Age-Ms", "Headrace-Watermark",
    "Headrace-Lag-Epochs", "Headrace-Value-Version", "Headrace-Newest-Version",
)  # fmt: skip


def headers_of(job: ServedJob, snapshot: Snapshot, step: str | None = None) -> dict[str, str]:
    """What an answer says of itself. Without a step the watermark is the lowest of all steps."""
    headers = {
        "Headrace-Epoch": str(snapshot.epoch),
        "Headrace-Timeline": str(snapshot.timeline),
        "Headrace-Store": snapshot.store_id,
        "Headrace-Age-Ms": str(job.age_ms(snapshot)),
        "Cache-Control": "private, no-cache",
        "Vary": "Accept, Authorization",
    }
    watermark = watermark_of(snapshot, step)
    if watermark is not None:
        headers["Headrace-Watermark"] = format_time(watermark)
    if job.lag_epochs and snapshot is job.newest:
        headers["Headrace-Lag-Epochs"] = str(job.lag_epochs)
    return headers


def version_headers(table: Reader, key: bytes) -> dict[str, str]:
    """What an answer about one key says of the version that it was written in."""
    stored = table.stored_version(key)
    if stored is None:
        return {}
    return {"Headrace-Value-Version": str(stored.version), "Headrace-Newest-Version": str(stored.newest)}


def watermark_of(snapshot: Snapshot, step: str | None) -> int | None:
    if step is not None:
        return snapshot.watermark_us(step)
    known = (snapshot.watermark_us(each) for each in snapshot.state.manifest.time.steps)
    return min((mark for mark in known if mark is not None), default=None)


def tag_of(snapshot: Snapshot) -> str:
    """Weak, because one epoch has several forms."""
    return f'W/"{name_of(snapshot)}"'


def is_known(if_none_match: str | None, snapshot: Snapshot) -> bool:
    """Whether the asking side has the answer of this epoch already."""
    if if_none_match is None:
        return False
    opaque = tag_of(snapshot).removeprefix("W/")
    return any(tag.strip().removeprefix("W/") in (opaque, "*") for tag in if_none_match.split(","))


def raw_json(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


def key_json(table: Reader, key: bytes, form: str = JSON) -> Any:
    """A key in an answer: text as text, anything else as its JSON."""
    if key[:1] == b"s":
        return key[1:].decode()
    return raw_json(key_text(decode_key(key)) if form == JSON_US else table.text(key))


def time_json(at_us: int | None, form: str) -> str | int | None:
    """A point in time in an answer that is JSON."""
    return None if at_us is None else at_us if form == JSON_US else format_time(at_us)


def answer(value: Any, form: str, headers: dict[str, str], status: int = 200) -> Response:
    return Response(encode(value, form), status, headers, TYPES[form])


def many(fields: dict[str, bytes | Any], form: str, headers: dict[str, str]) -> Response:
    """An object whose parts may be encoded already."""
    if form == PACKED:
        return Response(msgspec.msgpack.encode(fields), 200, headers, PACKED_TYPE)
    return Response(msgspec.json.encode(fields), 200, headers, JSON_TYPE)
