"""Adaptive epochs on real Spark: one query whose pace the driver keeps."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import SettingsError
from headrace.model.pace import EpochCost
from headrace.read.store import manifest_of
from headrace.spark.pacing import POLLING, QueryPace
from headrace.state.store import LocalStore
from tests.serve.made_store import MadeStore, busy_epoch


class Hit(hr.Record):
    page: str


def hits_app() -> hr.App:
    app = hr.App("hits")
    hits = app.read("hits", hr.source.generator(lambda i, rng: Hit(f"p{i % 7}"), rate=1000), Hit)
    hits.key_by(Hit.page).aggregate(n=hr.count()).named("totals").queryable()
    return app


def wait_for_epoch(run: Any, epoch: int) -> None:
    until = time.monotonic() + 90
    while run.epoch < epoch and time.monotonic() < until:
        run.wait(0.05)
    assert run.epoch >= epoch


@pytest.mark.spark
def test_epochs_follow_their_cost_and_a_stop_does_not_wait_for_a_pause(spark: Any, tmp_path: Path) -> None:
    store, before = tmp_path / "store", spark.conf.get(POLLING)
    run = hits_app().start(store=store, spark=spark, epoch=hr.adaptive("1h", spend="0.1%"))
    wait_for_epoch(run, 0)
    asked = time.monotonic()
    run.stop()
    assert time.monotonic() - asked < 60, "the pause is a thousand times as long as what an epoch costs"
    first = run.epoch

    run = hits_app().start(store=store, spark=spark, epoch=hr.adaptive("1m", spend="90%"))
    wait_for_epoch(run, first + 3)
    run.stop()
    paced = manifest_of(hr.Store(store), first + 3).paced
    assert paced is not None
    assert 0 < paced.own_us < paced.own_us + paced.work_us <= paced.period_us
    assert spark.conf.get(POLLING) == before


def test_a_policy_is_held_against_what_epochs_of_the_store_cost(tmp_path: Path) -> None:
    made = MadeStore(tmp_path / "store")
    busy_epoch(made)
    for _ in range(3):
        made.epoch(paced=EpochCost(400_000, 0, 500_000))
    store = LocalStore(tmp_path / "store", durable=False)
    with pytest.raises(SettingsError, match="epochs cost more by themselves"):
        QueryPace("adaptive(latency=1s, spend=20%)", store)
    assert QueryPace("adaptive(latency=2s, spend=20%)", store).note == ""
    assert QueryPace("500ms", store).note == ""
    assert QueryPace("adaptive(latency=1s)", LocalStore(tmp_path / "new", durable=False)).note == ""
