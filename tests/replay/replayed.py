"""Jobs whose input can be read again: run by the harness, with the offsets that a real source would have."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

import headrace as hr
from headrace.model.keys import encode_key
from headrace.replay.replaying import KeyReplay, find_places
from headrace.replay.tracing import ReplayEvent
from headrace.state import layout
from headrace.state.manifest import encode_manifest, read_manifest, read_seal
from headrace.state.moments import parse_moment
from headrace.state.store import LocalStore, StoreFiles
from headrace.testing import Harness

START = "2024-01-01T12:00"
T = hr.timestamp(START)


class Payment(hr.Record):
    card: str
    shop: str
    at: hr.Timestamp
    cents: int


class Watch(hr.Process[Payment, Payment, str]):
    spent: hr.ValueState[int]
    shops: hr.MapState[str, int]
    checks: hr.Timers
    factor = 1

    def on_event(self, event: Payment, ctx: hr.Context[str]) -> Iterator[Payment]:
        self.spent.set(self.spent.get(0) + event.cents * self.factor)
        self.shops[event.shop] = self.shops.get(event.shop, 0) + 1
        self.checks.add(event.at + hr.minutes(5))
        if event.cents > 20:
            yield event

    def on_timer(self, timer: Any, ctx: hr.Context[str]) -> Iterator[Payment]:
        self.shops["late"] = self.shops.get("late", 0) + 1
        yield Payment(ctx.key, "late", ctx.timestamp, 0)


class Doubling(Watch):
    """Not the function that ran."""

    factor = 2


ROWS = [Payment(f"card-{n % 3}", "baker" if n % 2 else "bank", T + hr.minutes(n), n) for n in range(40)]
PER_EPOCH = 8
EPOCHS = len(ROWS) // PER_EPOCH


def program(
    source: Any = None, watch: Watch | None = None, *, name: str = "watch", was: str | None = None
) -> tuple[hr.App, Any]:
    app = hr.App("cards")
    payments = app.read("payments", source or hr.source.items(ROWS), Payment, time=Payment.at)
    by_card = payments.where("cents >= 0").key_by(Payment.card)
    watched = by_card.process(watch or Watch()).named(name, was=was).queryable()
    tens = by_card.window(hr.tumbling("10m")).aggregate(n=hr.count(), cents=hr.sum("cents"))
    tens.named("tens").queryable(keep="24h")
    by_card.aggregate(n=hr.count(), cents=hr.sum("cents")).named("totals").queryable()
    watched.key_by(Payment.shop).aggregate(n=hr.count()).named("by_shop").queryable()
    return app, payments


def run_job(
    path: Path, source: Any = None, offset: Callable[[int], Any] = lambda rows: {"i": rows},
    make: Callable[..., tuple[hr.App, Any]] = program,
) -> StoreFiles:  # fmt: skip
    """``offset``: from the number of rows that were read to the position in the source."""
    app, payments = make(source)
    with Harness(app, start=START, store=path) as h:
        for first in range(0, len(ROWS), PER_EPOCH):
            h.push(payments, *ROWS[first : first + PER_EPOCH])
            h.clock_us += 60_000_000
            h.epoch()
    return as_read(path, offset)


def as_read(path: Path, offset: Callable[[int], Any] = lambda rows: {"i": rows}) -> StoreFiles:
    """The store of a harness, as if its sources had been read from where they are and not been pushed."""
    store = LocalStore(path, durable=False)
    for name in store.list(layout.MANIFESTS):
        place = layout.parse_manifest(name)
        assert place is not None
        if read_seal(store, *place) is not None:
            continue
        manifest = read_manifest(store, *place)
        offsets = re.sub(r'\{"rows": (\d+)\}', lambda found: json.dumps(offset(int(found[1]))), manifest.offsets)
        store.delete(name)
        store.create(name, encode_manifest(msgspec.structs.replace(manifest, offsets=offsets)))
    return store


def replayed(
    store: StoreFiles, step: str, key: Any, first: str = "1", last: str | None = None, **how: Any
) -> tuple[list[ReplayEvent], Any]:
    """The events, and the replay."""
    app, _ = how.pop("make", program)(how.pop("source", None), how.pop("watch", None))
    places = find_places(store, parse_moment(first), None if last is None else parse_moment(last))
    how = {"read_by_spark": no_spark, **how}
    with KeyReplay(app, store, step, encode_key(key), places, **how) as run:
        return list(run.run()), (run.verdict(), run.plan)


def no_spark(source: Any, passage: Any) -> Any:
    raise AssertionError(f"{source.name} was to be read without Spark")


def rows_of(key: str, first: int, last: int) -> Iterable[Payment]:
    """The rows of a key in some epochs, the last included."""
    return [row for row in ROWS[first * PER_EPOCH : (last + 1) * PER_EPOCH] if row.card == key]


NEWEST_CENTS = sum(row.cents for row in ROWS if row.card == "card-1")
