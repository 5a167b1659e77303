"""Answers as bytes: what a request found, with the epoch, age and watermark it is of.

Headers of every answer about a job
- ``Headrace-Epoch``, ``Headrace-Timeline``, ``Headrace-Store``: the epoch that all of the answer is of.
- ``Headrace-Age-Ms``: how long ago it was published. It grows while the job stands still.
- ``Headrace-Watermark``: how far event time had come in the step, as ISO text; left out where there is none.
- ``Headrace-Lag-Epochs``: how many published epochs this server has not fetched yet; left out where there are none.
- ``ETag``: the epoch, named beyond doubt; with ``If-None-Match`` an answer of the same epoch is 304.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.responses import Response

from headrace.model.time import format_time
from headrace.net.problems import JSON_TYPE
from headrace.read.forms import JSON, PACKED, encode
from headrace.read.reader import Reader
from headrace.read.snapshot import Snapshot
from headrace.serve.http.asking import PACKED_TYPE
from headrace.serve.http.job import ServedJob, name_of

TYPES: Final = {JSON: JSON_TYPE, PACKED: PACKED_TYPE}
OWN_HEADERS: Final = (
    "Headrace-Epoch", "Headrace-Timeline", "Headrace-Store", "Headrace-Age-Ms", "Headrace-Watermark",
    "Headrace-Lag-Epochs",
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


def key_json(table: Reader, key: bytes) -> Any:
    """A key in an answer: text as text, anything else as its JSON."""
    return key[1:].decode() if key[:1] == b"s" else raw_json(table.text(key))


def answer(value: Any, form: str, headers: dict[str, str], status: int = 200) -> Response:
    return Response(encode(value, form), status, headers, TYPES[form])


def many(fields: dict[str, bytes | Any], form: str, headers: dict[str, str]) -> Response:
    """An object whose parts may be encoded already."""
    if form == PACKED:
        return Response(msgspec.msgpack.encode(fields), 200, headers, PACKED_TYPE)
    return Response(msgspec.json.encode(fields), 200, headers, JSON_TYPE)
