"""Values as Postgres writes them: which type of Postgres a column is, and its cells as text or in binary.

Cells are made column by column, rows of them once per batch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from headrace.serve.pg.wire import INT2, INT4, NULL_CELL, ResultField

BOOL, BYTEA, INT8, INT2_OID, INT4_OID, TEXT, JSON = 16, 17, 20, 21, 23, 25, 114
FLOAT4, FLOAT8, VARCHAR, DATE, TIME, TIMESTAMP, TIMESTAMPTZ, INTERVAL, NUMERIC, UUID = (
    700, 701, 1043, 1082, 1083, 1114, 1184, 1186, 1700, 2950
)  # fmt: skip
ARRAYS: Final = {
    BOOL: 1000, INT2_OID: 1005, INT4_OID: 1007, INT8: 1016, TEXT: 1009, FLOAT8: 1022, TIMESTAMPTZ: 1185, NUMERIC: 1231,
}  # fmt: skip
_SIZES: Final = {
    BOOL: 1, INT2_OID: 2, INT4_OID: 4, INT8: 8, FLOAT4: 4, FLOAT8: 8, DATE: 4, TIMESTAMP: 8, TIMESTAMPTZ: 8,
}  # fmt: skip
_EPOCH_US: Final = 946_684_800_000_000
"""2000-01-01, where Postgres' times begin, in µs since 1970."""
_EPOCH_DAY: Final = date(2000, 1, 1).toordinal()
_UNIX: Final = datetime(1970, 1, 1, tzinfo=UTC)
_json: Final = msgspec.json.Encoder(enc_hook=str, decimal_format="number").encode

Cell = Callable[[Any], bytes]


class PgColumn(NamedTuple):
    """How values of a column are written."""

    oid: int
    text: Cell
    binary: Cell


def field_of(field: pa.Field, binary: bool = False) -> ResultField:
    oid = column_of(field.type).oid
    return ResultField(field.name, oid, _SIZES.get(oid, -1), binary)


def column_of(kind: pa.DataType) -> PgColumn:
    """The type of Postgres that a type of Arrow is."""
    is_a = pa.types
    if is_a.is_boolean(kind):
        return _COLUMNS[BOOL]
    if is_a.is_integer(kind):
        wide = kind.bit_width > 32 or (kind.bit_width == 32 and is_a.is_unsigned_integer(kind))
        if is_a.is_uint64(kind):
            return _COLUMNS[NUMERIC]
        return _COLUMNS[INT8 if wide else INT4_OID if kind.bit_width == 32 else INT2_OID]
    if is_a.is_floating(kind):
        return _COLUMNS[FLOAT8]
    if is_a.is_decimal(kind):
        return _COLUMNS[NUMERIC]
    if is_a.is_timestamp(kind):
        return _COLUMNS[TIMESTAMP if kind.tz is None else TIMESTAMPTZ]
    if is_a.is_date(kind):
        return _COLUMNS[DATE]
    if is_a.is_time(kind):
        return _COLUMNS[TIME]
    if is_a.is_binary(kind) or is_a.is_large_binary(kind) or is_a.is_binary_view(kind):
        return _COLUMNS[BYTEA]
    if is_a.is_list(kind) or is_a.is_large_list(kind):
        inner = column_of(kind.value_type)
        if inner.oid in ARRAYS:
            return PgColumn(ARRAYS[inner.oid], _array_text(inner), _array_binary(inner))
    if is_a.is_nested(kind):
        return _COLUMNS[JSON]
    if is_a.is_interval(kind) or is_a.is_duration(kind):
        return _COLUMNS[INTERVAL]
    return _COLUMNS[TEXT]


def data_rows(batch: pa.RecordBatch, binary: Sequence[bool]) -> bytes:
    """All rows of a batch as messages."""
    if not batch.num_rows:
        return b""
    columns = [_cells(column, how) for column, how in zip(batch.columns, binary)]
    return b"".join(map(row_message, zip(*columns))) if columns else row_message(()) * batch.num_rows


def row_message(cells: Sequence[bytes]) -> bytes:
    """A row. ``cells``: each with its length in front."""
    body = b"".join(cells)
    return b"D" + INT4.pack(len(body) + 6) + INT2.pack(len(cells)) + body


def _cells(column: pa.Array, binary: bool) -> list[bytes]:
    how = column_of(column.type)
    write = how.binary if binary else how.text
    return [NULL_CELL if value is None else sized(write(value)) for value in plain_values(column)]


def plain_values(column: pa.Array) -> list[Any]:
    """Values as `PgColumn` writes them: times as numbers of µs since 1970."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).view(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def sized(value: bytes) -> bytes:
    return INT4.pack(len(value)) + value


# --- text


def _time_text(value: int) -> str:
    seconds, micros = divmod(value, 1_000_000)
    try:
        text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "infinity" if value > 0 else "-infinity"
    return f"{text}.{micros:06d}".rstrip("0") if micros else text


def _float_text(value: float) -> bytes:
    if value != value:
        return b"NaN"
    if value in (float("inf"), float("-inf")):
        return b"Infinity" if value > 0 else b"-Infinity"
    text = repr(value)
    return (text[:-2] if text.endswith(".0") else text).encode()


def _decimal_text(value: Any) -> bytes:
    return format(value, "f").encode() if isinstance(value, Decimal) else str(value).encode()


def json_cell(value: Any) -> bytes:
    return _json(value.isoformat() if isinstance(value, datetime) else value)


def _as_us(value: Any) -> int:
    """A time inside of a list is an object of Python."""
    if isinstance(value, datetime):
        return (value - (_UNIX if value.tzinfo else _UNIX.replace(tzinfo=None))) // _MICROSECOND
    return int(value)


def _array_text(inner: PgColumn) -> Cell:
    def element(value: Any) -> bytes:
        if value is None:
            return b"NULL"
        text = inner.text(_as_us(value) if isinstance(value, datetime) else value)
        if inner.oid in (TEXT, TIMESTAMPTZ):
            return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
        return text

    return lambda values: b"{" + b",".join(map(element, values)) + b"}"


# --- binary


def _array_binary(inner: PgColumn) -> Cell:
    def write(values: list[Any]) -> bytes:
        if not values:
            return struct.pack(">iiI", 0, 0, inner.oid)
        head = struct.pack(">iiIii", 1, int(None in values), inner.oid, len(values), 1)
        each = (_as_us(value) if isinstance(value, datetime) else value for value in values)
        return head + b"".join(NULL_CELL if value is None else sized(inner.binary(value)) for value in each)

    return write


def _numeric_binary(value: Any) -> bytes:
    sign, digits, exponent = Decimal(value).as_tuple()
    if not isinstance(exponent, int):
        return struct.pack(">hhHh", 0, 0, 0xC000, 0)
    scale = max(0, -exponent)
    text = "".join(map(str, digits)) + "0" * max(0, exponent)
    whole, part = (text[:-scale], text[-scale:]) if scale and len(text) > scale else ("", text.rjust(scale, "0"))
    if not scale:
        whole, part = text, ""
    whole = whole.rjust(-(-len(whole) // 4) * 4, "0")
    part = part.ljust(-(-len(part) // 4) * 4, "0")
    groups = [int((whole + part)[at : at + 4]) for at in range(0, len(whole + part), 4)]
    weight = len(whole) // 4 - 1
    while groups and groups[0] == 0:
        groups.pop(0)
        weight -= 1
    while groups and groups[-1] == 0:
        groups.pop()
    if not groups:
        weight, sign = 0, 0
    head = struct.pack(">hhHh", len(groups), weight, 0x4000 if sign else 0, scale)
    return head + b"".join(INT2.pack(group) for group in groups)


_INT8: Final = struct.Struct(">q").pack
_FLOAT8: Final = struct.Struct(">d").pack


def _utf8(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else str(value).encode()


def _number(value: Any) -> bytes:
    return b"%d" % value


_MICROSECOND: Final = datetime.resolution


def _interval_parts(span: Any) -> tuple[int, int, int]:
    """Months, days and µs of what Arrow gives for an interval."""
    if hasattr(span, "months"):
        return span.months, span.days, span.nanoseconds // 1000
    return 0, 0, span // (_MICROSECOND)


def _interval_cell(span: Any) -> bytes:
    months, days, micros = _interval_parts(span)
    seconds, part = divmod(abs(micros), 1_000_000)
    time = f"{'-' if micros < 0 else ''}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    time += f".{part:06d}" if part else ""
    words = [
        f"{months} mons" if months else "",
        f"{days} days" if days else "",
        time if micros or not (months or days) else "",
    ]
    return " ".join(word for word in words if word).encode()


def _interval_bytes(span: Any) -> bytes:
    months, days, micros = _interval_parts(span)
    return struct.pack(">qii", micros, days, months)


_COLUMNS: Final[dict[int, PgColumn]] = {
    each.oid: each
    for each in (
        PgColumn(BOOL, lambda value: b"t" if value else b"f", lambda value: b"\1" if value else b"\0"),
        PgColumn(BYTEA, lambda value: b"\\x" + value.hex().encode(), bytes),
        PgColumn(INT8, _number, _INT8),
        PgColumn(INT4_OID, _number, INT4.pack),
        PgColumn(INT2_OID, _number, INT2.pack),
        PgColumn(TEXT, _utf8, _utf8),
        PgColumn(JSON, json_cell, json_cell),
        PgColumn(FLOAT8, _float_text, _FLOAT8),
        PgColumn(NUMERIC, _decimal_text, _numeric_binary),
        PgColumn(DATE, lambda day: day.isoformat().encode(), lambda day: INT4.pack(day.toordinal() - _EPOCH_DAY)),
        PgColumn(
            TIME,
            lambda time: time.isoformat().encode(),
            lambda time: _INT8(((time.hour * 60 + time.minute) * 60 + time.second) * 1_000_000 + time.microsecond),
        ),
        PgColumn(TIMESTAMP, lambda us: _time_text(us).encode(), lambda us: _INT8(us - _EPOCH_US)),
        PgColumn(TIMESTAMPTZ, lambda us: _time_text(us).encode() + b"+00", lambda us: _INT8(us - _EPOCH_US)),
        PgColumn(INTERVAL, _interval_cell, _interval_bytes),
    )
}
