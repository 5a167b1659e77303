"""States that a program declares are there before anything was written to them; and rows are counted once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import headrace as hr
from headrace.errors import StoreError
from headrace.testing import Harness
from tests.cli.calling import call, call_json
from tests.serve.served import Served
from tests.serve.tweets import fetch

pytestmark = pytest.mark.filterwarnings("ignore::headrace.HeadraceWarning")


class Click(hr.Record):
    page: str
    at: hr.Timestamp
    n: int = 1


class Keeper(hr.Process[Click, Click, str]):
    last: hr.ValueState[int]
    pages: hr.MapState[str, int]
    recent: hr.ListState[int]
    checks: hr.Timers

    def on_event(self, event: Click, ctx: hr.Context[str]) -> Iterator[Click]:
        self.last.set(event.n)
        yield from ()

    def on_timer(self, timer: Any, ctx: hr.Context[str]) -> Iterator[Click]:
        yield from ()


KINDS = {
    "fired": "windows", "hourly": "windows", "keeper.checks": "timers", "keeper.last": "value", "keeper.pages": "map",
    "keeper.recent": "list", "newest": "value", "sessions": "windows", "totals": "value",
}  # fmt: skip


def clicks_app() -> tuple[hr.App, Any, dict[str, Any]]:
    app = hr.App("clicks")
    clicks = app.read("clicks", hr.source.items([]), Click, time=Click.at)
    keyed = clicks.key_by(Click.page)
    hours = hr.tumbling("1h")
    steps = {
        "keeper": keyed.process(Keeper()).named("keeper").queryable(),
        "totals": keyed.aggregate(total=hr.sum("n")).named("totals").queryable(),
        "newest": keyed.latest().named("newest").queryable(),
        "hourly": keyed.window(hours).aggregate(total=hr.sum("n")).named("hourly").queryable(),
        "sessions": keyed.window(hr.session("5m")).aggregate(total=hr.sum("n")).named("sessions").queryable(),
        "fired": keyed.window(hours, fire=hr.on_delta("n", 3)).aggregate(total=hr.sum("n")).named("fired").queryable(),
    }
    return app, clicks, steps


@pytest.fixture
def empty(store_path: Path) -> Iterator[Path]:
    app, _, _ = clicks_app()
    with Harness(app, start="2024-01-01T12:00", store=store_path) as h:
        h.epoch()
        yield store_path


def test_a_state_that_nothing_was_written_to_is_empty_in_a_store(empty: Path) -> None:
    store = hr.Store(empty)
    assert {info.address: info.kind for info in store.states()} == KINDS
    for address, kind in KINDS.items():
        view = store.state(address)
        assert (view.kind, len(view), list(view.scan()), view.get("a"), len(view.to_polars())) == (kind, 0, [], None, 0)
    assert store.state("hourly").to_polars().columns == ["page", "window_start", "window_end", "total"]
    assert store.state("totals").to_polars().columns == ["key", "page", "total"]
    with pytest.raises(StoreError, match="several states"):
        store.state("keeper")


def test_it_is_empty_on_the_command_line(empty: Path) -> None:
    assert [each["state"] for each in call_json("state", empty)["states"]] == list(KINDS)
    assert call_json("state", empty, "totals")["entries"] == []
    assert "no keys" in call("state", empty, "hourly").stdout


def test_it_is_empty_behind_a_server(empty: Path) -> None:
    with Served(empty) as served:
        served.wait_for(0)
        told = fetch(served.url, "/v1/jobs/clicks/state").json["states"]
        assert {each["state"]: each["kind"] for each in told} == KINDS
        assert fetch(served.url, "/v1/jobs/clicks/state/totals?limit=3").json["entries"] == []
        assert fetch(served.url, "/v1/jobs/clicks/state/hourly?format=json").json == []
        with redis.Redis(port=served.port, decode_responses=True) as client:
            assert client.get("totals:a") is None and client.hgetall("keeper.pages:a") == {}
            assert client.lrange("keeper.recent:a", 0, -1) == [] and list(client.scan_iter("hourly:*")) == []
        with hr.Client(served.url) as by_http:
            assert dict(by_http.state("sessions")) == {}


def test_it_is_empty_in_a_harness(store_path: Path) -> None:
    app, _, steps = clicks_app()
    with Harness(app, start="2024-01-01T12:00", store=store_path) as h:
        h.epoch()
        assert h.state(steps["totals"], key="a") is None and h.state(steps["keeper"], Keeper.pages, "a") is None


def test_the_results_of_an_aggregate_and_the_fields_of_a_record_are_columns(store_path: Path) -> None:
    app, clicks, _ = clicks_app()
    with Harness(app, start="2024-01-01T12:00", store=store_path) as h:
        h.push(clicks, Click("a", h.at("12:00:00"), 2), Click("a", h.at("12:01:00"), 3))
        h.epoch()
        store = hr.Store(store_path)
        assert store.state("totals").to_polars().rows() == [("a", "a", 5)]
        newest = store.state("newest", Click)
        assert newest.to_polars().columns == ["key", "page", "at", "n"]
        frame = newest.to_pandas()
        assert list(frame.columns) == ["key", "page", "at", "n"] and frame["n"].tolist() == [3]


def test_rows_are_counted_once_when_shards_share_a_file(store_path: Path) -> None:
    app, clicks, _ = clicks_app()
    with Harness(app, start="2024-01-01T12:00", store=store_path, parallelism=2) as h:
        h.push(clicks, *(Click(f"page-{i}", h.at("12:00:00")) for i in range(500)))
        h.epoch()
        before = {info.address: (info.rows, info.about) for info in hr.Store(store_path).states()}
        size = sum(info.size_bytes for info in hr.Store(store_path).states())
    app, clicks, _ = clicks_app()
    with Harness(app, start="2024-01-01T12:00", store=store_path, parallelism=3) as h:
        h.epoch()
        infos = hr.Store(store_path).states()
        assert {info.address: (info.rows, info.about) for info in infos} == before
        assert before["totals"] == (500, False)
        assert abs(sum(info.size_bytes for info in infos) - size) <= len(infos)
    told = json.loads(call("state", store_path, "--json").stdout)
    assert {each["state"]: each["rows"] for each in told["states"]}["totals"] == 500
