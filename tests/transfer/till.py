"""A program that keeps state of every kind by key, and rows for it."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.testing import Harness

START = "2024-01-01T12:00"
START_US = 1_704_110_400_000_000
HOUR_US = 3600 * 1_000_000


class Sale(hr.Record):
    shop: str
    n: int
    at: hr.Timestamp
    price: Decimal = Decimal(1)


class Rule(hr.Record):
    name: str
    limit: int = 0


class Mean(hr.Aggregator[int, tuple[int, int], float]):
    def zero(self) -> tuple[int, int]:
        return 0, 0

    def add(self, acc: tuple[int, int], value: int) -> tuple[int, int]:
        return acc[0] + value, acc[1] + 1

    def merge(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return a[0] + b[0], a[1] + b[1]

    def result(self, acc: tuple[int, int]) -> float:
        return acc[0] / acc[1] if acc[1] else 0.0


class Keep(hr.Process[Sale, str, str]):
    newest: hr.ValueState[Sale]
    count: hr.ValueState[int]
    brief: hr.ValueState[int] = hr.state(ttl="1h")
    most: hr.ReducingState[int] = hr.state(reduce=max)
    mean: hr.AggregatingState[int, float] = hr.state(aggregator=Mean())
    hours: hr.MapState[int, hr.Timestamp] = hr.state(ttl="2d")
    trail: hr.ListState[Sale]
    alarm: hr.Timer
    bells: hr.Timers
    wall: hr.WallTimer

    def on_event(self, event: Sale, ctx: hr.Context[str]) -> Iterator[str]:
        self.newest.set(event)
        self.count.set(self.count.get(0) + 1)
        self.brief.set(event.n)
        self.most.add(event.n)
        self.mean.add(event.n)
        self.hours[event.n] = event.at
        self.trail.append(event)
        self.alarm.set(hr.Timestamp(event.at + HOUR_US))
        self.bells.add(hr.Timestamp(event.at + event.n * HOUR_US))
        self.wall.set(hr.Timestamp(ctx.now + HOUR_US))
        yield f"{event.shop} {self.count.get(0)}"

    def on_timer(self, timer: Any, ctx: hr.Context[str]) -> Iterator[str]:
        yield f"{timer.name} of {ctx.key} at {ctx.timestamp}"


class InTurn(hr.Process[Sale, str, str]):
    spent: hr.ValueState[int]
    rest: hr.Timer

    def on_event(self, event: Sale, ctx: hr.Context[str]) -> Iterator[str]:
        self.spent.set(self.spent.get(0) * 2 + event.n)
        self.rest.set(hr.Timestamp(event.at + HOUR_US))
        yield f"{event.shop} at {event.at}: {self.spent.get(0)}"

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[str]:
        yield f"{ctx.key} rests at {ctx.timestamp} after {self.spent.get(0)}"


class Ruled(hr.BroadcastProcess[Sale, Rule, str, str]):
    limits: hr.BroadcastState[str, int]
    spent: hr.ValueState[int]

    def on_broadcast(self, event: Rule, ctx: hr.BroadcastContext[str]) -> None:
        self.limits[event.name] = event.limit

    def on_event(self, event: Sale, ctx: hr.Context[str]) -> Iterator[str]:
        self.spent.set(self.spent.get(0) + event.n)
        yield f"{event.shop} spent {self.spent.get(0)} of {sorted(self.limits.items())}"


class Till:
    """The program, and a harness over it."""

    def __init__(self, store: Path | str | None = None, *, parallelism: int = 2) -> None:
        self.app = app = hr.App("till")
        self.sales = app.read("sales", hr.source.items([]), Sale, time=Sale.at)
        self.others = app.read("others", hr.source.items([]), Sale, time=Sale.at)
        self.rules = app.read("rules", hr.source.items([]), Rule)
        keyed = self.sales.key_by(Sale.shop)
        self.keep = keyed.process(Keep()).named("keep")
        self.last = keyed.latest().named("last")
        self.total = keyed.reduce(lambda a, b: b.replace(n=a.n + b.n), fire=hr.per_epoch()).named("total")
        self.sums = keyed.aggregate(
            rows=hr.count(), n=hr.sum("n"), paid=hr.sum("price"), mean=hr.avg("n"), most=hr.max("n"),
            at=hr.last("n"), distinct=hr.count_distinct("n"), every_n=hr.collect("n"),
        ).named("sums")  # fmt: skip
        self.hourly = keyed.window(hr.tumbling("1h")).aggregate(
            rows=hr.count(), n=hr.sum("n"), mean=hr.avg("n")
        ).named("hourly")  # fmt: skip
        self.sliding = keyed.window(hr.sliding("2h", every="1h")).aggregate(n=hr.sum("n")).named("sliding")
        self.visits = keyed.window(hr.session("30m")).aggregate(rows=hr.count(), n=hr.sum("n")).named("visits")
        self.held = keyed.window(hr.tumbling("1h"), evict=hr.keep_rows(2)).aggregate(n=hr.sum("n")).named("held")
        self.joined = (
            keyed.join(self.others.key_by(Sale.shop), within=("0s", "2h"))
            .named("joined")
            .map(lambda a, b: f"{a} {b}", output=str)
        )
        self.looking = keyed.aggregate(n=hr.sum("n", over="2h")).named("looking")
        self.ruled = keyed.connect(self.rules.broadcast()).process(Ruled()).named("ruled")
        self.in_turn = keyed.process(InTurn(), order=("time", "n")).named("in_turn")
        self.outputs = (
            self.in_turn, self.keep, self.last, self.total, self.sums, self.hourly, self.sliding, self.visits,
            self.held, self.joined, self.looking, self.ruled,
        )  # fmt: skip
        for output in self.outputs:
            output.show()
        self.h = Harness(app, start=START, store=store, parallelism=parallelism)

    def epoch(self, *sales: Sale) -> list[list[str]]:
        """What each step gave, as text in some order."""
        self.h.push(self.sales, *sales)
        self.h.push(self.others, *(sale.replace(n=-sale.n) for sale in sales))
        self.h.epoch()
        return [sorted(map(repr, self.h.take(output))) for output in self.outputs]

    def close(self) -> None:
        self.h.close()


def sale(shop: str, n: int, minute: int = 0) -> Sale:
    return Sale(shop, n, hr.Timestamp(START_US + minute * 60_000_000), Decimal("1.50") * n)


FIRST = [sale("a", 1), sale("b", 2, 10), sale("a", 3, 20), sale("ü:x", 4, 30), sale("", 5, 31), sale("b", 2, 50)]
SECOND = [sale("a", 2, 90), sale("c", 7, 95), sale("b", 9, 170)]
