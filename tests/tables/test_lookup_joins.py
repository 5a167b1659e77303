"""Lookup joins: rows beside what a table outside holds now."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

import headrace as hr
from headrace.errors import HeadraceError
from tests.tables.playing import TABLES, Tx, micros


class City(hr.Record):
    shop: str
    city: str


CITIES = {"north": City("north", "Bern"), "south": City("south", "Chur")}
ASKED: list[str] = []


async def find_city(shop: str) -> City | None:
    ASKED.append(shop)
    return CITIES.get(shop)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = ModuleType("city_lookup")
    module.find_city, module.City = find_city, City
    monkeypatch.setitem(sys.modules, "city_lookup", module)
    ASKED.clear()
    app = hr.App("lookups")
    for table, (kind, _) in TABLES.items():
        app.read(table, hr.source.items([]), kind, time="ts")
    return app


ROWS = [Tx("ann", micros("12:00"), 1, "north"), Tx("bob", micros("12:05"), 2, "south"), Tx("cid", micros("12:10"), 3)]
JOIN = "JOIN cities FOR SYSTEM_TIME AS OF PROCTIME() AS c"


def answers(app: Any, query: str, **tables: Any) -> list[tuple[Any, ...]]:
    result: Any = app.sql(query, name="q", **tables)
    with hr.testing.Harness(app, start="2024-01-01T12:00") as h:
        h.push(app.table("tx"), *ROWS)
        h.epoch(watermark="14:00")
        rows = h.take(result)
    return [tuple(getattr(row, name) for name in row.__struct_fields__) for row in rows]


def test_an_inner_lookup_gives_the_rows_that_something_was_found_for(app: Any) -> None:
    query = f"SELECT t.card, c.city FROM tx t {JOIN} ON t.shop = c.shop"
    assert answers(app, query, cities=find_city) == [("ann", "Bern"), ("bob", "Chur")]


def test_a_left_lookup_gives_all_rows(app: Any) -> None:
    query = f"SELECT t.card, c.city FROM tx t LEFT {JOIN} ON c.shop = lower(t.shop)"
    assert answers(app, query, cities=find_city) == [("ann", "Bern"), ("bob", "Chur"), ("cid", None)]


def test_further_conditions_are_asked_of_what_was_found(app: Any) -> None:
    query = f"SELECT t.card FROM tx t {JOIN} ON t.shop = c.shop AND c.city <> 'Bern' WHERE t.cents < 9"
    assert answers(app, query, cities=find_city) == [("bob",)]


def test_rows_keep_their_time_so_they_can_be_put_in_windows(app: Any) -> None:
    query = (
        "SELECT city, COUNT(*) AS n FROM TABLE(TUMBLE("
        f"(SELECT t.ts, c.city FROM tx t {JOIN} ON t.shop = c.shop), DESCRIPTOR(ts), INTERVAL '1' HOUR)) "
        "GROUP BY city, window_start, window_end"
    )
    assert sorted(answers(app, query, cities=find_city)) == [("Bern", 1), ("Chur", 1)]


def test_a_declared_table_is_asked_as_its_options_say(app: Any) -> None:
    app.sql("""
        CREATE TABLE cities (shop STRING PRIMARY KEY NOT ENFORCED, city STRING) WITH (
            'connector' = 'python', 'object' = 'city_lookup:find_city', 'lookup.cache-ttl' = '10 min',
            'lookup.partial-cache.max-rows' = '100', 'lookup.max-retries' = '2', 'lookup.timeout' = '5 s'
        )
    """)
    app.sql("CREATE VIEW now AS SELECT *, PROCTIME() AS proc FROM tx")
    result: Any = app.sql(
        "SELECT n.card, c.city FROM now n JOIN cities FOR SYSTEM_TIME AS OF n.proc AS c ON n.shop = c.shop", name="q"
    )
    with hr.testing.Harness(app, start="2024-01-01T12:00") as h:
        for clock in ("12:00", "12:05", "12:20"):
            h.push(app.table("tx"), ROWS[0])
            h.epoch(clock=clock)
        assert [row.city for row in h.take(result)] == ["Bern", "Bern", "Bern"]
    assert len(ASKED) == 2, "the answer was remembered for ten minutes"


REFUSED = {
    "SELECT * FROM cities": ("asked for single rows", "FOR SYSTEM_TIME"),
    f"SELECT t.card FROM tx t RIGHT {JOIN} ON t.shop = c.shop": ("INNER or LEFT", ""),
    f"SELECT t.card FROM tx t {JOIN} ON t.shop = c.city": ("asked for the value of one column", "by shop alone"),
    f"SELECT t.card FROM tx t LEFT {JOIN} ON t.shop = c.shop AND c.city <> 'x'": ("no further condition", "INNER"),
    f"SELECT n FROM (SELECT shop, COUNT(*) AS n FROM tx GROUP BY shop) t {JOIN} ON t.shop = c.shop": (
        "taken back", "behind it",
    ),
    "SELECT t.card FROM tx t JOIN prices FOR SYSTEM_TIME AS OF PROCTIME() AS p ON t.shop = p.shop": (
        "prices cannot be asked", "event time",
    ),
}  # fmt: skip


@pytest.mark.parametrize("query", REFUSED)
def test_what_cannot_be_looked_up_is_refused_with_the_way_out(app: Any, query: str) -> None:
    with pytest.raises(HeadraceError) as raised:
        app.sql(query, name="q", cities=find_city)
    what, advice = REFUSED[query]
    assert what in raised.value.what
    assert advice in f"{raised.value.expected} {raised.value.next_move}"
    assert "^" in raised.value.found
