"""Parameters of prepared statements: what clients send as text or in binary, as plain values."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from headrace.errors import StatementFailed
from headrace.serve.pg.encoding import (
    BOOL,
    BYTEA,
    DATE,
    FLOAT4,
    FLOAT8,
    INT2_OID,
    INT4_OID,
    INT8,
    NUMERIC,
    TIMESTAMP,
    TIMESTAMPTZ,
)
from headrace.snapshots.errors import BAD_TEXT

_EPOCH: Final = datetime(2000, 1, 1)


def read_parameter(value: bytes | None, oid: int, binary: bool) -> Any:
    """A parameter of this type; 0: of none that anybody said, which is text."""
    if value is None:
        return None
    try:
        return _from_binary(value, oid) if binary else _from_text(value.decode(), oid)
    except (ValueError, ArithmeticError, struct.error) as error:
        raise StatementFailed(
            "a parameter cannot be read", code=BAD_TEXT, expected=f"a value of the type {oid}", found=str(error)
        ) from None


def _from_text(text: str, oid: int) -> Any:
    match oid:
        case _ if oid in (INT8, INT4_OID, INT2_OID):
            return int(text)
        case _ if oid in (FLOAT8, FLOAT4):
            return float(text)
        case _ if oid == NUMERIC:
            return Decimal(text)
        case _ if oid == BOOL:
            return text.strip().lower() in ("t", "true", "1", "y", "yes", "on")
        case _ if oid == BYTEA:
            return bytes.fromhex(text[2:]) if text.startswith("\\x") else text.encode()
        case _ if oid == DATE:
            return date.fromisoformat(text)
        case _ if oid == TIMESTAMP:
            return datetime.fromisoformat(text)
        case _ if oid == TIMESTAMPTZ:
            found = datetime.fromisoformat(text)
            return found if found.tzinfo else found.replace(tzinfo=UTC)
    return text


def _from_binary(value: bytes, oid: int) -> Any:
    match oid:
        case _ if oid in (INT8, INT4_OID, INT2_OID):
            return int.from_bytes(value, signed=True)
        case _ if oid == FLOAT8:
            return struct.unpack(">d", value)[0]
        case _ if oid == FLOAT4:
            return struct.unpack(">f", value)[0]
        case _ if oid == BOOL:
            return value != b"\0"
        case _ if oid == BYTEA:
            return value
        case _ if oid == NUMERIC:
            return _numeric(value)
        case _ if oid == DATE:
            return _EPOCH.date() + timedelta(days=int.from_bytes(value, signed=True))
        case _ if oid == TIMESTAMP:
            return _EPOCH + timedelta(microseconds=int.from_bytes(value, signed=True))
        case _ if oid == TIMESTAMPTZ:
            return _EPOCH.replace(tzinfo=UTC) + timedelta(microseconds=int.from_bytes(value, signed=True))
    return value.decode()


def _numeric(value: bytes) -> Decimal:
    count, weight, sign, _ = struct.unpack_from(">hhHh", value)
    if sign == 0xC000:
        return Decimal("NaN")
    groups = struct.unpack_from(f">{count}h", value, 8)
    total = sum((Decimal(group).scaleb(4 * (weight - place)) for place, group in enumerate(groups)), Decimal(0))
    return -total if sign == 0x4000 else total
