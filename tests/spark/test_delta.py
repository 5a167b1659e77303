"""A job on Spark writes windows and rows to tables of Delta, and dies again and again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pytest

import headrace as hr
from headrace.model.crash import planned
from tests.sinks.delta_rows import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SECOND = 1_000_000
STRIKES = [("between_files", 1), ("released", 2)]
"""In the middle of a commit, and right after one."""


class Sale(hr.Record):
    id: int
    shop: str
    at: hr.Timestamp
    tags: list[str]


SALES = [Sale(i, f"shop {i % 7}", hr.Timestamp(i * SECOND), ["odd"] * (i % 2)) for i in range(120)]


class Died(Exception):
    pass


def run(spark: SparkSession, store: Path, lake: Path) -> None:
    app = hr.App("shop")
    sales = app.read("sales", hr.source.items(SALES, per_epoch=30, partitions=2), Sale, time=Sale.at)
    sales.write(hr.sink.delta(lake / "log", partition_by=Sale.shop))
    counts = sales.key_by(Sale.shop).window(hr.tumbling("20s")).aggregate(n=hr.count()).named("counts")
    counts.finals().write(hr.sink.delta(lake / "counts"))
    app.start(until="drained", spark=spark, store=str(store), parallelism=2, epoch="50ms", restarts=0).wait()


def test_tables_are_right_whatever_the_job_died_of(spark: SparkSession, store_path: Path, tmp_path: Path) -> None:
    due = list(STRIKES)

    def strike(point: str, epoch: int) -> None:
        if due and (point, epoch) == due[0]:
            due.pop(0)
            raise Died(f"{point} in epoch {epoch}")

    for point, epoch in STRIKES:
        with planned(strike), pytest.raises(Exception, match=f"{point} in epoch {epoch}"):
            run(spark, store_path, tmp_path)
    run(spark, store_path, tmp_path)
    assert due == []
    log, counts = deltalake.DeltaTable(tmp_path / "log"), deltalake.DeltaTable(tmp_path / "counts")
    seen = rows_of(log).to_pylist()
    found = [Sale(row["id"], row["shop"], hr.timestamp(row["at"]), row["tags"]) for row in seen]
    assert sorted(found, key=lambda sale: sale.id) == SALES
    assert log.version() == 4, "the table was made, and each of four epochs is one version"
    rows = rows_of(counts).to_pylist()
    wanted = Counter((sale.shop, sale.at // (20 * SECOND)) for sale in SALES)
    assert sorted(row["n"] for row in rows) == sorted(wanted.values())
    assert Counter(row["shop"] for row in rows) == Counter(shop for shop, _ in wanted)
    # Spark reads the files that the log names: what deltalake wrote is Parquet as Spark knows it.
    assert spark.read.parquet(*log.file_uris()).count() == len(SALES)
