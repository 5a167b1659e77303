"""Values of every shape, timers and windows, from files into a new store: as they were, or refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.errors import ProgramError, StoreError

START = "2024-01-01T10:00"


class Hit(hr.Record):
    page: str
    at: hr.Timestamp
    n: int = 1


class Place(hr.Record):
    at: hr.Timestamp
    seen: datetime
    x: float | None = None


class Tagged(hr.Record):
    tags: dict[str, int]
    parts: list[dict[str, datetime]]
    under: Place | None = None


class Paid(hr.Record, tag="paid"):
    cents: int
    at: hr.Timestamp


class Lost(hr.Record, tag="lost"):
    why: str | None


class Keep(hr.Process[Hit, str, str]):
    by_time: hr.MapState[hr.Timestamp, int]
    by_parts: hr.MapState[tuple[str, int], Place]
    lists: hr.ListState[list[Place]]
    named: hr.ValueState[dict[str, Place]]
    counted: hr.ValueState[dict[str, int]]
    tagged: hr.ValueState[Tagged]
    maybe: hr.ValueState[Place | None]
    either: hr.ValueState[Paid | Lost]
    alarm: hr.Timer
    bells: hr.Timers
    wall: hr.WallTimer

    def on_event(self, event: Hit, ctx: hr.Context[str]) -> Iterator[str]:
        place = Place(event.at, datetime(2024, 5, 1, tzinfo=UTC), None if event.n % 2 else 0.5)
        self.by_time[event.at] = event.n
        self.by_parts["a", event.n] = place
        self.lists.append([place, place])
        self.named.set({"one": place} if event.n == 1 else {"one": place, "two": place})
        self.counted.set({event.page: event.n})
        self.tagged.set(Tagged({event.page: event.n}, [{event.page: place.seen}, {}], place if event.n == 2 else None))
        self.maybe.set(place)
        self.either.set(Paid(event.n, event.at) if event.n == 1 else Lost(None if event.n == 2 else "why"))
        self.wall.set(hr.Timestamp(ctx.now + hr.minutes(1)))
        yield "row"

    def on_timer(self, timer: Any, ctx: hr.Context[str]) -> Iterator[str]:
        yield f"{timer.name} of {ctx.key}"


class Limits(hr.BroadcastProcess[Hit, Hit, str, str]):
    limits: hr.BroadcastState[hr.Timestamp, int]

    def on_broadcast(self, event: Hit, ctx: hr.BroadcastContext[str]) -> None:
        self.limits[event.at] = event.n

    def on_event(self, event: Hit, ctx: hr.Context[str]) -> Iterator[str]:
        yield from ()


class Job:
    def __init__(self) -> None:
        self.app = hr.App("shapes")
        self.hits = self.app.read("hits", hr.source.items([]), Hit, time=Hit.at)
        self.rules = self.app.read("rules", hr.source.items([]), Hit)
        keyed = self.hits.key_by(Hit.page)
        self.keep = keyed.process(Keep()).named("keep")
        self.keep.show()
        keyed.connect(self.rules.broadcast()).process(Limits()).named("ruled").show()
        self.hourly = keyed.window(hr.tumbling("1h")).aggregate(n=hr.sum("n")).named("hourly")
        self.hourly.show()
        keyed.aggregate(times=hr.collect("at"), last=hr.max("at")).named("times").show()
        pattern = hr.pattern("one", "n > 0").then("two", "n > 5").within("1d")
        keyed.match(pattern).named("matched").select(page="one.page").show()
        given = self.app.read("given", hr.source.items([]), hr.PatternRule)
        keyed.match(given.broadcast()).named("watched").select(rule="match.rule").show()
        rows = self.app.sql(
            "SELECT * FROM hits MATCH_RECOGNIZE (PARTITION BY page ORDER BY at MEASURES a.n AS first_n "
            "PATTERN (a b) DEFINE b AS b.n > a.n + 5)", name="recognized",
        )  # fmt: skip
        rows.show()
        self.given = given


STATES = ["keep.by_time", "keep.by_parts", "keep.lists", "keep.named", "keep.counted", "keep.tagged", "keep.maybe",
          "keep.either", "keep.wall", "ruled.limits", "hourly", "times", "matched.partial",
          "watched.partial", "watched.rules", "recognized.partial"]  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shapes")
    job = Job()
    with hr.testing.Harness(job.app, start=START, store=folder / "store") as h:
        h.push(job.hits, *(Hit(page, h.at(f"10:0{n}"), n) for n, page in enumerate(("a", "b", "ü"), 1)))
        h.push(job.rules, Hit("", h.at("10:00"), 7))
        h.push(job.given, hr.PatternRule("r", "one [n > 0], then two [n > 5], within 1d"))
        h.epoch(watermark="10:02")
    opened = hr.Store(folder / "store")
    for form in ("parquet", "jsonl"):
        opened.export(folder / form, format=form)
    opened.export(folder / "exact", exact=True)
    return folder


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_value_of_any_shape_is_the_same_when_it_is_read_again(
    state: str, form: str, store: Path, tmp_path: Path
) -> None:
    hr.bootstrap(Job().app, tmp_path / "new", {state: store / form / state})
    assert hr.diff(store / "store", tmp_path / "new", state=state).same


@pytest.mark.parametrize("way", ["exact", "rows"])
def test_a_wall_timer_that_fell_due_since_the_export_fires_in_the_first_epoch(
    way: str, store: Path, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"export": store / "exact"} if way == "exact" else {
        "states": {"keep.wall": store / "parquet" / "keep.wall"}
    }  # fmt: skip
    job = Job()
    hr.bootstrap(job.app, tmp_path / "new", **given)
    with hr.testing.Harness(job.app, start="2030-01-01", store=tmp_path / "new") as h:
        h.epoch()
        assert sorted(h.take(job.keep)) == ["wall of a", "wall of b", "wall of ü"]


def test_timers_before_the_watermark_count_as_fired(tmp_path: Path) -> None:
    times = [hr.timestamp("2024-01-01T10:00"), hr.timestamp("2024-01-01T12:00")]
    alarms = pl.DataFrame({"key": ["a", "b"], "value": times})
    bells = pl.DataFrame({"key": ["a", "a"], "at": times})
    job = Job()
    states = {"keep.alarm": alarms, "keep.bells": bells}
    hr.bootstrap(job.app, tmp_path / "new", states, watermark="2024-01-01T11:00")
    new = hr.Store(tmp_path / "new")
    assert (dict(new.state("keep.alarm")), dict(new.state("keep.bells"))) == ({"b": times[1]}, {"a": [times[1]]})
    hr.bootstrap(job.app, tmp_path / "none", {"keep.alarm": alarms}, watermark="2024-01-02")
    assert dict(hr.Store(tmp_path / "none").state("keep.alarm")) == {}


def test_a_window_that_comes_twice_is_refused(store: Path, tmp_path: Path) -> None:
    hourly = pl.read_parquet(store / "parquet" / "hourly" / "*.parquet")
    with pytest.raises(ProgramError, match="state hourly: a window comes 2 times"):
        hr.bootstrap(Job().app, tmp_path / "new", {"hourly": pl.concat([hourly, hourly.head(1)])})


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("none")
    with pytest.raises(StoreError, match="x.parquet: a Parquet file cannot be read"):
        hr.bootstrap(Job().app, tmp_path / "new", {"hourly": tmp_path / "x.parquet"})
