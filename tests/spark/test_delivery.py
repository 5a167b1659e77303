"""A sink that goes away and comes back under a running job, on real Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

import headrace as hr
from headrace.connectors.sink_contract import Guarantee, Release, Sink, StageTask, StageWriter
from headrace.connectors.staged import arrow_writer, read_batches
from headrace.errors import SinkUnavailable
from headrace.model.report import StagedPart
from headrace.model.rows import RowCodec
from headrace.progress import rows_in
from headrace.read.store import newest_manifests

pytestmark = pytest.mark.spark

PER_EPOCH = 500
DEADLINE_S = 60


class Table:
    """What outlives the job."""

    def __init__(self) -> None:
        self.away = False
        self.numbers: list[int] = []
        self.newest = -1


TABLES: dict[str, Table] = {}


class TableSink(Sink):
    kind: ClassVar[str] = "table"
    guarantee: Guarantee = "exactly once"

    def __init__(self, name: str) -> None:
        self.name = name

    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        return arrow_writer(task)

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        table = TABLES[self.name]
        numbers = [n for batch in read_batches(parts, ctx) for n in batch.column("n").to_pylist()]
        if table.away:
            raise SinkUnavailable("no connection", where="table", found="connection refused")
        if ctx.epoch > table.newest:
            table.numbers += numbers
            table.newest = ctx.epoch


class Number(hr.Record):
    n: int


@pytest.fixture
def tables() -> Iterator[dict[str, Table]]:
    TABLES.update({"one": Table(), "two": Table()})
    yield TABLES
    TABLES.clear()


def start(spark: Any, store: Path) -> hr.Run:
    app = hr.App("numbers")
    numbers = hr.source.generator(columns=lambda start, stop: {"n": range(start, stop)}, rate=None, per_epoch=PER_EPOCH)
    stream = app.read("numbers", numbers, Number)
    for name in TABLES:
        stream.write(TableSink(name), name=name)
    return app.start(spark=spark, store=str(store), parallelism=2, epoch="100ms")


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.05)


def test_a_sink_that_is_away_holds_the_sources_and_gets_everything_when_it_is_back(
    spark: Any, tmp_path: Path, tables: dict[str, Table]
) -> None:
    run = start(spark, tmp_path / "store")
    wait_until(lambda: run.epoch >= 2)
    tables["one"].away = True
    wait_until(lambda: any(wait.tries >= 3 for wait in run._job.waits))
    [wait] = run._job.waits
    held = run.epoch
    assert (wait.output, wait.epoch, wait.reason) == ("one", held, "connection refused")
    assert run.store.waits()[0].output == "one"
    assert tables["two"].newest == held, "other sinks of the epoch do not wait"
    wait_until(lambda: run._job.waits[0].tries >= 5)
    assert run.epoch == held, "while a sink has not taken an epoch, none is begun"
    tables["one"].away = False
    wait_until(lambda: run.epoch >= held + 2)
    assert run.store.waits() == ()

    tables["two"].away = True
    wait_until(lambda: bool(run._job.waits))
    with pytest.raises(SinkUnavailable, match="the run ended while it waited for table"):
        run.stop()
    unreleased = run.epoch
    assert tables["two"].newest == unreleased - 1
    tables["two"].away = False
    again = start(spark, tmp_path / "store")
    wait_until(lambda: again.epoch > unreleased)
    again.stop()
    for table in tables.values():
        assert sorted(table.numbers) == list(range((again.epoch + 1) * PER_EPOCH)), "each row once, none missing"
    manifests = newest_manifests(again.store)
    assert {rows_in(manifest) for manifest in manifests} <= {PER_EPOCH}
    assert any(manifest.released_us.keys() == {"one", "two"} for manifest in manifests)
