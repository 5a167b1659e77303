"""Tables as the other side of a lookup, against a real server."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.connectors.postgres.lookup import TableLookup
from headrace.errors import BadRow, EnvironmentMissing, ProgramError
from headrace.model.rows import codec_of
from tests.services.postgres import Postgres
from tests.sources.tables import BAD_BOXES, ROW, Box, Color, Everything, Shop, query, write


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


def test_a_number_between_two_whole_ones_finds_neither(boxes: str) -> None:
    async def work(lookup: TableLookup) -> Any:
        values = [1.0, 1.5, 2.4999, Decimal("3.0"), Decimal("3.5"), math.nan, -math.inf, Decimal("NaN"), 1e300, 4]
        return await asyncio.gather(*map(lookup.call, values))

    found = asked(hr.source.table("boxes", dsn=boxes).lookup(Box, key=Box.id), work)
    assert [box and box.id for box in found] == [1, None, None, 3, None, None, None, None, None, 4]


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
    assert (one, three) == (Painted(1, Color.RED), Painted(3, Color.RED)) and isinstance(two, BadRow)
    assert two.expected == "name: Color" and "'box 2' is not a valid Color" in two.found


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
