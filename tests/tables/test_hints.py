"""Hints and settings of one SELECT: how long a join keeps rows, and when windows give results."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from tests.tables.playing import TABLES, Price, Tx, micros

HOURS = (
    "shop, window_start, window_end, COUNT(*) AS n FROM TABLE(TUMBLE(TABLE tx, DESCRIPTOR(ts), INTERVAL '1' HOUR)) "
    "GROUP BY shop, window_start, window_end"
)


@pytest.fixture
def app() -> Any:
    app = hr.App("hints")
    for table, (kind, _) in TABLES.items():
        app.read(table, hr.source.items([]), kind, time="ts")
    return app


def counts(h: Any, stream: Any) -> list[tuple[Any, int]]:
    return [(row.shop, row.n) for row in h.take(stream)]


@pytest.mark.parametrize("early", ["/*+ EARLY('1s') */", ""])
def test_windows_give_results_before_they_are_over_and_each_replaces_the_one_before(app: Any, early: str) -> None:
    if not early:
        app.sql("SET 'table.exec.emit.early-fire.delay' = '1 s'")
    result: Any = app.sql(f"SELECT {early} {HOURS}", name="q")
    assert str(result.node.kind) == "upsert by shop, window_start, window_end"
    with hr.testing.Harness(app, start="2024-01-01T12:00") as h:
        h.push(app.table("tx"), Tx("ann", micros("12:01"), 5, "north"))
        h.epoch(watermark="12:02")
        h.epoch(watermark="12:02", clock="12:00:03")
        assert counts(h, result) == [("north", 1)]
        h.push(app.table("tx"), Tx("bob", micros("12:30"), 5, "north"))
        h.epoch(watermark="13:10", clock="12:00:03")
        assert counts(h, result) == [("north", 2)]


def test_a_late_row_gives_a_further_result_as_long_as_that_was_allowed(app: Any) -> None:
    app.sql("SET 'emit.allow-late' = '1h'")
    result: Any = app.sql(f"SELECT {HOURS}", name="q")
    with hr.testing.Harness(app, start="2024-01-01T12:00") as h:
        h.push(app.table("tx"), Tx("ann", micros("12:01"), 5, "north"))
        h.epoch(watermark="13:10")
        assert counts(h, result) == [("north", 1)]
        h.push(app.table("tx"), Tx("ann", micros("12:02"), 5, "north"))
        h.epoch(watermark="13:20")
        assert counts(h, result) == [("north", 2)]
        h.push(app.table("tx"), Tx("ann", micros("12:03"), 5, "north"))
        h.epoch(watermark="14:30")
        h.push(app.table("tx"), Tx("ann", micros("12:04"), 5, "north"))
        h.epoch(watermark="14:40")
        assert counts(h, result) == [("north", 3)]


def test_a_hint_says_for_how_long_a_join_keeps_rows_and_counts_more_than_the_setting(app: Any) -> None:
    app.sql("SET 'state.ttl' = '7d'")
    hinted: Any = app.sql(
        "SELECT /*+ STATE_TTL('t' = '1h', 'p' = '1 h') */ t.card, p.price FROM tx t JOIN prices p ON t.shop = p.shop",
        name="hinted",
    )
    plain: Any = app.sql("SELECT t.card, p.price FROM tx t JOIN prices p ON t.shop = p.shop", name="plain")
    with hr.testing.Harness(app, start="2024-01-01T12:00") as h:
        h.push(app.table("prices"), Price("north", micros("12:00"), 3))
        h.epoch()
        h.push(app.table("tx"), Tx("ann", micros("12:01"), 5, "north"))
        h.epoch(clock="13:30")
        assert [row.price for row in h.take(plain)] == [3]
        assert h.take(hinted) == []
