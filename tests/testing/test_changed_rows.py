"""Rows that steps keep, and rows that wait for the next epoch, are read as rows of the type that they have now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.connectors.staged import columns_of
from headrace.errors import StoreError, UpgradeRefused
from headrace.model import migrations
from headrace.model.rows import codec_of
from headrace.testing import Harness
from tests.testing.changed import FILES


@pytest.fixture(autouse=True)
def _no_functions_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "_registered", {})


class Part(hr.Record):
    name: str
    n: int = 0


class PartNow(hr.Record):
    n: float = 0.0
    title: str = hr.field(default="", was="name")


class Sale(hr.Record):
    shop: str
    at: hr.Timestamp
    cents: int
    town: str = "?"
    part: Part = Part("screw", 3)


class SaleNow(hr.Record):
    at: hr.Timestamp
    shop: str
    cents: float
    city: str = hr.field(default="", was="town")
    note: str = "none"
    part: PartNow = PartNow()


class SaleWider(hr.Record):
    shop: str
    at: hr.Timestamp
    city: str | None = hr.field(default="", was="town")
    note: str = "none"
    cents: float = 0.0
    part: Part = Part("nail", 1)


class SaleByFunction(hr.Record):
    shop: str
    at: hr.Timestamp
    euros: str
    parts: list[PartNow] = hr.field(default_factory=list)


def to_euros(old: Sale) -> SaleByFunction:
    return SaleByFunction(old.shop, old.at, f"{old.cents / 100:.2f}", [PartNow(float(old.part.n), old.part.name)])


def sale(at: Any, cents: int = 250) -> Sale:
    return Sale("a", at, cents, "Ulm")


NEW: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "as it was": (Sale, sale),
    "column by column": (SaleWider, lambda at: SaleWider("a", at, "Ulm", "none", 250.0, Part("screw", 3))),
    "by the rules": (SaleNow, lambda at: SaleNow(at, "a", 250.0, "Ulm", "none", PartNow(3.0, "screw"))),
    "by a function": (SaleByFunction, lambda at: SaleByFunction("a", at, "2.50", [PartNow(3.0, "screw")])),
}


@pytest.fixture(params=NEW)
def new(request: pytest.FixtureRequest) -> tuple[Any, Callable[[Any], Any]]:
    """The type that sales have after the change, and what one of 250 cents is then."""
    if request.param == "by a function":
        hr.migrate(Sale, SaleByFunction, to_euros)
    return NEW[request.param]


class Stop(hr.Record):
    shop: str
    at: hr.Timestamp


def all_of(window: Any) -> Callable[[Any, Any, Any], Any]:
    """A step whose function sees all rows of a window."""

    def step(sales: Any, stops: Any, kind: Any) -> Any:
        class AllOf(hr.WindowProcess[kind, str, str]):
            def on_window(self, rows: list[kind], ctx: hr.WindowContext[str]) -> Iterator[str]:
                yield from map(str, rows)

        return sales.window(window).process(AllOf()).named("kept")

    return step


def first_of(one: Any, other: Any) -> Any:
    return one


def pairs(joined: Any) -> Any:
    return joined.map(lambda sale, stop: str(sale), output=str)


def tell(stream: Any) -> Any:
    return stream.map(str, output=str)


STEPS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "interval join": lambda sales, stops, _: pairs(sales.join(stops, within=("-5m", "5m")).named("kept")),
    "join for ever": lambda sales, stops, _: pairs(sales.join(stops, within=None).named("kept")),
    "join of the newest": lambda sales, stops, _: pairs(sales.join(stops, within=None, keep="latest").named("kept")),
    "as-of join": lambda sales, stops, _: stops.join_asof(sales).named("kept").map(
        lambda stop, sale: str(sale), output=str
    ),
    "window join": lambda sales, stops, _: pairs(sales.join(stops, within=hr.tumbling("1h")).named("kept")),
    "co-group": lambda sales, stops, _: sales.co_group(stops, hr.tumbling("1h")).map(
        lambda sold, stopped: str(sold[0]), output=str
    ).named("kept"),
    "window of rows": all_of(hr.tumbling("1h")),
    "session of rows": all_of(hr.session("1h")),
    "window of one row": lambda sales, stops, _: tell(sales.window(hr.tumbling("1h")).reduce(first_of).named("kept")),
}  # fmt: skip


def begin(step: Callable[[Any, Any, Any], Any], kind: Any, store: Path) -> tuple[Any, Any, Any, Harness]:
    """Sales, stops, what the step gives, and its harness."""
    app = hr.App("sales")
    sales = app.read("sales", hr.source.items([]), kind, time="at")
    stops = app.read("stops", hr.source.items([]), Stop, time="at")
    taken = step(sales.key_by("shop"), stops.key_by("shop"), kind)
    return sales, stops, taken, Harness(app, start="2024-01-01T12:00", store=store, limits=FILES)


@pytest.mark.parametrize("folds", [False, True], ids=["read", "folded"])
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_rows_that_steps_keep(
    tmp_path: Path, step: Callable[[Any, Any, Any], Any], new: tuple[Any, Callable[[Any], Any]], folds: bool
) -> None:
    sales, _, taken, h = begin(step, Sale, tmp_path)
    with h:
        h.push(sales, sale(h.at("12:00")))
        h.epoch(watermark="11:59")
        assert h.take(taken) == []
    _, stops, taken, h = begin(step, new[0], tmp_path)
    with h:
        for _ in range(4 if folds else 0):
            h.epoch(watermark="11:59")
            h.maintain()
        h.push(stops, Stop("a", h.at("12:01")))
        h.epoch(watermark="11:59")
        h.drain()
        assert h.take(taken) == [str(new[1](h.at("12:00")))]


def test_rows_that_wait_in_a_loop(tmp_path: Path, new: tuple[Any, Callable[[Any], Any]]) -> None:
    def program(kind: Any) -> tuple[Any, Any, Harness]:
        app = hr.App("sales")
        again = app.loop("again", kind)
        sales = app.read("sales", hr.source.items([]), kind)
        sales.feed(again)
        return sales, again, Harness(app, start="2024-01-01T12:00", store=tmp_path, limits=FILES)

    sales, _, h = program(Sale)
    with h:
        h.push(sales, sale(h.at("12:00")))
        h.epoch()
    _, again, h = program(new[0])
    with h:
        h.epoch()
        assert h.take(again) == [new[1](h.at("12:00"))]


def test_a_function_that_fails_for_rows_in_a_loop_is_refused_before_the_start(tmp_path: Path) -> None:
    def program(kind: Any, **options: Any) -> tuple[Any, Harness]:
        app = hr.App("sales")
        again = app.loop("again", kind)
        sales = app.read("sales", hr.source.items([]), kind)
        sales.feed(again)
        return sales, Harness(app, start="2024-01-01T12:00", store=tmp_path, limits=FILES, **options)

    def only_small(old: Sale) -> SaleByFunction:
        assert old.cents < 1000, "too dear"
        return to_euros(old)

    sales, h = program(Sale)
    with h:
        h.push(sales, sale(h.at("12:00")), sale(h.at("12:01"), 5000))
        h.epoch()
    hr.migrate(Sale, SaleByFunction, only_small)
    with pytest.raises(UpgradeRefused, match="loop again") as refused:
        program(SaleByFunction)
    assert "too dear" in str(refused.value) and "--drop again" in str(refused.value)
    _, h = program(SaleByFunction, drop=["again"])
    with h:
        h.epoch()


def test_rows_that_wait_for_their_release_go_by_names_or_are_refused() -> None:
    codec = codec_of(Sale)
    old = sale(hr.Timestamp(1))
    batch = pa.RecordBatch.from_arrays(codec.to_arrays([old]), schema=codec.schema)
    wider = codec_of(SaleWider)
    [made] = wider.to_objects(columns_of(batch, wider, "output sales"))
    assert made == SaleWider("a", hr.Timestamp(1), "Ulm", "none", 250.0, Part("screw", 3))
    for kind, found in ((SaleNow, "records with other fields"), (SaleByFunction, "rows without it")):
        with pytest.raises(StoreError, match=found) as caught:
            columns_of(batch, codec_of(kind), "output sales")
        assert caught.value.where == "output sales"


def refuses(old: Sale) -> SaleByFunction:
    raise ValueError(f"no rate for {old.cents}")


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_function_that_fails_for_rows_that_a_step_keeps_is_refused_before_the_start(
    tmp_path: Path, step: Callable[[Any, Any, Any], Any]
) -> None:
    sales, _, _, h = begin(step, Sale, tmp_path)
    with h:
        h.push(sales, sale(h.at("12:00")))
        h.epoch(watermark="11:59")
    hr.migrate(Sale, SaleByFunction, refuses)
    with pytest.raises(UpgradeRefused, match="no rate for 250") as caught:
        begin(step, SaleByFunction, tmp_path)
    assert "--drop kept" in str(caught.value)


class SaleLast(hr.Record):
    shop: str
    at: hr.Timestamp
    euros: float = hr.field(default=0.0, was="cents")
    place: str = hr.field(default="", was="city")


class SaleNamed(hr.Record):
    shop: str
    at: hr.Timestamp
    euros: float = 0.0
    place: str = ""
    note: str = "new"


@pytest.mark.parametrize("folds", [False, True], ids=["read", "folded"])
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_rows_go_through_all_types_but_those_that_were_taken_back(
    tmp_path: Path, step: Callable[[Any, Any, Any], Any], folds: bool
) -> None:
    sales, _, _, h = begin(step, Sale, tmp_path)
    with h:
        h.push(sales, sale(h.at("12:00")))
        h.epoch(watermark="11:59")
    # Nobody wrote a row of the second type, from which nothing leads to the third.
    for kind in (SaleWider, SaleNow, SaleLast):
        _, _, _, h = begin(step, kind, tmp_path)
        with h:
            for _ in range(4 if folds and kind is not SaleWider else 0):
                h.epoch(watermark="11:59")
                h.maintain()
            h.epoch(watermark="11:59")
    _, stops, taken, h = begin(step, SaleNamed, tmp_path)
    with h:
        h.push(stops, Stop("a", h.at("12:01")))
        h.epoch(watermark="11:59")
        h.drain()
        assert h.take(taken) == [str(SaleNamed("a", h.at("12:00"), 250.0, "Ulm", "new"))]
