"""Releasing: sinks that are away are waited for, sinks do not wait for each other, and nothing is lost on the way."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rich.console import Console

import headrace as hr
from headrace.checkpoint import release
from headrace.checkpoint.patience import Patience
from headrace.checkpoint.release import Releaser
from headrace.connectors.sink_contract import Guarantee, Release, Sink, StageTask, StageWriter
from headrace.connectors.staged import arrow_writer, read_rows
from headrace.errors import Fenced, SinkFailed, SinkUnavailable
from headrace.model.report import StagedPart
from headrace.model.rows import RowCodec
from headrace.model.sink_waits import tell_wait
from headrace.read.store import Store, newest_manifests
from headrace.screens import EpochTable
from headrace.state.store import open_store
from headrace.testing import Harness
from tests.cli.calling import call, call_json


class Order(hr.Record):
    id: int


class Table:
    """A server that can be away; what it holds outlives the sinks that write to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: list[int] = []
        self.newest = -1
        self.failures = 0
        """How many of the next calls find it away."""
        self.refuses = False
        self.meanwhile: Callable[[], object] = list
        """Called within each release, before rows are written."""
        self.calls = 0


TABLES: dict[str, Table] = {}


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    TABLES.clear()


class TableSink(Sink):
    kind: ClassVar[str] = "table"
    guarantee: Guarantee = "exactly once"

    def __init__(self, name: str) -> None:
        self.name = name
        TABLES.setdefault(name, Table(name))

    def describe(self) -> str:
        return f"table {self.name}"

    def own_name(self) -> str:
        return self.name

    def start(self) -> None:
        self._call()

    def open_writer(self, codec: RowCodec, task: StageTask) -> StageWriter:
        return arrow_writer(task)

    def release(self, parts: Sequence[StagedPart], ctx: Release) -> None:
        assert self.codec is not None
        rows = [row.id for batch in read_rows(parts, ctx, self.codec) for row in batch]
        table = TABLES[self.name]
        table.meanwhile()
        self._call()
        if table.refuses:
            raise ValueError("no such column")
        if ctx.epoch > table.newest:
            table.rows += rows
            table.newest = ctx.epoch

    def _call(self) -> None:
        table = TABLES[self.name]
        table.calls += 1
        if table.failures:
            table.failures -= 1
            raise SinkUnavailable("the server is away", where="table", found="connection refused")


class Shop:
    """One source, written to some tables."""

    def __init__(self, *names: str) -> None:
        self.app = hr.App("shop")
        self.orders = self.app.read("orders", hr.source.items([]), Order)
        for name in names:
            self.orders.write(TableSink(name), name=name)

    def epoch(self, h: Harness, *ids: int) -> None:
        h.push(self.orders, *map(Order, ids))
        h.epoch()


class Clock:
    """Time that passes in pauses only."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> bool:
        self.now += seconds
        self.pauses.append(seconds)
        return False


def insist(patience: Patience, name: str = "orders") -> None:
    sink = TableSink(name)
    patience.insist(sink.start, sink, name, 7)


# --- patience


def test_a_sink_that_comes_back_is_tried_until_then_and_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    patience = Patience(300_000_000, clock=clock, pause=clock.pause)
    TABLES["orders"] = Table("orders")
    TABLES["orders"].failures = 6
    with caplog.at_level(logging.WARNING):
        insist(patience)
    assert TABLES["orders"].calls == 7
    first, last = (record.getMessage() for record in caplog.records)
    assert first == "waiting for table orders: connection refused; it is tried for up to 5m"
    assert last.startswith("table orders is back after") and last.endswith("7 tries")
    assert patience.waits == ()
    assert 3 < clock.now - 1000 < 16  # pauses of 0.25 s, 0.5 s, 1 s, 2 s, 4 s and 8 s, shortened by chance


def test_patience_ends_with_what_was_expected_found_and_can_be_done() -> None:
    clock = Clock()
    TABLES["orders"] = Table("orders")
    TABLES["orders"].failures = 10**6
    with pytest.raises(SinkUnavailable) as failed:
        insist(Patience(60_000_000, clock=clock, pause=clock.pause))
    assert clock.now == pytest.approx(1060, abs=0.01)
    told = str(failed.value)
    assert told.startswith("output orders, epoch 7: table orders could not be reached for 1m")
    assert "sink_patience (1m)" in told and "connection refused" in told
    assert "the rows stay staged in the store and are released first" in told


def test_without_patience_the_first_failure_is_the_end() -> None:
    TABLES["orders"] = Table("orders")
    TABLES["orders"].failures = 1
    with pytest.raises(SinkUnavailable, match="away"):
        insist(Patience())
    assert TABLES["orders"].calls == 1


def test_a_run_that_is_stopped_waits_no_longer() -> None:
    stop = threading.Event()
    TABLES["orders"] = Table("orders")
    TABLES["orders"].failures = 10**6
    patience = Patience(3_600_000_000, stop=stop)
    threading.Timer(0.2, stop.set).start()
    with pytest.raises(SinkUnavailable, match="the run ended while it waited for table orders"):
        insist(patience)


def test_a_driver_that_was_taken_over_waits_no_longer() -> None:
    clock = Clock()
    patience = Patience(3_600_000_000, clock=clock, pause=clock.pause)

    def check() -> None:
        if clock.now > 1010:
            raise Fenced("another driver has taken over this store")

    patience.check = check
    TABLES["orders"] = Table("orders")
    TABLES["orders"].failures = 10**6
    with pytest.raises(Fenced):
        insist(patience)
    assert clock.now < 1012


def test_anything_else_than_being_away_is_not_tried_again(store_path: Path) -> None:
    shop = Shop("orders")
    with Harness(shop.app, sinks=True, store=store_path) as h:
        TABLES["orders"].refuses = True
        with pytest.raises(SinkFailed, match="the sink table orders failed"):
            shop.epoch(h, 1)
        assert TABLES["orders"].calls == 2  # one of them at the start
        TABLES["orders"].refuses = False
        shop.epoch(h, 2)
    assert TABLES["orders"].rows == [1, 2]


# --- several sinks


def test_sinks_of_an_epoch_do_not_wait_for_each_other(store_path: Path) -> None:
    """Each is in the middle of its release when the other one is, which one after the other cannot be."""
    shop = Shop("one", "two")
    both = threading.Barrier(2, timeout=60)
    for name in ("one", "two"):
        TABLES[name].meanwhile = both.wait
    with Harness(shop.app, sinks=True, store=store_path) as h:
        shop.epoch(h, 1, 2)
        shop.epoch(h, 3)
    assert TABLES["one"].rows == TABLES["two"].rows == [1, 2, 3]


def test_a_sink_that_fails_stops_neither_the_others_nor_loses_its_rows(store_path: Path) -> None:
    shop = Shop("a", "b", "c")
    with Harness(shop.app, sinks=True, store=store_path) as h:
        TABLES["b"].failures = 1
        with pytest.raises(SinkUnavailable, match="away"):
            shop.epoch(h, 1)
        assert (TABLES["a"].rows, TABLES["b"].rows, TABLES["c"].rows) == ([1], [], [1])
        shop.epoch(h, 2)
    assert TABLES["a"].rows == TABLES["b"].rows == TABLES["c"].rows == [1, 2]


def test_a_failure_ends_the_waiting_of_other_sinks_and_is_the_one_that_is_told(store_path: Path) -> None:
    shop = Shop("away", "broken")
    with Harness(shop.app, store=store_path) as h:
        shop.epoch(h, 1)
        manifest = h._coordinator.state.manifest  # type: ignore[union-attr]
        outputs = {output.name: output for output in h._program.outputs if output.name in TABLES}
        sinks = {name: TableSink(name).bind(output.codec, name) for name, output in outputs.items()}
        manifest.outputs.update({name: _staged(h, sink) for name, sink in sinks.items()})
        TABLES["away"].failures = 10**6
        TABLES["broken"].refuses = True
        releaser = Releaser(open_store(h.store), sinks, patience=Patience(3_600_000_000))
        with pytest.raises(SinkFailed, match="table broken failed"):
            releaser.release(manifest)


def _staged(h: Harness, sink: Sink) -> list[StagedPart]:
    from headrace.testing.staging import Staging, stage_rows

    assert sink.codec is not None
    return stage_rows(sink, sink.codec, Staging(Path(h.store), inline_limit_bytes=2**20), 0, [[Order(1)]])


# --- what is seen of it


def test_the_manifest_of_the_next_epoch_tells_which_sink_was_slow(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop("quick", "slow")
    # Each thread has a clock of its own, which stands still but for what the slow sink takes.
    passed = threading.local()
    monkeypatch.setattr(release, "perf_counter_ns", lambda: getattr(passed, "ns", 0))
    with Harness(shop.app, sinks=True, store=store_path) as h:
        TABLES["slow"].meanwhile = lambda: setattr(passed, "ns", getattr(passed, "ns", 0) + 150_000_000)
        for n in range(3):
            shop.epoch(h, n)
        manifests = newest_manifests(Store(h.store))
        assert manifests[0].released_us == {}
        for manifest in manifests[1:]:
            assert manifest.released_us["slow"] > 100_000 > manifest.released_us["quick"]
        first, second, newest = call_json("epochs", store_path)
        assert first["released_ms"]["slow"] > 100 and newest["released_ms"] is None
        lines = [line.split() for line in call("epochs", store_path).stdout.splitlines()]
        assert [line[-1] for line in lines if line[:1] in (["0"], ["1"])] == ["slow", "slow"]
        assert "release ms" in call("epochs", store_path, 1).stdout
        assert second["waiting_for"] == []


def test_who_is_waited_for_is_seen_from_outside_until_all_is_out(store_path: Path) -> None:
    shop = Shop("orders")
    store = open_store(store_path)
    seen: list[Any] = []
    clock = Clock()
    shown = io.StringIO()

    def pause(seconds: float) -> bool:
        if not seen:
            out = call("epochs", store_path).stdout
            screen = Console(file=shown, force_terminal=True, width=200, height=40)
            with EpochTable("shop", screen) as watch:
                watch.follow(lambda: [tell_wait(wait, int(clock.now * 1e6)) for wait in patience.waits], str)
            seen.extend([Store(store_path).waits(), out, call_json("epochs", store_path)[-1]["waiting_for"]])
        return clock.pause(seconds)

    patience = Patience(300_000_000, store=store, clock=clock, pause=pause)
    with Harness(shop.app, sinks=True, store=store_path) as h:
        h._coordinator.releaser._patience = patience
        TABLES["orders"].failures = 3
        shop.epoch(h, 1)
        assert TABLES["orders"].rows == [1]
        [wait], out, [data] = seen
        assert (wait.output, wait.tries, wait.epoch, wait.reason) == ("orders", 1, 0, "connection refused")
        assert "epoch 0 is not out" in out and "table orders" in out
        assert data["reason"] == "connection refused" and data["sink"] == "table orders"
        assert "waiting for table orders: connection refused, 1st try, 0 s" in shown.getvalue()
        assert Store(store_path).waits() == ()


def test_what_was_waited_for_in_vain_stays_noted_until_the_next_run_has_released_it(store_path: Path) -> None:
    shop = Shop("orders")
    clock = Clock()
    patience = Patience(60_000_000, store=open_store(store_path), clock=clock, pause=clock.pause)
    with Harness(shop.app, sinks=True, store=store_path) as h:
        h._coordinator.releaser._patience = patience
        TABLES["orders"].failures = 10**6
        with pytest.raises(SinkUnavailable):
            shop.epoch(h, 1)
        out = call("epochs", store_path).stdout
        assert "epoch 0 is not out: table orders could not be reached for 1m: connection refused" in out
        TABLES["orders"].failures = 0
        h.restart()
        assert TABLES["orders"].rows == [1]


# --- back pressure


def test_no_row_is_read_while_a_sink_has_not_taken_the_epoch_before(store_path: Path) -> None:
    """One epoch is staged at most: what a slow sink has not taken keeps the sources from being read."""
    shop = Shop("slow")
    staged: list[int] = []
    folder = store_path / "staged"
    TABLES["slow"].meanwhile = lambda: staged.append(sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()))
    rows = 5_000
    with Harness(shop.app, sinks=True, store=store_path) as h:
        for n in range(8):
            assert TABLES["slow"].rows == list(range(n * rows))
            shop.epoch(h, *range(n * rows, (n + 1) * rows))
            h.maintain()
    assert len(staged) == 8
    assert max(staged) < 4 * min(staged)
