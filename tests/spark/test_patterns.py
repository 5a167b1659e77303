"""On real Spark: patterns in Python and in SQL give what the harness gives, over epochs and a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr

pytestmark = pytest.mark.spark


class Tx(hr.Record):
    card: str
    at: hr.Timestamp
    cents: int


ROWS = [Tx(f"c{i % 7}", 10**12 + i * 300_000, (i * 7919) % 60_000) for i in range(400)]  # type: ignore[arg-type]
RISING = """SELECT card, n, top FROM tx MATCH_RECOGNIZE (
    PARTITION BY card ORDER BY at MEASURES COUNT(*) AS n, LAST(UP.cents) AS top
    PATTERN (LOW UP+) WITHIN INTERVAL '30' SECONDS DEFINE UP AS cents > PREV(cents)) AS m"""


def program(rows: list[Tx]) -> tuple[hr.App, hr.Stream[Tx], list[hr.Stream[Any]]]:
    app = hr.App("shop")
    tx = app.read("tx", hr.source.items(rows, per_epoch=130), Tx, time=Tx.at, out_of_order="1s")
    jump = (
        hr.pattern("small", "cents < 6000")
        .then("more", lambda row, match: row.cents > match.small.cents).times(1, 2)
        .then("large", "cents > 8 * small.cents AND cents > 40000").within("20s").after_match("past_last")
    )  # fmt: skip
    step = tx.key_by(Tx.card).match(jump).named("jumps")
    found = step.select(card="small.card", n="count(more)", jump="large.cents - small.cents")
    hung = step.timed_out.select(card="small.card", waited_for="match.waiting_for", end="match.end")
    return app, tx, [found, hung, app.sql(RISING).named("rising")]


def test_patterns_on_spark_give_what_the_harness_gives(spark: Any, store_path: Path) -> None:
    app, tx, streams = program([])
    with hr.testing.Harness(app, start="2001-01-01") as h:
        h.push(tx, *ROWS)
        h.drain()
        wanted = [sorted(map(repr, h.take(stream))) for stream in streams]
    assert [len(rows) for rows in wanted] == [30, 2, 30]
    got: list[list[str]] = [[], [], []]
    for end in (260, len(ROWS)):
        app, _, streams = program(ROWS[:end])
        sinks = [hr.sink.collect() for _ in streams]
        for stream, sink in zip(streams, sinks):
            stream.write(sink)
        until = "caught_up" if end == 260 else "drained"
        app.start(until=until, spark=spark, store=str(store_path), parallelism=2, epoch="100ms").wait()
        for rows, sink in zip(got, sinks):
            rows += map(repr, sink.rows)
    assert [sorted(rows) for rows in got] == wanted
