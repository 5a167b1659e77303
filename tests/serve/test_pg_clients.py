"""Clients of Postgres as people have them, unchanged: SQLAlchemy over three drivers, asyncpg, Grafana's words, JDBC."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pandas as pd
import psycopg
import pytest
import sqlalchemy as sa

from tests.serve.pg_served import PgServed
from tests.serve.tweets import Tweets
from tests.services import missing, needed

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
JDBC = Path("/usr/share/java/postgresql.jar")
ON_THE_PATH = """
    IN (SELECT CASE WHEN trim(s[i]) = '"$user"' THEN user ELSE trim(s[i]) END FROM generate_series(
        array_lower(string_to_array(current_setting('search_path'),','),1),
        array_upper(string_to_array(current_setting('search_path'),','),1)) as i,
        string_to_array(current_setting('search_path'),',') s)
"""
"""How Grafana asks whether a schema is on the search path."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PgServed]:
    path = tmp_path_factory.mktemp("pg_clients") / "store"
    with Tweets(path) as tweets:
        tweets.push(("a", "12:01", 1), ("b", "12:02", 2), ("a", "12:10", 5), watermark="13:10")
    with PgServed(path) as served:
        served.wait_for(0)
        yield served


# --- SQLAlchemy


@pytest.fixture(params=["psycopg", "pg8000"])
def engine(server: PgServed, request: pytest.FixtureRequest) -> Iterator[sa.Engine]:
    engine = sa.create_engine(f"postgresql+{request.param}://me@127.0.0.1:{server.port}/tweets")
    yield engine
    engine.dispose()


def test_sqlalchemy_finds_tables_and_their_keys(engine: sa.Engine) -> None:
    found = sa.inspect(engine)
    assert {"hourly", "totals"} <= set(found.get_table_names())
    assert found.get_pk_constraint("hourly")["constrained_columns"] == ["tweet", "window_start", "window_end"]
    assert found.get_indexes("hourly") == [] == found.get_foreign_keys("hourly")
    assert [(each["name"], each["nullable"]) for each in found.get_columns("hourly")] == [
        ("tweet", False), ("window_start", False), ("window_end", False), ("impressions", True),
    ]  # fmt: skip


def test_sqlalchemy_asks_tables_that_it_reflected(engine: sa.Engine) -> None:
    hourly = sa.Table("hourly", sa.MetaData(), autoload_with=engine)
    asked = sa.select(hourly.c.window_start, sa.func.sum(hourly.c.impressions)).where(hourly.c.tweet == "a")
    with engine.connect() as connection:
        assert connection.execute(asked.group_by(hourly.c.window_start)).fetchall() == [(NOON, 6)]


def test_pandas_reads_over_sqlalchemy(engine: sa.Engine) -> None:
    frame = pd.read_sql("SELECT tweet, impressions FROM hourly ORDER BY tweet", engine)
    assert frame.to_dict("records") == [{"tweet": "a", "impressions": 6}, {"tweet": "b", "impressions": 2}]


# --- others


def test_asyncpg_reads_single_keys_and_tables(server: PgServed) -> None:
    async def ask() -> tuple[Any, Any]:
        client = await asyncpg.connect(f"postgresql://me@127.0.0.1:{server.port}/tweets")
        one = await client.fetchrow("SELECT views FROM totals WHERE tweet = $1", "a")
        total = await client.fetchval("SELECT sum(impressions)::BIGINT FROM hourly")
        await client.close()
        return one["views"], total

    assert asyncio.run(ask()) == (2, 8)


@pytest.mark.parametrize(
    ("question", "rows"),
    [
        (
            f"""SELECT CASE WHEN quote_ident(table_schema) {ON_THE_PATH} THEN quote_ident(table_name)
            ELSE quote_ident(table_schema) || '.' || quote_ident(table_name) END AS "table"
            FROM information_schema.tables WHERE quote_ident(table_schema) NOT IN ('information_schema','pg_catalog')
            AND table_name IN ('hourly', 'sizes')
            ORDER BY CASE WHEN quote_ident(table_schema) {ON_THE_PATH} THEN 0 ELSE 1 END, 1""",
            [("hourly",), ("watch.sizes",)],
        ),
        (
            f"""SELECT quote_ident(column_name) AS "column", data_type AS "type" FROM information_schema.columns
            WHERE CASE WHEN array_length(parse_ident('totals'),1) = 2
            THEN quote_ident(table_schema) = (parse_ident('totals'))[1]
            AND quote_ident(table_name) = (parse_ident('totals'))[2]
            ELSE quote_ident(table_name) = 'totals' AND quote_ident(table_schema) {ON_THE_PATH} END""",
            [("tweet", "text"), ("views", "bigint"), ("mean", "double precision")],
        ),
        (
            """SELECT floor(extract(epoch from window_start)/3600)*3600 AS "time", sum(impressions)::BIGINT FROM hourly
            WHERE window_start BETWEEN '2024-01-01T12:00:00Z' AND '2024-01-01T13:00:00Z' GROUP BY 1 ORDER BY 1""",
            [(NOON.timestamp(), 8)],
        ),
    ],
    ids=["tables", "columns", "a panel"],
)
def test_grafana_gets_what_it_asks(server: PgServed, question: str, rows: list[tuple[Any, ...]]) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as client:
        assert client.execute(question).fetchall() == rows


def test_a_transaction_goes_on_from_its_savepoint(server: PgServed) -> None:
    with psycopg.connect(server.dsn) as client:
        with pytest.raises(psycopg.errors.UndefinedColumn), client.transaction():
            client.execute("SELECT nope FROM totals")
        assert client.execute("SELECT views FROM totals WHERE tweet = 'a'").fetchone() == (2,)


def test_jdbc_describes_and_reads_state(server: PgServed) -> None:
    """The client is a program of one file, which Java compiles as it starts it."""
    needed("javac", "openjdk-17-jdk-headless")
    if not JDBC.exists():
        missing("JDBC's driver is not installed (Debian, Ubuntu: apt-get install libpostgresql-jdbc-java)")
    program = Path(__file__).with_name("JdbcClient.java")
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", str(JDBC), str(program), str(server.port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert {"hourly", "totals", "raw"} <= set(said.pop("tables"))
    assert said == {
        "columns": ["tweet text", "window_start timestamptz", "window_end timestamptz", "impressions int8"],
        "key": ["tweet", "window_start", "window_end"],
        "imported": [],
        "keywords": True,
        "views": [2, 2, 2, 2, 2, 2, 2, 2],
        "cursor": 2,
        "refused": "42703",
        "after the savepoint": 2,
    }
