"""Rows with and without event time in one stream: what happens to them does not depend on how batches are cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.runtime import tasks_here


class Event(hr.Record):
    key: str
    n: int
    at: hr.Timestamp | None = None


class Times(hr.Process[Event, str, str]):
    def on_event(self, event: Event, ctx: hr.Context[str]) -> Iterator[str]:
        yield f"{event.n} {'late' if ctx.timestamp < 0 else 'timed'}"


class Twice(hr.Process[Event, Event, str]):
    later: hr.WallTimer

    def on_event(self, event: Event, ctx: hr.Context[str]) -> Iterator[Event]:
        self.later.set(ctx.now + hr.seconds(1))
        yield event

    def on_timer(self, timer: object, ctx: hr.Context[str]) -> Iterator[Event]:
        yield Event(ctx.key, -1)


@pytest.fixture(params=["apart", "joined"])
def batches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the harness cuts them, and all rows of a shard in one, as a shuffle may."""
    cut = tasks_here.exchange

    def joined(program: Any, given: Any) -> Any:
        return [[pa.concat_batches(some)] if some else [] for some in cut(program, given)]

    if request.param == "joined":
        monkeypatch.setattr(tasks_here, "exchange", joined)


@pytest.mark.usefixtures("batches")
@pytest.mark.parametrize("with_timed", [False, True])
@pytest.mark.parametrize("reads_late", [False, True])
def test_behind_a_source_with_time_a_row_without_is_late(reads_late: bool, with_timed: bool) -> None:
    app = hr.App("mixed")
    timed = app.read("timed", hr.source.items([]), Event, time=Event.at)
    untimed = app.read("untimed", hr.source.items([]), Event)
    seen = timed.union(untimed).key_by(Event.key).process(Times()).named("seen")
    seen.show()
    if reads_late:
        seen.late.show()
    with hr.testing.Harness(app, parallelism=1, start="2024-01-01T00:00") as h:
        h.push(timed, Event("a", 0, h.at("12:00")))
        h.epoch()
        assert h.take(seen) == ["0 timed"]
        if with_timed:
            h.push(timed, Event("a", 1, h.at("12:01")))
        h.push(untimed, Event("a", 2))
        h.push(timed, Event("a", 3))
        h.epoch()
        handled = ["1 timed"] * with_timed + ["2 late", "3 late"] * (not reads_late)
        assert sorted(h.take(seen)) == handled
        assert h.counters(seen)["late"] == 2
        if reads_late:
            assert sorted(row.n for row in h.take(seen.late)) == [2, 3]


@pytest.mark.usefixtures("batches")
def test_without_a_source_with_time_rows_of_timers_are_as_new_as_others() -> None:
    app = hr.App("untimed")
    events = app.read("events", hr.source.items([]), Event)
    newest = events.key_by(Event.key).process(Twice()).named("twice").key_by(Event.key).latest().named("newest")
    newest.show()
    with hr.testing.Harness(app, parallelism=1, start="2024-01-01T00:00") as h:
        h.push(events, Event("a", 1))
        h.epoch()
        h.epoch(clock="2024-01-01T00:00:02")
        h.push(events, Event("a", 2))
        h.epoch()
        assert [row.n for row in h.take(newest)] == [1, -1, 2]
