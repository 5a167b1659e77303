"""A sample of each kind of query on Spark; the answer is that of Spark's own batch SQL over the same files."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.tables.playing import TABLES, typed_rows

pytestmark = pytest.mark.spark

QUERIES = {
    "rows": "SELECT card, cents * 2 AS twice FROM tx WHERE shop IS NOT NULL",
    "of_groups": "SELECT n, COUNT(*) AS cards FROM (SELECT card, COUNT(*) AS n FROM tx GROUP BY card) GROUP BY n",
    "outer_join": "SELECT t.card, t.cents, r.cents AS back FROM tx t LEFT JOIN refunds r ON t.card = r.card",
    "over": "SELECT card, cents, SUM(cents) OVER (PARTITION BY card ORDER BY ts ROWS BETWEEN 1 PRECEDING AND"
    " CURRENT ROW) AS s, LAG(cents) OVER (PARTITION BY card ORDER BY ts) AS before FROM tx",
    "first": "SELECT card, cents FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY card ORDER BY cents DESC, ts) AS n"
    " FROM tx) WHERE n <= 2",
    "elements": "SELECT id, item FROM baskets LATERAL VIEW EXPLODE(items) u AS item",
}


def as_json(row: Any) -> dict[str, Any]:
    fields = {name: getattr(row, name) for name in row.__struct_fields__}
    return {**fields, "ts": datetime.fromtimestamp(row.ts / 1_000_000, UTC).isoformat()}


def test_drained_queries_give_what_batch_sql_gives(spark: Any, tmp_path: Path) -> None:
    app = hr.App("cases")
    for table, (kind, _) in TABLES.items():
        folder = tmp_path / table
        folder.mkdir()
        lines = [json.dumps(as_json(row)) for row in typed_rows(table)]
        (folder / "rows.json").write_text("\n".join(lines))
        app.read(table, hr.source.files(str(folder), format="json"), kind, time="ts")
    sinks = {name: hr.sink.collect() for name in QUERIES}
    for name, query in QUERIES.items():
        app.sql(query, name=name).write(sinks[name])
    app.run(until="drained", spark=spark, store=tmp_path / "store", parallelism=2)
    for table, (kind, _) in TABLES.items():
        schema = ", ".join(f"{field} {_SPARK[field]}" for field in kind.__struct_fields__)
        spark.read.schema(schema).json(str(tmp_path / table)).createOrReplaceTempView(table)
    for name, query in QUERIES.items():
        got = [tuple(getattr(row, field) for field in row.__struct_fields__) for row in sinks[name].rows]
        assert sorted(got, key=str) == sorted(map(tuple, spark.sql(query).collect()), key=str), name


_SPARK = {
    "card": "STRING", "ts": "TIMESTAMP", "cents": "BIGINT", "shop": "STRING", "rate": "DOUBLE", "why": "STRING",
    "price": "BIGINT", "id": "BIGINT", "items": "ARRAY<STRING>", "sizes": "ARRAY<BIGINT>",
}  # fmt: skip
