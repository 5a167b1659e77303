"""Whatever is asked, and however rows are cut into epochs: what comes out folds to DuckDB's answer over all rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import duckdb
import pytest

import headrace as hr
from headrace.testing import Harness
from tests.tables.playing import plain, take_into
from tests.tables.random_queries import KINDS, RandomQuery, random_rows


@pytest.fixture(scope="module")
def oracle() -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect()
    connection.execute("CREATE TABLE l (k VARCHAR, v BIGINT, w BIGINT)")
    connection.execute("CREATE TABLE r (k VARCHAR, v BIGINT, x VARCHAR)")
    yield connection
    connection.close()


def answer(query: str, rows: list[Any], chance: Random) -> Counter[tuple[Any, ...]]:
    """What the query comes to where rows come in random epochs, with a crash or a restart between them at times."""
    app = hr.App("random")
    sources: Any = {name: app.read(name, hr.source.items([]), kind, time="ts") for name, kind in KINDS.items()}
    result: Any = app.sql(query, name="q")
    kind = result.node.kind
    names = list(result.node.codec.names)
    places = [names.index(name) for name in kind.key or ()]
    folded: Counter[tuple[Any, ...]] = Counter()
    by_key: dict[Any, tuple[Any, ...]] = {}
    left = list(rows)
    with Harness(app, start="2024-01-01T00:00") as h:
        while left:
            some = chance.randint(1, 5)
            for table, values in left[:some]:
                h.push(sources[table], KINDS[table](h.at("12:00"), *values))
            left = left[some:]
            if chance.random() < 0.1:
                h.crash(watermark="00:00")
            h.epoch(watermark="00:00")
            take_into(h, result, kind, folded, by_key, places)
            if chance.random() < 0.1:
                h.restart()
        h.drain()
        take_into(h, result, kind, folded, by_key, places)
    return Counter(by_key.values()) if kind.rows == "upsert" else folded


def check(seed: int, connection: duckdb.DuckDBPyConnection) -> None:
    chance = Random(seed)
    query = RandomQuery(chance).query(3).text
    rows = random_rows(chance)
    for table in KINDS:
        connection.execute(f"DELETE FROM {table}")
    for table, values in rows:
        connection.execute(f"INSERT INTO {table} VALUES (?, ?, ?)", values)
    expected = Counter(tuple(plain(value) for value in row) for row in connection.sql(query).fetchall())
    assert answer(query, rows, chance) == expected, f"seed {seed}: {query}\nover {rows}"


@pytest.mark.parametrize("seed", range(12))
def test_a_random_query_gives_the_answer_of_duckdb(seed: int, oracle: duckdb.DuckDBPyConnection) -> None:
    check(seed, oracle)
