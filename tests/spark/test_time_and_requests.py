"""On real Spark: how far time has come as rows or generators say, sources that wait for each other, and requests."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.read.store import manifest_of, newest_manifests

pytestmark = pytest.mark.spark

SECOND = 1_000_000


class Beat(hr.Record):
    n: int
    at: hr.Timestamp
    kind: str = "row"


class Keep(hr.Process[Beat, Beat, str]):
    due: hr.Timer

    def on_event(self, event: Beat, ctx: hr.Context[str]) -> None:
        self.due.set(event.at)

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Any:
        yield Beat(0, ctx.timestamp, ctx.key)


class SecondLargest(hr.WatermarkGenerator[Beat]):
    """Needs all rows of the split in one task: slices would each have a second largest of their own."""

    largest: list[int] = []

    def on_row(self, row: Beat, at: hr.Timestamp) -> None:
        self.largest = sorted([*self.largest, int(at)])[-2:]

    def on_epoch(self) -> hr.Timestamp | None:
        return hr.Timestamp(self.largest[0])


def beats(count: int, **fields: Any) -> list[Beat]:
    return [Beat(n, hr.Timestamp(n * SECOND), **fields) for n in range(count)]


def run(app: hr.App, spark: Any, store: Path, until: Any = "caught_up") -> None:
    app.start(until=until, spark=spark, store=str(store), parallelism=2, epoch="100ms").wait()


def watermark(store: Path, step: str = "keep") -> int:
    return manifest_of(hr.Store(str(store))).time.steps[step]


@pytest.mark.parametrize("said", ["kind = 'flush'", "CASE WHEN kind = 'flush' THEN at END"])
def test_rows_say_how_far_time_is_in_the_jvm(spark: Any, store_path: Path, said: str) -> None:
    rows = [*beats(10), Beat(10, hr.Timestamp(5 * SECOND), "flush"), *beats(3)]
    app = hr.App("beats")
    source = hr.source.items(rows, per_epoch=7)
    stream = app.read("beats", source, Beat, time=Beat.at, watermark=hr.watermarks.punctuated(said))
    stream.where("n >= 0").select(Beat, n="n + 1").key_by(Beat.kind).process(Keep()).write(hr.sink.collect())
    run(app, spark, store_path)
    assert watermark(store_path) == 5 * SECOND - 1


class Gaps(hr.Process[Beat, Beat, str]):
    last: hr.ValueState[int]
    silent: hr.Timer

    def on_event(self, event: Beat, ctx: hr.Context[str]) -> Any:
        yield event.replace(n=event.n - self.last.get(event.n))
        self.last.set(event.n)
        self.silent.set(event.at + hr.seconds(2))

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Any:
        self.last.clear()
        yield Beat(-1, ctx.timestamp, ctx.key)


def test_rows_come_in_the_order_of_their_time_over_epochs_and_restarts(spark: Any, store_path: Path) -> None:
    there = [*beats(12, kind="a"), *beats(12, kind="b")]
    random.Random(4).shuffle(there)
    there = [beat for beat in there if beat.n not in (5, 6, 7)]
    found: list[Beat] = []
    for end in (9, len(there)):
        sink = hr.sink.collect()
        app = hr.App("beats")
        read = app.read("beats", hr.source.items(there[:end], per_epoch=3), Beat, time=Beat.at, out_of_order="20s")
        read.key_by(Beat.kind).process(Gaps(), order="time").write(sink)
        run(app, spark, store_path, "caught_up" if end == 9 else "drained")
        found += sink.rows
    gaps = [(0, 0), (1, 1), (1, 2), (1, 3), (1, 4), (-1, 6), (0, 8), (1, 9), (1, 10), (1, 11), (-1, 13)]
    for kind in "ab":
        assert [(beat.n, beat.at // SECOND) for beat in found if beat.kind == kind] == gaps


def test_a_bad_row_moves_no_time_through_a_filter_in_the_jvm(spark: Any, store_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    lines = [{"n": 1, "at": "1970-01-01T00:00:01Z"}, {"at": "2099-01-01T00:00:00Z"}]
    (folder / "1.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    app = hr.App("hidden")
    read = app.read("beats", hr.source.files(folder), Beat, time=Beat.at)
    bad = hr.sink.collect()
    read.errors.write(bad)
    read.where("n > 0").key_by("kind").process(Keep()).named("keep").write(hr.sink.discard())
    run(app, spark, store_path)
    (folder / "2.json").write_text(json.dumps({"n": 2, "at": "1970-01-01T00:00:05Z"}) + "\n")
    run(app, spark, store_path)
    assert watermark(store_path) == 5 * SECOND - 1
    assert len(bad.rows) == 1


def test_a_generator_sees_all_rows_of_a_split_and_goes_on_after_a_restart(spark: Any, store_path: Path) -> None:
    def program(rows: list[Beat]) -> hr.App:
        app = hr.App("beats")
        source = hr.source.items(rows, per_epoch=6, partitions=3)
        stream = app.read("beats", source, Beat, time=Beat.at, watermark=SecondLargest())
        stream.key_by(Beat.kind).process(Keep()).write(hr.sink.collect())
        return app

    run(program(beats(12)), spark, store_path)
    assert watermark(store_path) == 10 * SECOND - 1
    run(program([*beats(12), Beat(12, hr.Timestamp(99 * SECOND))]), spark, store_path)
    assert watermark(store_path) == 11 * SECOND - 1, "it remembers the largest of the run before"


class View(hr.Record, rename={"host": "from"}):
    n: int
    at: hr.Timestamp
    host: str = "somebody"


class Read(hr.Record):
    n: int
    at: hr.Timestamp
    host: str


BY_NAME = "regexp_extract(_metadata.file_name, '^([a-z]+)-', 1)"
BY_FOLDER = "regexp_extract(_metadata.file_path, 'host=([^/]+)', 1)"


def test_producers_that_write_into_one_folder_are_splits_where_that_is_said(
    spark: Any, store_path: Path, tmp_path: Path
) -> None:
    ways: dict[str, tuple[Any, Any]] = {
        "newest": (None, View),
        "by_field": (View.host, View),
        "by_sql": ("upper(coalesce(`from`, '?'))", View),
        "by_name": (BY_NAME, View),
        "by_folder": (BY_FOLDER, View),
        "by_partition": (Read.host, Read),
    }

    def write(producer: str, number: int, second: int) -> None:
        row = {"n": number, "at": f"2024-01-01T00:00:{second:02}Z"}
        for way in ways:
            named = way in ("newest", "by_field", "by_sql")
            folder = tmp_path / way / (f"host={producer}" if way in ("by_folder", "by_partition") else "")
            folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps({**row, "from": producer} if named else row)
            (folder / f"{producer}-{number}.json").write_text(text + "\n")

    def program() -> hr.App:
        app = hr.App("views")
        for way, (split, kind) in ways.items():
            source = hr.source.files(tmp_path / way, split=split)
            stream = app.read(way, source, kind, time="at").where("n >= 0").select(Beat, kind="'all'")
            stream.key_by(Beat.kind).process(Keep()).named(f"{way}_step").write(hr.sink.collect())
        return app

    def reached(way: str) -> int:
        return (watermark(store_path, f"{way}_step") + 1 - int(hr.timestamp("2024-01-01T00:00:00Z"))) // SECOND

    write("ann", 1, 10)
    write("bob", 2, 40)
    run(program(), spark, store_path)
    assert {way: reached(way) for way in ways} == {way: 40 if way == "newest" else 10 for way in ways}
    write("ann", 3, 30)
    write("bob", 4, 50)
    run(program(), spark, store_path)
    assert {way: reached(way) for way in ways} == {way: 50 if way == "newest" else 30 for way in ways}
    splits = {way: set(time.splits) for way, time in manifest_of(hr.Store(str(store_path))).time.sources.items()}
    assert splits["newest"] == {""}
    assert splits["by_sql"] == {"ANN", "BOB"}
    assert all(splits[way] == {"ann", "bob"} for way in ways if way not in ("newest", "by_sql"))


def test_sources_wait_for_each_other_and_everything_is_read(spark: Any, store_path: Path) -> None:
    app = hr.App("two")
    fast = [Beat(n, hr.Timestamp(n * 20 * SECOND), "fast") for n in range(20)]
    slow = [Beat(n, hr.Timestamp(n * SECOND), "slow") for n in range(100)]
    streams = [
        app.read(name, hr.source.items(rows, per_epoch=size), Beat, time=Beat.at, align="g", max_drift="30s")
        for name, rows, size in (("fast", fast, 1), ("slow", slow, 10))
    ]
    sink = hr.sink.collect()
    streams[0].union(*streams[1:]).key_by(Beat.kind).process(Keep()).named("keep").write(hr.sink.collect())
    streams[0].union(*streams[1:]).map(lambda beat: beat, output=Beat).write(sink)
    run(app, spark, store_path)
    assert sorted(row.n for row in sink.rows if row.kind == "fast") == list(range(20))
    assert sorted(row.n for row in sink.rows if row.kind == "slow") == list(range(100))
    ahead = []
    for manifest in newest_manifests(hr.Store(str(store_path))):
        sources = manifest.time.sources
        if sources["slow"].watermark < 99 * SECOND - 1:
            ahead.append(sources["fast"].watermark - sources["slow"].watermark)
    assert max(ahead, default=0) <= 50 * SECOND, "30 s, and what one epoch brings"


class Answer(hr.Record):
    n: int
    twice: int


class Twice(hr.AsyncFunction[Beat, Answer]):
    async def open(self) -> None:
        self.factor = 2

    async def call(self, row: Beat) -> Answer:
        await asyncio.sleep(0.001 * (row.n % 7))
        return Answer(row.n, row.n * self.factor)


async def find(kind: str) -> Answer | None:
    return Answer(len(kind), 0) if kind == "row" else None


def test_requests_in_workers_answer_every_row_once_and_lookups_find_each_value(spark: Any, store_path: Path) -> None:
    app = hr.App("ask")
    rows = [*beats(100), *beats(100, kind="other")]
    stream = app.read("beats", hr.source.items(rows, per_epoch=60, partitions=2), Beat, time=Beat.at)
    waited, carried, found = hr.sink.collect(), hr.sink.collect(), hr.sink.collect()
    stream.map_async(Twice(), ordered=False, capacity=20).named("waits").write(waited)
    stream.map_async(Twice(), ordered=False, wait="carry", capacity=20).named("carries").write(carried)
    looked = stream.lookup(find, by=Beat.kind, cache="10m").named("looks")
    looked.select(n="left.n", size="right.n").write(found)
    run(app, spark, store_path, "drained")
    for sink in (waited, carried):
        assert sorted((row.n, row.twice) for row in sink.rows) == sorted((row.n, row.n * 2) for row in rows)
    assert sorted((row.n, row.size) for row in found.rows if row.size is not None) == [(n, 3) for n in range(100)]
    assert len(found.rows) == 200
