"""A job whose closed windows go to an archive, and questions to its snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import headrace as hr
from headrace.model.keys import encode_key
from headrace.model.order import EpochLimits
from headrace.read.follow import Follower
from headrace.read.ranges import EVERYTHING, Range, between
from headrace.read.snapshot import Snapshot
from headrace.read.store import Store
from headrace.read.windows import WindowReader
from headrace.testing import Harness
from tests.serve.tweets import View

EVER = between(None, None)
HOUR = 3_600_000_000
START = 1_704_067_200_000_000
"""2024-01-01T00:00:00Z"""


class Hourly(hr.Record):
    tweet: str
    window_start: hr.Timestamp
    window_end: hr.Timestamp
    n: int


class Job:
    """Hourly sums of a job whose closed windows are archived; one epoch per `push`."""

    def __init__(
        self, path: Path, *, keep: str | None = None, archive: str | None = None, limits: EpochLimits | None = None
    ) -> None:
        self.path = path
        self.store = path / "state"
        self.archive = archive or str(path / "archive" / "hourly")
        app = hr.App("tweets")
        self.views = app.read("views", hr.source.items([]), View, time=View.at)
        hourly = self.views.key_by(View.tweet).window(hr.tumbling("1h")).aggregate(Hourly, n=hr.sum("n"))
        hourly.named("hourly").queryable(keep=keep, archive=self.archive)
        self.h = Harness(app, start="2024-01-01", store=self.store, sinks=True, limits=limits)

    def push(self, *rows: tuple[str, float, int], watermark: float) -> None:
        """(tweet, hour, n) …; hours count from the start."""
        self.h.push(self.views, *(View(tweet, hr.Timestamp(START + round(hour * HOUR)), n) for tweet, hour, n in rows))
        self.h.epoch(watermark=START + round(watermark * HOUR))

    def hours(self, *hours: int) -> None:
        """One view of tweet "a" in each hour, as many as the hour; every hour closes the one before."""
        for hour in hours:
            self.push(("a", hour + 0.1, hour), watermark=hour + 0.5)


def table_of(snapshot: Snapshot | None, address: str = "hourly") -> WindowReader:
    assert snapshot is not None
    table = snapshot.table(address)
    assert isinstance(table, WindowReader)
    return table


def asked(snapshot: Snapshot | None, key: Any, wanted: Range = EVER) -> list[tuple[int, int]]:
    """Hour and sum of each window."""
    page = table_of(snapshot).range(encode_key(key), wanted, EVERYTHING)
    return [((int(window.start) - START) // HOUR, row["n"]) for window, row in page.windows]


def newest(path: Path) -> Snapshot:
    snapshot = Follower(Store(path)).look()
    assert snapshot is not None
    return snapshot
