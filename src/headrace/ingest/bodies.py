"""From the body of a request to its events: one JSON object, an array of them, or a line for each.

All or nothing: the first event that cannot be taken refuses the request, with its line and the reason. An event is kept
as it was sent, byte for byte; nothing is written anew.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from headrace.errors import BadRow
from headrace.model.rows import RowCodec
from headrace.model.values import type_name
from headrace.net.problems import Problem, shorten

LINES: Final = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines"})
ONE_DOCUMENT: Final = "application/json"
_GZIP: Final = 31

_any_json: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_array: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Unzipper:
    """Unpacks a body as it comes, and never more of it than is allowed: a small body may hold a very large one."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._made = 0
        self._zipped = zlib.decompressobj(_GZIP)

    def feed(self, part: bytes) -> bytes:
        try:
            made = self._zipped.decompress(part, self._most_bytes - self._made + 1)
        except zlib.error as error:
            raise Problem(400, "the body is no gzip", found=str(error)) from None
        self._made += len(made)
        return made

    def finish(self) -> None:
        if not self._zipped.eof or self._zipped.unused_data:
            found = "it ends too early" if not self._zipped.eof else "something follows it"
            raise Problem(400, "the body is no gzip", expected="one whole gzip member", found=found)


def read_events(body: bytes, kind: str, codec: RowCodec | None, *, most_events: int, most_bytes: int) -> list[bytes]:
    """The events of a body. ``kind`` is its content type; ``codec`` of the type that they have to be of."""
    places, events = _split(body, kind)
    if not events:
        raise Problem(400, "there is no event in the body", expected="a JSON object, an array of them, or JSON lines")
    if len(events) > most_events:
        raise Problem(
            413, "too many events in one request", expected=f"up to {most_events}", found=str(len(events)),
            next_move="send them in several requests",
        )  # fmt: skip
    _check(events, places, codec, most_bytes)
    return events


def _split(body: bytes, kind: str) -> tuple[Callable[[int], str], list[bytes]]:
    """The events, and how to say where one of them stands."""
    try:
        # At once, because nobody looks into strings later on.
        body.decode()
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        raise Problem(
            422, "the body is not UTF-8", where=f"line {line}", found=repr(body[error.start :][:20])
        ) from None
    stripped = body.strip()
    if stripped.startswith(b"[") and kind not in LINES:
        try:
            return lambda at: f"event {at + 1} of the array", [bytes(each) for each in _array(stripped)]
        except msgspec.MsgspecError as error:
            raise Problem(422, "the array cannot be read", expected="an array of objects", found=str(error)) from None
    if kind == ONE_DOCUMENT or b"\n" not in stripped:
        return lambda at: "the body", [stripped] if stripped else []
    numbered = [
        (number, each.strip()) for number, each in enumerate(body.split(b"\n"), 1) if not each.isspace() and each
    ]
    return lambda at: f"line {numbered[at][0]}", [line for _, line in numbered]


def _check(events: list[bytes], place: Callable[[int], str], codec: RowCodec | None, most_bytes: int) -> None:
    if max(map(len, events)) > most_bytes:
        at = next(at for at, event in enumerate(events) if len(event) > most_bytes)
        raise Problem(413, "an event is too large", where=place(at), expected=f"up to {most_bytes} bytes")
    checked: list[Any] = []
    try:
        checked.extend(map(_any_json if codec is None else codec.from_json, events))
    except (msgspec.MsgspecError, BadRow, RecursionError) as error:
        raise _refusal(place(len(checked)), events[len(checked)], codec, error) from None
    if codec is not None:
        _check_columns(checked, events, place, codec)


def _check_columns(rows: list[Any], events: list[bytes], place: Callable[[int], str], codec: RowCodec) -> None:
    """Some values are of the type and still fit in no column, as numbers of more than 64 bits."""
    try:
        codec.to_arrays(rows)
    except BadRow:
        for at, row in enumerate(rows):
            try:
                codec.to_arrays([row])
            except BadRow as error:
                raise _refusal(place(at), events[at], codec, error) from None
        raise


def _refusal(where: str, event: bytes, codec: RowCodec | None, error: Exception) -> Problem:
    return Problem(
        422,
        "an event cannot be taken; nothing of this request was",
        where=where,
        expected="a JSON object" if codec is None else type_name(codec.type),
        found=f"{_reason(error)}: {shorten(event.decode())}",
        next_move="mend the event, and send all of them again",
    )


def _reason(error: Exception) -> str:
    """What the decoder says: it names the field and both types."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error.__cause__ or error).splitlines()[0]
