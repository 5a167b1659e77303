"""The two forms in which values go out: JSON text and MessagePack.

State is stored as MessagePack, so that form costs nothing; JSON is made from it. Names in JSON are text: those that are
none are written as keys are (`headrace.model.key_text`).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headrace.model.key_text import key_text

JSON: Final = "json"
PACKED: Final = "msgpack"

_to_json = msgspec.json.Encoder(enc_hook=key_text).encode
_to_packed = msgspec.msgpack.Encoder(enc_hook=str).encode
unpack = msgspec.msgpack.Decoder().decode
"""A stored value as plain Python."""


def encode(value: Any, form: str) -> bytes:
    """A plain value as JSON text or MessagePack."""
    return _to_packed(value) if form == PACKED else _to_json(value)


def json_of(raw: bytes) -> bytes:
    """A stored value as JSON text."""
    return _to_json(unpack(raw))
