"""Orders and their payments: what was paid in time, what is cancelled or paid back, and whom to remind of what."""

from __future__ import annotations

from collections.abc import Iterator

import headrace as hr

PATIENCE = "15m"
REMIND_AFTER = hr.minutes(10)

data = hr.var("data", "./.headrace/orders-data")


class Order(hr.Record):
    id: str
    customer: str
    at: hr.Timestamp
    cents: int


class Payment(hr.Record):
    order: str
    at: hr.Timestamp
    cents: int


class Settled(hr.Record):
    id: str
    customer: str
    missing: int
    paid_at: hr.Timestamp


class Reminder(hr.Record):
    order: str
    customer: str
    owed: int


class Remind(hr.CoProcess[Order, Payment, Reminder, str]):
    """Reminds once of an order that is not paid in full after ten minutes."""

    order: hr.ValueState[Order]
    paid: hr.ValueState[int]  # payments may come before their order
    remind: hr.Timer

    def on_left(self, event: Order, ctx: hr.Context[str]) -> None:
        self.order.set(event)
        self.remind.set(event.at + REMIND_AFTER)

    def on_right(self, event: Payment, ctx: hr.Context[str]) -> None:
        self.paid.set(self.paid.get(0) + event.cents)

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Reminder]:
        order, paid = self.order.get(), self.paid.get(0)
        self.order.clear()
        self.paid.clear()
        if order is not None and paid < order.cents:
            yield Reminder(order.id, order.customer, order.cents - paid)


app = hr.App("orders")
orders = app.read("orders", hr.source.files(f"{data}/orders"), Order, time=Order.at, out_of_order="5s")
payments = app.read("payments", hr.source.files(f"{data}/payments"), Payment, time=Payment.at, out_of_order="30s")

by_order = orders.key_by(Order.id)
pairs = by_order.join(payments.key_by(Payment.order), within=("0s", PATIENCE)).named("settled")
settled = pairs.select(Settled, missing="left.cents - right.cents", paid_at="right.at")
cancelled = pairs.unmatched_left  # no payment came within a quarter of an hour: the timeout
refunds = pairs.unmatched_right  # payments whose order was cancelled before, or never was
reminders = by_order.connect(payments.key_by(Payment.order)).process(Remind())

settled.write(hr.sink.files(f"{data}/settled"))
cancelled.write(hr.sink.files(f"{data}/cancelled"), name="cancelled")
refunds.write(hr.sink.files(f"{data}/refunds"), name="refunds")
reminders.write(hr.sink.files(f"{data}/reminders"))

if __name__ == "__main__":
    app.run(until="drained")
