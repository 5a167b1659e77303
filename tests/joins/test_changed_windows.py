"""A window join, a co-group or a windowed function that comes back with other windows: refused while some are open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import UpgradeRefused
from tests.joins.shops import Order, ShopTrial


class Count(hr.WindowProcess[Order, tuple[Any, Any], str]):
    def on_window(self, rows: Sequence[Order], ctx: hr.WindowContext[str]) -> Iterator[tuple[Any, Any]]:
        yield [row.n for row in rows], None


def joined(orders: Any, payments: Any, window: Any, **options: Any) -> Any:
    pairs = orders.join(payments, within=window, how="full").named("paid", **options)
    return pairs.map(lambda order, payment: (order and order.n, payment and payment.n), output=tuple[Any, Any])


def grouped(orders: Any, payments: Any, window: Any, **options: Any) -> Any:
    both = orders.co_group(payments, window)
    numbers = both.map(lambda a, b: ([x.n for x in a], [x.n for x in b]), output=tuple[Any, Any])
    return numbers.named("paid", **options)


def seen(orders: Any, payments: Any, window: Any, **options: Any) -> Any:
    return orders.window(window).process(Count()).named("paid", **options)


class Shop(ShopTrial):
    """Orders and payments of one hour, or of other windows."""

    def __init__(
        self, store: Path, window: Any, make: Any = joined, *, drop: Sequence[str] = (), **options: Any
    ) -> None:
        app = hr.App("shop")
        self.orders = app.read("orders", hr.source.items([]), Order, time=Order.at)
        self.payments = app.read("payments", hr.source.items([]), Order, time=Order.at)
        self.told = make(self.orders.key_by(Order.shop), self.payments.key_by(Order.shop), window, **options)
        self.told.show()
        self.harness = hr.testing.Harness(app, start="2024-01-01T12:00", store=str(store), parallelism=2, drop=drop)

    def reach(self, at: str) -> list[Any]:
        """An epoch at whose end both clocks stand there."""
        self.harness.epoch(watermark=at, clock=at)
        self.harness.maintain()
        return [tuple(row) for row in self.harness.take(self.told)]


HOUR = hr.tumbling("1h")
OTHERS = {
    "another size": hr.tumbling("2h"),
    "an offset": hr.tumbling("1h", offset="30m"),
    "windows that slide": hr.sliding("1h", every="30m"),
    "windows that grow": hr.cumulating("1h", every="30m"),
    "sessions": hr.session("30m"),
    "another clock": hr.tumbling("1h", clock="wall"),
}


@pytest.mark.parametrize("make", [joined, grouped], ids=["join", "co-group"])
@pytest.mark.parametrize("after", OTHERS.values(), ids=OTHERS)
def test_other_windows_are_refused_while_some_are_open(tmp_path: Path, after: Any, make: Any) -> None:
    with Shop(tmp_path, HOUR, make) as shop:
        shop.order(1, "12:10")
        assert shop.reach("12:11") == []
    for _ in range(2):
        with pytest.raises(UpgradeRefused, match="were changed while some are still open") as refused:
            Shop(tmp_path, after, make)
        assert "step 'paid'" in str(refused.value)
        assert "tumbling windows of 1h, event time" in str(refused.value)
    with Shop(tmp_path, HOUR, make) as shop:
        shop.pay(2, "12:30")
        assert shop.reach("13:00") == [([1], [2]) if make is grouped else (1, 2)]


@pytest.mark.parametrize("after", OTHERS.values(), ids=OTHERS)
def test_other_windows_begin_when_none_is_open(tmp_path: Path, after: Any) -> None:
    with Shop(tmp_path, HOUR) as shop:
        shop.order(1, "12:10")
        assert shop.reach("13:00") == [(1, None)]
    with Shop(tmp_path, after) as shop:
        shop.order(2, "14:10")
        shop.pay(3, "14:20")
        told = [*shop.reach("14:20"), *shop.reach("17:00")]
        assert (2, 3) in told
        assert all(pair == (2, 3) for pair in told)


def test_a_step_of_another_name_begins_anew(tmp_path: Path) -> None:
    with Shop(tmp_path, HOUR) as shop:
        shop.order(1, "12:10")
        shop.reach("12:11")

    def renamed(orders: Any, payments: Any, window: Any) -> Any:
        pairs = orders.join(payments, within=window).named("paid_late")
        return pairs.map(lambda order, payment: (order.n, payment.n), output=tuple[Any, Any])

    with Shop(tmp_path, hr.tumbling("2h"), renamed, drop=["paid"]) as shop:
        shop.order(2, "12:20")
        shop.pay(3, "12:30")
        assert shop.reach("14:00") == [(2, 3)]


def test_a_step_that_only_got_another_name_is_asked_too(tmp_path: Path) -> None:
    with Shop(tmp_path, HOUR) as shop:
        shop.order(1, "12:10")
        shop.reach("12:11")

    def renamed(orders: Any, payments: Any, window: Any) -> Any:
        pairs = orders.join(payments, within=window).named("settled", was="paid")
        return pairs.map(lambda order, payment: (order.n, payment.n), output=tuple[Any, Any])

    with pytest.raises(UpgradeRefused, match="step 'settled'"):
        Shop(tmp_path, hr.tumbling("2h"), renamed)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [("10m", "1h", [(1, None), (None, 2)]), ("1h", "10m", [(1, 2)])],
    ids=["longer", "shorter"],
)
def test_sessions_may_get_another_gap_and_open_ones_end_as_their_rows_said(
    tmp_path: Path, before: str, after: str, told: list[Any]
) -> None:
    with Shop(tmp_path, hr.session(before)) as shop:
        shop.order(1, "12:10")
        assert shop.reach("12:11") == []
    with Shop(tmp_path, hr.session(after)) as shop:
        shop.pay(2, "12:30")
        assert [row for at in ("12:31", "13:10", "13:30") for row in shop.reach(at)] == told


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (HOUR, hr.tumbling("1h", clock="wall")),
        (hr.tumbling("1h", clock="wall"), HOUR),
        (HOUR, hr.session("30m")),
        (hr.session("30m"), HOUR),
        (hr.rows(3), HOUR),
    ],
    ids=["wall clock", "event time", "sessions", "no sessions", "windows that end"],
)
def test_windows_of_a_function_are_refused_where_open_ones_could_not_go_on(
    tmp_path: Path, before: Any, after: Any
) -> None:
    with Shop(tmp_path, before, seen) as shop:
        shop.order(1, "12:10")
        shop.reach("12:11")
    with pytest.raises(UpgradeRefused, match="were changed while some are still open"):
        Shop(tmp_path, after, seen)
