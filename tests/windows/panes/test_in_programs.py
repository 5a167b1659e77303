"""Columnar windows in whole programs: combined before the exchange, read from outside, through crashes and folds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.dataflow.graph import KeyedNode
from headrace.errors import ProgramError
from headrace.model.window import Window
from headrace.plan.build import operator_builder
from headrace.plan.compile import compile_app
from headrace.testing import Harness
from headrace.windows.sliced.operator import PaneOperator

pytestmark = pytest.mark.filterwarnings("ignore::headrace.HeadraceWarning")


class View(hr.Record):
    tweet: str
    at: hr.Timestamp
    n: int = 1


class Hourly(hr.Record):
    tweet: str
    window_start: hr.Timestamp
    impressions: int
    last: hr.Timestamp | None
    mean: float | None = None


def program(window: Any = None, **options: Any) -> tuple[hr.App, Any, Any]:
    app = hr.App("tweets")
    views = app.read("views", hr.source.items([]), View, time=View.at)
    held = views.key_by(View.tweet).window(window or hr.tumbling("1h"), **options)
    hourly = held.aggregate(Hourly, impressions=hr.sum("n"), last=hr.max("at"), mean=hr.avg("n")).named("hourly")
    return app, views, hourly


def test_declared_aggregates_over_windows_run_in_columns() -> None:
    _, _, hourly = program()
    assert isinstance(hourly.node, KeyedNode)
    assert isinstance(operator_builder(hourly.node)(), PaneOperator)


def test_rows_are_combined_before_the_exchange_unless_somebody_wants_them_whole() -> None:
    app, _, hourly = program()
    hourly.queryable()
    assert [edge.combined for edge in compile_app(app, parallelism=2, key_groups=16).edges] == [True]
    app, views, hourly = program()
    hourly.late.write(hr.sink.collect())
    assert [edge.combined for edge in compile_app(app, parallelism=2, key_groups=16).edges] == [False]
    app, views, hourly = program()
    hourly.queryable()
    views.key_by(View.tweet).latest().named("newest").queryable()
    assert [edge.combined for edge in compile_app(app, parallelism=2, key_groups=16).edges] == [False]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("reads_late", [False, True])
def test_results_do_not_depend_on_shards_combining_or_crashes(parallelism: int, reads_late: bool) -> None:
    app, views, hourly = program(allow_late="10m")
    hourly.queryable()
    late = hourly.late if reads_late else None
    with Harness(app, start="2024-01-01T12:00", parallelism=parallelism) as h:
        h.push(views, *(View(f"t{i % 7}", h.at("12:00:01"), i) for i in range(50)))
        h.push(views, View("t1", h.at("12:59:59"), 1000), View("t2", h.at("13:00:00"), 1))
        h.crash(at="before_publish", watermark="12:59")
        h.epoch(watermark="12:59")
        assert h.take(hourly) == []
        h.maintain()
        h.epoch(watermark="13:00")
        results = {row.tweet: row for row in h.take(hourly)}
        assert {tweet: row.impressions for tweet, row in results.items()} == {
            f"t{k}": sum(i for i in range(50) if i % 7 == k) + (1000 if k == 1 else 0) for k in range(7)
        }
        assert results["t1"].last == h.at("12:59:59")
        assert results["t1"].window_start == h.at("12:00")
        h.push(views, View("t3", h.at("12:30"), 5))
        h.epoch(watermark="13:10")
        assert [(row.tweet, row.impressions) for row in h.take(hourly)] == [("t3", results["t3"].impressions + 5)]
        h.push(views, View("t3", h.at("12:30"), 5), View("t4", h.at("12:31"), 5))
        h.epoch()
        assert h.take(hourly) == []
        assert h.counters(hourly)["late"] == 2
        if late is not None:
            assert sorted(row.tweet for row in h.take(late)) == ["t3", "t4"]


@pytest.mark.parametrize("window", [hr.tumbling("1h"), hr.sliding("1h", every="30m")], ids=["tumbling", "sliding"])
def test_sets_lists_and_tops_survive_crashes_folds_and_other_shards(window: Any, tmp_path: Path) -> None:
    def made() -> tuple[hr.App, Any, Any]:
        app = hr.App("tweets")
        views = app.read("views", hr.source.items([]), View, time=View.at)
        held = views.key_by(View.tweet).window(window, allow_late="10m")
        kinds: dict[str, Any] = {"kinds": hr.count_distinct("n"), "all": hr.collect("n"), "times": hr.collect("at")}
        kinds |= {"top": hr.top("at", 2, by="n"), "half": hr.quantile("n", 0.5)}
        return app, views, held.aggregate(**kinds).named("hourly").queryable(keep="1h")

    pushed: list[int] = []
    for number, parallelism in enumerate([1, 3, 2]):
        app, views, hourly = made()
        with Harness(app, start="2024-01-01T12:00", parallelism=parallelism, store=tmp_path / "store") as h:
            for part in range(3):
                numbers = [(7 * i + 5 * part + number) % 13 for i in range(6)]
                rows = [View(t, h.at(f"12:{58 - 9 * n % 40:02}"), n) for n in numbers for t in ("a", "b", "c")]
                h.push(views, *rows)
                pushed += numbers
                if part == 1:
                    h.crash(at="before_publish", watermark="12:01")
                h.epoch(watermark="12:01")
                h.maintain()
            found = hr.Store(tmp_path / "store").state("hourly").windows("b")  # type: ignore[attr-defined]
            whole = found[Window(h.at("12:00"), h.at("13:00"))]
            assert (whole["all"], whole["kinds"]) == (pushed, len(set(pushed)))
            assert whole["times"] == [h.at(f"12:{58 - 9 * n % 40:02}") for n in pushed]
            assert whole["half"] == pytest.approx(sorted(pushed)[(len(pushed) - 1) // 2], rel=0.02)
            if number == 2:
                h.epoch(watermark="13:00")
                rows = [row for row in h.take(hourly) if row.window_start == h.at("12:00")]
                assert sorted(row.tweet for row in rows) == ["a", "b", "c"]
                assert all(row.all == pushed and row.kinds == len(set(pushed)) for row in rows)
                greatest = sorted(pushed, reverse=True)[:2]
                assert [row.top for row in rows] == [[h.at(f"12:{58 - 9 * n % 40:02}") for n in greatest]] * 3


def test_windows_over_the_whole_stream_are_one_key() -> None:
    app = hr.App("tweets")
    views = app.read("views", hr.source.items([]), View, time=View.at)
    totals = views.window(hr.sliding("1h", every="30m")).aggregate(views=hr.count(), total=hr.sum("n")).named("totals")
    totals.queryable()
    with Harness(app, start="2024-01-01T12:00", parallelism=2) as h:
        h.push(views, View("a", h.at("12:10"), 2), View("b", h.at("12:40"), 5))
        h.epoch(watermark="14:00")
        assert [(row.window_start, row.views, row.total) for row in h.take(totals)] == [
            (h.at("11:30"), 1, 2), (h.at("12:00"), 2, 7), (h.at("12:30"), 1, 5),
        ]  # fmt: skip


def test_keys_of_several_columns_and_of_functions_come_back() -> None:
    app = hr.App("tweets")
    views = app.read("views", hr.source.items([]), View, time=View.at)
    pairs = views.key_by(View.n, View.tweet).window(hr.tumbling("1h")).aggregate(views=hr.count()).named("pairs")

    def initial(view: View) -> str:
        return view.tweet[:1]

    letters = views.key_by(initial).window(hr.tumbling("1h")).aggregate(views=hr.count()).named("letters")
    for step in (pairs, letters):
        step.queryable()
    with Harness(app, start="2024-01-01T12:00", parallelism=2) as h:
        h.push(views, View("ab", h.at("12:10"), 2), View("ac", h.at("12:10"), 2), View("ab", h.at("12:11"), 2))
        h.epoch(watermark="14:00")
        assert sorted((row.n, row.tweet, row.views) for row in h.take(pairs)) == [(2, "ab", 2), (2, "ac", 1)]
        assert [(row.key, row.views) for row in h.take(letters)] == [("a", 3)]


def test_a_window_can_be_read_before_it_fires_and_a_while_after(tmp_path: Path) -> None:
    app, views, hourly = program()
    hourly.queryable(keep="1h")
    with Harness(app, start="2024-01-01T12:00", parallelism=2, store=tmp_path / "store") as h:

        def read() -> Any:
            return hr.Store(tmp_path / "store").state("hourly", Hourly)

        h.push(views, View("a", h.at("12:00"), 1), View("a", h.at("12:10"), 4), View("b", h.at("12:20"), 2))
        h.epoch(watermark="12:20")
        assert read()["a"] == Hourly("a", h.at("12:00"), 5, h.at("12:10"), 2.5)
        h.push(views, View("a", h.at("12:30"), 3), View("a", h.at("13:10"), 100))
        h.epoch(watermark="13:20")
        view = read()
        assert (view["a"].impressions, view["b"].impressions) == (100, 2)
        assert {window: row.impressions for window, row in view.windows("a").items()} == {
            Window(h.at("12:00"), h.at("13:00")): 8, Window(h.at("13:00"), h.at("14:00")): 100,
        }  # fmt: skip
        assert view.get_many(["b", "nobody", "a"]) == [view["b"], None, view["a"]]
        assert (len(view), sorted(view), dict(view.scan("b"))) == (2, ["a", "b"], {"b": view["b"]})
        frame = view.to_polars().sort("tweet", "window_start")
        assert frame.select("tweet", "impressions").rows() == [("a", 8), ("a", 100), ("b", 2)]
        h.maintain()
        h.epoch(watermark="14:00")
        view = read()
        assert ("b" in view, list(view.windows("a"))) == (False, [Window(h.at("13:00"), h.at("14:00"))])
        assert hr.Store(tmp_path / "store").states()[0].kind == "windows"


def test_the_harness_reads_the_newest_window_of_a_key() -> None:
    app = hr.App("tweets")
    views = app.read("views", hr.source.items([]), View, time=View.at)
    held = views.key_by(View.tweet).window(hr.cumulating("1h", every="30m"), fire=hr.per_epoch(), allow_late="1h")
    hourly = held.aggregate(views=hr.count(), newest=hr.last("n")).named("hourly").queryable()
    with Harness(app, start="2024-01-01T12:00") as h:
        h.push(views, View("a", h.at("12:00"), 1), View("a", h.at("12:40"), 4))
        h.epoch(watermark="12:50")
        found = h.state(hourly, key="a")
        assert (found.window_start, found.window_end) == (h.at("12:00"), h.at("13:00"))
        assert (found.views, found.pane) == (2, "early")
        h.epoch(watermark="13:30")
        assert h.state(hourly, key="a").pane == "on_time"
        h.push(views, View("a", h.at("12:50"), 9))
        h.epoch()
        assert (h.state(hourly, key="a").newest, h.state(hourly, key="a").pane) == (9, "late")
        assert h.state(hourly, key="b") is None


def test_windows_that_are_kept_row_by_row_cannot_be_kept_after_they_are_gone() -> None:
    app = hr.App("tweets")
    views = app.read("views", hr.source.items([]), View, time=View.at)
    held = views.key_by(View.tweet).window(hr.tumbling("1h"), fire=hr.per_row())
    counts = held.aggregate(views=hr.count()).named("counts")
    with pytest.raises(ProgramError, match="keep= is not supported"):
        counts.queryable(keep="1h")
