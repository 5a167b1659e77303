"""Small, then large: a card that is tried out and charged a large payment within a minute, without a PIN between."""

from __future__ import annotations

from collections.abc import Iterator

import headrace as hr

SMALL_CENTS = 100
LARGE_CENTS = 50_000
TRIAL = hr.seconds(60)
MANY_SHOPS = 5

data = hr.var("data", "./.headrace/fraud-data")


class Payment(hr.Record):
    card: str
    shop: str
    at: hr.Timestamp
    cents: int
    kind: str = "charge"  # or "pin": the owner typed the PIN of the card


class Alert(hr.Record):
    card: str
    at: hr.Timestamp
    cents: int
    tried_at: hr.Timestamp


class Fraud(hr.Process[Payment, Alert, str]):
    tried: hr.ValueState[hr.Timestamp]  # when a small payment was made, if that is less than a minute ago
    forget: hr.Timer  # ends the minute; setting it again moves it
    shops: hr.MapState[str, int] = hr.state(ttl=hr.ttl("1h", clock="event"))  # entries expire one by one
    busy: hr.Side[Payment]  # payments of cards that are seen in many shops
    alerts: hr.Counter

    def __init__(self, large_cents: int) -> None:
        self.large_cents = large_cents

    def on_event(self, event: Payment, ctx: hr.Context[str]) -> Iterator[Alert]:
        if event.kind == "pin":
            self.tried.clear()
            self.forget.clear()
            return
        self.shops[event.shop] = self.shops.get(event.shop, 0) + 1
        if len(self.shops) >= MANY_SHOPS:
            self.busy.emit(event)
        tried_at = self.tried.get()
        if tried_at is not None and event.cents >= self.large_cents:
            self.alerts.inc()
            yield Alert(ctx.key, event.at, event.cents, tried_at)
        if event.cents <= SMALL_CENTS:
            self.tried.set(event.at)
            self.forget.set(event.at + TRIAL)

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> None:
        self.tried.clear()


app = hr.App("fraud")
payments = app.read("payments", hr.source.files(f"{data}/payments"), Payment, time=Payment.at, out_of_order="5s")
alerts = payments.where("cents > 0 OR kind = 'pin'").key_by(Payment.card).process(Fraud(LARGE_CENTS))
alerts.write(hr.sink.files(f"{data}/alerts"))
alerts.side(Fraud.busy).write(hr.sink.files(f"{data}/busy"), name="busy")

if __name__ == "__main__":
    app.run(until="drained")
