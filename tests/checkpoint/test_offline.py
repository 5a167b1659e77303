"""Epochs without Spark: a job goes on behind them as behind any other, and nothing that was staged before is lost."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import headrace as hr
from headrace.checkpoint.facts import read_facts
from headrace.checkpoint.fence import take_fence
from headrace.checkpoint.offline import StoppedJob, hold_stopped
from headrace.errors import SinkFailed, StoreError, StoreInUse
from headrace.model import crash
from headrace.model.keys import encode_key, hash_key
from headrace.state import layout
from headrace.state.format import VALUE, TableData
from headrace.state.manifest import EpochNote, list_epochs, read_manifest
from headrace.state.moments import parse_moment, read_moment
from headrace.state.store import LocalStore
from headrace.testing import Harness

NOTE = EpochNote(kind="edit", by="ada", at_us=1_800_000_000_000_000, why="a wrong total", changed={"totals": 1})
KEYS = [f"shop-{i}" for i in range(20)]


class Sale(hr.Record):
    shop: str
    n: int = 1


def shop_app(folder: Path, sink: hr.Sink | None = None) -> tuple[hr.App, hr.Stream[Sale], hr.Stream[Sale]]:
    app = hr.App("shop")
    sales = app.read("sales", hr.source.items([]), Sale)
    totals = sales.key_by(Sale.shop).reduce(lambda a, b: a.replace(n=a.n + b.n)).named("totals")
    sales.write(sink or hr.sink.files(folder / "out"), name="out")
    return app, sales, totals


class Shop:
    """A small job, its harness and its store."""

    def __init__(self, folder: Path, sink: hr.Sink | None = None) -> None:
        app, self.sales, self.totals = shop_app(folder, sink)
        self.h = Harness(app, store=folder / "store", sinks=True)

    def sell(self, *shops: str) -> None:
        self.h.push(self.sales, *map(Sale, shops))
        self.h.epoch()

    def total(self, shop: str) -> int | None:
        row = self.h.state(self.totals, key=shop)
        return None if row is None else int(row.n)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store", durable=False)


def run_two_epochs(folder: Path) -> None:
    shop = Shop(folder)
    with shop.h:
        shop.sell(*KEYS)
        shop.sell("shop-1")


def totals_table(**totals: int | None) -> TableData:
    keys = [encode_key(name.replace("_", "-")) for name in totals]
    values = [
        None if n is None else msgspec.msgpack.encode(Sale(name.replace("_", "-"), n)) for name, n in totals.items()
    ]
    columns = {
        "hash": pa.array([hash_key(key) for key in keys], pa.uint64()),
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
    }
    return TableData("value", VALUE, pa.table(columns))


def set_totals(stopped: StoppedJob, **totals: int | None) -> None:
    stopped.publish(NOTE, added={"totals": stopped.writer.write_runs("totals", [totals_table(**totals)])})


def written(folder: Path) -> list[str]:
    lines = [line for path in sorted((folder / "out").glob("part-*")) for line in path.read_text().splitlines()]
    return sorted(lines)


def test_the_job_goes_on_behind_an_epoch_without_spark(tmp_path: Path, store: LocalStore) -> None:
    run_two_epochs(tmp_path)
    with hold_stopped(store) as stopped:
        assert stopped.epoch == 2
        set_totals(stopped, shop_1=100, shop_2=None, shop_99=7)
    shop = Shop(tmp_path)
    with shop.h:
        assert shop.h.published == 2
        shop.sell("shop-1", "shop-2", "shop-3")
        assert shop.h.published == 3
        assert [shop.total(each) for each in ("shop-1", "shop-2", "shop-3", "shop-99")] == [101, 1, 2, 7]


def test_its_manifest_says_who_when_and_why_and_reads_nothing(tmp_path: Path, store: LocalStore) -> None:
    run_two_epochs(tmp_path)
    with hold_stopped(store) as stopped:
        set_totals(stopped, shop_1=100)
    before, after = (read_manifest(store, 0, epoch) for epoch in (1, 2))
    assert after.notes == [NOTE]
    assert (after.offsets, after.time, after.clock_us) == (before.offsets, before.time, before.clock_us)
    assert (after.offline, after.ran_epoch, after.outputs, after.tasks) == (1, 1, {}, [])
    assert after.published_us == NOTE.at_us
    assert read_moment(store, parse_moment("2025-01-01T00:00")).epoch == 1
    assert read_moment(store, parse_moment("2030-01-01T00:00")).epoch == 2


def test_rows_that_were_not_released_are_released_before_the_next_epoch(tmp_path: Path, store: LocalStore) -> None:
    run_two_epochs(tmp_path)
    # Of the newest epoch nothing is out, and nobody knows better.
    for part in (tmp_path / "out").glob("part-*000000000001*"):
        part.unlink()
    forget_newest_release(store, 1)
    with hold_stopped(store) as stopped:
        set_totals(stopped, shop_1=100)
        set_totals(stopped, shop_1=200)
    facts = read_facts(store)
    assert facts.unreleased is not None
    assert facts.unreleased.epoch == 1
    shop = Shop(tmp_path)
    with shop.h:
        assert len(written(tmp_path)) == len(KEYS) + 1
        assert not facts_of_next_start(store)
        shop.sell("shop-1")
        assert shop.total("shop-1") == 201


def forget_newest_release(store: LocalStore, epoch: int) -> None:
    for path in store.list(layout.SPARK):
        if re.search(rf"/commits/{epoch}$", path):
            store.delete(path)
    store.delete(layout.RELEASED)


def facts_of_next_start(store: LocalStore) -> bool:
    """Whether a start that came now would release something once more."""
    return read_facts(store).unreleased is not None


def test_a_release_that_fails_is_tried_again_at_the_next_start_behind_an_offline_epoch(
    tmp_path: Path, store: LocalStore
) -> None:
    def down(rows: list[Sale], epoch: int) -> None:
        raise RuntimeError("down")

    shop = Shop(tmp_path, hr.sink.call(down))
    with pytest.raises(SinkFailed), shop.h:
        shop.sell("shop-1")
    with hold_stopped(store) as stopped:
        set_totals(stopped, shop_1=5)
    rows: list[tuple[Sale, int]] = []
    again = Shop(tmp_path, hr.sink.call(lambda batch, epoch: rows.extend((row, epoch) for row in batch)))
    with again.h:
        assert rows == [(Sale("shop-1"), 0)]


def test_a_store_that_a_job_runs_on_is_left_alone(tmp_path: Path, store: LocalStore) -> None:
    run_two_epochs(tmp_path)
    fence = take_fence(store)
    try:
        with pytest.raises(StoreInUse) as refused, hold_stopped(store):
            raise AssertionError("it was held")
        assert "headrace stop" in refused.value.next_move
    finally:
        fence.drop()
    assert list_epochs(store, 0) == [0, 1]


def test_no_store_is_begun_where_none_is(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "nothing", durable=False)
    with pytest.raises(StoreError, match="there is no store here"), hold_stopped(store):
        raise AssertionError("it was held")
    assert store.list() == []


@pytest.mark.parametrize("point", ["offline_written", "before_publish", "manifest_written"])
def test_dying_before_it_is_published_changes_nothing(point: str, tmp_path: Path, store: LocalStore) -> None:
    run_two_epochs(tmp_path)
    die(point, partial(edit_one, store))
    shop = Shop(tmp_path)
    with shop.h:
        assert (shop.h.published, shop.total("shop-1")) == (1, 2)
        shop.sell("shop-1")
        assert shop.total("shop-1") == 3


@pytest.mark.parametrize("point", ["manifest_answer_lost", "published"])
def test_dying_behind_its_publishing_changes_nothing_any_more(point: str, tmp_path: Path, store: LocalStore) -> None:
    run_two_epochs(tmp_path)
    die(point, partial(edit_one, store))
    shop = Shop(tmp_path)
    with shop.h:
        assert (shop.h.published, shop.total("shop-1")) == (2, 100)


def edit_one(store: LocalStore) -> None:
    with hold_stopped(store) as stopped:
        set_totals(stopped, shop_1=100)


def die(point: str, work: partial[None]) -> None:
    def strike(reached: str, epoch: int) -> None:
        if reached == point:
            raise crash.Crash(point)

    with crash.planned(strike), pytest.raises(crash.Crash):
        work()


def test_large_runs_are_files_by_shard_and_small_ones_travel_in_the_manifest(tmp_path: Path, store: LocalStore) -> None:
    run_two_epochs(tmp_path)
    many = {f"key_{i}": i for i in range(5_000)}
    with hold_stopped(store) as stopped:
        large = stopped.writer.write_runs("totals", [totals_table(**many)])
        small = stopped.writer.write_runs("totals", [totals_table(shop_1=1)])
        assert [(ref.lo, ref.hi, bool(ref.file)) for ref in large] == [(0, 64, True), (64, 128, True)]
        assert [bool(ref.file) for ref in small] == [False]
        stopped.publish(NOTE, added={"totals": [*small, *large]})
    shop = Shop(tmp_path)
    with shop.h:
        assert [shop.total(key) for key in ("shop-1", "key-7", "key-4999", "shop-3")] == [1, 7, 4999, 1]
