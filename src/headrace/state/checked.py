"""Records whose every byte is under a checksum: JSON text whose last field is the CRC-32 of the text without it.

Fields that are unknown or absent mean something in such a record, so JSON alone would not notice that it was changed.
"""

from __future__ import annotations

import zlib
from typing import Any, Final, TypeVar

import msgspec

from headrace.errors import StoreError

T = TypeVar("T")

_CRC: Final = b',"crc":'


def encode_checked(record: Any) -> bytes:
    """The bytes of a record that has at least one field."""
    text = msgspec.json.encode(record)
    return b"%b%b%d}" % (text[:-1], _CRC, zlib.crc32(text))


def checked_text(data: bytes) -> bytes:
    """The JSON text of such a record, without its checksum, which it fits. Raises msgspec.DecodeError."""
    text, comma, crc = data.rpartition(_CRC)
    if not comma or crc != b"%d}" % zlib.crc32(text + b"}"):
        raise msgspec.DecodeError("its text does not fit its checksum")
    return text + b"}"


def decode_checked(data: bytes, kind: type[T]) -> T:
    """Such a record. Raises msgspec.DecodeError where its bytes have changed, or do not fit their type."""
    return msgspec.json.decode(checked_text(data), type=kind)


def check_format(number: int, newest: int, written: str, where: str) -> None:
    """Refuses what a newer Headrace wrote. ``written``: ``the store was written``."""
    if number > newest:
        raise StoreError(
            f"{written} by a newer Headrace",
            where=where,
            expected=f"format {newest} or older",
            found=f"format {number}",
            next_move="upgrade headrace",
        )
