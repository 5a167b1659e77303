"""Between two runs anything may change: the number of shards, names, types, steps. State follows names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import Refused, UpgradeRefused
from headrace.model.order import EpochLimits
from headrace.testing import Harness

START = "2024-01-01T12:00"
FILES = EpochLimits(inline_run_bytes=0, inline_output_bytes=0)


class Hit(hr.Record):
    page: str
    at: hr.Timestamp
    n: int = 1


class Total(hr.Record):
    page: str
    n: int


class Totals(hr.Process[Hit, Total, str]):
    total: hr.ValueState[int]
    hits: hr.ListState[int]
    by_n: hr.MapState[int, int]
    quiet: hr.Timer
    wall: hr.WallTimer
    seen: hr.Counter

    def on_event(self, event: Hit, ctx: hr.Context[str]) -> Iterator[Total]:
        self.total.set(self.total.get(0) + event.n)
        self.hits.append(event.n)
        self.by_n[event.n] = self.by_n.get(event.n, 0) + 1
        self.quiet.set(event.at + hr.minutes(10))
        self.wall.set(ctx.now + hr.minutes(10))
        self.seen.inc()
        yield Total(ctx.key, self.total.get(0))

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Total]:
        yield Total(f"{ctx.key} {timer.name}", sum(self.hits))


class Job:
    """One version of the program, and the names of its streams."""

    def __init__(self, function: Any = None, *, name: str | None = None, was: str | None = None) -> None:
        self.app = hr.App("totals")
        self.hits = self.app.read("hits", hr.source.items([]), Hit, time=Hit.at)
        self.totals = self.hits.key_by(Hit.page).process(function or Totals())
        if name is not None:
            self.totals = self.totals.named(name, was=was)

    def harness(self, store: Path, **options: Any) -> Harness:
        return Harness(self.app, start=START, store=store, **options)


def pairs(rows: list[Total]) -> list[tuple[str, int]]:
    return sorted((row.page, row.n) for row in rows)


PAGES = [f"page-{i}" for i in range(12)]


def push_all(h: Harness, job: Job, at: str = "12:00", n: int = 1) -> None:
    h.push(job.hits, *(Hit(page, h.at(at), n) for page in PAGES))


# --- going on


def test_a_second_harness_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    job = Job()
    with job.harness(tmp_path) as h:
        push_all(h, job)
        h.epoch(watermark="12:05")
        assert len(h.take(job.totals)) == len(PAGES)
    job = Job()
    with job.harness(tmp_path) as h:
        assert h.published == 0
        assert h.take(job.totals) == h.take(job.hits) == []
        h.push(job.hits, Hit("page-1", h.at("12:04")))
        h.epoch()
        assert pairs(h.take(job.totals)) == [("page-1", 2)]
        assert h.counters(job.totals) == {"seen": 13, "late": 1}
        h.epoch(watermark="12:14")
        fired = h.take(job.totals)
        assert len(fired) == len(PAGES) and ("page-1 quiet", 2) in pairs(fired)
        h.crash()
        h.push(job.hits, Hit("page-1", h.at("12:20")))
        h.epoch()
        assert pairs(h.take(job.totals)) == [("page-1", 3)]


@pytest.mark.parametrize("limits", [None, FILES], ids=["state in manifests", "state in files"])
def test_the_number_of_shards_may_change_at_every_start(tmp_path: Path, limits: EpochLimits | None) -> None:
    expected = dict.fromkeys(PAGES, 0)
    for number, parallelism in enumerate((2, 3, 1, 5, 2)):
        job = Job()
        with job.harness(tmp_path, parallelism=parallelism, limits=limits) as h:
            for epoch in range(2):
                pages = [page for i, page in enumerate(PAGES) if (i + number + epoch) % 3]
                h.push(job.hits, *(Hit(page, h.at("12:00"), number) for page in pages))
                expected |= {page: expected[page] + number for page in pages}
                h.epoch()
                assert pairs(h.take(job.totals)) == sorted((page, expected[page]) for page in pages)
            assert all(h.state(job.totals, Totals.total, page) == expected[page] for page in PAGES)
    job = Job()
    with job.harness(tmp_path, parallelism=4, limits=limits) as h:
        h.epoch(clock="13:00", watermark="13:00")
        fired = [(f"{page} {timer}", expected[page]) for page in PAGES for timer in ("quiet", "wall")]
        assert pairs(h.take(job.totals)) == sorted(fired)


def test_the_number_of_shards_may_change_between_a_crash_and_its_replay(tmp_path: Path) -> None:
    for point, published in (("outputs_staged", False), ("published", True)):
        store = tmp_path / point
        job = Job()
        with job.harness(store, parallelism=2, limits=FILES) as h:
            push_all(h, job)
            h.epoch()
            push_all(h, job, n=5)
            h.crash(at=point)
        job = Job()
        with job.harness(store, parallelism=3, limits=FILES) as h:
            if not published:
                push_all(h, job, n=5)
                h.epoch()
            assert {h.state(job.totals, Totals.total, page) for page in PAGES} == {6}


# --- names


def test_a_renamed_step_keeps_state_timers_and_counters(tmp_path: Path) -> None:
    job = Job()
    with job.harness(tmp_path) as h:
        push_all(h, job)
        h.epoch(watermark="12:05")
    job = Job(name="sums", was="totals")
    with job.harness(tmp_path, parallelism=3) as h:
        assert h.state(job.totals, Totals.total, "page-3") == 1
        h.push(job.hits, Hit("page-3", h.at("12:06")))
        h.epoch()
        assert pairs(h.take(job.totals)) == [("page-3", 2)]
        assert h.state(job.totals, Totals.hits, "page-3") == [1, 1]
        assert h.counters(job.totals) == {"seen": 13}
        h.epoch(watermark="12:11")
        assert len(h.take(job.totals)) == len(PAGES) - 1
    job = Job(name="sums", was="totals")
    with job.harness(tmp_path) as h:
        h.epoch(watermark="12:16")
        assert pairs(h.take(job.totals)) == [("page-3 quiet", 2)]
    job = Job(name="sums")
    with job.harness(tmp_path) as h:
        assert h.state(job.totals, Totals.total, "page-3") == 2


def test_a_renamed_step_keeps_its_time_from_the_first_epoch_on(tmp_path: Path) -> None:
    job = Job()
    with job.harness(tmp_path) as h:
        h.epoch(watermark="12:05")
    job = Job(name="sums", was="totals")
    with job.harness(tmp_path) as h:
        h.push(job.hits, Hit("page-3", h.at("12:04")))
        h.epoch()
        assert h.counters(job.totals) == {"seen": 1, "late": 1}


def test_a_renamed_step_whose_first_epoch_dies_is_renamed_again(tmp_path: Path) -> None:
    job = Job()
    with job.harness(tmp_path) as h:
        push_all(h, job)
        h.epoch()
    job = Job(name="sums", was="totals")
    with job.harness(tmp_path) as h:
        push_all(h, job)
        h.crash()
        h.crash(at="outputs_staged")
        h.epoch()
        assert pairs(h.take(job.totals)) == sorted((page, 2) for page in PAGES)


def test_a_step_under_a_new_name_without_was_is_refused_until_the_old_state_is_given_up(tmp_path: Path) -> None:
    job = Job()
    with job.harness(tmp_path) as h:
        push_all(h, job)
        h.epoch()
    job = Job(name="sums")
    with pytest.raises(UpgradeRefused, match=r'say \.named\("sums", was="totals"\); or drop it: --drop totals'):
        job.harness(tmp_path)
    with job.harness(tmp_path, drop=["totals"]) as h:
        push_all(h, job, n=3)
        h.epoch()
        assert set(pairs(h.take(job.totals))) == {(page, 3) for page in PAGES}


class Renamed(hr.Process[Hit, Total, str]):
    sum: hr.ValueState[int] = hr.state(was="total")
    all: hr.ListState[int] = hr.state(was="hits")
    counts: hr.MapState[int, int] = hr.state(was="by_n")
    silent: hr.Timer = hr.state(was="quiet")
    clock: hr.WallTimer = hr.state(was="wall")

    def on_event(self, event: Hit, ctx: hr.Context[str]) -> Iterator[Total]:
        self.sum.set(self.sum.get(0) + event.n)
        self.all.append(event.n)
        self.counts[event.n] = self.counts.get(event.n, 0) + 1
        yield Total(ctx.key, self.sum.get(0))

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Total]:
        yield Total(f"{ctx.key} {timer.name}", sum(self.all))


@pytest.mark.parametrize("limits", [None, FILES], ids=["state in manifests", "state in files"])
def test_renamed_states_and_timers_keep_what_they_held(tmp_path: Path, limits: EpochLimits | None) -> None:
    job = Job()
    with job.harness(tmp_path, limits=limits) as h:
        push_all(h, job)
        h.epoch()
    for _ in range(2):
        job = Job(Renamed(), name="totals")
        with job.harness(tmp_path, limits=limits, parallelism=3) as h:
            assert h.state(job.totals, Renamed.all, "page-5") is not None
            h.push(job.hits, Hit("page-5", h.at("12:00"), 4))
            h.epoch()
    with job.harness(tmp_path, limits=limits) as h:
        assert h.state(job.totals, Renamed.sum, "page-5") == 9
        assert h.state(job.totals, Renamed.all, "page-5") == [1, 4, 4]
        assert h.state(job.totals, Renamed.counts, "page-5") == {1: 1, 4: 2}
        h.epoch(clock="12:10", watermark="12:10")
        fired = [(f"{page} {timer}", 9 if page == "page-5" else 1) for page in PAGES for timer in ("silent", "clock")]
        assert pairs(h.take(job.totals)) == sorted(fired)


class RenamedAgain(hr.Process[Hit, Total, str]):
    amount: hr.ValueState[int] = hr.state(was="sum")

    def on_event(self, event: Hit, ctx: hr.Context[str]) -> Iterator[Total]:
        self.amount.set(self.amount.get(0) + event.n)
        yield Total(ctx.key, self.amount.get(0))


class RenamedForGood(hr.Process[Hit, Total, str]):
    sum: hr.ValueState[int]

    def on_event(self, event: Hit, ctx: hr.Context[str]) -> Iterator[Total]:
        self.sum.set(self.sum.get(0) + event.n)
        yield Total(ctx.key, self.sum.get(0))


@pytest.mark.parametrize("last", [RenamedAgain, RenamedForGood], ids=["renamed again", "was= left out"])
def test_a_state_that_was_renamed_keeps_what_no_epoch_touched_since(tmp_path: Path, last: Any) -> None:
    for function, pages in ((Totals, PAGES), (Renamed, PAGES[:1]), (last, PAGES)):
        job = Job(function(), name="totals")
        given_up = [f"totals.{name}" for name in ("all", "counts", "silent", "clock")] if function is last else []
        with job.harness(tmp_path, drop=given_up) as h:
            h.push(job.hits, *(Hit(page, h.at("12:00")) for page in pages))
            h.epoch()
            found = pairs(h.take(job.totals))
    assert found == sorted((page, 3 if page == PAGES[0] else 2) for page in PAGES)


# --- types


def test_a_stored_record_may_get_fields_with_defaults_and_lose_others(tmp_path: Path) -> None:
    def version(fields: dict[str, Any], told: str) -> Any:
        class Kept(hr.Record, kw_only=True):
            __annotations__ = {name: type(value) for name, value in fields.items()}
            locals().update(fields)

        class Newest(hr.Process[Hit, Total, str]):
            newest: hr.ValueState[Kept]
            all: hr.ListState[Kept]

            def on_event(self, event: Hit, ctx: hr.Context[str]) -> Iterator[Total]:
                held = self.newest.get()
                yield Total(repr(held), len(self.all))
                self.newest.set(Kept(n=event.n))
                self.all.append(Kept(n=event.n))

        return Newest

    seen = []
    for fields in ({"n": 0, "old": "x"}, {"n": 0, "new": 7, "list": "a"}, {"n": 0}):
        job = Job(version(fields, "")(), name="newest")
        with job.harness(tmp_path) as h:
            h.push(job.hits, Hit("a", h.at("12:00"), len(seen) + 1))
            h.epoch()
            seen += pairs(h.take(job.totals))
    assert [(text.partition("Kept")[2], n) for text, n in seen] == [
        ("", 0),
        ("(n=1, new=7, list='a')", 1),
        ("(n=2)", 2),
    ]


def test_a_row_that_reduce_keeps_may_get_a_field_with_a_default(tmp_path: Path) -> None:
    def job(wide: bool) -> tuple[hr.App, Any, Any, Any]:
        class Row(hr.Record):
            key: str
            n: int

        class WideRow(hr.Record):
            key: str
            n: int
            m: int = 10

        app = hr.App("rows")
        kind: Any = WideRow if wide else Row
        rows = app.read("rows", hr.source.items([]), kind)
        return app, kind, rows, rows.key_by("key").reduce(lambda a, b: a.replace(n=a.n + b.n)).named("sums")

    app, kind, rows, sums = job(wide=False)
    with Harness(app, store=tmp_path) as h:
        h.push(rows, kind("a", 1))
        h.epoch()
    app, kind, rows, sums = job(wide=True)
    with Harness(app, store=tmp_path) as h:
        assert h.state(sums, key="a") == kind("a", 1, 10)
        h.push(rows, kind("a", 2, 3))
        h.epoch()
        assert h.take(sums) == [kind("a", 3, 10)]


def test_aggregates_may_come_and_go(tmp_path: Path) -> None:
    def job(**aggs: hr.types.Agg[Any]) -> tuple[hr.App, Any, Any]:
        app = hr.App("aggs")
        hits = app.read("hits", hr.source.items([]), Hit)
        return app, hits, hits.key_by(Hit.page).aggregate(**aggs).named("aggs")

    given: list[dict[str, hr.types.Agg[Any]]] = [
        {"n": hr.count(), "total": hr.sum("n")},
        {"most": hr.max("n"), "total": hr.sum("n")},
        {"total": hr.sum("n"), "n": hr.count()},
    ]
    found = []
    for aggs in given:
        app, hits, step = job(**aggs)
        with Harness(app, store=tmp_path) as h:
            h.push(hits, Hit("a", hr.Timestamp(0), 5))
            h.epoch()
            found += [{name: getattr(row, name) for name in aggs} for row in h.take(step)]
    assert found == [{"n": 1, "total": 5}, {"most": 5, "total": 10}, {"total": 15, "n": 1}]


# --- steps, sources, outputs


def test_a_step_may_be_added_before_behind_and_beside_others(tmp_path: Path) -> None:
    job = Job()
    with job.harness(tmp_path) as h:
        push_all(h, job)
        h.epoch(watermark="12:05")

    app = hr.App("totals")
    hits = app.read("hits", hr.source.items([]), Hit, time=Hit.at)
    more = app.read("more", hr.source.items([]), Hit, time=Hit.at)
    newest = hits.key_by(Hit.page).latest().named("newest")
    totals = hits.union(more).where("n < 100").key_by(Hit.page).process(Totals())
    behind = totals.key_by(Total.n).aggregate(pages=hr.count()).named("behind")
    with Harness(app, start=START, store=tmp_path, parallelism=3) as h:
        h.push(hits, Hit("page-0", h.at("12:06")), Hit("page-1", h.at("12:06"), 100))
        h.push(more, Hit("page-0", h.at("12:06"), 5), Hit("page-2", h.at("12:06")))
        h.epoch()
        assert pairs(h.take(totals)) == [("page-0", 2), ("page-0", 7), ("page-2", 2)]
        assert sorted((row.n, row.pages) for row in h.take(behind)) == [(2, 2), (7, 1)]
        assert sorted(hit.n for hit in h.take(newest)) == [1, 100]

    job = Job()
    with job.harness(tmp_path, drop=["newest", "behind"]) as h:
        push_all(h, job)
        h.epoch()
        assert ("page-0", 8) in pairs(h.take(job.totals))


def test_an_output_may_be_added_and_removed(tmp_path: Path) -> None:
    def written() -> int:
        return sum(len(file.read_text().splitlines()) for file in (tmp_path / "out").rglob("part-*"))

    for outputs in (0, 1, 0, 1):
        job = Job()
        if outputs:
            job.totals.write(hr.sink.files(tmp_path / "out", format="json"))
        with job.harness(tmp_path / "store", sinks=True) as h:
            push_all(h, job)
            h.epoch()
    assert written() == 2 * len(PAGES)


def test_a_program_of_another_name_is_refused(tmp_path: Path) -> None:
    with Job().harness(tmp_path) as h:
        h.epoch()
    app = hr.App("others")
    app.read("hits", hr.source.items([]), Hit)
    with pytest.raises(Refused, match="another app"):
        Harness(app, store=tmp_path)
