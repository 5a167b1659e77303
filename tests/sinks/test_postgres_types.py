"""What is written to a table is what comes out of it: every type, odd values, both forms of COPY."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

import headrace as hr
from headrace.errors import SinkFailed
from headrace.testing.staging import stage_rows
from tests.sinks.postgres_tables import Sale, Written, query


class Color(Enum):
    RED = "red"
    BLUE = "blue"


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
    side: Literal["left", "right"]
    numbers: list[int]
    words: list[str | None]
    days: tuple[date, ...]
    raws: list[bytes]
    counts: dict[str, int]
    part: Part
    parts: list[Part]
    anything: Any
    pair: tuple[int, str]
    maybe: str | None = None


FULL = Everything(
    n=-(2**63), x=0.1, yes=True, text='a "quote", a \\ and\na line é ☃ 𝄞\t\r\n\\.', raw=b"\x00\xff\\x",
    at=hr.timestamp("2024-02-29T12:34:56.789012Z"), when=datetime(2024, 1, 1, 12, tzinfo=UTC),
    lasted=hr.seconds(90), span=timedelta(days=-3, microseconds=1), day=date(1, 1, 1), clock=time(23, 59, 59, 999999),
    money=Decimal("-12345678901234567890.000000000000000001"), who=UUID(int=2**128 - 1), color=Color.BLUE, side="left",
    numbers=[1, -2, 2**62], words=["", None, 'NULL', 'a"b\\c,{}', "\n"], days=(date(2024, 2, 29),), raws=[b"", b"\x00"],
    counts={"a": 1, "": 2}, part=Part("p", hr.timestamp("2024-01-01T00:00:00Z")),
    parts=[Part('"', hr.timestamp("1969-12-31T23:59:59.999999Z"))], anything={"a": [1, None]}, pair=(1, "x"),
    maybe="",
)  # fmt: skip
PLAIN = Everything(
    n=0, x=math.inf, yes=False, text="", raw=b"", at=hr.Timestamp(-(2**50)), when=datetime(1, 1, 1, tzinfo=UTC),
    lasted=hr.Duration(0), span=timedelta(0), day=date(9999, 12, 31), clock=time(0), money=Decimal(0), who=UUID(int=0),
    color=Color.RED, side="right", numbers=[], words=[], days=(), raws=[], counts={},
    part=Part("", hr.Timestamp(0)), parts=[], anything=None, pair=(0, ""),
)  # fmt: skip


# --- types


def test_every_type_has_its_column(written: Callable[..., Written], dsn: str) -> None:
    written(Everything, table="shop.All of it", key="n", dsn=_with_schema(dsn, "shop"))
    found = query(
        dsn,
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute "
        """WHERE attrelid = 'shop."All of it"'::regclass AND attnum > 0 ORDER BY attnum""",
    )
    types = {name: (kind, not_null) for name, kind, not_null in found}
    assert types == {
        "n": ("bigint", True), "x": ("double precision", True), "yes": ("boolean", True), "text": ("text", True),
        "raw": ("bytea", True), "at": ("timestamp with time zone", True), "when": ("timestamp with time zone", True),
        "lasted": ("interval", True), "span": ("interval", True), "day": ("date", True),
        "clock": ("time without time zone", True), "money": ("numeric", True), "who": ("uuid", True),
        "color": ("text", True), "side": ("text", True), "numbers": ("bigint[]", True), "words": ("text[]", True),
        "days": ("date[]", True), "raws": ("bytea[]", True), "counts": ("jsonb", True), "part": ("jsonb", True),
        "parts": ("jsonb", True), "anything": ("jsonb", False), "pair": ("jsonb", True), "maybe": ("text", False),
    }  # fmt: skip


def _with_schema(dsn: str, schema: str) -> str:
    query(dsn, f"CREATE SCHEMA {schema}")
    return dsn


@pytest.mark.parametrize("form", ["pgcopy", "pgcsv"])
@pytest.mark.parametrize("how", [{}, {"key": "n"}], ids=["append", "upsert"])
def test_every_type_comes_back_as_it_was(
    written: Callable[..., Written], dsn: str, how: dict[str, Any], form: str
) -> None:
    table = written(Everything, table="all", **how)
    if form == "pgcsv":
        query(dsn, 'ALTER TABLE "all" ALTER counts TYPE json')
        table.sink.start()
    assert table.sink.format == form  # type: ignore[attr-defined]
    table.write(0, [FULL, PLAIN])
    full, plain = query(dsn, 'SELECT * FROM "all" ORDER BY n')
    assert full[:18] == (
        FULL.n, FULL.x, FULL.yes, FULL.text, FULL.raw, datetime(2024, 2, 29, 12, 34, 56, 789012, UTC), FULL.when,
        timedelta(seconds=90), FULL.span, FULL.day, FULL.clock, FULL.money, FULL.who, "blue", "left", FULL.numbers,
        FULL.words, [date(2024, 2, 29)],
    )  # fmt: skip
    assert full[18:] == (
        [b"", b"\x00"], FULL.counts, {"name": "p", "at": "2024-01-01T00:00:00Z"},
        [{"name": '"', "at": "1969-12-31T23:59:59.999999Z"}], {"a": [1, None]}, [1, "x"], "",
    )  # fmt: skip
    assert plain[:6] == (0, math.inf, False, "", b"", datetime(1970, 1, 1, tzinfo=UTC) - timedelta(microseconds=2**50))
    assert plain[10:13] == (time(0), Decimal(0), UUID(int=0))
    assert str(plain[11]) == "0"
    assert plain[15:] == ([], [], [], [], {}, {"name": "", "at": "1970-01-01T00:00:00Z"}, [], None, [0, ""], None)


def test_far_moments_keep_their_year(written: Callable[..., Written], dsn: str) -> None:
    class Moment(hr.Record):
        at: hr.Timestamp

    moments = [-210_000_000_000_000_001, -62_135_596_800_000_001, 253_402_300_800_000_000, 2**62]
    written(Moment, table="far").write(0, [Moment(hr.Timestamp(us)) for us in moments])
    assert query(dsn, "SELECT (extract(epoch FROM at) * 1000000)::bigint FROM far") == [(us,) for us in moments]
    with pytest.raises(SinkFailed, match="begins in 4713 BC"):
        written(Moment, table="far").write(1, [Moment(hr.Timestamp(-(2**62)))])


@pytest.mark.parametrize("how", [{}, {"key": "id"}], ids=["append", "upsert"])
def test_rows_that_wait_go_into_the_table_as_it_was_altered_to(
    written: Callable[..., Written], dsn: str, how: dict[str, Any]
) -> None:
    sales = written(Sale, **how)
    rows = [Sale(2, "a", 7), Sale(1, "b"), Sale(2, "a", 8)]
    parts = stage_rows(sales.sink, sales.codec, sales.staging, 0, [rows])
    query(dsn, "ALTER TABLE sales ALTER cents TYPE int, ALTER shop TYPE varchar(9), ADD note text")
    after = written(Sale, **how)
    assert (sales.sink.format, after.sink.format) == ("pgcopy", "pgcsv")  # type: ignore[attr-defined]
    after.sink.release(parts, sales.staging.release(0, "sales"))
    after.write(1, [Sale(3, "c")])
    found = query(dsn, "SELECT id, shop, cents FROM sales ORDER BY id, cents")
    assert found == [(1, "b", 1), *([] if how else [(2, "a", 7)]), (2, "a", 8), (3, "c", 1)]


def test_text_with_a_nul_is_refused_before_the_epoch_is_published(written: Callable[..., Written]) -> None:
    class Note(hr.Record):
        text: str
        more: dict[str, str]

    notes = written(Note, table="notes")
    for bad in (Note("a\0b", {}), Note("", {"a": "x\0"})):
        with pytest.raises(SinkFailed, match="cannot take a value of column (text|more)"):
            stage_rows(notes.sink, notes.codec, notes.staging, 0, [[Note("fine \\u0000", {"b": "\\u0000"}), bad]])
    notes.write(0, [Note("fine \\u0000", {"b": "\\u0000"})])


def test_a_time_of_day_with_a_zone_is_refused(written: Callable[..., Written]) -> None:
    class Opening(hr.Record):
        at: time

    shops = written(Opening, table="openings")
    shops.write(0, [Opening(time(8, 30))])
    with pytest.raises(SinkFailed, match="a time of day with a zone|cannot take a value of column at"):
        shops.write(1, [Opening(time(8, tzinfo=UTC))])


_texts = some.text(some.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)


class Odd(hr.Record):
    n: int
    text: str
    maybe: str | None
    x: float
    money: Decimal
    words: list[str | None]
    bits: bytes
    json: dict[str, str]


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    some.lists(
        some.builds(
            Odd,
            some.integers(-(2**63), 2**63 - 1),
            _texts,
            some.none() | _texts,
            some.floats(),
            some.decimals(-(10**19), 10**19, allow_nan=False, places=18),
            some.lists(some.none() | _texts, max_size=3),
            some.binary(max_size=8),
            some.dictionaries(_texts, _texts, max_size=1),
        ),
        max_size=5,
        unique_by=lambda row: row.n,
    )
)
def test_whatever_is_written_is_there(odd: dict[str, Any], rows: list[Odd]) -> None:
    for kind, table in odd.items():
        table.epoch += 1
        query(table.dsn, f"TRUNCATE odd_{kind}")
        table.written.write(table.epoch, rows)
        found = [Odd(*row) for row in query(table.dsn, f"SELECT * FROM odd_{kind} ORDER BY n")]
        expected = sorted(rows, key=lambda row: row.n)
        # msgspec compares NaN as Python does; as text it equals itself.
        assert list(map(repr, found)) == list(map(repr, map(_normal, expected)))


def _normal(row: Odd) -> Odd:
    """Zeros behind the point are no part of a number in a table."""
    return row.replace(money=Decimal(f"{row.money.copy_abs():f}".rstrip("0").rstrip(".")).copy_sign(row.money or 1))


@pytest.fixture
def odd(dsn: str, tmp_path: Path) -> Iterator[dict[str, Any]]:
    class Table(msgspec.Struct):
        dsn: str
        written: Any
        epoch: int = 0

    tables = {
        "append": Table(dsn, Written(dsn, tmp_path, Odd, "odd_append")),
        "upsert": Table(dsn, Written(dsn, tmp_path, Odd, "odd_upsert", key="n")),
        "text": Table(dsn, Written(dsn, tmp_path, Odd, "odd_text")),
    }
    query(dsn, "ALTER TABLE odd_text ALTER json TYPE json")
    tables["text"].written.sink.start()
    assert [table.written.sink.format for table in tables.values()] == ["pgcopy", "pgcopy", "pgcsv"]
    yield tables
    for table in tables.values():
        table.written.sink.close()
