"""Names of entries as bytes: what stands in the ``sub`` column of an entries table.

====== ===================================== ===========================================================
state  an entry is named by                  bytes
====== ===================================== ===========================================================
map    its key                               as a key of a stream (`headrace.model.key_bytes`)
list   epoch · 2⁶⁴ + a running number        16 bytes, big-endian: appending needs no look at what is there
timers its time in µs                        8 bytes, big-endian, time + 2⁶³: bytes sort as times do
====== ===================================== ===========================================================

The bytes are part of the stored format.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from headrace.model.keys import decode_key, encode_key
from headrace.model.values import ValueCodec

_BIAS: Final = 1 << 63


class SubCodec(NamedTuple):
    """How the name of an entry becomes the bytes it is sorted by, and back."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    fits: ValueCodec | None = None
    """Reads back only names that their declared type allows; None: nobody but us makes names."""
    given: Callable[[Any], Any] | None = None
    """The part of a name that a function of the user's gave; None: all of it."""


def first_place(epoch: int) -> int:
    """The name of the first element that an epoch appends to a list."""
    return epoch << 64


def _encode_place(place: int) -> bytes:
    return place.to_bytes(16, "big")


def _decode_number(sub: bytes) -> int:
    return int.from_bytes(sub, "big")


def _encode_time(time_us: int) -> bytes:
    return (time_us + _BIAS).to_bytes(8, "big")


def _decode_time(sub: bytes) -> int:
    return int.from_bytes(sub, "big") - _BIAS


LIST_SUB: Final = SubCodec(_encode_place, _decode_number)
TIME_SUB: Final = SubCodec(_encode_time, _decode_time)


def map_sub(key_type: Any) -> SubCodec:
    """Names of a map whose keys are of this type."""
    return SubCodec(encode_key, partial(decode_key, type=key_type))
