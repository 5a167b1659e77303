"""The expressions both evaluators must agree on, and the rows they are tried on.

The expressions lie by subject in the folder ``expressions``, one on a line.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int64()),
        ("k", pa.int64()),
        ("big", pa.int64()),
        ("x", pa.float64()),
        ("y", pa.float64()),
        ("s", pa.string()),
        ("u", pa.string()),
        ("num", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("due", pa.timestamp("us", "UTC")),
        ("d", pa.date32()),
        ("m", pa.decimal128(38, 18)),
        ("b", pa.bool_()),
        ("c", pa.bool_()),
        ("bin", pa.binary()),
        ("arr", pa.list_(pa.int64())),
        ("tags", pa.list_(pa.string())),
        ("mp", pa.map_(pa.string(), pa.int64())),
        ("st", pa.struct([("a", pa.int64()), ("Name", pa.string()), ("in", pa.struct([("z", pa.float64())]))])),
    ]
)
NAN, INF = float("nan"), float("inf")
BIG = 2**63 - 1


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def _row(*values: object) -> dict[str, object]:
    return dict(zip(SCHEMA.names, values, strict=True))


ROWS = [
    _row(0, 0, 1, 0, 0.0, 1.0, "", "a", "1", _at("1970-01-01"), _at("1970-01-01"), date(1970, 1, 1), Decimal("0"), True,
         True, b"", [], [], {}, {"a": 1, "Name": "n", "in": {"z": 1.5}}),
    _row(1, 1, 2, BIG, -0.0, 0.5, "abc", "b", " 42 ", _at("2024-02-29 13:14:15.123456"), _at("2024-02-29 13:00:00"),
         date(2024, 2, 29), Decimal("1.5"), False, True, b"abc", [1, 2, 3], ["a", "b"], {"a": 1},
         {"a": None, "Name": None, "in": None}),
    _row(2, -7, 3, -BIG - 1, 1.5, -2.5, "Grüße", "ß", "-3", _at("1969-12-31 23:59:59.999999"), _at("2024-01-01"),
         date(1969, 12, 31), Decimal("-2.675"), None, True, b"\x00\xff", [None, 5], [None, ""],
         {"b": 2, "c": None}, None),
    _row(3, 7, -3, 5, -1.5, 3.0, "a,b,,c", ",", "+9", _at("2023-12-31 23:59:59"), _at("2024-01-01 00:00:01"),
         date(2023, 12, 31), Decimal("123456789.123456789123456789"), True, False, b"a", [7], ["x,y", "abc"], {"": 0},
         {"a": 5, "Name": "Grüße", "in": {"z": NAN}}),
    _row(4, 100, -1, -1, NAN, 1.0, "  pad\t ", "p", "0", _at("2000-01-01 12:00"), _at("1999-12-31"), date(2000, 2, 28),
         Decimal("0.005"), False, False, b"zz", None, None, None, {"a": 0, "Name": "", "in": {"z": None}}),
    _row(5, None, 5, *[None] * 17),
    _row(6, 12345, 10, 2**53 + 1, INF, 2.0, "ABC%_\\x", "%", "77", _at("9999-12-31 23:59:59.999999"), _at("2024-03-31"),
         date(9999, 12, 31), Decimal("-9999999999999999.999999999999999999"), True, None, b"%", [0, 0], ["%"], {"k": 9},
         {"a": 2, "Name": "k", "in": {"z": -0.0}}),
    _row(7, -12345, 7, -(2**53) - 1, -INF, 4.0, "new\nline", "\n", "8", _at("0001-03-01"), _at("0001-03-02 01:00"),
         date(1, 1, 3), Decimal("3.000000000000000001"), False, None, b"\n", [-1, None, -1], ["new\nline"], {"n": -1},
         {"a": -1, "Name": "x", "in": {"z": INF}}),
    _row(8, 3, 4, 8, 2.675, 0.1, "😀 smile", "😀", "15", _at("2024-07-04 04:05:06.7"), _at("2024-07-03 23:05:06.7"),
         date(2024, 7, 4), Decimal("2.5"), None, False, "😀".encode(), [3, 4], ["😀"], {"😀": 8},
         {"a": 3, "Name": "y", "in": {"z": 0.1}}),
    _row(9, 42, 6, 9, 1e300, 1e-5, "foo12bar", "12", "1000000", _at("2024-12-30 00:00:00.000001"), _at("2024-12-30"),
         date(2024, 12, 30), Decimal("0.000000000000000001"), None, None, b"foo", [42], ["foo12bar", None],
         {"foo": 42, "42": 1},
         {"a": 42, "Name": "foo", "in": {"z": 1e10}}),
]  # fmt: skip


def table() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA)


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _read(subject: str) -> str:
    return (Path(__file__).parent / "expressions" / f"{subject}.sql").read_text(encoding="utf-8")


GROUPS = {name: _read(name) for name in ("logic", "numbers", "casts", "text", "times", "nested", "grammar")}
RAISING = _read("raising")
"""Spark accepts these, and both must raise for row 1."""
REFUSED = _read("refused")
"""Spark refuses these before anything runs, and so does the worker."""
BEYOND = _read("beyond")
"""Spark evaluates these; the worker says why it does not."""


def expressions(group: str) -> list[str]:
    return lines(GROUPS[group])
