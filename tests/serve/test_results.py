"""Aggregates from outside: results, not accumulators, for every kind, in every view of them."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.errors import StoreError
from headrace.read.follow import Follower
from headrace.read.store import Store
from headrace.state import layout
from headrace.state.manifest import encode_manifest, read_manifest
from headrace.state.store import LocalStore
from headrace.testing import Harness
from tests.cli.calling import call

pytestmark = pytest.mark.filterwarnings("ignore::headrace.HeadraceWarning")


class Sale(hr.Record):
    shop: str
    cents: int | None
    at: hr.Timestamp
    rate: float = 0.0
    item: str = ""
    price: Decimal = Decimal(0)


class Spread(hr.Aggregator[Sale, tuple[int, int], int]):
    """Of the user's own: nobody else knows what its accumulators come to."""

    def zero(self) -> tuple[int, int]:
        return (10**9, -(10**9))

    def add(self, acc: tuple[int, int], x: Sale) -> tuple[int, int]:
        return (min(acc[0], x.cents or 0), max(acc[1], x.cents or 0))

    def merge(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return (min(a[0], b[0]), max(a[1], b[1]))

    def result(self, acc: tuple[int, int]) -> int:
        return acc[1] - acc[0]


NEVER = "cents > 100000"
AGGREGATES: dict[str, tuple[hr.types.Agg[Any], Any]] = {
    "count": (hr.count(), 3),
    "count_where": (hr.count(where="cents > 5"), 2),
    "count_nothing": (hr.count(where=NEVER), 0),
    "sum": (hr.sum("cents"), 24),
    "sum_nothing": (hr.sum("cents", where=NEVER), 0),
    "sum_float": (hr.sum("rate"), 4.5),
    "sum_float_nothing": (hr.sum("rate", where=NEVER), 0.0),
    "sum_decimal": (hr.sum("price"), Decimal("3.75")),
    "sum_decimal_nothing": (hr.sum("price", where=NEVER), Decimal(0)),
    "avg": (hr.avg("cents"), 8.0),
    "avg_nothing": (hr.avg("cents", where=NEVER), None),
    "min": (hr.min("cents"), 2),
    "max": (hr.max("item"), "c"),
    "max_nothing": (hr.max("cents", where=NEVER), None),
    "min_by": (hr.min("item", by="cents"), "a"),
    "max_by": (hr.max("item", by="cents"), "c"),
    "by_nothing": (hr.max("item", by="cents", where=NEVER), None),
    "first": (hr.first("item"), "a"),
    "last": (hr.last("item"), "c"),
    "first_nothing": (hr.first("item", where=NEVER), None),
    "count_distinct": (hr.count_distinct("rate"), 1),
    "distinct_nothing": (hr.count_distinct("rate", where=NEVER), 0),
    "collect": (hr.collect("cents"), [2, 8, 14]),
    "collect_nothing": (hr.collect("cents", where=NEVER), []),
    "top": (hr.top("cents", 2), [14, 8]),
    "top_by": (hr.top("item", 2, by="cents"), ["c", "b"]),
    "top_nothing": (hr.top("cents", 2, where=NEVER), []),
    "quantile": (hr.quantile("cents", 0.5), pytest.approx(8, rel=0.01)),
    "quantile_nothing": (hr.quantile("cents", 0.5, where=NEVER), None),
}
PLAIN: dict[str, Any] = {"sum_decimal": "3.75", "sum_decimal_nothing": "0"}
"""What is told otherwise in JSON: a Decimal is text."""


def sales(h: Harness) -> list[Sale]:
    return [
        Sale("mill", cents, h.at(f"12:00:0{i}"), 1.5, item, Decimal("1.25"))
        for i, (cents, item) in enumerate([(2, "a"), (8, "b"), (14, "c")])
    ]


def make(
    path: Path, name: str, agg: hr.types.Agg[Any], window: Any = None, **how: Any
) -> tuple[Harness, hr.Stream[Any]]:
    app = hr.App("shop")
    read = app.read("sales", hr.source.items([]), Sale, time=Sale.at)
    keyed = read.key_by(Sale.shop)
    held: Any = keyed if window is None else keyed.window(window, **how)
    step = held.aggregate(**{name: agg}).named("totals").queryable()
    h = Harness(app, start="2024-01-01T12:00", store=path)
    for sale in sales(h):
        h.push(read, sale)
        h.epoch(watermark="12:00:01")
    return h, step


@pytest.mark.parametrize("name", AGGREGATES)
def test_a_rolling_aggregate_is_read_as_its_result(name: str, store_path: Path) -> None:
    agg, expected = AGGREGATES[name]
    h, step = make(store_path, name, agg)
    with h:
        typed = Store(h.store).state("totals", step.node.codec.type)["mill"]
        assert (typed.shop, getattr(typed, name)) == ("mill", expected)
        assert getattr(h.state(step, key="mill"), name) == expected
        plain = PLAIN.get(name, expected)
        assert Store(h.store).state("totals")["mill"] == {"shop": "mill", name: expected}
        snapshot = Follower(Store(h.store)).look()
        assert snapshot is not None
        table = snapshot.table("totals")
        assert table is not None
        assert msgspec.json.decode(table.get(table.key("mill")) or b"") == {"shop": "mill", name: plain}


@pytest.mark.parametrize(
    "window",
    [hr.tumbling("1m"), hr.sliding("1m", every="30s"), hr.session("58s")],
    ids=["tumbling", "sliding", "session"],
)
@pytest.mark.parametrize("name", AGGREGATES)
def test_a_window_that_is_merged_from_slices_is_read_as_its_result(name: str, window: Any, store_path: Path) -> None:
    agg, expected = AGGREGATES[name]
    h, step = make(store_path, name, agg, window)
    with h:
        bounds = {"window_start": h.at("12:00:00"), "window_end": h.at("12:01:00")}
        plain = {"shop": "mill", **bounds, name: expected}
        for _ in range(2):
            view = Store(h.store).state("totals")
            assert view["mill"] == view.get_many(["mill"])[0] == plain
            assert list(view.windows("mill").values())[-1] == plain  # type: ignore[attr-defined]
            typed = Store(h.store).state("totals", step.node.codec.type)["mill"]
            assert (typed.window_end, getattr(typed, name)) == (bounds["window_end"], expected)
            assert getattr(h.state(step, key="mill"), name) == expected
            snapshot = Follower(Store(h.store)).look()
            assert snapshot is not None
            table = snapshot.table("totals")
            assert table is not None
            served = msgspec.json.decode(table.get(table.key("mill")) or b"")
            times = {"window_start": "2024-01-01T12:00:00Z", "window_end": "2024-01-01T12:01:00Z"}
            assert served == {**plain, **times, name: PLAIN.get(name, expected)}
            assert view.to_polars().sort("window_end")[name].to_list()[-1] == expected
            h.maintain()
            h.epoch()


@pytest.mark.parametrize("name", ["count", "collect", "avg", "top_by", "quantile", "sum_decimal", "first"])
def test_a_window_that_is_kept_by_itself_is_read_as_its_result(name: str, store_path: Path) -> None:
    agg, expected = AGGREGATES[name]
    h, step = make(store_path, name, agg, hr.session("10s"), fire=hr.every(rows=100))
    with h:
        window = {"window_start": h.at("12:00:00"), "window_end": h.at("12:00:12")}
        plain = {"shop": "mill", **window, name: expected, "pane": "early"}
        view = Store(h.store).state("totals")
        assert view.kind == "windows"
        assert view["mill"] == plain
        [(bounds, value)] = view.windows("mill").items()  # type: ignore[attr-defined]
        assert (bounds.start, bounds.end, value) == (*window.values(), plain)
        assert getattr(h.state(step, key="mill"), name) == expected
        assert list(view) == ["mill"] and len(view) == 1


def test_an_aggregate_of_ones_own_is_finished_by_the_program_only(store_path: Path) -> None:
    h, step = make(store_path, "spread", Spread())
    with h:
        assert Store(h.store).state("totals")["mill"] == {"shop": "mill", "spread": [2, 14]}
        assert h.state(step, key="mill").spread == 12
        with pytest.raises(StoreError, match="does not fit the type"):
            Store(h.store).state("totals", step.node.codec.type)["mill"]


def test_windows_without_an_end_and_reduced_ones_show_what_they_hold(store_path: Path) -> None:
    app = hr.App("shop")
    read = app.read("sales", hr.source.items([]), Sale, time=Sale.at)
    keyed = read.key_by(Sale.shop)
    keyed.window(hr.unbounded(), fire=hr.per_row()).aggregate(all=hr.collect("item")).named("ever").queryable()
    keyed.window(hr.session("10s")).reduce(lambda a, b: b.replace(item=a.item + b.item)).named("joined").queryable()
    with Harness(app, start="2024-01-01T12:00", store=store_path) as h:
        h.push(read, *sales(h))
        h.epoch(watermark="12:00:01")
        store = Store(h.store)
        assert store.state("ever")["mill"] == {"shop": "mill", "all": ["a", "b", "c"], "pane": "early"}
        assert store.state("joined")["mill"]["item"] == "abc"
        assert store.state("joined", Sale)["mill"].item == "abc"
        assert [(info.address, info.kind) for info in store.states()] == [("ever", "windows"), ("joined", "windows")]


class Longest(hr.WindowProcess[Sale, Sale, str]):
    def on_window(self, rows: Sequence[Sale], ctx: hr.WindowContext[str]) -> Any:
        yield max(rows, key=lambda sale: sale.cents or 0)


def test_a_window_whose_rows_are_kept_tells_how_many(store_path: Path) -> None:
    app = hr.App("shop")
    read = app.read("sales", hr.source.items([]), Sale, time=Sale.at)
    read.key_by(Sale.shop).window(hr.tumbling("1m")).process(Longest()).named("longest").queryable()
    with Harness(app, start="2024-01-01T12:00", store=store_path) as h:
        h.push(read, *sales(h))
        h.epoch(watermark="12:00:01")
        minute = {"window_start": h.at("12:00"), "window_end": h.at("12:01")}
        assert Store(h.store).state("longest")["mill"] == {"shop": "mill", **minute, "rows": 3}
        h.epoch(watermark="12:01:01")
        assert dict(Store(h.store).state("longest")) == {}


def test_keys_of_several_columns_are_columns_of_the_result(store_path: Path) -> None:
    app = hr.App("shop")
    read = app.read("sales", hr.source.items([]), Sale, time=Sale.at)
    read.key_by(Sale.shop, Sale.item).aggregate(n=hr.count()).named("pairs").queryable()
    with Harness(app, start="2024-01-01T12:00", store=store_path) as h:
        h.push(read, *sales(h))
        h.epoch()
        assert Store(h.store).state("pairs")["mill", "a"] == {"shop": "mill", "item": "a", "n": 1}


def test_a_manifest_that_says_nothing_of_results_shows_accumulators(store_path: Path) -> None:
    h, _ = make(store_path, "mean", hr.avg("cents"))
    with h:
        files = LocalStore(h.store, durable=False)
        epoch = Store(h.store).epoch
        older = msgspec.structs.replace(read_manifest(files, 0, epoch), states={})
        files.write(layout.manifest(0, epoch), encode_manifest(older))
        assert Store(h.store).state("totals")["mill"]["mean"] == [24.0, 3]


def test_the_command_line_shows_results(store_path: Path) -> None:
    h, _ = make(store_path, "mean", hr.avg("cents"))
    with h:
        done = call("state", h.store, "totals", "mill", "--json")
        assert msgspec.json.decode(done.stdout)["value"] == {"shop": "mill", "mean": 8.0}


def test_results_become_columns(store_path: Path) -> None:
    h, step = make(store_path, "mean", hr.avg("cents"))
    with h:
        frame = Store(h.store).state("totals", step.node.codec.type).to_polars()
        assert frame.rows() == [("mill", "mill", 8.0)]
