"""Spark SQL text for sources: literals, and the checks that tell a good row from a bad one.

Everything here is text for a session in ANSI mode with the time zone UTC. Nothing is evaluated in this module.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from headrace.model.shapes import spark_type
from headrace.model.time import timestamp

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec


def text(value: str) -> str:
    r"""A string literal.

    >>> text("it's")
    "'it\\'s'"
    """
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def literal(value: Any, kind: pa.DataType) -> str:
    """A default value of a field as SQL of the field's type."""
    wanted = spark_type(kind)
    if value is None:
        return f"CAST(NULL AS {wanted})"
    if isinstance(value, Enum):
        value = value.value
    if pa.types.is_timestamp(kind):
        us = timestamp(value) if isinstance(value, datetime) else value
        return f"timestamp_micros({int(us)}L)"
    if isinstance(value, timedelta):
        return f"{value // timedelta(microseconds=1)}L"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (bytes, bytearray)):
        return f"unbase64('{base64.b64encode(value).decode()}')"
    if pa.types.is_nested(kind):
        return f"from_json({text(msgspec.json.encode(value).decode())}, {text(wanted)})"
    if isinstance(value, (int, float, Decimal, date)):
        return f"CAST('{value}' AS {wanted})"
    return f"CAST({text(str(value))} AS {wanted})"


def or_default(expression: str, name: str, codec: RowCodec) -> str:
    """The expression, or the field's default where it is null and the field has one."""
    default = codec.defaults.get(name)
    if name in codec.required or default is None:
        return expression
    column = codec.columns[name]
    if column.packed:
        default = column.encode([default])[0].as_py()
    return f"coalesce({expression}, {literal(default, codec.schema.field(name).type)})"


def any_of(conditions: Iterable[str]) -> str | None:
    """True where one of the conditions is; the conditions are never null. None when there are none."""
    text_of = " OR ".join(f"({condition})" for condition in conditions)
    return text_of or None


def first_reason(reasons: Mapping[str, str]) -> str:
    """The text of the first condition that is true: condition → SQL expression of its reason."""
    cases = " ".join(f"WHEN {condition} THEN {reason}" for condition, reason in reasons.items())
    return f"CASE {cases} END" if cases else "CAST(NULL AS STRING)"


def bad_row_json(file: str, raw_text: str, reason: str) -> str:
    """What the engine is told of a bad row: JSON text of three strings."""
    return f"to_json(named_struct('file', {file}, 'text', {raw_text}, 'reason', {reason}))"


def missing_reasons(columns: Mapping[str, str], codec: RowCodec) -> dict[str, str]:
    """Condition → reason for each field that may not be null, given the expressions of the fields."""
    return {f"{columns[name]} IS NULL": text(f"{name} is missing") for name in codec.required}
