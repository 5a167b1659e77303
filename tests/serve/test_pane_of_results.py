"""Results that say whether they come early, on time or late are read as the step gives them out, by every way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import headrace as hr
from headrace.read.follow import Follower
from headrace.read.store import Store
from headrace.read.windows import WindowReader
from headrace.testing import Harness
from tests.serve.served import Served
from tests.state.rundata import small_batches

pytestmark = pytest.mark.filterwarnings("ignore::headrace.HeadraceWarning")


class View(hr.Record):
    tweet: str
    at: hr.Timestamp
    n: int = 1
    pane: str = "mine"


class Hourly(hr.Record):
    tweet: str
    window_start: hr.Timestamp
    window_end: hr.Timestamp
    views: int
    pane: str


class Wrong(hr.Record):
    tweet: str
    views: int
    nobody_tells: int


KEPT = ["on_time", "late", "early"]
"""Of the windows that begin at 16:00, 17:00 and 18:00; those of four hours before are only in the archive."""


def program(path: Path, *, held: bool, into: Any = Hourly) -> tuple[hr.App, Any]:
    """Windows that are merged from slices, or such that are kept one by one."""
    app = hr.App("tweets")
    views = app.read("views", hr.source.items([]), View, time=View.at)
    every = hr.per_row() if held else hr.early("1s")
    windowed = views.key_by(View.tweet).window(hr.tumbling("1h"), fire=every, allow_late="2h")
    said = (into,) if into is not None else ()
    hourly = windowed.aggregate(*said, views=hr.sum("n")).named("hourly")
    hourly.queryable(archive=str(path / "archive"))
    return app, views


def run(h: Harness, views: Any) -> None:
    for hour in range(12, 19):
        h.push(views, View("a", h.at(f"{hour}:10"), hour))
        h.epoch(watermark=f"{hour}:30")
    h.push(views, View("a", h.at("17:20"), 100))
    h.epoch(watermark="18:31")


@pytest.fixture(params=[False, True], ids=["slices", "one by one"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    app, views = program(tmp_path, held=request.param)
    with Harness(app, start="2024-01-01T12:00", store=tmp_path / "store", sinks=True) as h:
        run(h, views)
        yield tmp_path / "store"


def panes(windows: Any) -> list[str]:
    return [row.pane if isinstance(row, Hourly) else row["pane"] for row in windows.values()]


def test_a_store_tells_it_with_the_type_of_the_rows_and_without(stored: Path) -> None:
    for asked in (Hourly, None):
        view: Any = Store(stored).state("hourly", asked)
        assert panes({0: view["a"], 1: view.get_many(["a"])[0]}) == ["early", "early"]
        assert panes(view.windows("a")) == KEPT
        between = view.between("a")
        assert panes(between) == ["on_time"] * 4 + KEPT
        assert view.to_polars()["pane"].to_list() == KEPT
    rows = Store(stored).state("hourly", Hourly).between("a").values()
    assert [row.views for row in rows] == [12, 13, 14, 15, 16, 117, 18]


def test_servers_tell_it_over_both_protocols(stored: Path) -> None:
    with Served(stored) as served:
        served.wait_for(7)
        for url in (served.redis_url, served.url):
            with hr.Client(url) as client:
                view: Any = client.state("hourly", Hourly)
                assert view["a"].pane == "early"
                assert panes(view.windows("a")) == KEPT
                assert panes(view.between("a")) == ["on_time"] * 4 + KEPT
        with redis.Redis(port=served.port) as client:
            ends = {"window_start": "2024-01-01T18:00:00Z", "window_end": "2024-01-01T19:00:00Z"}
            newest = {"tweet": "a", **ends, "views": 18}
            assert json.loads(client.get("hourly:a")) == newest | {"pane": "early"}
            assert [json.loads(row)["pane"] for row in client.hgetall("hourly:a").values()] == KEPT


def test_results_of_an_earlier_program_that_did_not_tell_it_are_on_time(tmp_path: Path) -> None:
    class Brief(hr.Record):
        tweet: str
        window_start: hr.Timestamp
        window_end: hr.Timestamp
        views: int

    app, views = program(tmp_path, held=False, into=Brief)
    with Harness(app, start="2024-01-01T12:00", store=tmp_path / "store", sinks=True) as h:
        run(h, views)
        assert "pane" not in Store(tmp_path / "store").state("hourly")["a"]
    app, views = program(tmp_path, held=False)
    with Harness(app, start="2024-01-01T18:40", store=tmp_path / "store", sinks=True) as h:
        h.push(views, View("a", h.at("18:45"), 1))
        h.epoch(watermark="18:46")
        view: Any = Store(tmp_path / "store").state("hourly", Hourly)
        assert panes(view.between("a")) == ["on_time"] * 4 + KEPT


def test_a_step_that_gives_one_result_per_window_tells_none(tmp_path: Path) -> None:
    app = hr.App("tweets")
    views = app.read("views", hr.source.items([]), View, time=View.at)
    views.key_by(View.tweet).window(hr.tumbling("1h")).aggregate(views=hr.sum("n")).named("hourly").queryable()
    views.key_by(View.tweet).window(hr.session("1h")).aggregate(views=hr.sum("n")).named("visits").queryable()
    with Harness(app, start="2024-01-01T12:00", store=tmp_path) as h:
        h.push(views, View("a", h.at("12:10")))
        h.epoch(watermark="12:30")
        for state in ("hourly", "visits"):
            assert list(Store(tmp_path).state(state)["a"]) == ["tweet", "window_start", "window_end", "views"]


def test_a_field_of_that_name_in_reduced_rows_is_the_rows_own(tmp_path: Path) -> None:
    app = hr.App("tweets")
    views = app.read("views", hr.source.items([]), View, time=View.at)
    by_tweet = views.key_by(View.tweet).window(hr.tumbling("1h"), fire=hr.per_row())
    by_tweet.reduce(lambda a, b: a.replace(n=a.n + b.n)).named("summed").queryable()
    with Harness(app, start="2024-01-01T12:00", store=tmp_path) as h:
        h.push(views, View("a", h.at("12:10")), View("a", h.at("12:11")))
        h.epoch(watermark="12:30")
        assert Store(tmp_path).state("summed", View)["a"] == View("a", h.at("12:10"), 2, "mine")
        assert Store(tmp_path).state("summed")["a"]["pane"] == "mine"


def test_a_type_that_does_not_fit_is_told_in_our_words(stored: Path) -> None:
    view: Any = Store(stored).state("hourly", Wrong)
    for ask in (view.between, view.windows, view.__getitem__):
        with pytest.raises(hr.HeadraceError, match="does not fit the type it was asked for as") as caught:
            ask("a")
        assert "nobody_tells" in str(caught.value) and "state hourly" in str(caught.value)


def test_cells_are_those_of_their_batch_however_often_batches_are_opened(tmp_path: Path) -> None:
    """Two threads may open a batch at once. One block goes again, and another batch may come to lie in its place."""
    app = hr.App("tweets")
    views = app.read("views", hr.source.items([]), View, time=View.at)
    views.key_by(View.tweet).window(hr.tumbling("1h")).aggregate(views=hr.sum("n")).named("hourly").queryable()
    with small_batches(4), Harness(app, start="2024-01-01T12:00", store=tmp_path, parallelism=1) as h:
        h.push(views, *(View(f"t{i}", h.at("12:10"), i) for i in range(64)))
        h.epoch(watermark="12:30")
        snapshot = Follower(Store(tmp_path)).look()
        assert snapshot is not None
        table = snapshot.table("hourly")
        assert isinstance(table, WindowReader)
        runs = [each.table for each in table.views]
        assert len(runs[0]) >= 16
        for number in range(64):
            assert table.value(table.key(f"t{number}"))["views"] == number
            for run in runs:
                run._blocks[:] = [None] * len(run)
