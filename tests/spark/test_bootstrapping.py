"""State out of a Spark DataFrame, and a job on Spark that goes on from there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr

pytestmark = pytest.mark.spark


class Hit(hr.Record):
    page: str
    n: int = 1


class Keep(hr.Process[Hit, str, str]):
    trail: hr.ListState[int]

    def on_event(self, event: Hit, ctx: hr.Context[str]) -> Iterator[str]:
        yield from ()


def program(folder: Path) -> tuple[hr.App, Any]:
    app = hr.App("hits")
    hits = app.read("hits", hr.source.files(str(folder), format="json"), Hit)
    out = hr.sink.collect()
    hits.key_by(Hit.page).aggregate(n=hr.sum("n"), rows=hr.count()).named("totals").write(out)
    hits.key_by(Hit.page).process(Keep()).named("keep").show()
    return app, out


def test_a_job_goes_on_behind_state_that_executors_wrote(spark: Any, tmp_path: Path) -> None:
    count = 5_000
    frame = spark.range(count).selectExpr("concat('p', id) AS page", "id AS n", "2L AS rows").repartition(3)
    (tmp_path / "in").mkdir()
    lines = [{"page": "p7", "n": 1}, {"page": "new", "n": 5}]
    (tmp_path / "in" / "a.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    app, out = program(tmp_path / "in")
    report = hr.bootstrap(app, tmp_path / "store", {"totals": frame}, parallelism=2)
    assert report.rows == {"totals": count}
    assert report.runs == 2
    view = hr.Store(tmp_path / "store").state("totals")
    assert len(view) == count
    assert view["p4321"] == {"page": "p4321", "n": 4321, "rows": 2}
    app.run(until="drained", spark=spark, store=str(tmp_path / "store"), parallelism=2)
    assert sorted((row.page, row.n, row.rows) for row in out.rows) == [("new", 5, 1), ("p7", 8, 3)]
    trail = spark.createDataFrame([("a", 1)], "key string, value bigint")
    with pytest.raises(hr.HeadraceError, match="no order that lists could take"):
        hr.bootstrap(app, tmp_path / "lists", {"keep.trail": trail})
    twice = frame.union(frame.limit(1))
    with pytest.raises(hr.HeadraceError, match="comes 2 times"):
        hr.bootstrap(app, tmp_path / "other", {"totals": twice}, parallelism=2)
