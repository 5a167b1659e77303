"""Time to live: what may be said, what counts as expired, and how it comes and goes with a program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import headrace as hr
from headrace.dataflow.functions import declarations
from headrace.errors import ProgramError
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.rows import codec_of
from headrace.operators.process import ProcessOperator
from headrace.state.ttl import Expiry, as_ttl
from tests.operators.rig import Rig, values


def test_a_span_alone_means_the_defaults() -> None:
    assert as_ttl("1s") == hr.types.TTL(1_000_000, "wall", "write", "hide")
    assert as_ttl(hr.ttl("1s", clock="event")) == hr.types.TTL(1_000_000, "event", "write", "hide")
    assert as_ttl(None) is None


@pytest.mark.parametrize(
    "wrong", [{"clock": "moon"}, {"refresh": "never"}, {"expired": "maybe"}, {"span": "0s"}, {"span": "soon"}]
)
def test_what_makes_no_sense_is_refused(wrong: Any) -> None:
    with pytest.raises(ProgramError):
        hr.ttl(**{"span": "1s", **wrong})


def test_an_entry_is_over_when_its_time_has_come_not_after() -> None:
    expiry = Expiry(hr.types.TTL(10), clock_us=100, watermark_us=0)
    assert expiry.is_over(100) and not expiry.is_over(101) and not expiry.is_over(None)
    assert expiry.deadline() == 110


def test_the_event_clock_counts_from_the_row_where_that_is_ahead() -> None:
    row: Any = SimpleNamespace(timestamp=70)
    expiry = Expiry(hr.types.TTL(10, "event"), clock_us=999, watermark_us=50, row=row)
    assert expiry.deadline() == 80 and expiry.is_over(50) and not expiry.is_over(51)
    row.timestamp = 20
    assert expiry.deadline() == 60


def test_nothing_expires_before_time_is_known_and_nothing_overflows_at_its_end() -> None:
    row: Any = SimpleNamespace(timestamp=MIN_TIME)
    assert Expiry(hr.types.TTL(10, "event"), clock_us=0, watermark_us=MIN_TIME, row=row).deadline() is None
    assert Expiry(hr.types.TTL(10, "event"), clock_us=0, watermark_us=MAX_TIME, row=row).deadline() == MAX_TIME


# --- a program gets or loses a TTL


class Ask(hr.Record):
    key: str
    set: int | None


class Answer(hr.Record):
    text: str


class Keep(hr.Process[Ask, Answer, str]):
    value: hr.ValueState[int]
    items: hr.ListState[int]
    map: hr.MapState[str, int]

    def on_event(self, event: Ask, ctx: hr.Context[str]) -> Iterator[Answer]:
        yield Answer(f"{self.value.get()} {list(self.items)} {dict(self.map.items())}")
        if event.set is not None:
            self.value.set(event.set)
            self.items.append(event.set)
            self.map["x"] = event.set


def rig(ttl: hr.types.TTL | None, before: Rig | None = None) -> Rig:
    decls = [replace(decl, ttl=ttl) for decl in declarations(Keep)]
    operator = ProcessOperator("step", Keep(), decls, codec_of(Answer))
    made = Rig(operator, codec_of(Ask), lambda row: row.key, timed=False)
    if before is not None:
        made.runs, made.epoch_number, made.clock = before.runs, before.epoch_number, before.clock
    return made


def ask(rig: Rig, clock: int, set: int | None = None) -> str:
    return values(rig.epoch([Ask("k", set)], clock=clock))[0].text  # type: ignore[no-any-return]


def test_an_old_entry_expires_only_after_its_next_touch_once_a_ttl_is_added() -> None:
    old = rig(None)
    ask(old, 0, set=1)
    new = rig(hr.types.TTL(10), old)
    assert ask(new, 1000) == "1 [1] {'x': 1}"
    assert ask(new, 2000, set=2) == "1 [1] {'x': 1}"
    assert ask(new, 2009) == "2 [1, 2] {'x': 2}"
    assert ask(new, 2010) == "None [1] {}"  # The list's first element was never touched.


def test_stored_expiries_are_ignored_once_the_ttl_is_taken_away() -> None:
    old = rig(hr.types.TTL(10))
    ask(old, 0, set=1)
    new = rig(None, old)
    assert ask(new, 1000) == "1 [1] {'x': 1}"


def test_expired_entries_are_shown_as_long_as_they_are_there_if_asked_for() -> None:
    shown = rig(hr.types.TTL(10, expired="show", refresh="read"))
    ask(shown, 0, set=1)
    assert ask(shown, 1000) == "1 [1] {'x': 1}"
    assert ask(rig(hr.types.TTL(10), shown), 1000) == "None [] {}"  # Showing it did not make it live again.
