"""Ending a run on real Spark from outside, with its last epoch pinned, and draining one that has no end of its own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.cli.calling import call_json

pytestmark = pytest.mark.spark

COUNT = 40


class Hit(hr.Record):
    page: str
    at: hr.Timestamp


def hits_app(sink: Any) -> hr.App:
    app = hr.App("hits")
    rows = [Hit("a", hr.Timestamp(i * 1_000_000)) for i in range(COUNT)]
    hits = app.read("hits", hr.source.items(rows, per_epoch=2), Hit, time=Hit.at)
    hourly = hits.key_by(Hit.page).window(hr.tumbling("1h")).aggregate(n=hr.count()).named("hourly")
    hourly.finals().write(sink, name="out")
    return app


def wait_for_epoch(run: Any, epoch: int) -> None:
    until = time.monotonic() + 60
    while run.epoch < epoch and time.monotonic() < until:
        run.wait(0.05)
    assert run.epoch >= epoch


def test_a_run_is_stopped_from_outside_with_a_savepoint_and_then_drained(spark: Any, tmp_path: Path) -> None:
    store, sink = tmp_path / "store", hr.sink.collect()
    run = hits_app(sink).start(store=store, spark=spark, epoch="50ms")
    wait_for_epoch(run, 0)
    assert run.savepoint("first").epoch >= 0
    told = call_json("stop", store, "--savepoint", "before-v2")
    assert run.wait(30)
    assert told["epoch"] == run.epoch == hr.Store(f"{store}@before-v2").epoch
    assert sink.rows == []

    run = hits_app(sink).start(store=store, spark=spark, epoch="50ms")
    wait_for_epoch(run, told["epoch"] + 1)
    point = run.stop(savepoint="last", drain=True)
    assert point is not None
    assert point.epoch == run.epoch
    assert [row.n for row in sink.rows] == [COUNT], "the window fired, with all that was there to read"
    assert call_json("savepoints", store, "last")["final"]
    assert [each.name for each in hr.Store(store).savepoints()] == ["first", "before-v2", "last"]
