"""Python workers are started, with the program in them, while Spark still plans the first epoch."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pyarrow as pa
import pytest

import headrace as hr
from headrace.model.order import EpochLimits
from headrace.plan.compile import compile_app
from headrace.plan.ship import dump_program
from headrace.spark import executor, warming
from headrace.spark.warming import warm_workers


class Click(hr.Record):
    page: str


@pytest.fixture(autouse=True)
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has warmed the session that all tests share."""
    monkeypatch.setattr(warming, "_warmed", WeakSet())


def ship(spark: Any, store: Path, program: bytes) -> executor.Ship:
    return executor.Ship(uuid.uuid4().hex, spark.sparkContext.broadcast(program), str(store), EpochLimits())


@pytest.mark.spark
def test_workers_have_the_program_before_an_epoch_asks(spark: Any, tmp_path: Path) -> None:
    app = hr.App("clicks")
    counts = app.read("clicks", hr.source.items([Click("a")]), Click).key_by(Click.page).aggregate(n=hr.count())
    counts.named("counts").write(hr.sink.discard())
    shipped = ship(spark, tmp_path, dump_program(compile_app(app, parallelism=2, key_groups=8)))
    thread = warm_workers(spark, shipped, 2)
    assert thread is not None
    thread.join(60)

    def loaded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"loaded": [shipped.id in executor._workers]})

    # Spark gives tasks to idle workers in turn, and other tests may have left many.
    rows = spark.range(0, 48, 1, 48).mapInArrow(loaded, "loaded BOOLEAN").collect()
    assert any(row.loaded for row in rows)
    assert warm_workers(spark, shipped, 2) is None, "once per context"


@pytest.mark.spark
def test_a_program_that_cannot_be_loaded_is_left_to_the_epoch(spark: Any, tmp_path: Path) -> None:
    thread = warm_workers(spark, ship(spark, tmp_path, b"no program"), 2)
    assert thread is not None
    thread.join(60)
    assert not thread.is_alive()


def test_workers_of_other_machines_are_left_alone() -> None:
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="spark://host:7077"))
    shipped: Any = None
    assert warm_workers(session, shipped, 2) is None
