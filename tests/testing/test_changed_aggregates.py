"""Accumulators go by the names of their aggregates, come and go, and widen; so do reduced rows and broadcast values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.testing import Harness
from tests.testing.changed import FILES


class Hit(hr.Record):
    page: str
    at: hr.Timestamp
    n: int = 1


class HitNow(hr.Record):
    page: str
    at: hr.Timestamp
    n: float = 1.0
    note: str = "-"


def begin(step: Callable[[Any], Any], kind: Any, store: Path) -> tuple[Any, Any, Harness]:
    app = hr.App("hits")
    hits = app.read("hits", hr.source.items([]), kind, time="at")
    taken = step(hits.key_by("page")).named("kept")
    return hits, taken, Harness(app, start="2024-01-01T12:00", store=store, limits=FILES)


def keeping(**aggs: Any) -> Callable[[Any], Any]:
    return lambda hits: hits.aggregate(**aggs)


def in_windows(window: Any, **aggs: Any) -> Callable[[Any], Any]:
    return lambda hits: hits.window(window).aggregate(**aggs)


class Own(hr.Aggregator[Any, list[str], int]):
    """Windows with one of these are kept one by one."""

    def zero(self) -> list[str]:
        return []

    def add(self, acc: list[str], x: Any) -> list[str]:
        return [*acc, x.page]

    def merge(self, a: list[str], b: list[str]) -> list[str]:
        return a + b

    def result(self, acc: list[str]) -> int:
        return len(acc)


@pytest.mark.parametrize("folds", [False, True], ids=["read", "folded"])
@pytest.mark.parametrize(
    ("step", "now"),
    [
        (keeping(n=hr.sum("n"), avg=hr.avg("n"), gone=hr.max("n")), keeping(n=hr.sum("n"), avg=hr.avg("n"))),
        (
            in_windows(hr.tumbling("1h"), n=hr.sum("n"), avg=hr.avg("n"), gone=hr.count()),
            in_windows(hr.tumbling("1h"), n=hr.sum("n"), avg=hr.avg("n")),
        ),
        (
            in_windows(hr.session("1h"), n=hr.sum("n"), avg=hr.avg("n"), gone=hr.count()),
            in_windows(hr.session("1h"), n=hr.sum("n"), avg=hr.avg("n")),
        ),
        (
            in_windows(hr.tumbling("1h"), n=hr.sum("n"), avg=hr.avg("n"), gone=Own(), own=Own()),
            in_windows(hr.tumbling("1h"), own=Own(), n=hr.sum("n"), avg=hr.avg("n")),
        ),
    ],
    ids=["rolling", "slices", "sessions", "window by window"],
)
def test_aggregates_that_stay_go_on_when_others_go_and_numbers_widen(
    tmp_path: Path, step: Callable[[Any], Any], now: Callable[[Any], Any], folds: bool
) -> None:
    hits, taken, h = begin(step, Hit, tmp_path)
    with h:
        h.push(hits, Hit("a", h.at("12:00"), 3), Hit("a", h.at("12:01"), 4))
        h.epoch(watermark="11:59")
        h.take(taken)
    hits, taken, h = begin(now, HitNow, tmp_path)
    with h:
        for _ in range(4 if folds else 0):
            h.epoch(watermark="11:59")
            h.maintain()
        h.push(hits, HitNow("a", h.at("12:02"), 0.5))
        h.epoch(watermark="11:59")
        h.drain()
        [row] = h.take(taken)
        assert (row.n, row.avg) == (7.5, 2.5)


class Limit(hr.Record):
    page: str
    most: int


class LimitNow(hr.Record):
    page: str
    limit: float = hr.field(was="most")


def program(kind: Any, store: Path) -> tuple[Any, Any, Any, Harness]:
    class Check(hr.BroadcastProcess[Hit, kind, str, str]):
        limits: hr.BroadcastState[str, kind]

        def on_event(self, event: Hit, ctx: hr.Context[str]) -> Iterator[str]:
            yield str(self.limits.get(event.page))

        def on_broadcast(self, event: kind, ctx: hr.BroadcastContext[str]) -> None:
            self.limits[event.page] = event

    app = hr.App("limits")
    hits = app.read("hits", hr.source.items([]), Hit)
    limits = app.read("limits", hr.source.items([]), kind)
    taken = hits.key_by("page").connect(limits.broadcast()).process(Check()).named("kept")
    return hits, limits, taken, Harness(app, start="2024-01-01T12:00", store=store, limits=FILES)


@pytest.mark.parametrize("folds", [False, True], ids=["read", "folded"])
def test_broadcast_states(tmp_path: Path, folds: bool) -> None:
    _, limits, _, h = program(Limit, tmp_path)
    with h:
        h.push(limits, Limit("a", 7), Limit("b", 8))
        h.epoch()
    hits, limits, taken, h = program(LimitNow, tmp_path)
    with h:
        for _ in range(4 if folds else 0):
            h.epoch()
            h.maintain()
        h.push(limits, LimitNow("b", 1.5))
        h.epoch()
        h.push(hits, Hit("a", h.at("12:00")), Hit("b", h.at("12:00")))
        h.epoch()
        assert sorted(h.take(taken)) == [str(LimitNow("a", 7.0)), str(LimitNow("b", 1.5))]


def test_rows_of_reduce_and_latest(tmp_path: Path) -> None:
    def both(kind: Any) -> tuple[Any, Any, Any, Harness]:
        app = hr.App("hits")
        hits = app.read("hits", hr.source.items([]), kind)
        first = hits.key_by("page").reduce(lambda one, other: one).named("first")
        newest = hits.key_by("page").latest().named("newest")
        return hits, first, newest, Harness(app, start="2024-01-01T12:00", store=tmp_path)

    hits, _, _, h = both(Hit)
    with h:
        h.push(hits, Hit("a", h.at("12:00"), 3))
        h.epoch()
    hits, first, newest, h = both(HitNow)
    with h:
        old = HitNow("a", h.at("12:00"), 3.0, "-")
        assert h.state(newest, key="a") == old
        h.push(hits, HitNow("a", h.at("12:01"), 4.0, "new"))
        h.epoch()
        assert h.take(first) == [old]
        assert h.take(newest) == [HitNow("a", h.at("12:01"), 4.0, "new")]
