"""Whole programs on a store in an object store: they die, resume and are read, on one machine or on several."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

import headrace as hr
from headrace.errors import Refused, StoreInUse
from headrace.model.order import EpochLimits
from headrace.state import layout
from headrace.state.store import open_store
from headrace.testing import Harness
from tests.cli.calling import call, call_json

if TYPE_CHECKING:
    from tests.objects import ObjectServer

FILES = EpochLimits(inline_run_bytes=0, inline_output_bytes=0)
"""Everything in files of its own, so that the cache has something to do."""

POINTS = {
    "offsets_written": False,
    "delta_half_written": False,
    "outputs_staged": False,
    "before_publish": False,
    "manifest_written": False,
    "manifest_answer_lost": True,
    "published": True,
    "released": True,
}


class Sale(hr.Record):
    shop: str
    cents: int


class Total(hr.Record):
    shop: str
    cents: int


class Sum(hr.Process[Sale, Total, str]):
    cents: hr.ValueState[int]

    def on_event(self, event: Sale, ctx: hr.Context[str]) -> Iterator[Total]:
        self.cents.set(self.cents.get(0) + event.cents)
        yield Total(ctx.key, self.cents.get(0))


class Shop:
    """The program; ``fed`` is what its sink was given, with the epoch."""

    def __init__(self) -> None:
        self.app = hr.App("shop")
        self.sales = self.app.read("sales", hr.source.items([]), Sale)
        self.totals = self.sales.key_by(Sale.shop).process(Sum()).named("sum")
        self.fed: list[tuple[int, int]] = []
        self.totals.write(hr.sink.call(self._take), name="fed")

    def _take(self, rows: Any, epoch: int) -> None:
        self.fed.append((epoch, len(rows)))

    def harness(self, url: str, **options: Any) -> Harness:
        return Harness(self.app, store=url, limits=FILES, **options)


@pytest.fixture
def url(bucket: str) -> str:
    return f"s3://{bucket}/{uuid4().hex}"


@pytest.mark.parametrize("point", POINTS)
def test_a_program_dies_at_a_point_and_resumes(url: str, point: str) -> None:
    shop = Shop()
    with shop.harness(url) as h:
        h.push(shop.sales, Sale("a", 1), Sale("b", 10))
        h.epoch()
        h.push(shop.sales, Sale("a", 2))
        h.crash(at=point)
        assert (h.published == 1) == POINTS[point]
        if not POINTS[point]:
            h.epoch()
        given = {(total.shop, total.cents) for total in h.take(shop.totals)}
        assert given == {("a", 1), ("b", 10), ("a", 3)}
        assert h.state(shop.totals, Sum.cents, "a") == 3
    store = hr.Store(url)
    assert store.epoch == 1
    assert store.state("sum.cents", int).get_many(["a", "b", "c"]) == [3, 10, None]
    assert store.at(0).state("sum.cents", int)["a"] == 1


def test_another_machine_goes_on_where_the_first_ended(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop()
    with shop.harness(url) as h:
        h.push(shop.sales, Sale("a", 1))
        h.epoch()
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "another machine"))
    with shop.harness(url) as h:
        assert h.published == 0
        h.push(shop.sales, Sale("a", 2))
        h.epoch()
        h.maintain()
        assert h.take(shop.totals) == [Total("a", 3)]
    assert hr.Store(url).state("sum.cents", int)["a"] == 3


def test_what_was_released_is_not_released_again_after_a_clean_end(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop()
    with shop.harness(url, sinks=True) as h:
        h.push(shop.sales, Sale("a", 1))
        h.epoch()
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "another machine"))
    with shop.harness(url, sinks=True):
        assert shop.fed == [(0, 1)]
    open_store(url).delete(layout.RELEASED)
    with shop.harness(url, sinks=True):
        assert shop.fed == [(0, 1), (0, 1)], "in doubt it is released again"


def test_the_command_line_reads_it_and_tells_what_is_wrong(url: str) -> None:
    shop = Shop()
    with shop.harness(url) as h:
        h.push(shop.sales, Sale("a", 7))
        h.epoch()
    assert call_json("state", url, "sum.cents", "a")["value"] == 7
    assert [epoch["epoch"] for epoch in call_json("epochs", url)] == [0]
    wrong = call("state", "s3://no-such-bucket-anywhere/shop")
    assert wrong.exit_code == 4
    assert "the bucket of this store does not exist" in wrong.stderr
    for word in ("where", "expected", "found", "next"):
        assert word in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_lost_manifests_are_noticed(url: str) -> None:
    shop = Shop()
    with shop.harness(url) as h:
        h.push(shop.sales, Sale("a", 1))
        h.epoch()
    store = open_store(url)
    for path in store.list(layout.MANIFESTS):
        store.delete(path)
    with pytest.raises(Refused, match="no manifest"):
        shop.harness(url)


def test_nothing_of_spark_lies_in_the_object_store(url: str) -> None:
    shop = Shop()
    with shop.harness(url) as h:
        h.push(shop.sales, Sale("a", 1))
        h.epoch()
        assert open_store(url).list(layout.SPARK) == []


def test_a_second_driver_on_an_object_store_is_refused(url: str) -> None:
    from headrace.checkpoint.fence import take_fence

    shop = Shop()
    with shop.harness(url) as h:
        store = open_store(url)
        fence = h._fence
        assert fence is not None
        with pytest.raises(StoreInUse, match="another driver is running"):
            take_fence(store, sleep=lambda _: fence.heart.beat())
        h.push(shop.sales, Sale("a", 1))
        h.epoch()
    take_fence(open_store(url), sleep=pytest.fail).drop()


def test_an_epoch_takes_few_requests(url: str, object_server: ObjectServer) -> None:
    """Every request of the driver costs time and money: this many are made for an epoch with one small change."""
    shop = Shop()
    with Harness(shop.app, store=url) as h:
        for cents in (1, 2):
            object_server.seen.clear()
            h.push(shop.sales, Sale("a", cents))
            h.epoch()
        # A sign of life is written every few seconds, whatever epochs do.
        seen = [request for request in object_server.seen if f"/{layout.HEARTBEATS}/" not in request]
    notes = [request for request in seen if request.startswith("PUT") and layout.RELEASED in request]
    late = len(notes) > 1  # the note of the epoch before is written beside the work, and may come in this one
    kinds = [request.partition(" ")[0] for request in seen]
    assert kinds.count("PUT") - late <= 2, f"the manifest, and the note that its outputs are out: {seen}"
    assert len(kinds) - late <= 5, f"besides, three looks for a newer driver: {seen}"
