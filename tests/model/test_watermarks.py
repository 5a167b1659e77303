"""How time moves: cases as data, and what must hold for any."""

from __future__ import annotations

from itertools import permutations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.watermarks import (
    SourceHold,
    TimedSource,
    TimeState,
    choose_kept,
    derive_holds,
    derive_next_idle_us,
    derive_time,
    derive_waiting,
    leave_out_heard,
)

S = 1_000_000


def advance(before: TimeState, marks: dict[str, dict[str, int]], clock_us: int = 0, *, final: bool = False,
            idle_us: int | None = None) -> TimeState:  # fmt: skip
    sources = [TimedSource("a", 5 * S, idle_us), TimedSource("b", 0, idle_us)]
    steps = {"on_a": ["a"], "on_both": ["a", "b"], "on_none": []}
    return derive_time(before, marks, sources=sources, steps=steps, clock_us=clock_us, final=final)


def test_watermark_is_largest_time_less_disorder_less_one() -> None:
    time = advance(TimeState(), {"a": {"": 100 * S}})
    assert time.steps["on_a"] == 95 * S - 1


def test_watermark_of_a_source_is_the_minimum_over_its_splits() -> None:
    time = advance(TimeState(), {"a": {"p0": 100 * S, "p1": 40 * S}})
    assert time.steps["on_a"] == 35 * S - 1


def test_a_source_that_has_not_spoken_holds_time() -> None:
    time = advance(TimeState(), {"a": {"": 100 * S}})
    assert time.steps["on_both"] == MIN_TIME


def test_time_of_several_inputs_is_their_minimum() -> None:
    time = advance(TimeState(), {"a": {"": 100 * S}, "b": {"": 50 * S}})
    assert time.steps["on_both"] == 50 * S - 1


def test_a_step_without_timed_sources_has_no_time() -> None:
    assert advance(TimeState(), {"a": {"": 1}}).steps["on_none"] == MIN_TIME


def test_an_idle_split_is_left_out_until_it_speaks_again() -> None:
    first = advance(TimeState(), {"a": {"p0": 10 * S, "p1": 10 * S}}, clock_us=0, idle_us=30 * S)
    later = advance(first, {"a": {"p0": 90 * S}}, clock_us=31 * S, idle_us=30 * S)
    assert later.steps["on_a"] == 85 * S - 1
    spoke = advance(later, {"a": {"p1": 20 * S}}, clock_us=32 * S, idle_us=30 * S)
    assert spoke.steps["on_a"] == 85 * S - 1, "time never goes back"


def test_a_silent_source_falls_idle_and_lets_time_go() -> None:
    first = advance(TimeState(), {"a": {"": 100 * S}}, clock_us=0, idle_us=30 * S)
    assert first.steps["on_both"] == MIN_TIME
    later = advance(first, {"a": {"": 130 * S}}, clock_us=30 * S, idle_us=30 * S)
    assert later.sources["b"].idle
    assert later.steps["on_both"] == 125 * S - 1


def test_what_rows_have_told_is_not_learned_again_from_in_front_of_a_filter() -> None:
    first = advance(TimeState(), {"a": {"": 10 * S}}, clock_us=0)
    # The newest row went through the filter: the next epoch, which has no rows, does not take it for one of its own.
    assert leave_out_heard({"a": {"": 10 * S}}, first, 0) == {}
    # A newer one was hidden; rows of another source, of another split and of an epoch without any shown were, too.
    assert leave_out_heard({"a": {"": 11 * S}}, first, 0) == {"a": {"": 11 * S}}
    assert leave_out_heard({"a": {"p0": 1}, "b": {"": 1}}, first, 0) == {"a": {"p0": 1}, "b": {"": 1}}
    second = advance(first, {}, clock_us=5 * S)
    assert leave_out_heard({"a": {"": 9 * S}}, second, 5 * S) == {"a": {"": 9 * S}}


def test_drained_input_goes_to_the_end_of_time() -> None:
    assert set(advance(TimeState(), {}, final=True).steps.values()) == {MAX_TIME}


def test_the_next_idle_moment_wakes_the_job() -> None:
    time = advance(TimeState(), {"a": {"": 1}}, clock_us=7 * S, idle_us=30 * S)
    assert derive_next_idle_us(time, [TimedSource("a", 0, 30 * S)], 7 * S) == 37 * S


def test_a_split_that_is_idle_already_wakes_nobody() -> None:
    first = advance(TimeState(), {"a": {"p": 1, "q": 1}}, clock_us=0, idle_us=30 * S)
    later = advance(first, {"a": {"q": 2}}, clock_us=100 * S, idle_us=30 * S)
    assert derive_next_idle_us(later, [TimedSource("a", 0, 30 * S)], 100 * S) == 130 * S


def test_a_source_that_gets_named_splits_forgets_the_nameless_one() -> None:
    first = advance(TimeState(), {"a": {"": 10 * S}})
    assert advance(first, {"a": {"0": 90 * S}}).steps["on_a"] == 85 * S - 1


def test_a_renamed_step_keeps_its_time() -> None:
    first = advance(TimeState(), {"a": {"": 100 * S}})
    after = derive_time(first, {}, sources=[TimedSource("a", 5 * S)], steps={"new": ["a"]}, clock_us=0, final=False,
                        was={"new": "on_a"})  # fmt: skip
    assert after.steps["new"] == 95 * S - 1


def test_a_step_that_left_the_program_keeps_its_time() -> None:
    first = advance(TimeState(), {"a": {"": 100 * S}})
    after = derive_time(first, {}, sources=[], steps={}, clock_us=0, final=False)
    assert after.steps["on_a"] == 95 * S - 1


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["p", "q"]), st.integers(0, 200), st.integers(0, 20))))
def test_time_never_goes_back(seen: list[tuple[str, str, int, int]]) -> None:
    time, clock = TimeState(), 0
    for source, split, at, wait in seen:
        clock += wait * S
        after = advance(time, {source: {split: at * S}}, clock_us=clock, idle_us=10 * S)
        assert all(after.steps[step] >= time.steps.get(step, MIN_TIME) for step in after.steps)
        time = after


# --- marks that somebody says


def test_a_split_that_has_not_said_anything_holds_time_at_its_beginning() -> None:
    time = advance(TimeState(), {"b": {"p": 100 * S, "q": MIN_TIME}})
    assert time.sources["b"].watermark == MIN_TIME
    spoke = advance(time, {"b": {"q": 90 * S}})
    assert spoke.sources["b"].watermark == 90 * S - 1


def test_a_mark_that_goes_back_moves_nothing_and_keeps_the_moment_it_last_moved() -> None:
    first = advance(TimeState(), {"b": {"p": 100 * S}}, clock_us=1 * S)
    later = advance(first, {"b": {"p": 60 * S}}, clock_us=9 * S)
    split = later.sources["b"].splits["p"]
    assert (split.max_us, split.seen_us, split.moved_us) == (100 * S, 9 * S, 1 * S)


def test_what_a_generator_keeps_stays_until_it_says_something_else() -> None:
    def kept(before: TimeState, text: str | None) -> TimeState:
        given = {} if text is None else {"b": {"p": text}}
        return derive_time(before, {"b": {"p": 1}}, sources=[TimedSource("b")], steps={}, clock_us=0, final=False,
                           kept=given)  # fmt: skip

    first = kept(TimeState(), '{"n":1}')
    assert kept(first, None).sources["b"].splits["p"].kept == '{"n":1}'
    assert kept(first, '{"n":2}').sources["b"].splits["p"].kept == '{"n":2}'


def test_another_way_of_telling_time_begins_where_the_old_one_came_to() -> None:
    def said(before: TimeState, source: TimedSource, mark: int, kept: str = "") -> TimeState:
        marks = {"b": {"p": mark}}
        return derive_time(before, marks, sources=[source], steps={"s": ["b"]}, clock_us=0, final=False,
                           kept={"b": {"p": kept}})  # fmt: skip

    seen = said(TimeState(), TimedSource("b", out_of_order_us=3600 * S), 7200 * S)
    assert seen.steps["s"] == 3600 * S - 1
    flushed = said(seen, TimedSource("b", said_by="flush"), 1 * S, "kept")
    assert flushed.steps["s"] == 3600 * S - 1, "the newest row was no promise that all before it had come"
    later = said(flushed, TimedSource("b", said_by="flush"), 4000 * S)
    assert later.steps["s"] == 4000 * S - 1
    assert said(later, TimedSource("b", said_by="Other"), 1 * S).steps["s"] == 4000 * S - 1


def test_of_several_copies_of_a_generator_the_one_that_got_furthest_is_kept_in_any_order() -> None:
    told = [
        ({"s": {"p": 5}}, {"s": {"p": "a"}}),
        ({"s": {"p": 9}}, {"s": {"p": "b"}}),
        ({"s": {"p": 9}}, {"s": {"p": "c"}}),
    ]
    for order in permutations(told):
        assert choose_kept(order) == {"s": {"p": "c"}}


def test_a_time_state_of_an_older_program_can_be_read() -> None:
    text = b'{"sources":{"a":{"splits":{"":[100,7]},"watermark":94,"since_us":3}},"steps":{"on_a":94}}'
    time = msgspec.json.decode(text, type=TimeState)
    assert time.sources["a"].splits[""].still_since_us == 7


# --- sources that wait for each other


ALIGNED = [TimedSource("a", align="g", max_drift_us=60 * S), TimedSource("b", align="g", max_drift_us=60 * S)]


def aligned(before: TimeState, marks: dict[str, dict[str, int]], clock_us: int = 0) -> TimeState:
    return derive_time(before, marks, sources=ALIGNED, steps={"both": ["a", "b"]}, clock_us=clock_us, final=False)


HOLDS: list[tuple[str, dict[str, dict[str, int]], dict[str, set[str]]]] = [
    ("within the drift nobody waits", {"a": {"": 160 * S}, "b": {"": 100 * S}}, {}),
    ("beyond it the faster one does", {"a": {"": 161 * S}, "b": {"": 100 * S}}, {"a": {""}}),
    ("of several splits only those ahead", {"a": {"p": 500 * S, "q": 90 * S}, "b": {"": 100 * S}}, {"a": {"p"}}),
    ("splits of one source wait for each other", {"a": {"p": 500 * S, "q": 90 * S}}, {"a": {"p"}}),
    ("one that has not spoken is not waited for", {"a": {"": 500 * S}}, {}),
]


@pytest.mark.parametrize(("marks", "held"), [case[1:] for case in HOLDS], ids=[case[0] for case in HOLDS])
def test_a_split_that_is_too_far_ahead_of_its_group_waits(
    marks: dict[str, dict[str, int]], held: dict[str, set[str]]
) -> None:
    assert derive_holds(aligned(TimeState(), marks), ALIGNED) == held


def test_sources_of_other_groups_and_of_none_do_not_wait() -> None:
    sources = [ALIGNED[0], TimedSource("b", align="h", max_drift_us=S), TimedSource("c")]
    time = derive_time(TimeState(), {"a": {"": 900 * S}, "b": {"": 1 * S}, "c": {"": 1 * S}}, sources=sources, steps={},
                       clock_us=0, final=False)  # fmt: skip
    assert derive_holds(time, sources) == {}


def test_an_idle_source_is_not_waited_for() -> None:
    sources = [ALIGNED[0], TimedSource("b", idle_us=30 * S, align="g", max_drift_us=60 * S)]
    first = derive_time(TimeState(), {"a": {"": 900 * S}, "b": {"": 1 * S}}, sources=sources, steps={}, clock_us=0,
                        final=False)  # fmt: skip
    assert derive_holds(first, sources) == {"a": {""}}
    later = derive_time(first, {}, sources=sources, steps={}, clock_us=31 * S, final=False)
    assert derive_holds(later, sources) == {}


def test_a_split_that_waits_does_not_fall_idle() -> None:
    sources = [TimedSource("a", idle_us=30 * S, align="g", max_drift_us=60 * S), ALIGNED[1]]
    steps = {"both": ["a", "b"]}
    time = derive_time(TimeState(), {"a": {"": 900 * S}, "b": {"": 1 * S}}, sources=sources, steps=steps, clock_us=0,
                       final=False)  # fmt: skip
    for clock in (20, 40, 60):
        marks = {"b": {"": clock * S}}
        time = derive_time(time, marks, sources=sources, steps=steps, clock_us=clock * S, final=False)
        assert not time.sources["a"].idle
    over = derive_time(time, {"b": {"": 5000 * S}}, sources=sources, steps=steps, clock_us=61 * S, final=False)
    assert over.steps["both"] == 900 * S - 1, "the one that waited still holds time, so its next rows are not late"


def test_at_the_end_of_input_nobody_waits_for_a_source_that_has_ended() -> None:
    time = aligned(TimeState(), {"a": {"": 900 * S}, "b": {"": 1 * S}}, clock_us=1 * S)
    assert derive_waiting(time, ALIGNED, 1 * S).hurried == {"a": SourceHold(("",), whole=True)}
    ended = aligned(time, {}, clock_us=2 * S)
    order = derive_waiting(ended, ALIGNED, 2 * S)
    assert order.hurried == {}
    assert order.paced == {"a": SourceHold(("",), whole=True)}, "without an end the silent one may speak again"


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["p", "q"]), st.integers(0, 2000)), min_size=1))
def test_somebody_can_always_go_on(seen: list[tuple[str, str, int]]) -> None:
    time = TimeState()
    for clock, (source, split, at) in enumerate(seen):
        time = aligned(time, {source: {split: at * S}}, clock_us=clock)
        holds = derive_holds(time, ALIGNED)
        free = [split for name, each in time.sources.items() for split in each.splits.keys() - holds.get(name, set())]
        assert free
