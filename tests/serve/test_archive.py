"""Live and archived: one question for a key and a range of time, from state and archive together, at one epoch."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.checkpoint.recover import start_over
from headrace.connectors.files.roll_policy import RollPolicy
from headrace.errors import SinkFailed, StoreError
from headrace.model.keys import encode_key
from headrace.model.order import EpochLimits
from headrace.model.window import Window
from headrace.read.follow import Follower, open_replica
from headrace.read.ranges import EVERYTHING, Range, between
from headrace.read.snapshot import Snapshot
from headrace.read.store import Store
from headrace.state.store import open_store
from headrace.testing import Harness
from tests.serve.archived import HOUR, START, Hourly, Job, asked, newest, table_of
from tests.serve.tweets import View


@pytest.mark.parametrize("keep", [None, "2h"])
def test_windows_are_told_once_whether_open_kept_or_archived(tmp_path: Path, keep: str | None) -> None:
    job = Job(tmp_path, keep=keep)
    with job.h:
        job.hours(*range(6))
        snapshot = newest(job.store)
        held = [(int(window.start) - START) // HOUR for window in table_of(snapshot).windows(encode_key("a"))]
        assert held == ([5] if keep is None else [3, 4, 5])
        assert asked(snapshot, "a") == [(hour, hour) for hour in range(6)]
        assert asked(snapshot, "a", between(START + HOUR, START + 3 * HOUR)) == [(1, 1), (2, 2)]
        assert asked(snapshot, "nobody") == []


def test_an_archived_row_is_told_as_one_in_state(tmp_path: Path) -> None:
    job = Job(tmp_path, keep="10h")
    with job.h:
        job.hours(*range(4))
        table = table_of(newest(job.store))
        held = table.windows(encode_key("a"))
        archived = table.archived
        assert archived is not None
        (bucket,) = archived.buckets(START, START + 24 * HOUR)
        found = archived.windows(encode_key("a"), bucket)
        assert found == {window: row for window, row in held.items() if window in found} and len(found) == 3
        assert [list(row) for row in found.values()] == [list(row) for row in held.values()][:3]


def test_an_archive_that_was_removed_and_made_anew_answers_with_its_new_rows(tmp_path: Path) -> None:
    for n in (1, 2):
        job = Job(tmp_path)
        with job.h:
            for hour in range(4):
                job.push(("a", hour + 0.1, n), watermark=hour + 0.5)
            assert asked(newest(job.store), "a") == [(hour, n) for hour in range(4)]
        shutil.rmtree(job.archive)
        shutil.rmtree(job.store)


class Truth:
    """What every question must be answered with: every window that ever took a row, at any epoch."""

    def __init__(self) -> None:
        self.sums: dict[str, dict[int, int]] = {}
        self.watermark = -1.0
        self.by_epoch: dict[int, dict[str, dict[int, int]]] = {}

    def push(self, epoch: int, rows: list[tuple[str, float, int]], watermark: float) -> None:
        for tweet, hour, n in rows:
            if int(hour) + 1 > self.watermark:
                mine = self.sums.setdefault(tweet, {})
                mine[int(hour)] = mine.get(int(hour), 0) + n
        self.watermark = max(self.watermark, watermark)
        self.by_epoch[epoch] = {tweet: dict(sums) for tweet, sums in self.sums.items()}

    def at(self, epoch: int, tweet: str) -> list[tuple[int, int]]:
        return sorted(self.by_epoch[epoch].get(tweet, {}).items())


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_any_question_at_any_moment_is_answered_with_the_truth_of_its_epoch(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr("headrace.connectors.files.archive.POLICY", RollPolicy(parts=dice.choice([1, 2, 5]), epochs=7))
    # Parts of an epoch lie in its manifest, or in files that are swept when they have been released.
    limits = EpochLimits(inline_output_bytes=dice.choice([0, 32 * 1024]))
    job, truth = Job(tmp_path, keep=dice.choice([None, "3h"]), limits=limits), Truth()
    snapshots: list[Snapshot] = []
    follower: Follower | None = None
    with job.h as h:
        hour = 0.0
        for epoch in range(30):
            hour += dice.choice([0.1, 0.4, 1.0, 3.0, 9.0])
            tweets = [dice.choice("abcdefgh") for _ in range(dice.randrange(6))]
            rows = [(tweet, max(0.0, hour + dice.uniform(-3, 2)), dice.randrange(1, 9)) for tweet in tweets]
            views = [View(tweet, hr.Timestamp(START + round(at * HOUR)), n) for tweet, at, n in rows]
            rows = [(view.tweet, (int(view.at) - START) / HOUR, view.n) for view in views]
            mark = START + round(hour * HOUR)
            h.push(job.views, *views)
            if dice.random() < 0.3:
                point = dice.choice(["outputs_staged", "manifest_answer_lost", "published", "released"])
                h.crash(point, watermark=mark)
                if h.published < epoch:
                    h.epoch(watermark=mark)
            else:
                h.epoch(watermark=mark)
            truth.push(epoch, rows, (mark - START) / HOUR)
            if dice.random() < 0.3:
                h.maintain()
            follower = follower or Follower(Store(job.store))
            snapshot = follower.look()
            assert snapshot is not None and snapshot.epoch == epoch
            snapshots.append(snapshot)
            for each in (snapshot, dice.choice(snapshots)):
                tweet = dice.choice("abcdefgh")
                assert asked(each, tweet) == truth.at(each.epoch, tweet), f"seed {seed}, epoch {each.epoch} at {epoch}"
        for each in snapshots:
            # Files that appeared since, and staged ones that were swept: neither changes what an epoch knew.
            again = Snapshot(each.files, each.app, each.state, each)
            assert asked(again, "a") == truth.at(each.epoch, "a"), f"seed {seed}, epoch {each.epoch} at the end"


def test_questions_go_on_while_files_are_put_together_and_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.connectors.files.archive.POLICY", RollPolicy(parts=3))
    job = Job(tmp_path)
    wrong: list[Any] = []
    stop = threading.Event()

    def asking() -> None:
        follower = Follower(Store(job.store))
        while not stop.is_set():
            snapshot = follower.look()
            assert snapshot is not None
            found = asked(snapshot, "a")
            if found != [(hour, hour) for hour in range(snapshot.epoch + 1)]:
                wrong.append((snapshot.epoch, found))

    with job.h:
        job.hours(0)
        thread = threading.Thread(target=asking)
        thread.start()
        try:
            job.hours(*range(1, 60))
        finally:
            stop.set()
            thread.join()
    assert wrong == []
    assert 0 < len(list(Path(job.archive).rglob("*.parquet"))) < 30


def test_an_epoch_that_is_published_and_not_released_has_its_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, limits=EpochLimits(inline_output_bytes=0))
    with job.h:
        job.hours(0, 1)
        sink = next(output.sink for output in job.h._program.outputs if output.sink.kind == "archive")

        def refuse(*_: Any) -> None:
            raise SinkFailed("the disk is full")

        with monkeypatch.context() as full:
            full.setattr(sink, "release", refuse)
            with pytest.raises(SinkFailed):
                job.push(("a", 2.1, 2), watermark=2.5)
        snapshot = newest(job.store)
        assert snapshot.epoch == 2 and asked(snapshot, "a") == [(0, 0), (1, 1), (2, 2)]
        job.hours(3, 4)
        job.h.maintain()
        # By now it has been released, and swept from the store: the same rows are found where they went.
        archived = table_of(snapshot).archived
        assert archived is not None
        archived._folder._opened.clear()
        assert asked(snapshot, "a") == [(0, 0), (1, 1), (2, 2)]


def test_a_replica_reads_the_archive_that_it_can_reach(tmp_path: Path) -> None:
    job = Job(tmp_path, limits=EpochLimits(inline_output_bytes=0))
    with job.h:
        job.hours(0, 1)
        follower = Follower(open_replica(job.store, tmp_path / "cache"))
        early = follower.look()
        job.hours(2, 3)
        job.h.maintain()
        # The staged parts of the early epoch are swept; they have been released.
        assert asked(early, "a") == [(0, 0), (1, 1)]
        assert asked(follower.look(), "a") == [(hour, hour) for hour in range(4)]


def test_an_epoch_never_sees_what_a_later_one_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.connectors.files.archive.POLICY", RollPolicy(parts=3))
    job = Job(tmp_path)
    snapshots = []
    with job.h:
        for hour in range(8):
            job.hours(hour)
            snapshots.append(newest(job.store))
        assert len(list(Path(job.archive).rglob("*.parquet"))) == 2, "files with rows of several epochs"
        for each in snapshots:
            again = Snapshot(each.files, each.app, each.state, each)
            assert asked(again, "a") == [(hour, hour) for hour in range(each.epoch + 1)]


def test_a_job_that_was_started_over_has_closed_nothing_yet(tmp_path: Path) -> None:
    first = Job(tmp_path)
    with first.h:
        first.hours(0, 1, 2)
    start_over(open_store(tmp_path / "state"), Store(tmp_path / "state").app)
    again = Job(tmp_path)
    with again.h:
        again.push(("a", 0.1, 70), watermark=0.5)
        assert asked(newest(again.store), "a") == [(0, 70)]
        again.push(("a", 1.1, 80), watermark=1.5)
        assert asked(newest(again.store), "a") == [(0, 70), (1, 80)]


@pytest.mark.parametrize("way", ["repeat", "hold"])
def test_behind_a_rewind_windows_closed_before_it_are_found_and_abandoned_ones_are_not(
    way: str, tmp_path: Path
) -> None:
    job = Job(tmp_path)
    with job.h:
        job.hours(0, 1, 2)
        job.h.savepoint("before")
        job.hours(3, 4)
        old = newest(job.store)
        assert asked(old, "a") == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]
        job.h.rewind("before", **{way: "all"})
        assert asked(newest(job.store), "a") == [(0, 0), (1, 1), (2, 2)]
        job.h.epoch(watermark=START + round(4.5 * HOUR))
        job.push(("a", 5.1, 50), watermark=5.5)
        everything = [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 50)]
        assert asked(newest(job.store), "a") == everything
        job.h.restart()
        job.h.maintain()
        assert asked(newest(job.store), "a") == everything


def test_the_end_of_an_abandoned_timeline_says_where_its_archived_windows_were_taken_back(tmp_path: Path) -> None:
    job = Job(tmp_path)
    with job.h:
        job.hours(0, 1, 2)
        job.h.savepoint("before")
        job.hours(3, 4)
        job.h.rewind("before", hold="all")
        job.h.epoch(watermark=START + round(4.5 * HOUR))
        old = hr.Store(f"{job.store}@end-of-timeline-0").state("hourly", Hourly)
        assert [row.n for row in old.between("a").values()] == [0, 1, 2, 3, 4]
        job.h.rewind("before", repeat="all", again=True)
        job.h.epoch(watermark=START + round(4.5 * HOUR))
        for end in (0, 1):
            old = hr.Store(f"{job.store}@end-of-timeline-{end}").state("hourly", Hourly)
            with pytest.raises(StoreError, match="taken out of the archive when the job went back"):
                old.between("a")
        before = hr.Store(f"{job.store}@before").state("hourly", Hourly)
        assert [row.n for row in before.between("a").values()] == [0, 1, 2]


def test_when_every_window_is_closed_the_archive_answers_alone(tmp_path: Path) -> None:
    job = Job(tmp_path)
    with job.h:
        job.hours(0, 1, 2)
        job.h.drain()
        job.h.maintain()
    assert asked(newest(job.store), "a") == [(0, 0), (1, 1), (2, 2)]
    view = hr.Store(job.store).state("hourly", Hourly)
    assert [row.n for row in view.between("a").values()] == [0, 1, 2]


# --- windows and keys of any kind


@contextmanager
def windows_of(path: Path, made: Any) -> Iterator[tuple[Harness, Any]]:
    """A job of one windowed step named ``step``, over rows of views."""
    app = hr.App("tweets")
    views = app.read("views", hr.source.items([]), View, time=View.at)
    made(views).named("step").queryable(archive=path / "archive")
    with Harness(app, start="2024-01-01", store=path / "state", sinks=True) as h:
        yield h, views


@pytest.mark.parametrize("fire", [None, hr.every(rows=100)], ids=["in columns", "one by one"])
def test_sessions_go_to_the_archive_too_however_they_are_kept(tmp_path: Path, fire: Any) -> None:
    def sessions(views: hr.Stream[View]) -> Any:
        visits = views.key_by(View.tweet).window(hr.session("10m"), fire=fire)
        return visits.aggregate(n=hr.count(), all=hr.collect("at"))

    with windows_of(tmp_path, sessions) as (h, views):
        times = [h.at(text) for text in ("10:00", "10:05", "11:00")]
        h.push(views, *(View("a", at) for at in times))
        h.epoch(watermark="11:01")
        page = table_of(newest(tmp_path / "state"), "step").range(encode_key("a"), between(None, None), 10)
        assert [row["n"] for _, row in page.windows] == [2, 1]
        assert [row["all"] for _, row in page.windows] == [times[:2], times[2:]]
        assert page.windows[0][0] == Window(times[0], times[1] + hr.minutes(10))


def test_sliding_windows_come_by_their_ends_over_days(tmp_path: Path) -> None:
    def sliding(views: hr.Stream[View]) -> Any:
        return views.key_by(View.tweet).window(hr.sliding("12h", every="6h")).aggregate(n=hr.count())

    with windows_of(tmp_path, sliding) as (h, views):
        h.push(views, *(View("a", hr.Timestamp(START + hour * HOUR)) for hour in range(0, 72, 3)))
        h.epoch(watermark=START + 70 * HOUR)
        table = table_of(newest(tmp_path / "state"), "step")
        page = table.range(encode_key("a"), between(None, None), EVERYTHING)
        ends = [(int(window.end) - START) // HOUR for window, _ in page.windows]
        assert ends == list(range(6, 79, 6)) and [row["n"] for _, row in page.windows] == [2, *[4] * 11, 2]
        backwards = table.range(encode_key("a"), Range(reverse=True), EVERYTHING)
        assert backwards.windows == page.windows[::-1]


@pytest.mark.parametrize(
    ("by", "key", "text"), [(("n",), 7, "7"), (("tweet", "n"), ("a", 7), '["a",7]'), ((), None, "null")]
)
def test_keys_of_any_kind_are_found_when_nothing_is_left_in_state(
    tmp_path: Path, by: tuple[str, ...], key: Any, text: str
) -> None:
    def by_key(views: hr.Stream[View]) -> Any:
        keyed = views.key_by(*by) if by else views
        return keyed.window(hr.tumbling("1h")).aggregate(views=hr.count())

    with windows_of(tmp_path, by_key) as (h, views):
        h.push(views, View("a", h.at("10:00"), 7), View("a", h.at("10:01"), 7))
        h.epoch(watermark="10:30")
        h.drain()
        table = table_of(newest(tmp_path / "state"), "step")
        page = table.range(table.key(text), between(None, None), 10)
        assert [row["views"] for _, row in page.windows] == [2]
        view: Any = hr.Store(tmp_path / "state").state("step")
        assert len(view.between(key)) == 1
