"""Databases for tests of sources."""

from __future__ import annotations

import pytest

from tests.services.postgres import Postgres
from tests.sources.tables import query


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


@pytest.fixture
def boxes(dsn: str) -> str:
    query(dsn, "CREATE TABLE boxes (id int PRIMARY KEY, name text, size jsonb, price numeric, at timestamptz)")
    query(dsn, """INSERT INTO boxes SELECT i, 'box ' || i, '{"wide": 1}', i, NULL FROM generate_series(1, 1000) i""")
    query(dsn, """UPDATE boxes SET size = '{"wide": "very"}', at = '2024-01-01T12:00Z' WHERE id = 7""")
    query(dsn, "UPDATE boxes SET name = NULL WHERE id = 100")
    query(dsn, "UPDATE boxes SET price = 'NaN' WHERE id = 101; UPDATE boxes SET price = 1e30 WHERE id = 102")
    query(dsn, "UPDATE boxes SET at = 'infinity', size = '3' WHERE id = 1000")
    return dsn
