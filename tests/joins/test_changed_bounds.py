"""An interval join that comes back with other bounds while rows wait: what they were promised is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.joins.shops import Order, ShopTrial


class Shop(ShopTrial):
    """Orders, each beside the payments that come within a span after it, or beside none."""

    def __init__(self, store: Path, span: str) -> None:
        self.app = hr.App("shop")
        self.orders = self.app.read("orders", hr.source.items([]), Order, time=Order.at)
        self.payments = self.app.read("payments", hr.source.items([]), Order, time=Order.at)
        payments = self.payments.key_by(Order.shop)
        paid = self.orders.key_by(Order.shop).join(payments, within=("0s", span), how="left")
        self.told = paid.named("paid").map(
            lambda order, payment: (order.n, payment and payment.n), output=tuple[int, Any]
        )
        self.told.show()
        self.harness = hr.testing.Harness(self.app, start="2024-01-01T12:00", store=str(store), parallelism=1)

    def reach(self, watermark: str, *, fold: bool = False) -> list[Any]:
        self.harness.epoch(watermark=watermark)
        if fold:
            self.harness.maintain()
        return [tuple(row) for row in self.harness.take(self.told)]


@pytest.mark.parametrize("fold", [False, True], ids=["as written", "folded"])
@pytest.mark.parametrize(("before", "after"), [("1h", "1h"), ("1h", "10m"), ("10m", "1h")])
def test_an_order_without_payment_is_told_once_whatever_the_bounds_become(
    tmp_path: Path, before: str, after: str, fold: bool
) -> None:
    with Shop(tmp_path, before) as shop:
        shop.order(1, "12:00")
        assert shop.reach("12:01", fold=fold) == []
    told: list[Any] = []
    with Shop(tmp_path, after) as shop:
        for watermark in ("12:05", "12:15", "12:30", "13:00", "13:30"):
            told += [(watermark, *row) for row in shop.reach(watermark, fold=fold)]
        shop.order(2, "13:31")
        told += [("behind", *row) for row in shop.reach("15:00", fold=fold)]
    assert told == [("12:15" if before == "10m" else "13:00", 1, None), ("behind", 2, None)]


@pytest.mark.parametrize("fold", [False, True], ids=["as written", "folded"])
def test_an_order_that_is_paid_under_shorter_bounds_is_not_told_as_unpaid_later(tmp_path: Path, fold: bool) -> None:
    with Shop(tmp_path, "1h") as shop:
        shop.order(1, "12:00")
        assert shop.reach("12:01", fold=fold) == []
    with Shop(tmp_path, "10m") as shop:
        shop.pay(5, "12:09")
        assert shop.reach("12:10", fold=fold) == [(1, 5)]
        assert [shop.reach(at, fold=fold) for at in ("12:30", "13:00", "14:00")] == [[], [], []]


@pytest.mark.parametrize("fold", [False, True], ids=["as written", "folded"])
def test_an_order_that_was_told_as_unpaid_is_not_paid_under_longer_bounds(tmp_path: Path, fold: bool) -> None:
    with Shop(tmp_path, "10m") as shop:
        shop.order(1, "12:00")
        assert shop.reach("12:01", fold=fold) == []
    with Shop(tmp_path, "1h") as shop:
        assert shop.reach("12:15", fold=fold) == [(1, None)]
        shop.pay(5, "12:30")
        assert shop.reach("12:31", fold=fold) == []
        shop.order(2, "12:32")
        shop.pay(6, "13:20")
        assert shop.reach("13:21", fold=fold) == [(2, 6)]
