"""Windows in programs, by the harness: early results in the first epoch, gaps of sessions in SQL."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.testing import Harness


class View(hr.Record):
    page: str
    at: hr.Timestamp


class Patient(hr.Record):
    page: str
    at: hr.Timestamp
    patience_s: int


class Count(hr.Aggregator[View, int, int]):
    def zero(self) -> int:
        return 0

    def add(self, acc: int, x: View) -> int:
        return acc + 1

    def merge(self, a: int, b: int) -> int:
        return a + b

    def result(self, acc: int) -> int:
        return acc


@pytest.mark.parametrize("aggs", [{"n": hr.count()}, {"n": Count()}], ids=["in columns", "row by row"])
def test_the_first_epoch_gives_early_results_when_time_passes_in_it(aggs: dict[str, Any]) -> None:
    app = hr.App("pages")
    views = app.read("views", hr.source.items([]), View, time=View.at)
    hourly = views.key_by(View.page).window(hr.tumbling("1h"), fire=hr.early("1s")).aggregate(**aggs).named("hourly")
    with Harness(app, start="2024-01-01T12:00:00") as h:
        h.push(views, View("a", h.at("12:00")))
        h.epoch(clock="12:00:05")
        assert [(row.n, row.pane) for row in h.take(hourly)] == [(1, "early")]


def test_no_time_passes_in_the_first_epoch_where_the_clock_stands() -> None:
    app = hr.App("pages")
    views = app.read("views", hr.source.items([]), View, time=View.at)
    hourly = views.key_by(View.page).window(hr.tumbling("1h"), fire=hr.early("1s")).aggregate(n=hr.count())
    hourly = hourly.named("hourly")
    with Harness(app, start="2024-01-01T12:00:00") as h:
        h.push(views, View("a", h.at("12:00")))
        h.epoch()
        assert h.take(hourly) == []
        h.epoch(clock="12:00:01")
        assert [row.n for row in h.take(hourly)] == [1]


def test_the_gap_of_a_session_may_be_sql_over_the_row() -> None:
    app = hr.App("pages")
    views = app.read("views", hr.source.items([]), Patient, time=Patient.at)
    visits = views.key_by("page").window(hr.session("patience_s * 1000000")).aggregate(n=hr.count()).named("visits")
    with Harness(app, start="2024-01-01T12:00:00") as h:
        for second, patience in ((0, 10), (5, 1), (11, 1)):
            h.push(views, Patient("a", h.at(f"12:00:{second:02}"), patience))
        h.epoch(watermark="13:00")
        assert [row.n for row in h.take(visits)] == [2, 1]
