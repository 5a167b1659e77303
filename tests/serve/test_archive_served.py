"""Windows of state and archive over the network, and what is refused rather than told in part."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import headrace as hr
from headrace.errors import ProgramError, SinkFailed, StoreError
from headrace.read.archive_folder import folder_of
from tests.serve.archived import HOUR, START, Hourly, Job, asked, newest
from tests.serve.served import Served
from tests.serve.tweets import View, fetch


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    with made.h:
        yield made


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
    monkeypatch.setattr("headrace.client.requests.AT_ONCE", 3)
    monkeypatch.setattr("headrace.read.ranges.PAGE_BYTES", 100)
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
        (lambda windows: windows.aggregate(Daily, n=hr.sum("n")), "archived results need the columns"),
        (lambda windows: windows.process(Smallest()), "only windows of aggregates"),
        (lambda windows: windows.reduce(lambda a, b: b), "only windows of aggregates"),
    ],
)
def test_results_that_could_not_be_found_again_are_refused_while_building(make: Any, words: str) -> None:
    views = hr.App("tweets").read("views", hr.source.items([]), View, time=View.at)
    with pytest.raises(ProgramError, match=words):
        make(views.key_by(View.tweet).window(hr.tumbling("1d"))).named("daily").queryable(archive="archive")


def test_a_key_of_which_nobody_says_the_type_is_refused_for_an_archive() -> None:
    views = hr.App("tweets").read("views", hr.source.items([]), View, time=View.at)
    daily = views.key_by(lambda view: view.tweet).window(hr.tumbling("1d")).aggregate(n=hr.sum("n")).named("daily")
    with pytest.raises(ProgramError, match="this key cannot be found in an archive"):
        daily.queryable(archive="archive")


def test_two_steps_cannot_share_an_archive() -> None:
    views = hr.App("tweets").read("views", hr.source.items([]), View, time=View.at)
    keyed = views.key_by(View.tweet)
    keyed.window(hr.tumbling("1h")).aggregate(n=hr.count()).named("hourly").queryable(archive="archive/windows")
    daily = keyed.window(hr.tumbling("1d")).aggregate(n=hr.count()).named("daily")
    with pytest.raises(ProgramError, match="two outputs are named"):
        daily.queryable(archive="archive/windows/")
