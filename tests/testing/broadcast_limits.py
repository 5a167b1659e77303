"""A program whose rules every shard has: which payments are over which limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.model import crash
from headrace.model.order import EpochLimits
from headrace.testing import Harness

START = "2024-01-01T12:00"
FILES = EpochLimits(inline_run_bytes=0, inline_output_bytes=0)
TINY = EpochLimits(inline_run_bytes=0, inline_output_bytes=0, overlay_bytes=1)


class Tx(hr.Record):
    card: str
    cents: int
    at: hr.Timestamp = hr.Timestamp(0)


class Rule(hr.Record):
    name: str
    limit: int | None = None
    """None withdraws the rule."""
    at: hr.Timestamp = hr.Timestamp(0)


class Hit(hr.Record):
    card: str
    rule: str
    cents: int = 0


class Over(hr.BroadcastProcess[Tx, Rule, Hit, str]):
    limits: hr.BroadcastState[str, int]
    changes: hr.BroadcastState[int, str]
    spent: hr.ValueState[int]
    odd: hr.Side[str]
    rules: hr.Counter
    hits: hr.Counter

    def on_broadcast(self, event: Rule, ctx: hr.BroadcastContext[str]) -> Iterator[Hit]:
        crash.reach("in_function", ctx.epoch)
        self.changes[len(self.changes)] = event.name
        self.rules.inc()
        if event.name == "bad":
            raise ValueError("a bad rule")
        if event.limit is None:
            self.limits.pop(event.name, None)
            self.odd.emit(f"without {event.name}")
        else:
            self.limits[event.name] = event.limit
            yield Hit("", event.name, event.limit)

    def on_event(self, event: Tx, ctx: hr.Context[str]) -> Iterator[Hit]:
        self.spent.set(self.spent.get(0) + event.cents)
        for name, limit in self.limits.items():
            if event.cents > limit:
                self.hits.inc()
                yield Hit(ctx.key, name, event.cents)


class Job:
    def __init__(self, store: Path | None = None, *, function: Any = None, name: str | None = None,
                 was: str | None = None, errors: bool = False, **options: Any) -> None:  # fmt: skip
        self.app = hr.App("limits")
        self.tx = self.app.read("tx", hr.source.items([]), Tx)
        self.rules = self.app.read("rules", hr.source.items([]), Rule)
        self.step = self.tx.key_by(Tx.card).connect(self.rules.broadcast()).process(function or Over())
        if name is not None:
            self.step = self.step.named(name, was=was)
        self.odd = self.step.side(Over.odd) if function is None else None
        self.errors = self.step.errors if errors else None
        self.h = Harness(self.app, start=START, store=store, **options)

    def epoch(self, rules: list[Rule], rows: list[Tx]) -> list[Hit]:
        self.h.push(self.tx, *rows)
        self.h.push(self.rules, *rules)
        self.h.epoch()
        return self.h.take(self.step)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.h.close()


def some_tx(count: int = 30) -> list[Tx]:
    return [Tx(f"card-{i % 9}", i) for i in range(count)]


def streams() -> tuple[hr.Stream[Tx], hr.Stream[Rule]]:
    app = hr.App("limits")
    return app.read("tx", hr.source.items([]), Tx), app.read("rules", hr.source.items([]), Rule)
