"""What a driver waits for: a sink whose target cannot be reached just now. Written into the store, so that whoever
looks at a job from outside learns why no epoch comes."""

from __future__ import annotations

import msgspec

from headrace.model.time import format_span

AT_START = -1
"""Stands for the epoch of a sink that could not be started."""


class SinkWait(msgspec.Struct, frozen=True):
    output: str
    sink: str
    """The sink as ``app.explain()`` tells it."""
    epoch: int
    reason: str
    tries: int
    since_us: int
    """Wall clock of the first try that failed."""
    until_us: int
    """Wall clock at which patience is over."""


class SinkWaits(msgspec.Struct, frozen=True):
    """All that a driver waits for at a moment."""

    waits: tuple[SinkWait, ...] = ()


def tell_wait(wait: SinkWait, clock_us: int) -> str:
    """One line for people.

    >>> tell_wait(SinkWait("orders", "postgres orders", 7, "connection refused", 3, 0, 300_000_000), 12_000_000)
    'waiting for postgres orders: connection refused, 3rd try, 12 s'
    """
    waited_s = max(0, clock_us - wait.since_us) // 1_000_000
    return f"waiting for {wait.sink}: {wait.reason}, {ordinal(wait.tries)} try, {_seconds(waited_s)}"


def tell_patience(wait: SinkWait) -> str:
    """How long it will be tried."""
    return format_span(wait.until_us - wait.since_us)


def ordinal(number: int) -> str:
    """A number as people count.

    >>> [ordinal(n) for n in (1, 2, 3, 4, 11, 22)]
    ['1st', '2nd', '3rd', '4th', '11th', '22nd']
    """
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _seconds(seconds: int) -> str:
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"
