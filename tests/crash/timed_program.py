"""A second program that is killed: windows, sessions, an interval join, broadcast rules, a loop and requests. Beside
them windows over a folder of Parquet files, which workers decode until they come to one that only Spark reads.

Run as ``python -m tests.crash.timed_program FOLDER ROWS PER_EPOCH UNTIL``, like `tests.crash.program`. Requests that
are carried from epoch to epoch are answered once there is a file `ANSWERS` in the folder; each that is made is noted in
`REQUESTS`, so that a test can see which were made again.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr
from tests.crash.program import START, prepare
from tests.jvm import UNCOMPILED

OUTPUTS = ("per_page", "sessions", "pairs", "unanswered", "matched", "tired", "asked", "held")
FROM_FILES = ("per_page_of_files", "odd_of_files")
ODD_FILE = 3
"""The file whose times have 96 bits."""
ANSWERS = "answers_may_come"
REQUESTS = "requests.txt"
PARALLELISM = "CRASH_PARALLELISM"
"""Name of the environment variable that says how many shards there are; without it two."""


class View(hr.Record):
    user: str
    page: str
    at: hr.Timestamp
    n: int = 1


class Answer(hr.Record):
    user: str
    at: hr.Timestamp


class Rule(hr.Record):
    page: str
    least: int


class Pair(hr.Record):
    user: str
    at: hr.Timestamp
    answered: hr.Timestamp


class Click(hr.Record):
    page: str
    at: hr.Timestamp
    n: int = 1


class Match(hr.BroadcastProcess[View, Rule, View, str]):
    """Views that a rule asks for; the rules change all the time."""

    rules: hr.BroadcastState[str, int]
    seen: hr.ValueState[int]

    def on_broadcast(self, event: Rule, ctx: hr.BroadcastContext[str]) -> None:
        self.rules[event.page] = event.least

    def on_event(self, event: View, ctx: hr.Context[str]) -> Iterator[View]:
        self.seen.set(self.seen.get(0) + event.n)
        if event.n >= self.rules.get(event.page, 10):
            yield event


async def ask(view: View) -> View:
    return view.replace(page=view.page.upper())


class AskForLong(hr.AsyncFunction[View, View]):
    """Answers nothing until it is told to: until then its requests are in flight, and carried from epoch to epoch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def call(self, row: View) -> View:
        with (self.folder / REQUESTS).open("a") as file:
            file.write(f"{row.user} {row.page} {row.at}\n")
        while not (self.folder / ANSWERS).exists():
            await asyncio.sleep(0.05)
        return row.replace(page=row.page.upper())


def make_view(i: int, rng: random.Random) -> View:
    at = START + i * 400_000 + rng.randrange(-2_000_000, 2_000_000)
    return View(f"user-{rng.randrange(60)}", f"page-{rng.randrange(6)}", hr.Timestamp(at), rng.randrange(1, 10))


def make_answer(i: int, rng: random.Random) -> Answer:
    return Answer(f"user-{rng.randrange(60)}", hr.Timestamp(START + i * 800_000 + rng.randrange(-2_000_000, 2_000_000)))


def make_rule(i: int, rng: random.Random) -> Rule:
    return Rule(f"page-{rng.randrange(6)}", rng.randrange(4, 11))


def write_input(folder: Path, rows: int, per_file: int) -> None:
    """One file for an epoch; Spark reads older ones first."""
    (folder / "in").mkdir(parents=True)
    for number in range(rows // per_file):
        ids = np.arange(number * per_file, (number + 1) * per_file)
        at = pa.array(ids * 1_000_000, pa.timestamp("us", "UTC"))
        table = pa.table({"page": [f"page-{i % 7}" for i in ids], "at": at, "n": ids % 11})
        path = folder / "in" / f"{number}.parquet"
        pq.write_table(table, path, row_group_size=50, use_deprecated_int96_timestamps=number == ODD_FILE)
        os.utime(path, (1_700_000_000 + number,) * 2)


def build(folder: Path, rows: int, per_epoch: int) -> hr.App:
    app = hr.App("timed")

    def read(name: str, make: object, share: int) -> hr.source.Source:  # type: ignore[name-defined]
        return hr.source.generator(make, rate=None, total=rows // share, per_epoch=per_epoch // share, seed=share)  # type: ignore[arg-type]

    views = app.read("views", read("views", make_view, 1), View, time=View.at, out_of_order="5s")
    answers = app.read("answers", read("answers", make_answer, 2), Answer, time=Answer.at, out_of_order="5s")
    rules = app.read("rules", read("rules", make_rule, 100), Rule)

    def write(stream: hr.Stream[object], name: str) -> None:  # type: ignore[type-arg]
        stream.write(hr.sink.files(str(folder / name), format="json"), name=name)

    per_page = (
        views.key_by(View.page)
        .window(hr.sliding("1m", every="20s"), allow_late="10s")
        .aggregate(n=hr.sum("n"), most=hr.max("n"), users=hr.count())
        .named("per_page_windows")
    )
    write(per_page.finals(), "per_page")
    sessions = (
        views.key_by(View.user).window(hr.session("15s")).aggregate(n=hr.count(), pages=hr.count_distinct("page"))
    ).named("sessions_of_users")
    write(sessions, "sessions")
    joined = views.key_by(View.user).join(answers.key_by(Answer.user), within=("0s", "10s"), how="inner")
    write(joined.unmatched_left, "unanswered")
    pairs = joined.select(Pair, user="left.user", at="left.at", answered="right.at").named("answered_views")
    write(pairs, "pairs")
    write(views.key_by(View.user).connect(rules.broadcast()).process(Match()), "matched")
    again = app.loop("again", View)
    tired = views.where("n > 7").union(again).map(lambda view: view.replace(n=view.n - 3), output=View)
    tired.where("n > 4").feed(again)
    write(tired.where("n <= 4"), "tired")
    write(views.where("n = 9").map_async(ask, output=View), "asked")
    rare = views.where("n = 9 and page = 'page-1'")
    held = rare.map_async(AskForLong(folder), output=View, ordered=False, wait="carry", capacity=1000, timeout="1h")
    write(held.named("asked_for_long"), "held")
    files = hr.source.files(folder / "in", format="parquet", max_files_per_epoch=1)
    clicks = app.read("clicks", files, Click, time=Click.at)
    windows = clicks.key_by(Click.page).window(hr.tumbling("5m")).aggregate(n=hr.count(), total=hr.sum(Click.n))
    write(windows.named("per_page_of_files"), "per_page_of_files")
    write(clicks.where("n % 2 = 1").map(lambda click: click.replace(n=click.n * 10), output=Click), "odd_of_files")
    return app


def main(folder: str, rows: str, per_epoch: str, until: str) -> None:
    prepare()
    app = build(Path(folder), int(rows), int(per_epoch))
    store = str(Path(folder) / "store")
    parallelism = int(os.environ.get(PARALLELISM, "2"))
    app.run(until=until, store=store, parallelism=parallelism, master="local[2]", spark=UNCOMPILED, plain=True)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
