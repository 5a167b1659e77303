"""Feedback loops: rows fed in one epoch come in the next, whatever dies in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import EndlessLoop, EpochFailed, ProgramError, Refused, UpgradeRefused
from headrace.model import crash
from headrace.model.order import EpochLimits
from headrace.state.manifest import read_manifest
from headrace.state.store import LocalStore
from headrace.testing import Harness

START = "2024-01-01T12:00"
FILES = EpochLimits(inline_run_bytes=0, inline_output_bytes=0)


class Job(hr.Record):
    name: str
    left: int
    at: hr.Timestamp = hr.Timestamp(0)
    rounds: int = 0


class Done(hr.Record):
    name: str
    rounds: int
    epoch: int


class Work(hr.Process[Job, Job, str]):
    seen: hr.ValueState[int]

    def on_event(self, event: Job, ctx: hr.Context[str]) -> Iterator[Job]:
        crash.reach("in_function", ctx.epoch)
        self.seen.set(self.seen.get(0) + 1)
        yield event.replace(left=event.left - 1, rounds=event.rounds + 1)


class Retries:
    """Jobs that need several rounds: through a keyed step, or through chains alone."""

    def __init__(self, store: Path | None = None, *, keyed: bool = True, **options: Any) -> None:
        self.app = hr.App("jobs")
        self.jobs = self.app.read("jobs", hr.source.items([]), Job, time=Job.at)
        self.again = self.app.loop("again", Job)
        both = self.jobs.union(self.again)
        self.worked: hr.Stream[Job]
        if keyed:
            self.worked = both.key_by(Job.name).process(Work())
        else:
            self.worked = both.map(lambda job: job.replace(left=job.left - 1, rounds=job.rounds + 1), output=Job)
        self.worked.where("left > 0").feed(self.again)
        self.done = self.worked.where("left <= 0")
        self.h = Harness(self.app, start=START, store=store, **options)

    def __enter__(self) -> Retries:
        return self

    def __exit__(self, *_: object) -> None:
        self.h.close()

    def epoch(self, *jobs: Job) -> list[str]:
        self.h.push(self.jobs, *jobs)
        self.h.epoch()
        return self.finished()

    def finished(self) -> list[str]:
        return sorted(f"{job.name} {job.rounds}" for job in self.h.take(self.done))


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_rows_come_back_in_the_next_epoch(keyed: bool, parallelism: int) -> None:
    with Retries(keyed=keyed, parallelism=parallelism) as job:
        assert job.epoch(Job("a", 1), Job("b", 2), Job("c", 3)) == ["a 1"]
        assert sorted(row.name for row in job.h.take(job.worked)) == ["a", "b", "c"]
        assert job.h.take(job.again) == []
        assert job.epoch(Job("d", 1)) == ["b 2", "d 1"]
        assert sorted(row.name for row in job.h.take(job.again)) == ["b", "c"]
        assert job.epoch() == ["c 3"]
        assert job.epoch() == []


@pytest.mark.parametrize("keyed", [True, False])
def test_drain_goes_on_until_the_loop_is_empty(keyed: bool) -> None:
    with Retries(keyed=keyed) as job:
        job.h.push(job.jobs, Job("a", 5), Job("b", 2))
        job.h.drain()
        assert job.finished() == ["a 5", "b 2"]
        with pytest.raises(Refused):
            job.h.epoch()


def test_rows_keep_their_event_times_and_never_hold_the_watermark() -> None:
    app = hr.App("times")
    jobs = app.read("jobs", hr.source.items([]), Job, time=Job.at)
    again = app.loop("again", Job)

    class Stamp(hr.Process[Job, Done, str]):
        due: hr.Timer

        def on_event(self, event: Job, ctx: hr.Context[str]) -> Iterator[Done]:
            self.due.set(event.at + hr.minutes(1))
            yield Done(event.name, int(ctx.timestamp - event.at), ctx.epoch)

        def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Done]:
            yield Done(f"{ctx.key} due", 0, ctx.epoch)

    jobs.feed(again)
    stamped = again.key_by(Job.name).process(Stamp())
    late = stamped.late
    with Harness(app, start=START) as h:
        h.push(jobs, Job("a", 1, h.at("12:00:00")), Job("b", 1, h.at("12:00:05")))
        h.epoch()
        h.push(jobs, Job("c", 1, h.at("12:02:00")))
        h.epoch()
        assert h.take(late) == [Job("a", 1, h.at("12:00:00"))], "time went on without it"
        assert h.take(stamped) == [Done("b", 0, 1), Done("b due", 0, 1)]


def test_a_loop_leads_through_several_levels() -> None:
    app = hr.App("levels")
    jobs = app.read("jobs", hr.source.items([]), Job)
    again = app.loop("again", Job)
    first = jobs.union(again).key_by(Job.name).process(Work())
    second = first.key_by(Job.left).process(Work2())
    second.where("left > 0").feed(again)
    done = second.where("left <= 0")
    with Harness(app, parallelism=3) as h:
        h.push(jobs, *(Job(f"j{i}", i % 7 + 1) for i in range(30)))
        h.drain()
        assert sorted((row.name, row.rounds) for row in h.take(done)) == sorted(
            (f"j{i}", 2 * (i % 7 + 1)) for i in range(30)
        )
        assert h.state(first, Work.seen, "j6") == 7


class Work2(hr.Process[Job, Job, int]):
    def on_event(self, event: Job, ctx: hr.Context[int]) -> Iterator[Job]:
        yield event.replace(rounds=event.rounds + 1)


def test_two_loops_do_not_mix() -> None:
    app = hr.App("two")
    jobs = app.read("jobs", hr.source.items([]), Job)
    odd, even = app.loop("odd", Job), app.loop("even", Job)
    moved = jobs.union(odd, even).map(lambda job: job.replace(left=job.left - 1), output=Job)
    moved.where("left > 0 AND left % 2 = 1").feed(odd)
    moved.where("left > 0 AND left % 2 = 0").feed(even)
    with Harness(app) as h:
        h.push(jobs, Job("a", 4), Job("b", 3))
        h.epoch()
        h.epoch()
        assert ([row.left for row in h.take(odd)], [row.left for row in h.take(even)]) == ([3], [2])
        h.drain()
        assert sorted(row.left for row in h.take(moved)) == [0, 0, 1, 1, 2, 2, 3]


BEFORE = ("offsets_written", "state_opening", "in_function", "outputs_staged", "reports_collected", "before_publish",
          "manifest_written", "delta_half_written")  # fmt: skip
BEHIND = ("manifest_answer_lost", "published", "released")


@pytest.mark.parametrize(
    ("point", "limits"),
    [*((point, FILES) for point in (*BEFORE, *BEHIND)), *((point, None) for point in ("outputs_staged", "published"))],
)
def test_a_crash_at_any_point_loses_and_doubles_nothing(tmp_path: Path, point: str, limits: EpochLimits | None) -> None:
    jobs = [Job(f"j{i}", i % 4 + 1) for i in range(12)]
    with Retries(tmp_path, limits=limits) as job:
        finished = job.epoch(*jobs[:6])
        for pushed in (jobs[6:], []):
            job.h.push(job.jobs, *pushed)
            before = job.h.published
            job.h.crash(point)
            if job.h.published == before:
                job.h.epoch()
            finished += job.finished()
        job.h.drain()
        finished += job.finished()
        assert sorted(finished) == sorted(f"{each.name} {each.left}" for each in jobs)
        assert {each.name: job.h.state(job.worked, Work.seen, each.name) for each in jobs} == {
            each.name: each.left for each in jobs
        }


def test_a_crash_at_the_end_of_time_is_replayed(tmp_path: Path) -> None:
    with Retries(tmp_path) as job:
        job.h.push(job.jobs, Job("a", 1))
        job.h.crash("final_published")
        assert job.finished() == ["a 1"]


@pytest.mark.parametrize("limits", [None, FILES])
def test_what_is_in_a_loop_finds_its_way_on_any_number_of_shards(tmp_path: Path, limits: EpochLimits | None) -> None:
    finished: list[str] = []
    for number, parallelism in enumerate((1, 3, 2, 5)):
        with Retries(tmp_path, parallelism=parallelism, limits=limits) as job:
            finished += job.epoch(*(Job(f"{number}-{i}", 3 + i % 3) for i in range(8)))
            job.h.maintain()
    with Retries(tmp_path, parallelism=2, limits=limits) as job:
        job.h.drain()
        finished += job.finished()
    assert sorted(finished) == sorted(f"{number}-{i} {3 + i % 3}" for number in range(4) for i in range(8))


def test_a_sweep_spares_what_waits_in_a_loop(tmp_path: Path) -> None:
    with Retries(tmp_path, limits=FILES) as job:
        job.epoch(*(Job(f"j{i}", 12) for i in range(8)))
        for _ in range(10):
            job.epoch()
            job.h.maintain()
        manifest = read_manifest(LocalStore(tmp_path), 0, job.h.published)
        assert sum(part.rows for part in manifest.loops["again"]) == 8
        job.h.restart()
        assert len(job.epoch()) == 8


def test_a_program_without_a_loop_in_which_rows_wait_is_refused_until_they_are_given_up(tmp_path: Path) -> None:
    with Retries(tmp_path, limits=FILES) as job:
        job.epoch(Job("a", 3))
    app = hr.App("jobs")
    jobs = app.read("jobs", hr.source.items([]), Job, time=Job.at)
    jobs.key_by(Job.name).process(Work())
    with pytest.raises(UpgradeRefused, match="rows wait in the loop 'again'"):
        Harness(app, start=START, store=tmp_path, limits=FILES)
    with Harness(app, start=START, store=tmp_path, limits=FILES, drop=["again"]) as h:
        for i in range(4):
            h.push(jobs, Job(f"other-{i}", 1))
            h.epoch()
            h.maintain()
    with Retries(tmp_path, limits=FILES) as job:
        assert [job.epoch() for _ in range(3)] == [[], [], []]


def test_a_new_field_of_a_loop_needs_a_default(tmp_path: Path) -> None:
    def app_of(kind: Any) -> tuple[hr.App, hr.Stream[Any], hr.Stream[Any]]:
        app = hr.App("kinds")
        source = app.read("source", hr.source.items([]), kind)
        loop = app.loop("loop", kind)
        source.feed(loop)
        return app, source, loop

    class Old(hr.Record):
        name: str

    class Defaulted(hr.Record):
        name: str
        n: int = 7

    class Required(hr.Record):
        name: str
        n: int

    app, source, _ = app_of(Old)
    with Harness(app, store=tmp_path) as h:
        h.push(source, Old("a"))
        h.epoch()
    app, _, _ = app_of(Required)
    with pytest.raises(UpgradeRefused, match="field `n` added without a default"):
        Harness(app, store=tmp_path)
    app, _, loop = app_of(Defaulted)
    with Harness(app, store=tmp_path) as h:
        h.epoch()
        assert h.take(loop) == [Defaulted("a", 7)]


class Last(hr.Process[Job, Job, str]):
    """Gives rows only when time ends, and again each time it does."""

    due: hr.Timer
    job: hr.ValueState[Job]

    def on_event(self, event: Job, ctx: hr.Context[str]) -> None:
        self.job.set(event)
        self.due.set(hr.Timestamp(event.at + 10**15))

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Job]:
        if (job := self.job.get()) is not None:
            yield job.replace(left=job.left - 1, rounds=job.rounds + 1)


def last_app(*, endless: bool = False) -> tuple[hr.App, hr.Stream[Job], hr.Stream[Job]]:
    app = hr.App("last")
    jobs = app.read("jobs", hr.source.items([]), Job, time=Job.at)
    again = app.loop("again", Job)
    worked = jobs.union(again).key_by(Job.name).process(Last())
    worked.where("left > -100000" if endless else "left > 0").feed(again)
    return app, jobs, worked.where("left <= 0")


@pytest.mark.parametrize("crashing", [False, True])
def test_what_fires_at_the_end_of_time_may_go_round_once_more(tmp_path: Path, crashing: bool) -> None:
    app, jobs, done = last_app()
    with Harness(app, start=START, store=tmp_path) as h:
        h.push(jobs, Job("a", 3, h.at("12:00")), Job("b", 1, h.at("12:00")))
        h.epoch(final=True)
        manifest = read_manifest(LocalStore(tmp_path), 0, 0)
        assert (manifest.final, manifest.ending) == (False, True)
        if crashing:
            h.crash("before_publish")
            h.restart()
        h.drain()
        assert sorted((row.name, row.rounds) for row in h.take(done)) == [("a", 3), ("b", 1)]
        manifest = read_manifest(LocalStore(tmp_path), 0, h.published)
        assert (manifest.final, manifest.ending) == (True, False)


def test_rows_that_go_round_for_ever_are_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.testing.harness.ENDLESS_EPOCHS", 20)
    app, jobs, _ = last_app(endless=True)
    with Harness(app, start=START) as h:
        h.push(jobs, Job("a", 1, h.at("12:00")))
        with pytest.raises(EndlessLoop, match="still in loops") as caught:
            h.drain()
        assert "1 row in 'again'" in caught.value.found


def test_an_epoch_that_did_not_read_a_loop_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with Retries() as job:
        job.epoch(Job("a", 3))
        with monkeypatch.context() as patched:
            patched.setattr("headrace.runtime.tasks_here.count_tasks", lambda *_: 0)
            with pytest.raises(EpochFailed, match="read 0 rows of the loop 'again', which has 1"):
                job.h.epoch()
        assert job.epoch() == []
        assert job.epoch() == ["a 3"]


# -- mistakes found while building -------------------------------------------------------------------------------


def parts() -> tuple[hr.App, hr.Stream[Job], hr.types.Loop[Job]]:
    app = hr.App("jobs")
    return app, app.read("jobs", hr.source.items([]), Job), app.loop("again", Job)


def test_a_loop_that_nobody_feeds_is_refused() -> None:
    app, _, again = parts()
    again.show()
    with pytest.raises(ProgramError, match="nobody feeds the loop 'again'"):
        app.explain()


def test_a_loop_is_fed_once() -> None:
    _, jobs, again = parts()
    jobs.feed(again)
    with pytest.raises(ProgramError, match="fed twice") as caught:
        jobs.feed(again)
    assert "union" in caught.value.next_move


def test_a_loop_takes_rows_of_its_type() -> None:
    _, jobs, again = parts()
    other: Any = jobs.map(lambda job: Done(job.name, 0, 0), output=Done)
    with pytest.raises(ProgramError, match="takes rows of another type"):
        other.feed(again)


def test_only_loops_are_fed() -> None:
    _, jobs, _ = parts()
    stream: Any = jobs
    with pytest.raises(ProgramError, match="feed takes a loop"):
        stream.feed(jobs)


def test_a_loop_of_another_app_is_refused() -> None:
    _, jobs, _ = parts()
    _, _, other = parts()
    with pytest.raises(ProgramError, match="two apps"):
        jobs.feed(other)


def test_a_loop_has_a_name_of_its_own() -> None:
    app, _, _ = parts()
    with pytest.raises(ProgramError, match="two steps are named 'jobs'"):
        app.loop("jobs", Job)


def test_feeding_a_loop_that_nobody_reads_is_a_warning() -> None:
    app, jobs, again = parts()
    jobs.feed(again)
    jobs.show()
    with pytest.warns(hr.HeadraceWarning, match="nobody reads"):
        app.explain()


def test_explain_shows_the_way_back() -> None:
    app, jobs, again = parts()
    moved = jobs.union(again).map(lambda job: job, output=Job)
    moved.where("left > 0").feed(again)
    moved.show()
    assert "feed again, for the next epoch" in app.explain()
    assert "next epoch" in app.explain("mermaid")
