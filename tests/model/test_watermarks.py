"""How time moves: cases as data, and what must hold for any."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.watermarks import TimedSource, TimeState, derive_next_idle_us, derive_time

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
