"""A log that events are sent to, read by Spark: each event counted once, over restarts, partitions and bad events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import InputLost
from headrace.ingest.log import Append, Log, LogOptions
from headrace.ingest.streams import Streams, StreamSpec
from tests.ingest.servers import Threaded

pytestmark = pytest.mark.spark

USERS = 7


class Click(hr.Record):
    user: str
    at: hr.Timestamp
    n: int = 1


class Total(hr.Record):
    user: str
    clicks: int
    total: int


def make_app(log: Path, out: Path) -> hr.App:
    app = hr.App("ingesting")
    source = hr.source.ingest(log, stream="clicks", max_per_epoch=60)
    clicks = app.read("clicks", source, Click, time=Click.at)
    clicks.errors.write(hr.sink.files(out))
    clicks.key_by(Click.user).aggregate(Total, clicks=hr.count(), total=hr.sum("n")).named("totals").queryable()
    return app


def send(server: Threaded, start: int, stop: int) -> None:
    for at in range(start, stop, 10):
        times = {n: f"2024-01-01T00:00:{n % 60:02d}Z" for n in range(at, at + 10)}
        rows = [{"user": f"user-{n % USERS}", "at": time, "n": n} for n, time in times.items()]
        assert server.sender.send(*rows).status == 200


def totals(store: Path) -> dict[str, tuple[int, int]]:
    return {key: (row.clicks, row.total) for key, row in hr.Store(store).state("totals", Total).scan()}


def wanted(rows: int) -> dict[str, tuple[int, int]]:
    by_user = {f"user-{user}": list(range(user, rows, USERS)) for user in range(USERS)}
    return {user: (len(numbers), sum(numbers)) for user, numbers in by_user.items()}


def test_every_event_is_counted_once_and_what_was_removed_unread_is_told(tmp_path: Path, spark: Any) -> None:
    log, store, bad = tmp_path / "log", tmp_path / "store", tmp_path / "bad"
    with Threaded(log, Streams({"clicks": StreamSpec(partitions=2)})) as server:
        send(server, 0, 100)
        # No type was given to the server, so it takes what is no click.
        assert server.sender.send({"user": "ann"}, {"user": 7, "at": 0}).status == 200
        make_app(log, bad).run(until="caught_up", spark=spark, store=store, parallelism=2)
        assert totals(store) == wanted(100)
        send(server, 100, 160)
        make_app(log, bad).run(until="caught_up", spark=spark, store=store, parallelism=2)
        assert totals(store) == wanted(160)
        assert len(hr.Store(store).epochs()) >= 3, "an epoch has sixty events at most"
        errors = "".join(path.read_text() for path in bad.rglob("*.json") if not path.name.startswith((".", "_")))
        assert errors.count("event ") >= 2 and "Object missing required field `at`" in errors
        send(server, 160, 200)
    small = Log(log, LogOptions(segment_bytes=1, keep_bytes=1))
    small.append([Append("clicks", [b"{}"], partition=partition) for partition in range(2)])
    small.retain()
    small.close()
    with pytest.raises(InputLost, match="no longer has the events"):
        make_app(log, bad).run(until="caught_up", spark=spark, store=store, parallelism=2)
    assert totals(store) == wanted(160)
