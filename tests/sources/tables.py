"""Tables of a real Postgres, and rows of every type that one can hold."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

import headrace as hr
from headrace.model.rows import codec_of
from headrace.testing.staging import Staging, stage_rows


class Shop(hr.Record):
    id: int
    name: str
    city: str | None = None


def query(dsn: str, text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute(text)
        return found.fetchall() if found.description else []


class Size(hr.Record):
    wide: int


class Box(hr.Record):
    id: int
    name: str
    size: Size | None = None
    price: Decimal = Decimal(0)
    at: hr.Timestamp | None = None


BAD_BOXES = {
    7: "the column size holds what its type cannot: Expected `int`, got `str`",
    100: "a row has no value for 'name' of Box",
    101: "the column price holds what its type cannot",
    102: "the column price holds what its type cannot",
    1000: "the column size holds what its type cannot",
}


class Color(Enum):
    RED = "red"


class Part(hr.Record):
    name: str
    at: hr.Timestamp


class Everything(hr.Record):
    n: int
    x: float
    yes: bool
    text: str
    raw: bytes
    at: hr.Timestamp
    when: datetime
    lasted: hr.Duration
    span: timedelta
    day: date
    clock: time
    money: Decimal
    who: UUID
    color: Color
    numbers: list[int]
    words: list[str | None]
    moments: list[hr.Timestamp]
    raws: list[bytes]
    counts: dict[str, int]
    part: Part
    parts: list[Part]
    anything: Any
    maybe: int | None = None
    absent: str = "default"


ROW = Everything(
    n=-(2**63), x=0.1, yes=True, text='a "quote", a \\ and\na line é ☃ 𝄞\t\r\n\\.', raw=b"\x00\xff\\x",
    at=hr.timestamp("2024-02-29T12:34:56.789012Z"), when=datetime(2024, 1, 1, 12, tzinfo=UTC),
    lasted=hr.seconds(90), span=timedelta(days=-3, microseconds=1), day=date(1, 1, 1), clock=time(23, 59, 59, 900000),
    money=Decimal("-12345678901234567890.000000000000000001"), who=UUID(int=2**128 - 1), color=Color.RED,
    numbers=[1, -2, 2**62], words=["", None, "NULL", 'a"b\\c,{}', "\n"], moments=[hr.Timestamp(1)], raws=[b"", b"\x00"],
    counts={"a": 1, "": 2}, part=Part("p", hr.Timestamp(5)), parts=[Part('"', hr.Timestamp(-1))],
    anything={"a": [1, None]}, maybe=None,
)  # fmt: skip
PLAIN = ROW.replace(text="", x=float("-inf"), numbers=[], words=[], raws=[], raw=b"", maybe=0, anything=None)


def write(dsn: str, folder: Path, table: str, given: list[Any]) -> None:
    codec = codec_of(type(given[0]))
    sink = hr.sink.postgres(table, dsn=dsn).bind(codec, "out")
    sink.start()
    staging = Staging(folder)
    sink.release(stage_rows(sink, codec, staging, 0, [given]), staging.release(0))
    sink.close()
