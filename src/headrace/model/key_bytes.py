"""The bytes of a key: one value to bytes and back.

Key bytes are one tag byte and a payload, so that equal bytes mean equal keys and nothing else does:

====  ==========================================  =================================================================
tag   Python                                      payload
====  ==========================================  =================================================================
s     str, UUID                                   UTF-8 (a UUID is its text of 36 characters, as its column is)
i     int, Timestamp, Duration, datetime,         8 bytes, big-endian, two's complement (times are µs since 1970;
      timedelta                                   a datetime without zone is UTC)
y     bytes                                       as they are
b     bool                                        00 or 01
n     None                                        empty
d     date                                        4 bytes, big-endian, two's complement: days since 1970
f     float                                       8 bytes, big-endian IEEE 754; −0.0 is 0.0, every NaN is one NaN
m     Decimal                                     text without exponent and without trailing zeros
(     tuple                                       per part: 4 bytes big-endian length, then the part's own bytes
====  ==========================================  =================================================================

An Enum is its value. A value has the same bytes as the column that holds it, so a key computed on Arrow columns
(`keys.encode_columns`) and from one object (`encode_key`) is the same key.

The bytes are part of the stored format: a change here makes every store unreadable. Import from `headrace.model.keys`.
"""

from __future__ import annotations

import math
import struct
import types
import typing
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import numpy as np

from headrace.errors import ProgramError

LENGTH = struct.Struct(">I")
NULL_KEY = b"n"
MICROSECOND = timedelta(microseconds=1)
KEY_TYPES = "str, int, float, bool, bytes, None, Timestamp, datetime, date, Decimal, UUID, an Enum of these, or a tuple"
_INT64 = struct.Struct(">q")
_DAYS = struct.Struct(">i")
_FLOAT = struct.Struct(">d")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()


def encode_key(value: Any) -> bytes:
    """The bytes of one key; the same for equal keys in every process, version and language."""
    encoder = _ENCODERS.get(type(value))
    if encoder is not None:
        return encoder(value)
    return _encode_unusual(value)


def _encode_str(value: str) -> bytes:
    try:
        return b"s" + value.encode()
    except UnicodeEncodeError as error:
        raise _unencodable(value, "text that UTF-8 can hold") from error


def _encode_int(value: int) -> bytes:
    try:
        return b"i" + _INT64.pack(value)
    except struct.error as error:
        raise _unencodable(value, "an int of 64 bits, as a BIGINT column holds") from error


def _encode_float(value: float) -> bytes:
    return b"f" + _FLOAT.pack(math.nan if math.isnan(value) else value + 0.0)


def _encode_decimal(value: Decimal) -> bytes:
    if not value.is_finite():
        raise _unencodable(value, "a finite Decimal")
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return b"m" + ("0" if text in ("-0", "") else text).encode()


def _encode_datetime(value: datetime) -> bytes:
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return _encode_int((aware - _EPOCH) // MICROSECOND)


def _encode_tuple(value: tuple[Any, ...]) -> bytes:
    parts = [encode_key(part) for part in value]
    return b"(" + b"".join(LENGTH.pack(len(part)) + part for part in parts)


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    str: _encode_str,
    int: _encode_int,
    bytes: lambda value: b"y" + value,
    bool: lambda value: b"b\x01" if value else b"b\x00",
    type(None): lambda value: NULL_KEY,
    float: _encode_float,
    tuple: _encode_tuple,
    date: lambda value: b"d" + _DAYS.pack(value.toordinal() - _EPOCH_DAY),
    datetime: _encode_datetime,
    timedelta: lambda value: _encode_int(value // MICROSECOND),
    UUID: lambda value: b"s" + str(value).encode(),
    Decimal: _encode_decimal,
}


def _encode_unusual(value: Any) -> bytes:
    """Subclasses, enums and numpy scalars: rare enough to be looked at one by one."""
    if isinstance(value, Enum):
        return encode_key(value.value)
    if isinstance(value, np.generic):
        return encode_key(value.item())
    if isinstance(value, (bytearray, memoryview)):
        return b"y" + bytes(value)
    # datetime is a date and bool is an int, so the narrower type is asked first.
    for base in (str, bool, int, bytes, float, datetime, date, timedelta, UUID, Decimal, tuple):
        if isinstance(value, base):
            return _ENCODERS[base](value)
    raise _unencodable(value, KEY_TYPES)


def _unencodable(value: Any, expected: str) -> ProgramError:
    return ProgramError(
        "this value cannot be a key",
        where="key",
        expected=expected,
        found=f"{type(value).__name__} {value!r:.200}",
        next_move="key by a column or a function that gives one of these",
    )


def decode_key(encoded: bytes, type: Any = None) -> Any:
    """The key behind its bytes. `type` (the annotation of the key) gives datetime, UUID, Enum … back their type."""
    tag, payload = encoded[:1], encoded[1:]
    if tag == b"s":
        value: Any = payload.decode()
    elif tag == b"i":
        value = _INT64.unpack(payload)[0]
    elif tag == b"(":
        return _decode_tuple(payload, type)
    elif tag == b"b":
        value = payload == b"\x01"
    elif tag == b"d":
        value = date.fromordinal(_DAYS.unpack(payload)[0] + _EPOCH_DAY)
    elif tag == b"f":
        value = _FLOAT.unpack(payload)[0]
    elif tag == b"m":
        value = Decimal(payload.decode())
    elif tag == b"y":
        value = bytes(payload)
    elif encoded == NULL_KEY:
        return None
    else:
        raise ProgramError(
            "these are not the bytes of a key",
            where="key",
            expected="bytes that encode_key made",
            found=repr(encoded[:80]),
            next_move="give the key itself, or read the store with the version of headrace that wrote it",
        )
    return value if type is None or type is str else as_type(value, type)


def _decode_tuple(payload: bytes, annotation: Any) -> Any:
    parts = []
    at = 0
    while at < len(payload):
        (length,) = LENGTH.unpack_from(payload, at)
        parts.append(payload[at + 4 : at + 4 + length])
        at += 4 + length
    kinds = part_types(annotation, len(parts))
    values = [decode_key(part, kind) for part, kind in zip(parts, kinds, strict=True)]
    maker = plain_type(annotation)
    return maker(*values) if hasattr(maker, "_fields") else tuple(values)


def plain_type(annotation: Any) -> Any:
    """The annotation without Optional, Annotated and NewType."""
    while True:
        if hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        elif hasattr(annotation, "__metadata__"):
            annotation = annotation.__origin__
        elif typing.get_origin(annotation) in (typing.Union, types.UnionType):
            rest = [arm for arm in typing.get_args(annotation) if arm is not types.NoneType]
            if len(rest) != 1:
                return None
            annotation = rest[0]
        else:
            return annotation


def part_types(annotation: Any, count: int) -> Sequence[Any]:
    plain = plain_type(annotation)
    if hasattr(plain, "_fields"):
        hints = typing.get_type_hints(plain)
        return [hints.get(name) for name in plain._fields]
    kinds = typing.get_args(plain)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return [kinds[0]] * count
    return kinds if len(kinds) == count else [None] * count


def as_type(value: Any, annotation: Any) -> Any:
    kind = plain_type(annotation)
    if not isinstance(kind, type):
        return value
    if issubclass(kind, Enum):
        plain = kind._member_map_.values()
        return next((member for member in plain if encode_key(member) == encode_key(value)), value)
    if issubclass(kind, UUID) and isinstance(value, str):
        return UUID(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if issubclass(kind, datetime):
            return _EPOCH + value * MICROSECOND
        if issubclass(kind, timedelta):
            return value * MICROSECOND
    return value
