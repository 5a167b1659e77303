"""Programs that keep values of some type in every kind of state, for tests that change the type between two runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.model.order import EpochLimits
from headrace.testing import Harness

FILES = EpochLimits(inline_run_bytes=0, inline_output_bytes=0)
KEYS = [f"k{i}" for i in range(8)]


class Ask(hr.Record):
    key: str
    n: int = 0
    """With a number: keep a value of it. Without: tell what is kept."""


class Told(hr.Record):
    key: str
    kept: dict[str, str]


@dataclass
class Job:
    app: hr.App
    asks: hr.Stream[Ask]
    told: hr.Stream[Any]

    def harness(self, store: Path, **options: Any) -> Harness:
        return Harness(self.app, start="2024-01-01T12:00", store=store, **options)

    def tell(self, h: Harness, key: str = "k1") -> Any:
        """What the step reads of a key, state by state, as text."""
        h.push(self.asks, Ask(key))
        h.epoch()
        [told] = h.take(self.told)
        return told.kept


def keeping(kind: Any, make: Any, *, name: str = "kept") -> Job:
    """A step with a state of every kind, which hold what ``make(n)`` gives."""

    class Largest(hr.Aggregator[Ask, kind, kind]):  # type: ignore[valid-type,misc]
        def zero(self) -> Any:
            return make(0)

        def add(self, acc: Any, x: Ask) -> Any:
            return make(x.n)

        def merge(self, a: Any, b: Any) -> Any:
            return b

        def result(self, acc: Any) -> Any:
            return acc

    class Keeping(hr.Process[Ask, Told, str]):
        value: hr.ValueState[kind]  # type: ignore[valid-type]
        few: hr.ListState[kind]  # type: ignore[valid-type]
        named: hr.MapState[str, kind]  # type: ignore[valid-type]
        newest: hr.ReducingState[kind] = hr.state(reduce=lambda a, b: b)  # type: ignore[valid-type]
        acc: hr.AggregatingState[Ask, kind] = hr.state(aggregator=Largest())  # type: ignore[valid-type]

        def on_event(self, event: Ask, ctx: hr.Context[str]) -> Iterator[Told]:
            if event.n:
                value = make(event.n)
                self.value.set(value)
                self.few.append(value)
                self.named["it"] = value
                self.newest.add(value)
                self.acc.add(event)
                return
            held = (self.value.get(), list(self.few), dict(self.named), self.newest.get(), self.acc.get())
            yield Told(ctx.key, dict(zip(("value", "few", "named", "newest", "acc"), map(str, held))))

    app = hr.App("changed")
    asks = app.read("asks", hr.source.items([]), Ask)
    told = asks.key_by(Ask.key).process(Keeping()).named(name)
    told.write(hr.sink.discard())
    return Job(app, asks, told)


def kept(value: Any) -> dict[str, str]:
    """What `Job.tell` gives of a key that was given this value once."""
    texts = (value, [value], {"it": value}, value, value)
    return dict(zip(("value", "few", "named", "newest", "acc"), map(str, texts)))


def write(job: Job, store: Path, **options: Any) -> None:
    """One epoch that keeps a value for every key."""
    with job.harness(store, **options) as h:
        h.push(job.asks, *(Ask(key, i + 1) for i, key in enumerate(KEYS)))
        h.epoch()
