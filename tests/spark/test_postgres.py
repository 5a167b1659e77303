"""A table is read, counted and written to two others by a job on Spark that dies again and again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import headrace as hr
from headrace.model.crash import planned
from tests.services.postgres import Postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROWS = 90
PER_EPOCH = 30
STRIKES = [("between_files", 1), ("released", 2)]
"""In the middle of a transaction, and right after one."""


class Sale(hr.Record):
    id: int
    shop: str
    cents: int


class Died(Exception):
    pass


def shop_app(dsn: str) -> hr.App:
    app = hr.App("shop")
    sales = app.read("sales", hr.source.table("sales", dsn=dsn, per_epoch=PER_EPOCH, partitions=2), Sale)
    sales.write(hr.sink.postgres("log", dsn=dsn))
    sales.errors.write(hr.sink.postgres("lost", dsn=dsn))
    totals = sales.key_by(Sale.shop).aggregate(n=hr.count(), cents=hr.sum("cents")).named("totals")
    totals.write(hr.sink.postgres("totals", dsn=dsn, key="shop"))
    return app


def run(spark: SparkSession, store: Path) -> None:
    app = shop_app(hr.secret("PG_DSN"))
    app.start(until="caught_up", spark=spark, store=str(store), parallelism=2, epoch="50ms", restarts=0).wait()


def query(dsn: str, text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute(text)
        return found.fetchall() if found.description else []


def test_tables_are_right_whatever_the_job_died_of(
    postgres: Postgres, spark: SparkSession, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = postgres.database()
    monkeypatch.setenv("PG_DSN", dsn)
    query(dsn, "CREATE TABLE sales (id int PRIMARY KEY, shop text, cents int)")
    query(dsn, f"INSERT INTO sales SELECT i, 'shop ' || i % 7, i * i FROM generate_series(1, {ROWS}) i")
    query(dsn, f"UPDATE sales SET shop = NULL WHERE id = {ROWS}")
    wanted_log = query(dsn, "SELECT * FROM sales WHERE shop IS NOT NULL ORDER BY id")
    wanted_totals = query(
        dsn, "SELECT shop, count(*), sum(cents) FROM sales WHERE shop IS NOT NULL GROUP BY shop ORDER BY shop"
    )
    due = list(STRIKES)

    def strike(point: str, epoch: int) -> None:
        if due and (point, epoch) == due[0]:
            due.pop(0)
            raise Died(f"{point} in epoch {epoch}")

    for kept in (50, 40):
        with planned(strike), pytest.raises(Exception, match="(between_files|released) in epoch"):
            run(spark, store_path)
        query(dsn, f"UPDATE sales SET cents = 0; DELETE FROM sales WHERE id > {kept}")
    run(spark, store_path)
    assert due == []
    assert query(dsn, "SELECT * FROM log ORDER BY id") == wanted_log
    assert query(dsn, "SELECT shop, n, cents FROM totals ORDER BY shop") == wanted_totals
    assert query(dsn, "SELECT step, error, convert_from(row, 'UTF8') FROM lost") == [
        (
            "sales",
            "the copy of source.table('sales'): a row has no value for 'shop' of Sale",
            f'{{"id":{ROWS},"shop":null,"cents":{ROWS**2}}}',
        )
    ]
    ends = query(dsn, "SELECT epoch, count(*) FROM headrace_epochs GROUP BY epoch ORDER BY epoch")
    assert ends == [(0, 1), (ROWS // PER_EPOCH - 1, 2)], "bad rows come in the first epoch, the others in all"
    found = b"".join(path.read_bytes() for path in store_path.rglob("*") if path.is_file())
    assert dsn.encode() not in found, "a secret is never stored"
