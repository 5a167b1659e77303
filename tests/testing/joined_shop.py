"""Orders and payments, for programs that join them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import headrace as hr


class Order(hr.Record):
    id: str | None
    at: hr.Timestamp
    cents: int = 0


class Payment(hr.Record):
    order: str | None
    paid: hr.Timestamp
    cents: int = 0
    note: str = "-"


class Settled(hr.Record):
    id: str
    cents: int
    paid: hr.Timestamp | None = None
    note: str | None = None


class Shop:
    """Orders and payments, and how to make them."""

    def __init__(self, **options: Any) -> None:
        self.app = hr.App("shop")
        self.orders = self.app.read("orders", hr.source.items([]), Order, time=Order.at)
        self.payments = self.app.read("payments", hr.source.items([]), Payment, time=Payment.paid)

    def keyed(self) -> tuple[hr.KeyedStream[Order, Any], hr.KeyedStream[Payment, Any]]:
        return self.orders.key_by(Order.id), self.payments.key_by(Payment.order)


def at(text: str) -> hr.Timestamp:
    return hr.timestamp(f"2024-01-01T{text}")


class Untimed(hr.Record):
    order: str
    n: int = 0


class Watch(hr.CoProcess[Order, Payment, str, str]):
    """Says when an order was not paid within an hour."""

    asked: hr.ValueState[int]
    patience: hr.Timer
    early: hr.Side[Payment]

    def on_left(self, event: Order, ctx: hr.Context[str]) -> None:
        self.asked.set(event.cents)
        self.patience.set(event.at + hr.hours(1))

    def on_right(self, event: Payment, ctx: hr.Context[str]) -> Iterator[str]:
        if (asked := self.asked.get()) is None:
            self.early.emit(event)
            return
        self.asked.clear()
        self.patience.clear()
        yield f"{ctx.key} paid {event.cents} of {asked}"

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[str]:
        yield f"{ctx.key} not paid"
