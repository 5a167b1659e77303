"""Windows in programs, by the harness: early results in the first epoch, gaps in SQL, what stays in the store."""

from __future__ import annotations

from pathlib import Path
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


@pytest.mark.parametrize("allow_late", ["0s", "10m"])
@pytest.mark.parametrize(
    "windows",
    [
        hr.sliding("20m", every="10m"),
        hr.sliding("25m", every="10m"),
        hr.sliding("5m", every="10m"),
        hr.cumulating("30m", every="10m"),
    ],
    ids=str,
)
def test_a_window_that_is_closed_stays_in_the_store_as_it_fired(windows: Any, allow_late: str, tmp_path: Path) -> None:
    """Rows that come late for some windows of their slice count for the others alone, whoever reads them, and when."""
    app = hr.App("pages")
    views = app.read("views", hr.source.items([]), View, time=View.at)
    counts = views.key_by(View.page).window(windows, allow_late=allow_late).aggregate(n=hr.count()).named("counts")
    counts.queryable(keep="1d")
    rows_and_watermarks = [
        (["12:01", "12:05", "12:12"], "12:04"),
        ([], "12:11"),
        (["12:02", "12:06", "12:06"], "12:12"),
        ([], "12:22"),
        (["12:04", "12:13", "12:18"], "12:23"),
        (["12:21", "12:02", "12:09"], "12:26"),
        ([], "13:30"),
        (["13:31"], "14:40"),
    ]
    fired: dict[tuple[int, int], int] = {}
    with Harness(app, start="2024-01-01T12:00", store=tmp_path / "store") as h:
        for times, watermark in rows_and_watermarks:
            h.push(views, *(View("a", h.at(time)) for time in times))
            h.epoch(watermark=watermark)
            fired |= {(row.window_start, row.window_end): row.n for row in h.take(counts)}
            state = hr.Store(h.store).state("counts")
            for read in (state.windows("a"), state.between("a")):
                stored = {(window.start, window.end): value["n"] for window, value in read.items()}
                done = {window for window in stored if window[1] <= h.at(watermark)}
                assert {window: stored[window] for window in done} == {window: fired[window] for window in done}
    assert len(fired) >= 4


@pytest.mark.parametrize(
    ("windows", "evict"),
    [(hr.rows(10, every=1), None), (hr.unbounded(), hr.keep_rows(10))],
    ids=["windows of rows", "an evictor"],
)
def test_a_window_that_keeps_its_rows_says_how_many_there_are_by_every_reader(windows: Any, evict: Any) -> None:
    app = hr.App("pages")
    views = app.read("views", hr.source.items([]), View, time=View.at)
    window = views.key_by(View.page).window(windows, fire=hr.per_row() if evict else None, evict=evict)
    latest = window.aggregate(n=hr.count()).named("latest").queryable()
    with Harness(app, start="2024-01-01T12:00:00") as h:
        h.push(views, View("a", h.at("12:00")), View("a", h.at("12:00")))
        h.epoch()
        held = h.state(latest, key="a")
        assert (held["page"], held["rows"]) == ("a", 2)
        assert held == hr.Store(h.store).state("latest")["a"]
