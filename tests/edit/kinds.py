"""A program with every kind of state that can be edited, and some that cannot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import headrace as hr


class Sale(hr.Record):
    customer: str
    shop: str
    cents: int
    at: hr.Timestamp


class Card(hr.Record):
    name: str
    limit: int = 100
    since: hr.Timestamp | None = None


class Rule(hr.Record):
    shop: str
    factor: float


class Alert(hr.Record):
    customer: str
    what: str


class Longest(hr.Aggregator[int, list[int], int]):
    def zero(self) -> list[int]:
        return []

    def add(self, acc: list[int], x: int) -> list[int]:
        return [*acc, x]

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        return a + b

    def result(self, acc: list[int]) -> int:
        return len(acc)


class Fraud(hr.Process[Sale, Alert, str]):
    total: hr.ValueState[int]
    card: hr.ValueState[Card]
    shops: hr.MapState[str, int]
    seen: hr.MapState[hr.Timestamp, Card]
    recent: hr.ListState[Sale] = hr.state(max_len=5)
    most: hr.ReducingState[int] = hr.state(reduce=max)
    runs: hr.AggregatingState[int, int] = hr.state(aggregator=Longest())
    short: hr.ValueState[int] = hr.state(ttl="1h")
    first: hr.ValueState[int] = hr.state(ttl=hr.ttl("1h", refresh="create"))
    quiet: hr.Timer
    wake: hr.WallTimer
    ends: hr.Timers

    def on_event(self, event: Sale, ctx: hr.Context[str]) -> Iterator[Alert]:
        self.total.set((self.total.get() or 0) + event.cents)
        self.shops[event.shop] = self.shops.get(event.shop, 0) + 1
        self.recent.append(event)
        self.most.add(event.cents)
        self.runs.add(event.cents)
        self.short.set(event.cents)
        self.first.set(event.cents)
        yield from ()

    def on_timer(self, timer: Any, ctx: hr.Context[str]) -> Iterator[Alert]:
        yield Alert(ctx.key, f"{timer.name} at {ctx.timestamp}")


class Factors(hr.BroadcastProcess[Sale, Rule, Alert, str]):
    factors: hr.BroadcastState[str, float]

    def on_broadcast(self, event: Rule, ctx: hr.BroadcastContext[str]) -> None:
        self.factors[event.shop] = event.factor

    def on_event(self, event: Sale, ctx: hr.Context[str]) -> Iterator[Alert]:
        yield Alert(event.customer, str(self.factors.get(event.shop)))


class Shop:
    """The program in a harness."""

    def __init__(self, store: str | None = None) -> None:
        app = hr.App("shop")
        self.sales = app.read("sales", hr.source.items([]), Sale, time=Sale.at)
        self.rules = app.read("rules", hr.source.items([]), Rule)
        by_customer = self.sales.key_by(Sale.customer)
        self.fraud = by_customer.process(Fraud()).named("fraud")
        self.totals = (
            self.sales.key_by(Sale.shop)
            .aggregate(n=hr.count(), cents=hr.sum("cents"), mean=hr.avg("cents"), last=hr.last("cents"))
            .named("totals")
        )
        self.newest = self.sales.key_by(Sale.customer, Sale.shop).latest().named("newest")
        self.hourly = self.sales.key_by(Sale.shop).window(hr.tumbling("1h")).aggregate(n=hr.count()).named("hourly")
        self.priced = by_customer.connect(self.rules.broadcast()).process(Factors()).named("priced")
        matched = by_customer.join(by_customer, within=("0s", "1h"))
        matched.select(Alert, customer="left.customer", what="right.shop").named("matched").show()
        self.h = hr.testing.Harness(app, store=store)

    def sell(self, *sales: tuple[str, str, int], at: str = "12:00") -> None:
        """Customer, shop and cents of each."""
        self.h.push(self.sales, *(Sale(customer, shop, cents, self.h.at(at)) for customer, shop, cents in sales))
        self.h.epoch()

    def state(self, of: Any, key: Any = "ann") -> Any:
        return self.h.state(self.fraud, of, key)
