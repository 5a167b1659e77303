"""The program that is killed: state of every kind, timers, a side output, two keyed steps, files out.

Run as ``python -m tests.crash.program FOLDER ROWS PER_EPOCH UNTIL``. Its input is generated from a seed and cut into
epochs of a fixed number of rows, so a run that was killed and resumed must write exactly what an uninterrupted one
writes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.checkpoint import maintenance
from headrace.model import crash
from headrace.model.crash import ENVIRONMENT
from tests.jvm import UNCOMPILED

WORKER_STRIKES = "TESTS_WORKER_STRIKES"
"""In the environment: at which point, from which epoch on, a worker is killed; each point once."""
START = 1_700_000_000_000_000
MINUTE = 60_000_000


class Click(hr.Record):
    user: str
    page: str
    at: hr.Timestamp
    n: int = 1


class Visit(hr.Record):
    user: str
    page: str
    at: hr.Timestamp
    clicks: int
    pages: int
    last: str


class PageTotal(hr.Record):
    page: str
    at: hr.Timestamp
    visits: int
    clicks: int


class WorkerStrikes:
    """Kills the worker that is the first at a point. It travels with a function, and wakes up where that arrives."""

    def __init__(self, folder: Path, epochs: Mapping[str, int]) -> None:
        self.folder = folder
        self.epochs = dict(epochs)
        self.driver = os.getpid()

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if os.getpid() != self.driver:
            awake.append(crash.planned(self))
            awake[-1].__enter__()

    def __call__(self, point: str, epoch: int) -> None:
        if point not in self.epochs or epoch < self.epochs[point]:
            return
        try:
            (self.folder / f"struck-{point}-self").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


awake: list[AbstractContextManager[None]] = []
"""Held for as long as the process lives."""


def planned_strikes(folder: Path) -> WorkerStrikes | None:
    """What the environment says of workers that are to be killed; None: nothing."""
    told = json.loads(os.environ.get(WORKER_STRIKES, "{}"))
    return WorkerStrikes(folder, told) if told else None


class Visits(hr.Process[Click, Visit, str]):
    """Counts clicks per user until the user has been quiet for a while, then tells the visit."""

    clicks: hr.ValueState[int]
    pages: hr.MapState[str, int]
    trail: hr.ListState[str] = hr.state(max_len=3)
    quiet: hr.Timer
    odd: hr.Side[Click]
    seen: hr.Counter

    def __init__(self, strikes: WorkerStrikes | None = None) -> None:
        self.strikes = strikes

    def on_event(self, event: Click, ctx: hr.Context[str]) -> None:
        self.clicks.set(self.clicks.get(0) + event.n)
        crash.reach("in_function", ctx.epoch)
        self.pages[event.page] = self.pages.get(event.page, 0) + 1
        self.trail.append(event.page)
        self.seen.inc()
        if event.n > 8:
            self.odd.emit(event)
        self.quiet.set(event.at + hr.seconds(20))

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Visit]:
        best = max(self.pages.items(), key=lambda item: (item[1], item[0]))[0]
        yield Visit(ctx.key, best, ctx.timestamp, self.clicks.get(0), len(self.pages), ",".join(self.trail))
        self.clicks.clear()
        self.pages.clear()
        self.trail.clear()


class Totals(hr.Process[Visit, PageTotal, str]):
    """Totals per page, told once a minute: the order in which visits arrive from other shards must not matter."""

    visits: hr.ValueState[int]
    clicks: hr.ReducingState[int] = hr.state(reduce=lambda a, b: a + b)
    minutes: hr.Timers

    def on_event(self, event: Visit, ctx: hr.Context[str]) -> None:
        self.visits.set(self.visits.get(0) + 1)
        self.clicks.add(event.clicks)
        self.minutes.add(hr.Timestamp(event.at // MINUTE * MINUTE + MINUTE))

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[PageTotal]:
        yield PageTotal(ctx.key, ctx.timestamp, self.visits.get(0), self.clicks.get() or 0)


def make_click(i: int, rng: random.Random) -> Click:
    user = f"user-{rng.randrange(500)}"
    at = START + i * 400_000 + rng.randrange(-2_000_000, 2_000_000)
    return Click(user, f"page-{rng.randrange(12)}", hr.Timestamp(at), rng.randrange(1, 10))


def build(folder: Path, rows: int, per_epoch: int, strikes: WorkerStrikes | None = None) -> hr.App:
    app = hr.App("crash")
    source = hr.source.generator(make_click, rate=None, total=rows, per_epoch=per_epoch, partitions=2, seed=7)
    clicks = app.read("clicks", source, Click, time=Click.at, out_of_order="5s")
    visits = clicks.where("n > 1").key_by(Click.user).process(Visits(strikes))
    visits.write(hr.sink.files(str(folder / "visits"), format="json"))
    visits.side(Visits.odd).write(hr.sink.files(str(folder / "odd"), format="csv"))
    totals = visits.key_by(Visit.page).process(Totals())
    totals.write(hr.sink.files(str(folder / "totals"), format="parquet", partition_by=["page"]))
    return app


def prepare() -> None:
    """Workers inherit the plan of the crash, and have to know whom to kill."""
    if text := os.environ.get(ENVIRONMENT):
        os.environ[ENVIRONMENT] = json.dumps({**json.loads(text), "pid": os.getpid()})
    # Counted from each start, and epochs that a slow fold lets pass do not count: a run that is to be killed in a sweep
    # has to come to one before its input ends.
    maintenance.SWEEP_EVERY = 3


def main(folder: str, rows: str, per_epoch: str, until: str) -> None:
    prepare()
    app = build(Path(folder), int(rows), int(per_epoch), planned_strikes(Path(folder)))
    store = str(Path(folder) / "store")
    app.run(until=until, store=store, parallelism=2, master="local[2]", spark=UNCOMPILED, plain=True)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
