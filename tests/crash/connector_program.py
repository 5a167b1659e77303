"""A third program that is killed: Kafka in; keyed state, timers, windows; Kafka, Postgres and files out at once.

Run as ``python -m tests.crash.connector_program FOLDER ROWS PER_EPOCH UNTIL``, like `tests.crash.program`. Where its
servers are stands in ``FOLDER/services.json``. What it writes depends on the order of messages within a partition, and
not on how they are cut into epochs: an epoch that was planned and lost may be planned with other messages.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

import headrace as hr
from headrace.model import crash
from tests.crash.program import MINUTE, START, WorkerStrikes, planned_strikes, prepare
from tests.jvm import UNCOMPILED


class Services(msgspec.Struct):
    brokers: str
    dsn: str
    clicks: str
    """Topic that is read."""
    visits: str
    """Topic that is written."""


class Click(hr.Record):
    user: str
    page: str
    at: hr.Timestamp
    n: int


class Visit(hr.Record):
    user: str
    at: hr.Timestamp
    clicks: int
    """Of this user so far: a message that is missing or doubled changes all that come after it."""
    points: int
    trail: str


class Active(hr.Record):
    """A user clicked in the minute that ends here: told by a timer, so from what was known when it was set."""

    user: str
    letter: str
    minute: hr.Timestamp


class Told(hr.Record):
    letter: str
    n: int
    """One more with each row: which row comes when does not matter, that each comes once does."""


class Visits(hr.Process[Click, Visit, str]):
    clicks: hr.ValueState[int]
    points: hr.ReducingState[int] = hr.state(reduce=lambda a, b: a + b)
    trail: hr.ListState[str] = hr.state(max_len=4)
    minutes: hr.Timers
    odd: hr.Side[Click]
    active: hr.Side[Active]

    def __init__(self, strikes: WorkerStrikes | None = None) -> None:
        self.strikes = strikes

    def on_event(self, event: Click, ctx: hr.Context[str]) -> Iterator[Visit]:
        self.clicks.set(self.clicks.get(0) + 1)
        crash.reach("in_function", ctx.epoch)
        self.points.add(event.n)
        self.trail.append(f"{event.page} at {event.at}")
        self.minutes.add(hr.Timestamp(event.at // MINUTE * MINUTE + MINUTE))
        if event.n == 9:
            self.odd.emit(event)
        yield Visit(ctx.key, event.at, self.clicks.get(0), self.points.get() or 0, ", ".join(self.trail))

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> None:
        self.active.emit(Active(ctx.key, ctx.key[-1], ctx.timestamp))


class Letters(hr.Process[Active, Told, str]):
    """A second keyed step behind the first."""

    told: hr.ValueState[int]

    def on_event(self, event: Active, ctx: hr.Context[str]) -> Iterator[Told]:
        self.told.set(self.told.get(0) + 1)
        yield Told(ctx.key, self.told.get(0))


def make_click(i: int, rng: random.Random) -> Click:
    at = START + i * 400_000 + rng.randrange(-2_000_000, 2_000_000)
    return Click(f"user-{rng.randrange(1000)}", f"page-{rng.randrange(12)}", hr.Timestamp(at), rng.randrange(1, 10))


def build(folder: Path, per_epoch: int) -> hr.App:
    at = msgspec.json.decode((folder / "services.json").read_bytes(), type=Services)
    app = hr.App("connectors")
    source = hr.source.kafka(at.clicks, brokers=at.brokers, max_per_epoch=per_epoch)
    clicks = app.read("clicks", source, Click, time=Click.at, out_of_order="5s")
    visits = clicks.key_by(Click.user).process(Visits(planned_strikes(folder))).named("visits")
    visits.write(hr.sink.kafka(at.visits, brokers=at.brokers, key=Visit.user), name="visits")
    visits.side(Visits.odd).write(hr.sink.files(str(folder / "odd")), name="odd")
    active = visits.side(Visits.active)
    active.write(hr.sink.files(str(folder / "active")), name="active")
    letters = active.key_by(Active.letter).process(Letters()).named("letters")
    letters.write(hr.sink.files(str(folder / "letters")), name="letters")
    pages = clicks.key_by(Click.page)
    per_minute = pages.window(hr.tumbling("1m")).aggregate(n=hr.count(), points=hr.sum("n")).named("per_minute")
    per_minute.write(hr.sink.postgres("per_minute", dsn=at.dsn), name="per_minute")
    totals = pages.aggregate(n=hr.count(), points=hr.sum("n")).named("totals")
    totals.write(hr.sink.postgres("totals", dsn=at.dsn, key="page"), name="totals")
    return app


def main(folder: str, rows: str, per_epoch: str, until: str) -> None:
    prepare()
    app = build(Path(folder), int(per_epoch))
    store = str(Path(folder) / "store")
    app.run(until=until, store=store, parallelism=2, master="local[2]", spark=UNCOMPILED, plain=True)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
