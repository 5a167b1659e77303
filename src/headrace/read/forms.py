"""The forms in which values go out: JSON text, in which times are ISO text or numbers, and MessagePack.

State is stored as MessagePack, so that form costs nothing, and its times are numbers of microseconds; JSON is made from
it. Names in JSON are text: those that are none are written as keys are (`headrace.model.key_text`). Which parts of a
value are times says the state (`headrace.read.reader.Reader.shown`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from headrace.model.key_text import key_text
from headrace.model.time import format_time

JSON: Final = "json"
"""Times are ISO text: for people."""
JSON_US: Final = "json with microseconds"
"""Times are numbers: for programs."""
PACKED: Final = "msgpack"

WRITE_TIME: Final[dict[str, Callable[[int], Any]]] = {JSON: format_time, JSON_US: int}
"""How each form writes a time; one that is not here has times as they are stored."""

_to_json = msgspec.json.Encoder(enc_hook=key_text).encode
_to_packed = msgspec.msgpack.Encoder(enc_hook=str).encode
unpack = msgspec.msgpack.Decoder().decode
"""A stored value as plain Python."""
_LIST: Final = struct.Struct(">BI")


def encode(value: Any, form: str) -> bytes:
    """A plain value as JSON text or MessagePack."""
    return _to_packed(value) if form == PACKED else _to_json(value)


def unpack_all(raws: Sequence[bytes]) -> list[Any]:
    """Stored values as plain Python, all at once: a list of them is its length and then one after the other."""
    return unpack(_LIST.pack(0xDD, len(raws)) + b"".join(raws))  # type: ignore[no-any-return]


def json_of(raw: bytes) -> bytes:
    """A stored value as JSON text."""
    return _to_json(unpack(raw))
