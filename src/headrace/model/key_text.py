"""Keys as people write them: on the command line, in URLs and Redis commands. Import from `headrace.model.keys`.

Text is written as it is, every other key as JSON. One text would be read as something else: ``null`` is the null key.
So the text ``null`` is written ``"null"``, in quotes; a text that is already ``null`` in quotes gets one more pair. No
two keys of a state have one spelling, and every key has one that `key_text` gives.
"""

from __future__ import annotations

import base64
import json
import math
import typing
from collections.abc import Iterator
from contextlib import suppress
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from itertools import chain, product
from typing import Any, Final
from uuid import UUID

from headrace.errors import ProgramError
from headrace.model.key_bytes import MICROSECOND, NULL_KEY, as_type, decode_key, encode_key, part_types, plain_type

NULL: Final = "null"
"""The null key."""
_NO_NUMBERS: Final = ("NaN", "Infinity", "-Infinity")
"""Floats that JSON has no word for."""


def key_text(value: Any, type: Any = None) -> str:
    """A key for people, URLs and the command line: text as it is, everything else as JSON.

    With the annotation of the key a Timestamp is written as ISO text, otherwise as its number.
    """
    plain = _to_json(value, type)
    if isinstance(value, (str, UUID, Enum)) and isinstance(plain, str):
        return f'"{plain}"' if _is_null_in_quotes(plain) else plain
    return json.dumps(plain)


def text_key(written: bytes) -> bytes:
    """The stored bytes of a key in a state whose keys are text, as somebody wrote it; made for speed."""
    if b"null" in written and _is_null_in_quotes(written.decode("latin-1")):
        return NULL_KEY if written == b"null" else b"s" + written[1:-1]
    return b"s" + written


def written_key(key: bytes) -> bytes | None:
    """The other way, from the stored bytes; None where the key is neither text nor null."""
    if key == NULL_KEY:
        return b"null"
    if key[:1] != b"s":
        return None
    return b'"%b"' % key[1:] if b"null" in key and _is_null_in_quotes(key[1:].decode("latin-1")) else key[1:]


def _is_null_in_quotes(text: str) -> bool:
    """Whether a text is ``null`` inside of any number of pairs of quotes, none included."""
    quotes = '"' * ((len(text) - len(NULL)) // 2)
    return text == f"{quotes}{NULL}{quotes}"


def _to_json(value: Any, annotation: Any) -> Any:
    if isinstance(value, Enum):
        return _to_json(value.value, None)
    if isinstance(value, tuple):
        kinds = part_types(annotation, len(value))
        return [_to_json(part, kind) for part, kind in zip(value, kinds, strict=True)]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, timedelta):
        return value // MICROSECOND
    if isinstance(value, datetime):
        return _time_text(decode_key(encode_key(value)))
    if isinstance(value, (date, UUID, Decimal)):
        return str(value)
    if isinstance(value, float):
        return float_words(value)
    return _time_text(value) if isinstance(value, int) and _is_timestamp(annotation) else value


def float_words(value: float) -> float | str:
    """A float of a key for JSON, which has no word for some; browsers refuse what Python would write.

    >>> float_words(1.5), float_words(-math.inf)
    (1.5, '-Infinity')
    """
    if math.isfinite(value):
        return value
    nan, infinity, minus_infinity = _NO_NUMBERS
    return nan if math.isnan(value) else infinity if value > 0 else minus_infinity


def key_phrase(key: Any) -> str:
    """A key in an error's ``found``; empty for None, which is the key of windows over a whole stream.

    >>> key_phrase("a"), key_phrase(("a", 3)), key_phrase(None)
    ('key a', 'key ["a", 3]', '')
    """
    return "" if key is None else f"key {key_text(key)}"


def parse_key_text(text: str, type: Any = None) -> Any:
    """The key that a person wrote, for a key of this annotation; the other way round of `key_text`.

    Text is taken as it is where the key is text (or its type is unknown); quotes may be left out where they are not
    needed (dates, times, numbers). ``null`` is None.
    """
    kind = plain_type(type)
    if text == NULL:
        return None
    if kind in (None, Any, str):
        return text[1:-1] if _is_null_in_quotes(text) else text
    try:
        value = json.loads(text, parse_float=Decimal)
    except ValueError:
        value = text
    try:
        return _from_json(value, type)
    except (TypeError, ValueError, ArithmeticError) as error:
        name = getattr(type, "__name__", str(type))
        raise ProgramError(
            f"this is not a key of type {name}",
            where="key",
            expected=name,
            found=repr(text),
            next_move="write the key as it is in JSON; quotes may be left out",
        ) from error


def possible_keys(text: str) -> Iterator[Any]:
    """Every key that is written so, where nobody knows of what type keys are; the likeliest first.

    >>> list(possible_keys("2024-01-01"))
    ['2024-01-01', datetime.date(2024, 1, 1)]
    >>> list(possible_keys('["a", 3]'))[:2]
    ['["a", 3]', ('a', 3)]
    """
    try:
        value = json.loads(text, parse_float=Decimal)
    except ValueError:
        value = text
    seen = set()
    for key in chain([parse_key_text(text)], _readings(value)):
        try:
            encoded = encode_key(key)
        except ProgramError:
            continue
        if encoded not in seen:
            seen.add(encoded)
            yield key


def _readings(value: Any) -> Iterator[Any]:
    """What may be written as this value of JSON."""
    match value:
        case str():
            yield value
            for read in (date.fromisoformat, Decimal, partial(base64.b64decode, validate=True)):
                with suppress(ValueError, ArithmeticError):
                    yield read(value)
            if value in _NO_NUMBERS:
                yield float(value)
        case list():
            yield from product(*map(tuple, map(_readings, value)))
        case bool() | float() | None:
            yield value
        case int() | Decimal():
            yield from (value, Decimal(value))
            # What a float cannot say is none that was written so.
            with suppress(OverflowError):
                if float(value) == value or isinstance(value, Decimal):
                    yield float(value)


def _from_json(value: Any, annotation: Any) -> Any:
    kind = plain_type(annotation)
    if value is None or kind is None or kind is Any:
        return value
    if isinstance(value, list):
        kinds = part_types(annotation, len(value))
        parts = [_from_json(part, each) for part, each in zip(value, kinds, strict=True)]
        return kind(*parts) if hasattr(kind, "_fields") else tuple(parts)
    if issubclass(kind, Enum):
        found = [member for member in kind if _to_json(member, None) == value]
        if not found:
            raise ValueError(value)
        return found[0]
    if isinstance(value, str) and (issubclass(kind, datetime) or _is_timestamp(annotation)):
        from headrace.model.time import parse_time

        return as_type(parse_time(value), kind)
    if issubclass(kind, (datetime, timedelta)):
        return as_type(int(value), kind)
    if issubclass(kind, bytes):
        return base64.b64decode(value, validate=True)
    if issubclass(kind, date):
        return date.fromisoformat(value)
    if issubclass(kind, (bool, int, str)) and type(value) is not kind:
        raise TypeError(value)
    return kind(value)


def _is_timestamp(annotation: Any) -> bool:
    # The NewType is known by its name, so that this module does not need the one of time for every key.
    arms = typing.get_args(annotation) or (annotation,)
    return any(getattr(arm, "__name__", "") == "Timestamp" and hasattr(arm, "__supertype__") for arm in arms)


def _time_text(value_us: int) -> str:
    from headrace.model.time import format_time

    return format_time(value_us)
