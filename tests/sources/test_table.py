"""Tables as input and as the other side of a lookup, against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import headrace as hr
from headrace.errors import BadRow, EnvironmentMissing, InputLost, ProgramError
from headrace.model.rows import codec_of
from headrace.sources.contract import BadRows, SplitReader
from headrace.sources.table_lookup import TableLookup
from headrace.testing.sources import verify_source
from headrace.testing.staging import Staging, stage_rows
from tests.services.postgres import Postgres


class Shop(hr.Record):
    id: int
    name: str
    city: str | None = None


@pytest.fixture
def dsn(postgres: Postgres) -> str:
    return postgres.database()


@pytest.fixture
def shops(dsn: str) -> str:
    query(dsn, "CREATE TABLE shops (id int PRIMARY KEY, name text NOT NULL, city text, opened date)")
    query(
        dsn,
        "INSERT INTO shops SELECT i, 'shop ' || i, nullif('city ' || i % 3, 'city 0') FROM generate_series(1, 40) i",
    )
    return dsn


def query(dsn: str, text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute(text)
        return found.fetchall() if found.description else []


def rows(reader: SplitReader, type: Any, start: dict[str, Any] | None = None) -> list[Any]:
    start = reader.initial() if start is None else start
    end = reader.latest(start, None)
    codec = codec_of(type)
    batches = [batch for split in reader.splits(start, end) for batch in reader.read(split)]
    return [row for batch in batches for row in codec.to_objects(list(batch.columns))]  # type: ignore[union-attr]


def open_table(folder: Path, text: str, dsn: str, type: Any, **how: Any) -> SplitReader:
    source = hr.source.table(text, dsn=dsn, **how)
    return source.bind(codec_of(type)).placed_in(str(folder)).reader(codec_of(type))


# --- as input


@pytest.mark.parametrize("how", [{}, {"partitions": 3}, {"partitions": 3, "split_by": Shop.id}], ids=str)
def test_it_keeps_the_promises_of_a_source(shops: str, tmp_path: Path, how: dict[str, Any]) -> None:
    made = 0

    def make() -> SplitReader:
        nonlocal made
        made += 1
        query(shops, f"DELETE FROM shops WHERE id = {made}; UPDATE shops SET name = 'changed {made}'")
        return open_table(tmp_path, "shops", shops, Shop, **how)

    assert verify_source(make, codec_of(Shop).schema, limit=7, epochs=20) == 39


def test_a_snapshot_holds_each_row_once_however_it_is_copied(shops: str, tmp_path: Path) -> None:
    query(shops, "INSERT INTO shops SELECT i, 'same', 'city' FROM generate_series(100, 130) i")
    expected = sorted(query(shops, "SELECT id, name, city FROM shops"))
    for number, by in enumerate((None, "id", "name", "city")):
        found = rows(open_table(tmp_path / str(number), "shops", shops, Shop, partitions=4, split_by=by), Shop)
        assert sorted((row.id, row.name, row.city) for row in found) == expected


def test_a_restart_goes_on_in_the_copy_of_the_first_start(shops: str, tmp_path: Path) -> None:
    first = open_table(tmp_path, "shops", shops, Shop, per_epoch=10)
    middle = first.latest(first.initial(), None)
    query(shops, "TRUNCATE shops")
    later = open_table(tmp_path, "shops", make_conninfo(shops, port=1), Shop)
    assert later.remaining(middle) == 30
    assert len(rows(later, Shop, middle)) == 30
    assert later.latest(later.latest(middle, None), None) == later.latest(middle, None)


def test_a_job_stays_with_the_copy_it_began_with(shops: str, tmp_path: Path) -> None:
    old = open_table(tmp_path / "old", "shops", shops, Shop, per_epoch=10)
    query(shops, "DELETE FROM shops WHERE id > 20")
    new = open_table(tmp_path / "new", "shops", shops, Shop)
    for file in (tmp_path / "old").iterdir():
        file.rename(tmp_path / "new" / file.name)
    middle = old.latest(old.initial(), None)
    both = open_table(tmp_path / "new", "shops", shops, Shop)
    assert len(rows(both, Shop, middle)) == 30
    assert len(rows(new, Shop)) == 20


def test_a_copy_that_was_not_finished_is_made_anew(shops: str, tmp_path: Path) -> None:
    query(shops, "INSERT INTO shops SELECT i, 'more' FROM generate_series(100, 60000) i")
    text = "SELECT id, name, (1 / (id - 60000))::text AS city FROM shops"
    with pytest.raises(ProgramError, match="refused the query") as raised:
        open_table(tmp_path, text, shops, Shop)
    assert "division by zero" in raised.value.found
    assert list(tmp_path.iterdir()) == []
    query(shops, "DELETE FROM shops WHERE id = 60000")
    assert len(rows(open_table(tmp_path, text, shops, Shop), Shop)) == 40 + 59900


class Size(hr.Record):
    wide: int


class Box(hr.Record):
    id: int
    name: str
    size: Size | None = None
    price: Decimal = Decimal(0)
    at: hr.Timestamp | None = None


@pytest.fixture
def boxes(dsn: str) -> str:
    query(dsn, "CREATE TABLE boxes (id int PRIMARY KEY, name text, size jsonb, price numeric, at timestamptz)")
    query(dsn, """INSERT INTO boxes SELECT i, 'box ' || i, '{"wide": 1}', i, NULL FROM generate_series(1, 1000) i""")
    query(dsn, """UPDATE boxes SET size = '{"wide": "very"}', at = '2024-01-01T12:00Z' WHERE id = 7""")
    query(dsn, "UPDATE boxes SET name = NULL WHERE id = 100")
    query(dsn, "UPDATE boxes SET price = 'NaN' WHERE id = 101; UPDATE boxes SET price = 1e30 WHERE id = 102")
    query(dsn, "UPDATE boxes SET at = 'infinity', size = '3' WHERE id = 1000")
    return dsn


BAD_BOXES = {
    7: "the column size holds what its type cannot: Expected `int`, got `str`",
    100: "a row has no value for 'name' of Box",
    101: "the column price holds what its type cannot",
    102: "the column price holds what its type cannot",
    1000: "the column size holds what its type cannot",
}


@pytest.mark.parametrize("how", [{}, {"partitions": 3, "split_by": Box.id}], ids=str)
def test_rows_that_do_not_decode_are_bad_rows_among_the_others(boxes: str, tmp_path: Path, how: dict[str, Any]) -> None:
    reader = open_table(tmp_path, "boxes", boxes, Box, **how)
    end = reader.latest(reader.initial(), None)
    batches = [batch for split in reader.splits(reader.initial(), end) for batch in reader.read(split)]
    texts = [text for each in batches if isinstance(each, BadRows) for text in each.texts]
    assert isinstance(batches[0], BadRows), "a job that reads no errors stops at once, not after hours"
    found = {msgspec.json.decode(each["text"])["id"]: each for each in map(msgspec.json.decode, texts)}
    assert {id: each["reason"][: len(BAD_BOXES[id])] for id, each in found.items()} == BAD_BOXES
    assert {each["where"] for each in found.values()} == {"the copy of source.table('boxes')"}
    assert msgspec.json.decode(found[7]["text"]) == {
        "id": 7,
        "name": "box 7",
        "size": {"wide": "very"},
        "price": "7",
        "at": "2024-01-01T12:00:00Z",
    }
    assert '"at":"infinity"' in found[1000]["text"]
    good = [id for each in batches if not isinstance(each, BadRows) for id in each.column(0).to_pylist()]
    assert sorted(good) == [id for id in range(1, 1001) if id not in BAD_BOXES]
    again = verify_source(lambda: open_table(tmp_path, "boxes", boxes, Box, **how), codec_of(Box).schema, limit=300)
    assert again == 1000, "bad rows count"


def test_a_copy_that_is_lost_is_told(shops: str, tmp_path: Path) -> None:
    reader = open_table(tmp_path, "shops", shops, Shop)
    end = reader.latest(reader.initial(), None)
    for file in tmp_path.glob("*.arrow"):
        file.unlink()
    with pytest.raises(InputLost, match="is gone"):
        rows(reader, Shop)
    for file in tmp_path.iterdir():
        file.unlink()
    with pytest.raises(InputLost, match="is gone"):
        open_table(tmp_path, "shops", shops, Shop).latest(end, None)


def test_another_table_under_the_same_name_is_refused(shops: str, tmp_path: Path) -> None:
    open_table(tmp_path, "shops", shops, Shop)
    with pytest.raises(ProgramError, match="made for another table"):
        open_table(tmp_path, "SELECT * FROM shops", shops, Shop)


def test_an_empty_table_has_no_rows(shops: str, tmp_path: Path) -> None:
    query(shops, "TRUNCATE shops")
    reader = open_table(tmp_path, "shops", shops, Shop, partitions=2, split_by="id")
    assert reader.latest(reader.initial(), None) == reader.initial()
    assert rows(reader, Shop) == []


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


def test_every_type_that_the_sink_writes_is_read_back(dsn: str, tmp_path: Path) -> None:
    write(dsn, tmp_path, "all_of_it", [ROW, PLAIN])
    query(dsn, "ALTER TABLE all_of_it DROP COLUMN absent")
    assert rows(open_table(tmp_path / "copy", "all_of_it", dsn, Everything), Everything) == [ROW, PLAIN]


def test_the_server_settings_change_nothing(dsn: str, tmp_path: Path) -> None:
    name = dsn.rpartition("/")[2]
    for setting in (
        "timezone = 'Asia/Tokyo'",
        "datestyle = 'SQL, DMY'",
        "extra_float_digits = -5",
        "bytea_output = 'escape'",
    ):
        query(dsn, f"ALTER DATABASE {name} SET {setting}")
    write(dsn, tmp_path, "all_of_it", [ROW])
    assert rows(open_table(tmp_path / "copy", "all_of_it", dsn, Everything), Everything) == [ROW]


def test_a_query_is_read_as_a_table_is(shops: str, tmp_path: Path) -> None:
    text = "SELECT id, upper(name) AS name FROM shops WHERE id <= 2 ORDER BY id DESC;"
    assert rows(open_table(tmp_path, text, shops, Shop), Shop) == [Shop(2, "SHOP 2"), Shop(1, "SHOP 1")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", 'relation "nothing" does not exist'),
        ("SELECT nothing FROM shops", 'column "nothing" does not exist'),
        ("SELECT name AS id FROM shops", '"id" is text, rows have bigint\n- "name" is missing'),
    ],
)
def test_what_cannot_be_read_is_told_at_start(shops: str, tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ProgramError) as raised:
        open_table(tmp_path, text, shops, Shop)
    assert said in raised.value.found


def test_a_server_that_is_not_there_is_told_without_the_dsn(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentMissing, match="cannot be read just now") as raised:
        open_table(tmp_path, "shops", "postgresql://u:sesame@127.0.0.1:1/x", Shop)
    assert "sesame" not in str(raised.value)


# --- as the other side of a lookup


class Order(hr.Record):
    n: int
    shop: int | None


def test_rows_find_theirs_in_a_table(shops: str) -> None:
    app = hr.App("shop")
    orders = app.read("orders", hr.source.items([]), Order)
    table = hr.source.table("shops", dsn=shops).lookup(Shop, key=Shop.id)
    rich = orders.lookup(table, by=Order.shop, cache="10m").select(n="left.n", name="right.name", city="right.city")
    with hr.testing.Harness(app, start="2024-01-01T12:00") as h:
        h.push(orders, Order(1, 7), Order(2, 3), Order(3, 99), Order(4, None), Order(5, 7))
        h.epoch()
        found = [(row.n, row.name, row.city) for row in h.take(rich)]
        assert found == [
            (1, "shop 7", "city 1"),
            (2, "shop 3", None),
            (3, None, None),
            (4, None, None),
            (5, "shop 7", "city 1"),
        ]
        query(shops, "UPDATE shops SET name = 'renamed'")
        h.push(orders, Order(6, 7))
        h.epoch(clock="12:05:00")
        assert [row.name for row in h.take(rich)] == ["shop 7"]
        h.push(orders, Order(7, 7))
        h.epoch(clock="12:11:00")
        assert [row.name for row in h.take(rich)] == ["renamed"]


def asked(lookup: TableLookup, work: Callable[[TableLookup], Any]) -> Any:
    async def run() -> Any:
        await lookup.open()
        try:
            return await work(lookup)
        finally:
            await lookup.close()

    return asyncio.run(run())


def test_many_values_are_asked_for_by_few_queries(shops: str) -> None:
    queries: list[int] = []

    class Counted(TableLookup):
        async def _query(self, values: list[Any]) -> Any:
            queries.append(len(values))
            return await super()._query(values)

    async def work(lookup: TableLookup) -> Any:
        return await asyncio.gather(*(lookup.call(i) for i in range(1, 1501)))

    found = asked(Counted("shops", shops, codec_of(Shop), "id", "shops"), work)
    assert [shop.id for shop in found if shop is not None] == list(range(1, 41)) and found[40] is None
    assert queries == [1000, 500]


def test_a_value_that_fails_fails_alone(boxes: str) -> None:
    async def work(lookup: TableLookup) -> Any:
        values = [1, 5_000_000_000, *BAD_BOXES, 10**30, 999, 4000]
        return dict(zip(values, await asyncio.gather(*map(lookup.call, values), return_exceptions=True), strict=True))

    found = asked(hr.source.table("boxes", dsn=boxes).lookup(Box, key=Box.id), work)
    assert [found[id].name for id in (1, 999)] == ["box 1", "box 999"]
    assert [found[id] for id in (4000, 5_000_000_000, 10**30)] == [None] * 3, "there is no such row"
    assert {id: type(found[id]) for id in BAD_BOXES} == dict.fromkeys(BAD_BOXES, BadRow)
    assert all(found[id].what == said.partition(":")[0] for id, said in BAD_BOXES.items())


def test_a_value_that_its_column_cannot_hold_has_no_row(boxes: str) -> None:
    beyond = hr.Timestamp(2**62)

    async def work(lookup: TableLookup) -> Any:
        values: dict[str, list[Any]] = {
            "name": ["box 1", "x\0y", "box 2"],
            "at": [hr.timestamp("2024-01-01T12:00Z"), beyond],
        }
        return await asyncio.gather(*map(lookup.call, values[lookup.key]), return_exceptions=True)

    first, none, second = asked(hr.source.table("boxes", dsn=boxes).lookup(Box, key=Box.name), work)
    assert (first.id, none, second.id) == (1, None, 2)
    text = "SELECT id, name, at FROM boxes"
    noon, outside = asked(hr.source.table(text, dsn=boxes).lookup(Box, key=Box.at), work)
    assert noon.id == 7 and isinstance(outside, LookupError), "Postgres goes beyond the year 9999, Python does not"


def test_what_the_query_cannot_compute_for_a_row_fails_for_that_row(boxes: str) -> None:
    async def work(lookup: TableLookup) -> Any:
        return await asyncio.gather(*map(lookup.call, range(1, 6)), return_exceptions=True)

    text = "SELECT id, (10 / (id - 3))::text AS name FROM boxes"
    found = asked(hr.source.table(text, dsn=boxes).lookup(Box, key=Box.id), work)
    assert [each.name for each in found if isinstance(each, Box)] == ["-5", "-10", "10", "5"]
    assert isinstance(found[2], ProgramError) and "division by zero" in found[2].found


class Painted(hr.Record):
    id: int
    name: Color


def test_a_word_that_is_in_no_enum_fails_alone(boxes: str) -> None:
    query(boxes, "UPDATE boxes SET name = 'red' WHERE id <> 2")

    async def work(lookup: TableLookup) -> Any:
        return await asyncio.gather(*map(lookup.call, (1, 2, 3)), return_exceptions=True)

    one, two, three = asked(hr.source.table("boxes", dsn=boxes).lookup(Painted, key="id"), work)
    assert (one, three) == (Painted(1, Color.RED), Painted(3, Color.RED)) and isinstance(two, ValueError)


def test_values_of_any_type_are_looked_up(dsn: str, tmp_path: Path) -> None:
    write(dsn, tmp_path, "all_of_it", [ROW])
    columns = ("n", "x", "yes", "text", "at", "when", "day", "money", "who", "color", "raw")

    async def work(lookup: TableLookup) -> Any:
        return await lookup.call(getattr(ROW, lookup.key))

    for name in columns:
        lookup = hr.source.table("all_of_it", dsn=dsn).lookup(Everything, key=name)
        assert asked(lookup, work) == ROW, name


class Opening(hr.Record):
    id: int
    at: hr.Timestamp


def test_a_time_without_a_zone_is_looked_up_as_utc_wherever_the_server_is(dsn: str) -> None:
    query(dsn, f"ALTER DATABASE {dsn.rpartition('/')[2]} SET timezone = 'Asia/Tokyo'")
    query(dsn, "CREATE TABLE openings (id int, at timestamp); INSERT INTO openings VALUES (1, '2024-01-01 12:00')")
    noon = Opening(1, hr.timestamp("2024-01-01T12:00Z"))
    lookup = hr.source.table("openings", dsn=dsn).lookup(Opening, key=Opening.at)
    assert asked(lookup, lambda each: each.call(noon.at)) == noon
    assert asked(lookup, lambda each: each.call(datetime(2024, 1, 1, 13, tzinfo=timezone(timedelta(hours=1))))) == noon


def test_a_lookup_survives_a_restart_of_the_server(postgres: Postgres, shops: str) -> None:
    async def work(lookup: TableLookup) -> Any:
        first = await lookup.call(1)
        postgres.stop()
        try:
            with pytest.raises(EnvironmentMissing, match="cannot be read just now"):
                await lookup.call(1)
        finally:
            postgres.start()
        second = await lookup.call(1)
        postgres.stop()
        postgres.start()
        return first, second, await lookup.call(2)

    found = asked(hr.source.table("shops", dsn=shops).lookup(Shop, key="id"), work)
    assert [shop.id for shop in found] == [1, 1, 2]


def test_a_value_with_several_rows_is_told(shops: str) -> None:
    async def work(lookup: TableLookup) -> Any:
        return await asyncio.gather(lookup.call("city 1"), lookup.call("city 9"), return_exceptions=True)

    several, none = asked(hr.source.table("shops", dsn=shops).lookup(Shop, key="city"), work)
    assert isinstance(several, LookupError) and "several rows with city = 'city 1'" in str(several)
    assert none is None


def test_a_key_that_is_no_column_is_told(shops: str) -> None:
    with pytest.raises(ProgramError, match="no column 'nope' to look up by"):
        asked(hr.source.table("shops", dsn=shops).lookup(Shop, key="nope"), lambda lookup: lookup.call(1))
