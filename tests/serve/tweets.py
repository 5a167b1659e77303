"""A small job with a state of every kind, run by the harness into a store that servers are started on."""

from __future__ import annotations

import http.client
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

import headrace as hr
from headrace.testing import Harness


class View(hr.Record):
    tweet: str
    at: hr.Timestamp
    n: int = 1


class Hourly(hr.Record):
    tweet: str
    window_start: hr.Timestamp
    impressions: int


class Totals(hr.Record):
    tweet: str
    views: int
    mean: float | None = None


class Watch(hr.Process[View, View, str]):
    seen: hr.ValueState[int]
    sizes: hr.MapState[int, int]
    recent: hr.ListState[int]
    raw: hr.ValueState[bytes]

    def on_event(self, event: View, ctx: hr.Context[str]) -> None:
        self.seen.set(self.seen.get(0) + 1)
        self.sizes[event.n] = self.sizes.get(event.n, 0) + 1
        self.recent.append(event.n)
        self.raw.set(b"\x00\xff")


class Tweets(AbstractContextManager["Tweets"]):
    """Epochs one after the other: `push` some views, and the states follow."""

    def __init__(self, path: Path, **settings: Any) -> None:
        app = hr.App("tweets")
        self.views = app.read("views", hr.source.items([]), View, time=View.at)
        by_tweet = self.views.key_by(View.tweet)
        hourly = by_tweet.window(hr.tumbling("1h")).aggregate(Hourly, impressions=hr.sum("n")).named("hourly")
        hourly.queryable(keep="24h")
        by_tweet.aggregate(Totals, views=hr.count(), mean=hr.avg("n")).named("totals").queryable()
        by_tweet.latest().named("last").queryable()
        by_tweet.process(Watch()).named("watch").queryable()
        self.views.key_by(View.n).aggregate(views=hr.count()).named("by_size").queryable()
        self.views.key_by("tweet", "n").aggregate(views=hr.count()).named("by_pair").queryable()
        self.path = path
        self.h = Harness(app, start="2024-01-01T12:00", parallelism=2, store=path, **settings)

    def __enter__(self) -> Self:
        self.h.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.h.__exit__(*error)

    def push(self, *views: tuple[str, str, int], watermark: str = "12:30") -> int:
        """(tweet, time, n) …; one epoch, whose number is given back."""
        self.h.push(self.views, *(View(tweet, self.h.at(at), n) for tweet, at, n in views))
        self.h.epoch(watermark=watermark)
        return hr.Store(self.path).epoch


class Answer(msgspec.Struct):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def packed(self) -> Any:
        return msgspec.msgpack.decode(self.body)


def fetch(url: str, path: str, method: str = "GET", body: Any = None, **headers: str) -> Answer:
    """One request; underscores in names of headers are dashes."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        sent = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, sent, names)
        answer = connection.getresponse()
        told = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, told, answer.read())
    finally:
        connection.close()
