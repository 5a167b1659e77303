"""A program that keeps people in every kind of table: values, maps, lists, timers, windows, sessions, joins, loops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import headrace as hr
from headrace.model.order import EpochLimits

FILES = EpochLimits(inline_run_bytes=0, inline_output_bytes=0)
PEOPLE = [f"person-{i:02d}" for i in range(12)]


class Visit(hr.Record):
    person: str
    page: str
    at: hr.Timestamp


class Note(hr.Record):
    person: str
    left: int
    at: hr.Timestamp


class Trail(hr.Process[Visit, Note, str]):
    count: hr.ValueState[int]
    pages: hr.MapState[str, int]
    recent: hr.ListState[str]
    quiet: hr.Timer

    def on_event(self, event: Visit, ctx: hr.Context[str]) -> Iterator[Note]:
        self.count.set((self.count.get() or 0) + 1)
        self.pages[event.page] = self.pages.get(event.page, 0) + 1
        self.recent.append(event.page)
        self.quiet.set(hr.Timestamp(event.at + hr.hours(2)))
        yield Note(event.person, 1, event.at)

    def on_timer(self, timer: Any, ctx: hr.Context[str]) -> Iterator[Note]:
        yield Note(ctx.key, 0, ctx.timestamp)


class People:
    """The program in a harness that runs in files, as a large one does."""

    def __init__(self, store: str, *, inline: bool = False, parallelism: int = 2) -> None:
        app = hr.App("people")
        self.visits = app.read("visits", hr.source.items([]), Visit, time=Visit.at)
        again = app.loop("again", Note)
        by_person = self.visits.key_by(Visit.person)
        self.trail = by_person.process(Trail()).named("trail")
        self.hourly = by_person.window(hr.tumbling("1h")).aggregate(n=hr.count()).named("hourly")
        self.sittings = by_person.window(hr.session("30m")).aggregate(n=hr.count()).named("sittings")
        self.pairs = self.visits.key_by(Visit.person, Visit.page).aggregate(n=hr.count()).named("pairs")
        notes = self.trail.union(again).key_by(Note.person)
        self.joined = notes.join(by_person, within=("0s", "1h")).select(
            Note, person="left.person", left="left.left", at="right.at"
        )
        self.joined = self.joined.named("joined")
        self.trail.where("left > 0").feed(again)
        limits = EpochLimits() if inline else FILES
        self.h = hr.testing.Harness(app, store=store, limits=limits, parallelism=parallelism)

    def visit(self, *people: str, page: str = "home", at: str = "12:00") -> None:
        self.h.push(self.visits, *(Visit(person, page, self.h.at(at)) for person in people))
        self.h.epoch()

    def seen(self, person: str) -> tuple[Any, ...]:
        return (
            self.h.state(self.trail, Trail.count, person),
            self.h.state(self.trail, Trail.pages, person),
            self.h.state(self.trail, Trail.recent, person),
            self.h.state(self.trail, Trail.quiet, person),
            self.h.state(self.hourly, key=person),
            self.h.state(self.sittings, key=person),
            self.h.state(self.pairs, key=(person, "home")),
        )
