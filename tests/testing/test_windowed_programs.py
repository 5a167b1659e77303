"""Programs with windows, from source to output: stacked, over the whole stream, through crashes and rescaling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.model.order import EpochLimits
from headrace.testing import Harness

pytestmark = pytest.mark.filterwarnings("ignore::headrace.HeadraceWarning")

START = "2024-01-01T12:00"
FILES = EpochLimits(inline_run_bytes=0, inline_output_bytes=0)


class Hit(hr.Record):
    page: str
    at: hr.Timestamp
    n: int = 1


class Visit(hr.Record):
    page: str
    nth: int
    ns: list[int]
    pane: str


class Visits(hr.WindowProcess[Hit, Visit, str]):
    nth: hr.ValueState[int]
    seen: hr.ReducingState[int] = hr.state(scope="window", reduce=lambda a, b: a + b)

    def on_window(self, rows: Sequence[Hit], ctx: hr.WindowContext[str]) -> Iterator[Visit]:
        if self.seen.get() is None:
            self.nth.set(self.nth.get(0) + 1)
        self.seen.add(1)
        yield Visit(ctx.key, self.nth.get(0), [row.n for row in rows], ctx.pane)


class Mean(hr.Aggregator[Hit, tuple[int, int], float]):
    def zero(self) -> tuple[int, int]:
        return (0, 0)

    def add(self, acc: tuple[int, int], x: Hit) -> tuple[int, int]:
        return (acc[0] + x.n, acc[1] + 1)

    def merge(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return (a[0] + b[0], a[1] + b[1])

    def result(self, acc: tuple[int, int]) -> float:
        return acc[0] / acc[1]


class Job:
    """Sessions with a function, minutes with an own aggregate, ten minutes of those minutes, and all of it together."""

    def __init__(self) -> None:
        self.app = hr.App("windows")
        self.hits = self.app.read("hits", hr.source.items([]), Hit, time=Hit.at)
        by_page = self.hits.key_by(Hit.page)
        self.visits = by_page.window(hr.session("30s"), allow_late="1m").process(Visits())
        self.minutes = by_page.window(hr.tumbling("1m")).aggregate(n=hr.sum("n"), mean=Mean()).named("minutes")
        self.tens = (
            self.minutes.key_by("page").window(hr.tumbling("10m")).aggregate(n=hr.sum("n"), minutes=hr.count())
        ).named("tens")
        self.all = (
            self.hits.window(hr.tumbling("1m")).aggregate(n=hr.sum("n"), best=hr.max("page", by="n")).named("all")
        )
        self.late = self.visits.late
        self.finals = self.visits.finals()

    def harness(self, store: Path | None = None, **options: Any) -> Harness:
        return Harness(self.app, start=START, store=store, **options)

    def take(self, h: Harness) -> dict[str, list[str]]:
        streams = {name: getattr(self, name) for name in ("visits", "minutes", "tens", "all", "late", "finals")}
        return {name: sorted(map(repr, h.take(stream))) for name, stream in streams.items()}


PAGES = [f"page-{i}" for i in range(7)]


def play(h: Harness, job: Job, epoch: int) -> None:
    """Rows of one epoch: out of order, some of them late."""
    base = h.at("12:00") + hr.seconds(40 * epoch)
    for i, page in enumerate(PAGES):
        if (i + epoch) % 3:
            h.push(job.hits, Hit(page, base + hr.seconds(7 * i), i), Hit(page, base - hr.seconds(5 * i), 100 + epoch))
    # Late for every minute, and soon enough (or not) for a session of its own.
    h.push(job.hits, Hit("slow", base - hr.seconds(100 if epoch % 2 else 200), 0))


def watermark(epoch: int) -> str:
    seconds = max(40 * epoch - 20, 0)
    return f"12:{seconds // 60:02d}:{seconds % 60:02d}"


EPOCHS = 9


@cache
def expected() -> list[dict[str, list[str]]]:
    job = Job()
    with job.harness() as h:
        found = []
        for epoch in range(EPOCHS):
            play(h, job, epoch)
            h.epoch(watermark=watermark(epoch))
            found.append(job.take(h))
        h.epoch(final=True)
        return [*found, job.take(h)]


def test_windows_stack_and_stand_side_by_side() -> None:
    found = expected()
    hits = [hit for epoch in range(EPOCHS) for hit in hits_of(epoch)]
    total = sum(n for _, n in hits)
    assert sum(map(summed, (row for epoch in found for row in epoch["minutes"]))) == total
    assert sum(map(summed, (row for epoch in found for row in epoch["tens"]))) == total, "no minute is late for ten"
    assert sum(map(summed, (row for epoch in found for row in epoch["all"]))) == total
    assert any("'late'" in row for epoch in found for row in epoch["visits"])
    assert all("'early'" not in row for epoch in found for row in epoch["visits"])
    assert any(epoch["late"] for epoch in found)
    visits = {tuple(row.split(", ns")[0].split("nth=")) for epoch in found for row in epoch["visits"]}
    assert len([row for epoch in found for row in epoch["finals"]]) == len(visits), "each visit ends once"


def summed(row: str) -> int:
    return int(row.split("n=")[1].split(",")[0].rstrip(")"))


def hits_of(epoch: int) -> Iterator[tuple[str, int]]:
    for i, page in enumerate(PAGES):
        if (i + epoch) % 3:
            yield page, i
            yield page, 100 + epoch


@pytest.mark.parametrize("limits", [None, FILES], ids=["state in manifests", "state in files"])
def test_windows_survive_crashes_and_other_numbers_of_shards(tmp_path: Path, limits: EpochLimits | None) -> None:
    wanted = expected()
    points = ("before_publish", "outputs_staged", "offsets_written", "published")
    for epoch in range(EPOCHS):
        job = Job()
        with job.harness(tmp_path, parallelism=(2, 3, 1, 5)[epoch % 4], limits=limits) as h:
            play(h, job, epoch)
            at = points[epoch % len(points)]
            h.crash(at=at, watermark=watermark(epoch))
            if at != "published":
                h.epoch(watermark=watermark(epoch))
            assert job.take(h) == wanted[epoch], f"epoch {epoch}, after a crash at {at}"
            if epoch % 2:
                h.maintain()
    job = Job()
    with job.harness(tmp_path, parallelism=2, limits=limits) as h:
        h.epoch(final=True)
        assert job.take(h) == wanted[-1]


def test_windows_by_the_wall_clock_end_without_rows() -> None:
    app = hr.App("wall")
    hits = app.read("hits", hr.source.items([]), Hit)
    minutes = hits.key_by(Hit.page).window(hr.tumbling("1m", clock="wall")).process(Visits())
    with Harness(app, start=START) as h:
        h.push(hits, Hit("a", h.at("09:00"), 1))
        h.epoch()
        h.push(hits, Hit("a", h.at("01:00"), 2), Hit("b", h.at("01:00"), 3))
        h.epoch(clock="12:00:30")
        assert h.take(minutes) == []
        h.epoch(clock="12:01:00")
        assert sorted(h.take(minutes), key=repr) == [Visit("a", 1, [1, 2], "on_time"), Visit("b", 1, [3], "on_time")]


def test_early_results_come_by_the_clock_and_finals_are_told_once() -> None:
    app = hr.App("early")
    hits = app.read("hits", hr.source.items([]), Hit, time=Hit.at)
    hourly = (
        hits.key_by(Hit.page).window(hr.session("10m"), fire=hr.early("1s")).aggregate(n=hr.sum("n")).named("hourly")
    )
    finals = hourly.finals()
    with Harness(app, start=START) as h:
        h.epoch(watermark="12:00")
        h.push(hits, Hit("a", h.at("12:01")), Hit("a", h.at("12:05")))
        h.epoch(clock="12:00:00.5")
        assert h.take(hourly) == []
        h.epoch(clock="12:00:01")
        [early] = h.take(hourly)
        assert (early.n, early.pane, early.window_end) == (2, "early", h.at("12:15"))
        h.epoch(clock="12:00:02")
        assert h.take(hourly) == [], "nothing has changed"
        h.push(hits, Hit("a", h.at("12:09")))
        h.epoch(clock="12:00:02.5", watermark="12:30")
        [row] = h.take(hourly)
        assert (row.n, row.pane) == (3, "on_time")
        assert h.take(finals) == [row]


def test_late_rows_are_counted_where_nobody_reads_them() -> None:
    app = hr.App("late")
    hits = app.read("hits", hr.source.items([]), Hit, time=Hit.at)
    minutes = (
        hits.key_by(Hit.page).window(hr.tumbling("1m")).reduce(lambda a, b: a.replace(n=a.n + b.n)).named("minutes")
    )
    with Harness(app, start=START) as h:
        h.push(hits, Hit("a", h.at("12:00:10")), Hit("a", h.at("12:00:20")))
        h.epoch(watermark="12:01")
        assert [row.n for row in h.take(minutes)] == [2]
        h.push(hits, Hit("a", h.at("12:00:30")))
        h.epoch()
        assert h.take(minutes) == []
        assert h.counters(minutes)["late"] == 1


@pytest.mark.parametrize(
    ("key", "wanted"),
    [((Hit.page, Hit.n), "page='a', n=1"), ((lambda hit: hit.page * 2,), "key='aa'"), ((Hit.n,), "n=1")],
    ids=["two columns", "a function", "a number"],
)
def test_results_tell_their_key_whatever_it_is(key: Any, wanted: str) -> None:
    app = hr.App("keys")
    hits = app.read("hits", hr.source.items([]), Hit, time=Hit.at)
    seen = hits.key_by(*key).window(hr.session("1m")).aggregate(count=hr.count()).named("seen")
    with Harness(app, start=START) as h:
        h.push(hits, Hit("a", h.at("12:00:10")), Hit("a", h.at("12:00:20")))
        h.epoch(watermark="12:05")
        [row] = h.take(seen)
        assert repr(row).startswith(f"Row({wanted}, window_start=") and row.count == 2


def test_functions_over_the_whole_stream_have_no_key() -> None:
    app = hr.App("whole")
    hits = app.read("hits", hr.source.items([]), Hit, time=Hit.at)

    class Told(hr.WindowProcess[Hit, str, None]):
        nth: hr.ValueState[int]

        def on_window(self, rows: Sequence[Hit], ctx: hr.WindowContext[None]) -> Iterator[str]:
            self.nth.set(self.nth.get(0) + 1)
            yield f"{ctx.key} {self.nth.get()} {len(rows)}"

    told = hits.window(hr.tumbling("1m")).process(Told())
    with Harness(app, start=START, parallelism=3) as h:
        h.push(hits, *(Hit(page, h.at("12:00:10")) for page in PAGES))
        h.epoch(watermark="12:01")
        h.push(hits, *(Hit(page, h.at("12:01:10")) for page in PAGES))
        h.epoch(watermark="12:02")
        assert h.take(told) == ["None 1 7", "None 2 7"]


def test_updates_are_refused_by_sinks_that_append(tmp_path: Path) -> None:
    app = hr.App("updates")
    hits = app.read("hits", hr.source.items([]), Hit, time=Hit.at)
    held = (
        hits.key_by(Hit.page).window(hr.tumbling("1m"), fire=hr.early("1s")).aggregate(n=hr.sum("n")).named("minutes")
    )
    with pytest.raises(hr.ProgramError, match="and these are updates"):
        held.write(hr.sink.files(str(tmp_path), format="json"))
    held.finals().write(hr.sink.files(str(tmp_path), format="json"))
