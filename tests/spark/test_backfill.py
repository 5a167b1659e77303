"""Backfill then live, on real Spark: history that Spark reads, then a stream, without a gap and without a row twice."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import Refused, SinkFailed
from headrace.read.store import manifest_of, newest_manifests
from tests.services.kafka import Broker

pytestmark = pytest.mark.spark

SECOND = 1_000_000
CUT = 65


class Event(hr.Record):
    i: int
    at: hr.Timestamp
    key: str = "all"


class Seen(hr.Record):
    i: int
    place: int


class Number(hr.Process[Event, Seen, str]):
    """Counts the rows as they come: the state goes over the seam."""

    count: hr.ValueState[int]

    def on_event(self, event: Event, ctx: hr.Context[str]) -> Iterator[Seen]:
        self.count.set(place := self.count.get(0) + 1)
        yield Seen(event.i, place)


def event(i: int) -> Event:
    return Event(i, hr.Timestamp(i * SECOND))


def write_history(folder: Path) -> None:
    """Rows 0 … 79 in eight files; those from the cut on are the live stream's."""
    folder.mkdir()
    for n in range(8):
        lines = [
            json.dumps({"i": i, "at": f"1970-01-01T00:{i // 60:02}:{i % 60:02}Z"}) for i in range(n * 10, n * 10 + 10)
        ]
        (folder / f"{n}.json").write_text("\n".join(lines) + "\n")
        # Spark reads older files first, by the time they were changed.
        os.utime(folder / f"{n}.json", (1_700_000_000 + n, 1_700_000_000 + n))


class Job:
    def __init__(self, folder: Path, live: int, breaks_at: int = -1) -> None:
        self.seen = hr.sink.collect()
        self.counts = hr.sink.collect()
        self.app = hr.App("filled")
        # The live stream still holds what history ends with: rows 40 … live.
        history = hr.source.files(folder, max_files_per_epoch=2)
        stream = hr.source.items([event(i) for i in range(40, live)], per_epoch=50, partitions=2)
        source = hr.source.backfill(history, stream, until=f"1970-01-01T00:01:{CUT - 60:02}Z")
        events = self.app.read("events", source, Event, time=Event.at)
        events.key_by(Event.key).process(Number()).write(self.seen, name="seen")
        windows = events.key_by(Event.key).window(hr.tumbling("10s"))
        windows.aggregate(n=hr.count()).named("tens").write(self.counts, name="counts")

        def check(rows: list[Any], epoch: int) -> None:
            if epoch == breaks_at:
                raise RuntimeError("the sink is broken")

        events.write(hr.sink.call(check), name="check")

    def run(self, spark: Any, store: Path, until: Any = "caught_up") -> hr.Run:
        run = self.app.start(until=until, spark=spark, store=str(store), parallelism=2)
        run.wait()
        return run


def test_history_then_live_is_one_stream_whatever_comes_between(spark: Any, tmp_path: Path) -> None:
    history, store = tmp_path / "history", tmp_path / "store"
    write_history(history)
    seen: list[Seen] = []

    broken = Job(history, 100, breaks_at=1)
    with pytest.raises(SinkFailed):
        broken.run(spark, store)
    seen += broken.seen.rows
    assert {row.i for row in broken.seen.rows} == set(range(20)), "two files are out, and nothing of the stream"

    filled = Job(history, 100)
    run = filled.run(spark, store)
    seen += filled.seen.rows
    manifest = manifest_of(run.store)
    assert manifest.behind["events"].left == 0
    told = {each.epoch: each.behind["events__history"] for each in newest_manifests(run.store)[:4]}
    listed = [each for each in told.values() if not each.counting]
    assert [each.left for each in listed] == [6, 4, 2, 0][-len(listed) :] and told[3].unit == "files"
    if not told[2].counting:
        assert told[2].done == 2, "counted from where this run began"
    assert "events__history" in manifest.retired

    # What comes into the folder behind the seam is nobody's; the stream goes on where it ended.
    (history / "late.json").write_text('{"i": 7, "at": "1970-01-01T00:00:07Z"}\n')
    more = Job(history, 120)
    more.run(spark, store, "drained")
    seen += more.seen.rows

    places = {row.place: row.i for row in seen}
    assert {places[n] for n in range(1, CUT + 1)} == set(range(CUT)), "history comes first"
    assert sorted(places.values()) == list(range(120))
    assert sorted(places) == list(range(1, 121))
    counts = {row.window_start // (10 * SECOND): row.n for job in (broken, filled, more) for row in job.counts.rows}
    assert counts == dict.fromkeys(range(12), 10)


def test_files_and_then_a_topic_whose_partitions_take_time_over(
    kafka_spark: Any, kafka: Broker, tmp_path: Path
) -> None:
    history, topic = tmp_path / "history", f"events-{uuid.uuid4().hex}"
    write_history(history)
    kafka.topic(topic, partitions=2)
    events = ({"i": i, "at": f"1970-01-01T00:{i // 60:02}:{i % 60:02}Z"} for i in range(40, 120))
    kafka.send(topic, *({"value": json.dumps(event), "partition": event["i"] % 2} for event in events))
    app, seen, counts = hr.App("filled"), hr.sink.collect(), hr.sink.collect()
    live = hr.source.kafka(topic, brokers=kafka.bootstrap, max_per_epoch=30)
    source = hr.source.backfill(hr.source.files(history), live, until=f"1970-01-01T00:01:{CUT - 60:02}Z")
    events = app.read("events", source, Event, time=Event.at)
    events.key_by(Event.key).process(Number()).write(seen, name="seen")
    tens = events.key_by(Event.key).window(hr.tumbling("10s")).aggregate(n=hr.count()).named("tens")
    tens.write(counts, name="counts")
    run = app.start(until="caught_up", spark=kafka_spark, store=str(tmp_path / "store"), parallelism=2)
    run.wait()
    assert sorted(row.i for row in seen.rows) == list(range(120))
    assert {row.i for row in seen.rows if row.place <= CUT} == set(range(CUT))
    # Time goes on with the partitions: the last window stays open, all others are out, none of them with a row too few.
    assert {row.window_start // (10 * SECOND): row.n for row in counts.rows} == dict.fromkeys(range(11), 10)
    assert all("history" not in split for split in manifest_of(run.store).time.sources["events"].splits)


def test_a_stream_that_was_read_before_gets_no_history(spark: Any, tmp_path: Path) -> None:
    write_history(tmp_path / "history")
    app = hr.App("filled")
    app.read("events", hr.source.items([event(1)]), Event, time=Event.at).write(hr.sink.discard(), name="seen")
    app.start(until="caught_up", spark=spark, store=str(tmp_path / "store"), parallelism=2).wait()
    with pytest.raises(Refused, match="was read live before"):
        Job(tmp_path / "history", 50).run(spark, tmp_path / "store")
