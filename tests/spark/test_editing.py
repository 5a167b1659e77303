"""State changed by hand on real Spark: while the job runs and is idle, and while it is stopped."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.cli.calling import call_json

pytestmark = pytest.mark.spark


class Hit(hr.Record):
    page: str
    n: int = 1


def hits_app(rows: list[Hit]) -> hr.App:
    app = hr.App("hits")
    hits = app.read("hits", hr.source.items(rows, per_epoch=1), Hit)
    totals = hits.key_by(Hit.page).reduce(lambda a, b: a.replace(n=a.n + b.n)).named("totals")
    totals.write(hr.sink.collect(), name="out")
    return app


def wait_for_epoch(run: Any, epoch: int) -> None:
    until = time.monotonic() + 60
    while run.epoch < epoch and time.monotonic() < until:
        run.wait(0.05)
    assert run.epoch >= epoch


def test_a_job_goes_on_behind_edits_made_while_it_ran_and_while_it_was_stopped(spark: Any, tmp_path: Path) -> None:
    store, rows = tmp_path / "store", [Hit("a"), Hit("b")]
    run = hits_app(rows).start(store=store, spark=spark, epoch="50ms")
    wait_for_epoch(run, 1)
    with run.edit("while it runs, and nothing comes in") as edit:
        edit.patch("totals", "a", {"n": 100})
    live = edit.epoch
    assert live == 2
    run.stop()
    assert run.epoch == live

    told = call_json("edit", store, "totals", "b", "--set", '{"page": "b", "n": 200}', "--why", "while it is stopped")
    assert (told["epoch"], told["changes"][0]["before"]) == (live + 1, {"page": "b", "n": 1})

    run = hits_app([*rows, Hit("a"), Hit("b")]).start(store=store, spark=spark, epoch="50ms")
    wait_for_epoch(run, live + 3)
    run.stop()
    assert run.epoch == live + 3
    totals = hr.Store(store).state("totals")
    assert (totals["a"]["n"], totals["b"]["n"]) == (101, 201)
    listed = call_json("epochs", store)
    assert [each["notes"][0]["why"] for each in listed if "notes" in each] == [
        "while it runs, and nothing comes in", "while it is stopped",
    ]  # fmt: skip
