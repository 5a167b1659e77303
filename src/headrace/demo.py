"""The demo: generated tweet impressions, counted per tweet in state, with a live table of the most viewed.

It is an ordinary program; what it shows is what any program gets. Tweets have their time: every few seconds newer ones
take over, and a tweet that nobody has seen for a while is reported by its timer.

This module makes the program and the board it fills. Running it is the business of ``headrace demo``.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

import headrace as hr
from headrace.model.amounts import count_of

RATE: Final = 10_000
"""Impressions per second."""
START: Final = hr.timestamp("2024-05-01T12:00:00Z")
"""Event time of the first impression. Row i has its time from i alone, so a replayed epoch is the same epoch."""
QUIET: Final = hr.seconds(15)
TOLD_EVERY: Final = 10
"""Views of a tweet between two rows about it."""
NEW_TWEETS_EVERY: Final = 50_000
"""Impressions after which newer tweets take over."""
SHOWN: Final = 10
BAR_WIDTH: Final = 30


class Impression(hr.Record):
    """Somebody saw a tweet."""

    tweet: str
    at: hr.Timestamp


class Standing(hr.Record):
    """How often a tweet was seen; ``quiet`` when nobody has seen it for a while."""

    tweet: str
    views: int
    at: hr.Timestamp
    quiet: bool = False


class CountViews(hr.Process[Impression, Standing, str]):
    """Counts the views of each tweet and notices when they end."""

    views: hr.ValueState[int]
    quiet: hr.Timer

    def on_event(self, event: Impression, ctx: hr.Context[str]) -> Iterator[Standing]:
        views = self.views.get(0) + 1
        self.views.set(views)
        self.quiet.set(event.at + QUIET)
        if views % TOLD_EVERY == 0:
            yield Standing(ctx.key, views, event.at)

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Standing]:
        yield Standing(ctx.key, self.views.get(0), ctx.timestamp, quiet=True)


def make_impression(i: int, rng: random.Random) -> Impression:
    """Impression number i: a few tweets get most of the views, and which ones they are moves on."""
    rank = min(int(rng.paretovariate(0.8)), 3000)
    newest = 20 + i // NEW_TWEETS_EVERY * 5
    return Impression(f"tweet-{newest + rank}", START + hr.milliseconds(1) * (i * 1000 // RATE))


def make_demo(board: Board, *, rate: float = RATE) -> hr.App:
    """The program."""
    app = hr.App("demo")
    source = hr.source.generator(make_impression, rate=rate, per_epoch=int(2 * rate))
    impressions = app.read("impressions", source, Impression, time=Impression.at, out_of_order="1s")
    standings = impressions.key_by(Impression.tweet).process(CountViews())
    standings.write(hr.sink.call(board.take), name="board")
    return app


class Board:
    """The most viewed tweets, as the program's output tells them. Lives in the driver; safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._standings: dict[str, Standing] = {}
        self._speeds: dict[str, float] = {}
        self._lately: Standing | None = None
        self.went_quiet = 0

    def take(self, rows: list[Standing], epoch: int) -> None:
        """What the sink calls with the rows of an epoch. An epoch that comes twice counts its quiet tweets twice."""
        newest = {row.tweet: row for row in rows}
        quiet = [row for row in rows if row.quiet]
        with self._lock:
            for tweet, row in newest.items():
                if row.quiet:
                    self._standings.pop(tweet, None)
                else:
                    self._speeds[tweet] = self._speed(row)
                    self._standings[tweet] = row
            self.went_quiet += len(quiet)
            self._lately = max(quiet, key=lambda row: row.views, default=self._lately)

    def _speed(self, row: Standing) -> float:
        """Views per second of event time since the tweet was last told of."""
        before = self._standings.get(row.tweet)
        if before is None or not before.at < row.at:
            return self._speeds.get(row.tweet, 0.0)
        return (row.views - before.views) / ((row.at - before.at) / hr.seconds(1))

    def top(self) -> list[tuple[Standing, float]]:
        """The most viewed tweets that are not quiet, and their speed; most viewed first."""
        with self._lock:
            best = sorted(self._standings.values(), key=lambda row: (-row.views, row.tweet))[:SHOWN]
            return [(row, self._speeds.get(row.tweet, 0.0)) for row in best]

    def draw(self) -> RenderableType:
        """The board for a terminal."""
        top = self.top()
        most = top[0][0].views if top else 1
        table = Table(
            title="most viewed tweets", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
        )
        table.add_column("", justify="right", style="dim")
        table.add_column("tweet", min_width=12)
        table.add_column("views", justify="right", min_width=9)
        table.add_column("", min_width=BAR_WIDTH)
        table.add_column("views/s", justify="right", min_width=8)
        for place, (row, speed) in enumerate(top, 1):
            table.add_row(
                str(place), row.tweet, f"{row.views:,}", _bar(row.views / most), Text(f"{speed:,.0f}", "green")
            )
        return Group(table, Text(self.quiet_line(), "yellow"))

    def line(self, count: int = 3) -> str:
        """The board in one line, for logs."""
        leaders = ", ".join(f"{row.tweet} {row.views:,}" for row, _ in self.top()[:count])
        return f"most viewed: {leaders or '–'}; {self.quiet_line()}"

    def quiet_line(self) -> str:
        """What the timers said."""
        lately = self._lately
        if lately is None:
            return "no tweet went quiet yet"
        quiet, views = count_of(self.went_quiet, "tweet"), count_of(lately.views, "view")
        return f"{quiet} went quiet, lately {lately.tweet} after {views}"


def _bar(share: float) -> Text:
    return Text("█" * max(1, round(share * BAR_WIDTH)), "cyan")
