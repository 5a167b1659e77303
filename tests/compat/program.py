"""A program with state of every kind, as stores of earlier versions hold it; it never changes.

``python -m tests.compat.program FOLDER`` writes such a store, and what it holds, with the Headrace that is installed:
so a store of an older version is made by running this file, which needs nothing of ours, in a checkout of it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headrace as hr

EPOCHS = 4
START = "2024-01-01T00:00:00"


class Order(hr.Record):
    shop: str
    at: hr.Timestamp
    cents: int
    item: str = ""


class Rule(hr.Record):
    shop: str
    limit: int


class Said(hr.Record):
    shop: str
    what: str


class Totals(hr.Record):
    orders: int
    cents: int


class Longest(hr.Aggregator[Order, str, str]):
    def zero(self) -> str:
        return ""

    def add(self, acc: str, event: Order) -> str:
        return max(acc, event.item, key=lambda item: (len(item), item))

    def merge(self, a: str, b: str) -> str:
        return max(a, b, key=lambda item: (len(item), item))

    def result(self, acc: str) -> str:
        return acc


class Keep(hr.Process[Order, Said, str]):
    totals: hr.ValueState[Totals]
    items: hr.MapState[str, int]
    trail: hr.ListState[str] = hr.state(max_len=3)
    largest: hr.ReducingState[int] = hr.state(reduce=max)
    longest: hr.AggregatingState[Order, str] = hr.state(aggregator=Longest())
    quiet: hr.Timer
    hours: hr.Timers

    def on_event(self, event: Order, ctx: hr.Context[str]) -> None:
        before = self.totals.get(Totals(0, 0))
        self.totals.set(Totals(before.orders + 1, before.cents + event.cents))
        self.items[event.item] = self.items.get(event.item, 0) + 1
        self.trail.append(event.item)
        self.largest.add(event.cents)
        self.longest.add(event)
        self.quiet.set(event.at + hr.minutes(30))
        self.hours.add(hr.Timestamp(event.at // 3_600_000_000 * 3_600_000_000 + 3_600_000_000))

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Said]:
        yield Said(ctx.key, f"{self.totals.get()} {sorted(self.items.items())} {list(self.trail)} {self.longest.get()}")


class Check(hr.BroadcastProcess[Order, Rule, Said, str]):
    limits: hr.BroadcastState[str, int]
    above: hr.ValueState[int]

    def on_broadcast(self, event: Rule, ctx: Any) -> None:
        self.limits[event.shop] = event.limit

    def on_event(self, event: Order, ctx: Any) -> Iterator[Said]:
        if event.cents > self.limits.get(event.shop, 1_000):
            self.above.set(self.above.get(0) + 1)
            yield Said(event.shop, f"above {self.above.get()}")


def build() -> tuple[hr.App, dict[str, Any]]:
    """The app, and its streams by name."""
    app = hr.App("compat")
    orders = app.read("orders", hr.source.items([]), Order, time=Order.at)
    refunds = app.read("refunds", hr.source.items([]), Order, time=Order.at)
    rules = app.read("rules", hr.source.items([]), Rule)
    by_shop = orders.key_by(Order.shop)
    again = app.loop("again", Order)
    looped = orders.union(again).key_by(Order.shop).aggregate(n=hr.count(), cents=hr.sum("cents")).named("looped")
    orders.where("cents > 4900").map(_halved).feed(again)
    streams = {
        "keep": by_shop.process(Keep()),
        "rolling": by_shop.aggregate(
            n=hr.count(), mean=hr.avg("cents"), top=hr.top("item", 2, by="cents")
        ).named("rolling"),
        "biggest": by_shop.reduce(lambda a, b: a if a.cents >= b.cents else b).named("biggest"),
        "newest": by_shop.latest().named("newest"),
        "hourly": by_shop.window(hr.tumbling("1h")).aggregate(
            n=hr.count(), cents=hr.sum("cents"), items=hr.count_distinct("item"), last=hr.last("item")
        ).named("hourly").queryable(keep="3h"),
        "sliding": by_shop.window(hr.sliding("2h", every="1h")).aggregate(low=hr.min("cents")).named("sliding"),
        "visits": by_shop.window(hr.session("20m")).aggregate(n=hr.count(), high=hr.max("cents")).named("visits"),
        "slow": by_shop.window(hr.tumbling("1h"), fire=hr.on_delta("cents", 3_000)).reduce(_sum).named("slow"),
        "moving": by_shop.aggregate(cents=hr.sum("cents", over="2h")).named("moving"),
        "refunded": by_shop.join(refunds.key_by(Order.shop), within=("0s", "2h")).map(_refunded).named("refunded"),
        "checked": by_shop.connect(rules.broadcast()).process(Check()),
        "looped": looped,
    }  # fmt: skip
    for name, stream in streams.items():
        stream.write(hr.sink.collect(), name=name)
    return app, {**streams, "orders": orders, "refunds": refunds, "rules": rules}


def _halved(order: Order) -> Order:
    return order.replace(cents=order.cents // 2)


def _sum(a: Order, b: Order) -> Order:
    return a.replace(cents=a.cents + b.cents)


def _refunded(left: Order, right: Order) -> Said:
    return Said(left.shop, f"{left.item} {left.cents} {right.cents}")


def push(h: hr.testing.Harness, streams: dict[str, Any], epoch: int) -> None:
    """The input of one epoch, and the epoch."""
    for i in range(40):
        number = epoch * 40 + i
        at = h.at(f"{number // 30:02d}:{number * 2 % 60:02d}")
        order = Order(f"shop-{number * 7 % 5}", at, number * 131 % 5_000, f"item-{number % 6}")
        h.push(streams["orders"], order)
        if number % 9 == 0:
            h.push(streams["refunds"], order.replace(cents=number))
    if epoch % 2 == 0:
        h.push(streams["rules"], Rule(f"shop-{epoch % 5}", 2_000 + epoch))
    h.epoch(watermark=f"{epoch * 40 // 30:02d}:{epoch * 10 % 60:02d}")


def outputs(h: hr.testing.Harness, streams: dict[str, Any]) -> dict[str, list[str]]:
    """What went out since the last time, in an order of its own."""
    named = {name: stream for name, stream in streams.items() if name not in ("orders", "refunds", "rules")}
    return {name: sorted(map(repr, h.take(stream))) for name, stream in named.items()}


def contents(store: Path) -> dict[str, dict[str, str]]:
    """Every state that can be read by key, as text."""
    opened = hr.Store(store)
    found = {}
    for info in opened.states():
        address = f"{info.step}.{info.state}" if info.state else info.step
        found[address] = {str(key): repr(value) for key, value in sorted(opened.state(address).scan(), key=str)}
    return found


def main(folder: str) -> None:
    store = Path(folder) / "store"
    app, streams = build()
    with hr.testing.Harness(app, start=START, store=store) as h:
        for epoch in range(EPOCHS):
            push(h, streams, epoch)
            outputs(h, streams)
    (Path(folder) / "contents.json").write_text(json.dumps(contents(store), indent=1, sort_keys=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
