"""The Headrace programs that the benchmarks run, as an application would write them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import headrace as hr


class Event(hr.Record):
    key: str
    value: int


class Counted(hr.Record):
    key: str
    count: int
    total: int


class Totals(hr.Record):
    count: int
    total: int


NOTHING = Totals(0, 0)


class CountSum(hr.Process[Event, Counted, str]):
    """Count and sum per key; one row out per row in."""

    totals: hr.ValueState[Totals]

    def on_event(self, event: Event, ctx: hr.Context[str]) -> Iterator[Counted]:
        before = self.totals.get(NOTHING)
        after = Totals(before.count + 1, before.total + event.value)
        self.totals.set(after)
        yield Counted(event.key, after.count, after.total)


class Again(hr.Process[Counted, Counted, str]):
    """A further keyed step: the same work once more on what the step before it emitted."""

    totals: hr.ValueState[Totals]

    def on_event(self, event: Counted, ctx: hr.Context[str]) -> Iterator[Counted]:
        before = self.totals.get(NOTHING)
        after = Totals(before.count + 1, before.total + event.total)
        self.totals.set(after)
        yield Counted(event.key, after.count, after.total)


def counting(parquet: Path, files_per_epoch: int, sink: hr.Sink) -> hr.App:
    """Parquet files → count and sum per key → a sink; `files_per_epoch` files make one epoch."""
    app = hr.App("counting")
    source = hr.source.files(parquet, format="parquet", max_files_per_epoch=files_per_epoch)
    app.read("events", source, Event).key_by(Event.key).process(CountSum()).write(sink)
    return app


def by_hundreds(row: Counted) -> str:
    return f"ring-{row.total % 100}"


def by_thousands(row: Counted) -> str:
    return f"ring-{row.total % 1000}"


def trickle(steps: int, rate: float, keys: int, sink: hr.Sink) -> hr.App:
    """A steady trickle of generated events through one to three keyed steps, each with an exchange of its own."""
    app = hr.App("trickle")
    source = hr.source.generator(lambda i, rng: Event(f"user-{rng.randrange(keys):06d}", rng.randrange(100)), rate=rate)
    stream = app.read("events", source, Event).key_by(Event.key).process(CountSum())
    # A different key each time, so that no exchange can be saved.
    for key in (by_hundreds, by_thousands)[: steps - 1]:
        stream = stream.key_by(key).process(Again()).named(f"again_{key.__name__}")
    stream.write(sink)
    return app
