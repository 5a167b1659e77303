"""On real Spark: closed windows in an archive and rows in rolled files, over a stop and a start, read with no gap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import headrace as hr
from tests.serve.served import Served

pytestmark = pytest.mark.spark

MINUTE = 60_000_000


class View(hr.Record):
    tweet: str
    at: hr.Timestamp
    n: int


ROWS = [View("ab"[i % 2], hr.Timestamp(i * MINUTE // 4), i) for i in range(48)]
"""Four a minute, for twelve minutes."""


def program(rows: list[View], folder: Path) -> hr.App:
    app = hr.App("tweets")
    views = app.read("views", hr.source.items(rows, per_epoch=8), View, time=View.at)
    views.write(hr.sink.files(folder / "rows", format="parquet", roll_epochs=3, bucket_by=(View.at, "day")))
    by_minute = views.key_by(View.tweet).window(hr.tumbling("1m")).aggregate(
        n=hr.sum("n"), kinds=hr.count_distinct("n"), all=hr.collect("n"), best=hr.top("at", 1, by="n"),
        half=hr.quantile("n", 0.5),
    )  # fmt: skip
    by_minute.named("by_minute").queryable(keep="2m", archive=folder / "archive")
    return app


def test_closed_windows_are_archived_and_rows_rolled_over_a_restart(
    spark: Any, store_path: Path, tmp_path: Path
) -> None:
    sums: dict[int, int] = {}
    for row in ROWS[::2]:
        sums[int(row.at) // MINUTE] = sums.get(int(row.at) // MINUTE, 0) + row.n
    runs: list[tuple[list[View], Any]] = [(ROWS[:24], "caught_up"), (ROWS, "drained")]
    for rows, until in runs:
        app = program(rows, tmp_path)
        app.start(until=until, spark=spark, store=str(store_path), parallelism=2, epoch="50ms").wait()
        wanted = {minute: total for minute, total in sums.items() if minute * 4 < len(rows)}
        view: Any = hr.Store(str(store_path)).state("by_minute")
        found = view.between("a")
        assert {int(window.start) // MINUTE: row["n"] for window, row in found.items()} == wanted
        for window, row in found.items():
            inside = [each for each in rows[::2] if window.start <= each.at < window.end]
            assert (sorted(row["all"]), row["kinds"]) == ([each.n for each in inside], len(inside))
            assert (row["best"], row["half"]) == ([inside[-1].at], pytest.approx(inside[0].n, rel=0.02))
        seen = pl.read_parquet(tmp_path / "rows" / "**/*.parquet")
        assert sorted(seen["n"].to_list()) == [row.n for row in rows]
        assert len(list((tmp_path / "rows").rglob("*.parquet"))) <= 3 * (1 + (rows is ROWS))
    archived = pl.read_parquet(tmp_path / "archive" / "**/*.parquet")
    assert archived.height == 24 and archived.unique(["tweet", "window_end"]).height == 24
    with Served(store_path) as server, hr.Client(server.redis_url) as client:
        server.wait_for(0)
        assert len(client.state("by_minute").between("b", end="1970-01-01T00:06")) == 6
