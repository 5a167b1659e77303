"""Windows that run row by row: which rows are one session, what a refused row leaves behind, timers in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import FunctionFailed
from headrace.testing.rig import values
from tests.windows.stepping import All, Event, events, rig_of, windowed
from tests.windows.test_window_functions import NoThirteen, no_thirteen

Rows = list[tuple[int, int, int]]
"""Key, time and gap of each row."""


def sessions_of(rows: Rows) -> list[tuple[str, int, int, int]]:
    """Key, bounds and number of rows of each session: stretches that touch are one."""
    sessions: list[tuple[str, int, int, int]] = []
    for key, time, gap in sorted(rows):
        if sessions and sessions[-1][0] == "abc"[key] and time <= sessions[-1][2]:
            _, start, end, count = sessions.pop()
            sessions.append(("abc"[key], start, max(end, time + gap), count + 1))
        else:
            sessions.append(("abc"[key], time, time + gap, 1))
    return sessions


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-20, 20), st.integers(1, 12)), min_size=1, max_size=12),
       st.integers(1, 4))  # fmt: skip
def test_rows_that_touch_directly_or_through_others_are_one_session(rows: Rows, epochs: int) -> None:
    rig = rig_of(windowed(hr.App("sessions"), hr.session(Event.gap), "own"))
    made = [Event("abc"[key], 1, hr.Timestamp(time), [], hr.Duration(gap)) for key, time, gap in rows]
    for start in range(epochs):
        rig.epoch(made[start::epochs], watermark=-100)
    results = values(rig.epoch(watermark=100))
    assert sorted((row.key, row.window_start, row.window_end, len(row.seen)) for row in results) == sessions_of(rows)


def bounds(results: Sequence[Any]) -> list[tuple[int, int, list[int]]]:
    return sorted((int(row.window_start), int(row.window_end), row.seen) for row in results)


def test_a_row_between_sessions_that_are_open_makes_them_one() -> None:
    rig = rig_of(windowed(hr.App("sessions"), hr.session("10us"), "own"))
    rig.epoch(events("a1@0 a2@20 a3@60"), watermark=0)
    rig.epoch(events("a4@10 a5@40 a6@100"), watermark=1)
    found = bounds(values(rig.epoch(watermark=200)))
    assert found == [(0, 30, [1, 2, 4]), (40, 50, [5]), (60, 70, [3]), (100, 110, [6])]


@pytest.mark.parametrize("verb", ["own", "reduce"])
def test_a_refused_row_joins_no_sessions(verb: str) -> None:
    keyed = hr.App("sessions").read("events", hr.source.items([]), Event, time=Event.at).key_by(Event.key)
    held = keyed.window(hr.session("10us"))
    step: Any = held.reduce(no_thirteen) if verb == "reduce" else held.aggregate(seen=NoThirteen(), every=All())
    step = step.named("step")
    rig = rig_of(step, outlets=("errors",))
    rig.epoch(events("a1@0 a2@20"), watermark=0)
    rig.epoch(events("a13@10 a13@29 a13@11"), watermark=1)
    assert len(rig.out["errors"]) == 3
    results = rig.epoch(watermark=200)
    assert [(row.at, row.value.n if verb == "reduce" else row.value.seen) for row in results] == (
        [(9, 1), (29, 2)] if verb == "reduce" else [(9, [1]), (29, [2])]
    )


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=10), st.integers(1, 3))
def test_a_row_that_an_aggregator_refuses_half_way_leaves_no_trace(rows: list[tuple[int, bool]], batches: int) -> None:
    keyed = hr.App("refused").read("events", hr.source.items([]), Event, time=Event.at).key_by(Event.key)
    step = keyed.window(hr.tumbling("10us")).aggregate(n=hr.count(), seen=NoThirteen()).named("step")
    _ = step.errors
    rig = rig_of(step, outlets=("errors",))
    made = [Event("a", 13 if refused else n, hr.Timestamp(5)) for n, refused in rows]
    for start in range(batches):
        rig.epoch(made[start::batches], watermark=0)
    taken = [row.n for start in range(batches) for row in made[start::batches] if row.n != 13]
    assert [(row.n, row.seen) for row in values(rig.epoch(watermark=9))] == ([(len(taken), taken)] if taken else [])


class Alarm(hr.Trigger):
    """Fires with every second row, and when event time has come to 5 µs beyond a row."""

    rows: hr.ReducingState[int] = hr.state(reduce=lambda a, b: a + b)

    def on_row(self, row: Any, ctx: hr.TriggerContext) -> hr.TriggerResult:
        self.rows.add(1)
        ctx.set_timer(hr.Timestamp(int(row.at) + 5))
        return hr.TriggerResult.CONTINUE if (self.rows.get() or 0) % 2 else hr.TriggerResult.FIRE

    def on_event_time(self, at: hr.Timestamp, ctx: hr.TriggerContext) -> hr.TriggerResult:
        return hr.TriggerResult.FIRE


@pytest.mark.parametrize("evict", [None, hr.keep_rows(1)], ids=["all rows", "one row"])
def test_a_timer_that_is_set_before_a_window_fires_in_the_same_batch_is_not_lost(evict: Any) -> None:
    keyed = hr.App("alarms").read("events", hr.source.items([]), Event, time=Event.at).key_by(Event.key)
    held = keyed.window(hr.tumbling("100us"), fire=Alarm(), evict=evict)
    rig = rig_of(held.aggregate(seen=All()).named("step"))
    rig.epoch(events("a1@1"), watermark=0)
    fired = values(rig.epoch(events("a2@10 a3@20 a4@30"), watermark=1))
    assert [row.seen for row in fired] == ([[2], [4]] if evict else [[1, 2], [1, 2, 3, 4]])
    for watermark in (6, 15, 25, 35):
        assert [row.seen for row in values(rig.epoch(watermark=watermark))] == [[4] if evict else [1, 2, 3, 4]]


class Elsewhere(hr.Record):
    key: str
    n: str


def as_text(older: Any, newer: Event) -> Any:
    return f"{older} {newer}"


def of_another_class(older: Event, newer: Event) -> Any:
    return Elsewhere(older.key, "many")


def beyond_64_bits(older: Event, newer: Event) -> Event:
    return older.replace(n=2**70)


@pytest.mark.parametrize("window", [hr.tumbling("10us"), hr.session("10us")], ids=["tumbling", "session"])
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (as_text, "Expected `object | null`, got `str`"),
        (of_another_class, r"Expected `int`, got `str` - at `\$\.n`"),
        (beyond_64_bits, "can't serialize ints"),
    ],
)
def test_a_reduce_that_returns_no_row_of_its_type_is_refused_with_function_row_and_key(
    function: Any, reason: str, window: Any
) -> None:
    keyed = hr.App("reduced").read("events", hr.source.items([]), Event, time=Event.at).key_by(Event.key)
    rig = rig_of(keyed.window(window).reduce(function).named("step"))
    told = rf"the row that {function.__name__} returned is .*, which its type cannot hold: {reason}"
    with pytest.raises(FunctionFailed, match=told) as refused:
        rig.epoch(events("b1@0 a1@0 a2@1"), watermark=5)
    assert (refused.value.where, refused.value.found) == ("step step", "key a")
    assert refused.value.next_move.endswith("return rows of the type that it is given")
