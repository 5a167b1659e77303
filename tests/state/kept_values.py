"""Events, values of several kinds, and a program that keeps them by key."""

from __future__ import annotations

from typing import Any

import headrace as hr
from headrace.testing import Harness


class Event(hr.Record):
    key: str
    n: int = 0
    at: hr.Timestamp = hr.Timestamp(0)


class Out(hr.Record):
    key: str
    trail: list[int]


class Box(hr.Record):
    a: int
    b: int = 0


class Bag(hr.Record):
    things: list[int]


def harness(function: Any, *, errors: bool = False) -> tuple[Harness, Any, Any]:
    app = hr.App("copies")
    events = app.read("events", hr.source.items([]), Event, time=Event.at)
    step = events.key_by(Event.key).process(function).named("step")
    step.show()
    if errors:
        step.errors.show()
    return Harness(app, parallelism=1), events, step
