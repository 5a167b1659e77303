"""From the MessagePack that servers send to the types that were asked for, and back to the names of states."""

from __future__ import annotations

import typing
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec

from headrace.errors import StoreError
from headrace.model.key_bytes import as_type, plain_type
from headrace.model.keys import decode_key, key_text
from headrace.model.values import type_name, value_codec

Decode = Callable[[bytes], Any]
DecodeOf = Callable[[bytes, bytes], Any]
"""From the stored bytes of a key and those of its value."""


def decoder(annotation: Any, where: str) -> DecodeOf:
    """How values of a state become what was asked for; without a type plain Python."""
    if annotation is None or annotation is Any:
        return lambda key, raw: msgspec.msgpack.decode(raw)
    decode = _typed(annotation, where)

    def checked(key: bytes, raw: bytes) -> Any:
        try:
            return decode(raw)
        except msgspec.MsgspecError as error:
            raise StoreError(
                "a stored value does not fit the type it was asked for as",
                where=f"{where}, key {key_text(decode_key(key))}",
                expected=type_name(annotation),
                found=str(error),
                next_move="ask for the type the program declares, or for none to get plain Python",
            ) from error

    return checked


def _typed(annotation: Any, where: str) -> Decode:
    parts = typing.get_args(annotation)
    if typing.get_origin(annotation) is dict and _is_time(parts[0]):
        # Names of entries are keys, in which times are numbers.
        decode = value_codec(dict[int, parts[1]], where=where).decode  # type: ignore[valid-type]
        return lambda raw: {as_type(name, parts[0]): value for name, value in decode(raw).items()}
    return value_codec(annotation, where=where).decode


def _is_time(annotation: Any) -> bool:
    kind = plain_type(annotation)
    return isinstance(kind, type) and issubclass(kind, datetime | timedelta)
