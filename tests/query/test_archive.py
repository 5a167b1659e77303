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
import redis

import headrace as hr
from headrace.checkpoint.recover import start_over
from headrace.errors import ProgramError, SinkFailed, StoreError
from headrace.model.keys import encode_key
from headrace.model.order import Limits
from headrace.model.window import Window
from headrace.query.answers_by_kind import WindowTable
from headrace.query.archive_folder import folder_of
from headrace.query.follow import Follower, open_replica
from headrace.query.ranges import EVERYTHING, Range, between
from headrace.query.snapshot import Snapshot
from headrace.query.store import Store
from headrace.sinks.roll_policy import RollPolicy
from headrace.state.store import open_store
from headrace.testing import Harness
from tests.query.served import Served
from tests.query.tweets import fetch

EVER = between(None, None)
HOUR = 3_600_000_000
START = 1_704_067_200_000_000
"""2024-01-01T00:00:00Z"""


class View(hr.Record):
    tweet: str
    at: hr.Timestamp
    n: int = 1


class Hourly(hr.Record):
    tweet: str
    window_start: hr.Timestamp
    window_end: hr.Timestamp
    n: int


class Job:
    """Hourly sums of a job whose closed windows are archived; one epoch per `push`."""

    def __init__(
        self, path: Path, *, keep: str | None = None, archive: str | None = None, limits: Limits | None = None
    ) -> None:
        self.path = path
        self.store = path / "state"
        self.archive = archive or str(path / "archive" / "hourly")
        app = hr.App("tweets")
        self.views = app.read("views", hr.source.items([]), View, time=View.at)
        hourly = self.views.key_by(View.tweet).window(hr.tumbling("1h")).aggregate(Hourly, n=hr.sum("n"))
        hourly.named("hourly").queryable(keep=keep, archive=self.archive)
        self.h = Harness(app, start="2024-01-01", store=self.store, sinks=True, limits=limits)

    def push(self, *rows: tuple[str, float, int], watermark: float) -> None:
        """(tweet, hour, n) …; hours count from the start."""
        self.h.push(self.views, *(View(tweet, hr.Timestamp(START + round(hour * HOUR)), n) for tweet, hour, n in rows))
        self.h.epoch(watermark=START + round(watermark * HOUR))

    def hours(self, *hours: int) -> None:
        """One view of tweet "a" in each hour, as many as the hour; every hour closes the one before."""
        for hour in hours:
            self.push(("a", hour + 0.1, hour), watermark=hour + 0.5)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    with made.h:
        yield made


def table_of(snapshot: Snapshot | None, address: str = "hourly") -> WindowTable:
    assert snapshot is not None
    table = snapshot.table(address)
    assert isinstance(table, WindowTable)
    return table


def asked(snapshot: Snapshot | None, key: Any, wanted: Range = EVER) -> list[tuple[int, int]]:
    """Hour and sum of each window."""
    page = table_of(snapshot).range(encode_key(key), wanted, EVERYTHING)
    return [((int(window.start) - START) // HOUR, row["n"]) for window, row in page.windows]


def newest(path: Path) -> Snapshot:
    snapshot = Follower(Store(path)).look()
    assert snapshot is not None
    return snapshot


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
    monkeypatch.setattr("headrace.sinks.archive.POLICY", RollPolicy(parts=dice.choice([1, 2, 5]), epochs=7))
    # Parts of an epoch lie in its manifest, or in files that are swept when they have been released.
    limits = Limits(inline_output_bytes=dice.choice([0, 32 * 1024]))
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
    monkeypatch.setattr("headrace.sinks.archive.POLICY", RollPolicy(parts=3))
    monkeypatch.setattr("os.fsync", lambda handle: None)
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
    job = Job(tmp_path, limits=Limits(inline_output_bytes=0))
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
    job = Job(tmp_path, limits=Limits(inline_output_bytes=0))
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
    monkeypatch.setattr("headrace.sinks.archive.POLICY", RollPolicy(parts=3))
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
    start_over(open_store(tmp_path / "state"))
    again = Job(tmp_path)
    with again.h:
        again.push(("a", 0.1, 70), watermark=0.5)
        assert asked(newest(again.store), "a") == [(0, 70)]
        again.push(("a", 1.1, 80), watermark=1.5)
        assert asked(newest(again.store), "a") == [(0, 70), (1, 80)]


def test_when_every_window_is_closed_the_archive_answers_alone(job: Job) -> None:
    job.hours(0, 1, 2)
    job.h.drain()
    job.h.maintain()
    assert asked(newest(job.store), "a") == [(0, 0), (1, 1), (2, 2)]
    view = hr.Store(job.store).state("hourly", Hourly)
    assert [row.n for row in view.between("a").values()] == [0, 1, 2]


@contextmanager
def windows_of(path: Path, made: Any) -> Iterator[tuple[Harness, Any]]:
    """A job of one windowed step named ``step``, over rows of views."""
    app = hr.App("tweets")
    views = app.read("views", hr.source.items([]), View, time=View.at)
    made(views).named("step").queryable(archive=path / "archive")
    with Harness(app, start="2024-01-01", store=path / "state", sinks=True) as h:
        yield h, views


def test_windows_that_are_kept_one_by_one_go_to_the_archive_too(tmp_path: Path) -> None:
    def sessions(views: hr.Stream[View]) -> Any:
        return views.key_by(View.tweet).window(hr.session("10m")).aggregate(n=hr.count(), all=hr.collect("at"))

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


# --- over the network


def test_redis_reads_windows_as_a_stream(job: Job) -> None:
    job.hours(*range(6))
    with Served(job.store) as server:
        server.wait_for(5)
        cache: Any = redis.Redis(port=server.port)
        told = cache.xrange("hourly:a")
        ids = [f"{(START + (hour + 1) * HOUR) // 1000}-0".encode() for hour in range(6)]
        assert [entry for entry, _ in told] == ids
        assert told[2][1][b"n"] == b"2" and told[2][1][b"tweet"] == b'"a"'
        assert cache.xrevrange("hourly:a") == told[::-1]
        assert cache.xrange("hourly:a", ids[1], ids[3]) == told[1:4]
        assert cache.xrange("hourly:a", b"(" + ids[1], b"(" + ids[3]) == told[2:3]
        assert cache.xrange("hourly:a", count=2) == told[:2]
        assert cache.xrevrange("hourly:a", b"(" + ids[4], count=2) == [told[3], told[2]]
        assert cache.xrange("hourly:nobody") == []
        for words in (("XRANGE", "hourly:a", "x", "+"), ("XRANGE", "hourly:a", "-", "+", "COUNT")):
            with pytest.raises(redis.ResponseError):
                cache.execute_command(*words)
        packed: Any = redis.Redis(port=server.port, db=1)
        assert packed.xrange("hourly:a", count=1)[0][1][b"n"] == b"\x00"


def test_http_reads_a_range_page_by_page(job: Job) -> None:
    job.hours(*range(6))
    with Served(job.store) as server:
        server.wait_for(5)
        path, found, after = "/v1/jobs/tweets/state/hourly/a/windows", [], ""
        while after is not None:
            query = f"?from=2024-01-01T01:00:00Z&to={START + 6 * HOUR}&limit=2" + (f"&after={after}" if after else "")
            page = fetch(server.url, path + query).json
            assert page["epoch"] == 5 and len(page["windows"]) <= 2
            found += [(window["start"], window["value"]["n"]) for window in page["windows"]]
            after = page["next"]
        assert found == [(f"2024-01-01T0{hour}:00:00Z", hour) for hour in range(1, 6)]
        newest_first = fetch(server.url, f"{path}?order=desc&limit=1").json
        assert newest_first["windows"][0]["value"]["n"] == 5 and newest_first["next"]
        assert fetch(server.url, f"{path}?from=2030-01-01").json["windows"] == []
        for bad in ("from=yesterday", "order=up", "limit=0", "after=7", "since=1"):
            assert fetch(server.url, f"{path}?{bad}").status == 400


@pytest.mark.parametrize("protocol", ["redis", "http"])
def test_the_client_gives_typed_rows_of_state_and_archive(job: Job, protocol: str) -> None:
    job.hours(*range(5))
    with Served(job.store) as server:
        server.wait_for(4)
        with hr.Client(server.redis_url if protocol == "redis" else server.url) as client:
            hourly = client.state("hourly", Hourly)
            found = hourly.between("a", "2024-01-01T01:00", hr.Timestamp(START + 5 * HOUR))
            assert list(found.values()) == [
                Hourly("a", hr.Timestamp(START + hour * HOUR), hr.Timestamp(START + (hour + 1) * HOUR), hour)
                for hour in range(1, 5)
            ]
            assert [window.start for window in found] == [row.window_start for row in found.values()]
            assert hourly.between("a", "2024-01-02") == {} and hourly.epoch == 4


def test_a_client_fetches_more_windows_than_one_answer_holds(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.hours(*range(8))
    monkeypatch.setattr("headrace.query.client.requests.AT_ONCE", 3)
    monkeypatch.setattr("headrace.query.ranges.PAGE_BYTES", 100)
    with Served(job.store) as server:
        server.wait_for(7)
        for url in (server.redis_url, server.url):
            with hr.Client(url) as client:
                assert [row["n"] for row in client.state("hourly").between("a").values()] == list(range(8))


# --- what must not be told in part


@pytest.mark.parametrize("gone", ["folder", "marker", "other"])
def test_an_archive_that_cannot_be_read_is_an_error_and_never_a_part(tmp_path: Path, gone: str) -> None:
    job = Job(tmp_path)
    job.hours(*range(3))
    # What a server on another machine would find under the same path; the job ends in good order first.
    job.h.close()
    archive = Path(job.archive)
    if gone == "folder":
        shutil.rmtree(archive)
    elif gone == "marker":
        (archive / ".headrace" / "archive.json").unlink()
    else:
        (archive / ".headrace" / "archive.json").write_text('{"job": "another"}')
    folder_of.cache_clear()
    with pytest.raises(StoreError, match="archive"):
        asked(newest(job.store), "a")
    with Served(job.store) as server:
        server.wait_for(2)
        cache: Any = redis.Redis(port=server.port)
        with pytest.raises(redis.ResponseError, match="NOARCHIVE"):
            cache.xrange("hourly:a")
        # What is still open is in state and nowhere else.
        assert len(cache.xrange("hourly:a", (START + 3 * HOUR) // 1000, "+")) == 1
        assert cache.get("hourly:a") is not None
        answer = fetch(server.url, "/v1/jobs/tweets/state/hourly/a/windows?from=2024-01-01")
        assert answer.status == 502 and "archive" in answer.json["error"]["what"]
        for url in (server.redis_url, server.url):
            with hr.Client(url) as client, pytest.raises(StoreError, match="archive"):
                client.state("hourly").between("a")


def test_a_folder_is_the_archive_of_one_store_only(tmp_path: Path) -> None:
    folder = str(tmp_path / "shared")
    one = Job(tmp_path / "one", archive=folder)
    with one.h:
        one.hours(0, 1)
    two = Job(tmp_path / "two", archive=folder)
    with two.h, pytest.raises(SinkFailed, match="archive of another store"):
        two.hours(0, 1)


def test_an_archive_on_an_object_store_is_read_like_a_folder(bucket: str, tmp_path: Path) -> None:
    job = Job(tmp_path, archive=f"s3://{bucket}/archive/hourly")
    with job.h:
        job.hours(*range(5))
        assert asked(newest(job.store), "a") == [(hour, hour) for hour in range(5)]


class Daily(hr.Record):
    tweet: str
    n: int


class Smallest(hr.WindowProcess[View, Daily, str]):
    def on_window(self, rows: Any, ctx: hr.WindowContext[str]) -> Iterator[Daily]:
        yield Daily(ctx.key, min(row.n for row in rows))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda windows: windows.aggregate(Daily, n=hr.sum("n")), "do not say their key and window"),
        (lambda windows: windows.process(Smallest()), "only windows of aggregates"),
        (lambda windows: windows.reduce(lambda a, b: b), "only windows of aggregates"),
    ],
)
def test_results_that_could_not_be_found_again_are_refused_while_building(make: Any, words: str) -> None:
    views = hr.App("tweets").read("views", hr.source.items([]), View, time=View.at)
    with pytest.raises(ProgramError, match=words):
        make(views.key_by(View.tweet).window(hr.tumbling("1d"))).named("daily").queryable(archive="archive")


def test_two_steps_cannot_share_an_archive() -> None:
    views = hr.App("tweets").read("views", hr.source.items([]), View, time=View.at)
    keyed = views.key_by(View.tweet)
    keyed.window(hr.tumbling("1h")).aggregate(n=hr.count()).named("hourly").queryable(archive="archive/windows")
    daily = keyed.window(hr.tumbling("1d")).aggregate(n=hr.count()).named("daily")
    with pytest.raises(ProgramError, match="two outputs are named"):
        daily.queryable(archive="archive/windows/")
