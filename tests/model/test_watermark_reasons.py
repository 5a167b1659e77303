"""Why is there no output? Cases as data: what was seen, and who is named."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.model.ids import MIN_TIME
from headrace.model.time import parse_time
from headrace.model.watermark_reasons import Reason, explain_watermark, next_move, stands_still, tell_reason
from headrace.model.watermarks import TimedSource, TimeState, derive_time

S = 1_000_000
NOON = parse_time("2024-01-01T12:00:00")

Epoch = tuple[int, dict[str, dict[str, int]]]
"""Wall clock in seconds after noon, and the marks: source → split → event time in seconds after noon."""


def play(
    sources: list[TimedSource], steps: dict[str, list[str]], epochs: list[Epoch], *, final: bool = False
) -> TimeState:
    time = TimeState()
    for clock, marks in epochs:
        moved = {source: {split: NOON + at * S for split, at in splits.items()} for source, splits in marks.items()}
        time = derive_time(time, moved, sources=sources, steps=steps, clock_us=NOON + clock * S, final=final)
    return time


ONE = [TimedSource("views", 5 * S)]
TWO = [TimedSource("fast"), TimedSource("slow")]
LETS_GO = [TimedSource("fast", idle_us=30 * S), TimedSource("slow", idle_us=30 * S)]

CASES: list[tuple[str, list[TimedSource], list[str], list[Epoch], int, dict[str, Any]]] = [
    # what, sources, sources above the step, epochs, wall clock now, what is found
    ("the newest row of the only input", ONE, ["views"], [(0, {"views": {"": 10}})], 60,
     {"kind": "behind", "source": "views", "split": "", "at_us": 10, "since_us": 0, "silent": True}),
    ("a source without a row", TWO, ["fast", "slow"], [(0, {"fast": {"": 10}}), (5, {"fast": {"": 20}})], 60,
     {"kind": "not_begun", "source": "slow", "at_us": None, "since_us": 0}),
    ("the slower", TWO, ["fast", "slow"], [(0, {"fast": {"": 90}, "slow": {"": 10}}), (5, {"fast": {"": 99}})], 60,
     {"kind": "behind", "source": "slow", "at_us": 10, "since_us": 0}),
    ("the slowest split of one", ONE, ["views"], [(0, {"views": {"p0": 90, "p1": 30}}), (7, {"views": {"p0": 95}})], 60,
     {"kind": "behind", "source": "views", "split": "p1", "at_us": 30, "since_us": 0, "silent": True}),
    ("a split whose rows are no newer", ONE, ["views"], [(0, {"views": {"p": 30}}), (9, {"views": {"p": 20}})], 60,
     {"kind": "behind", "split": "p", "at_us": 30, "since_us": 0, "silent": False}),
    ("not an idle split", LETS_GO, ["fast"], [(0, {"fast": {"p": 10, "q": 1}}), (40, {"fast": {"p": 50}})], 41,
     {"kind": "behind", "split": "p", "at_us": 50, "since_us": 40}),
    ("every input is idle", LETS_GO, ["fast", "slow"], [(0, {"fast": {"": 1}}), (31, {})], 90,
     {"kind": "idle", "since_us": 0}),
    ("a step below no timed source", ONE, [], [(0, {"views": {"": 10}})], 60, {"kind": "no_time"}),
    ("a split where nobody said how far time is", [TimedSource("views", said_by="flush")], ["views"],
     [(0, {"views": {"": MIN_TIME // S - NOON // S}}), (4, {"views": {"": MIN_TIME // S - NOON // S}})], 60,
     {"kind": "not_begun", "source": "views", "at_us": None, "said_by": "flush"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("sources", "above", "epochs", "now", "found"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_the_input_that_holds_time_back_is_named(
    sources: list[TimedSource], above: list[str], epochs: list[Epoch], now: int, found: dict[str, Any]
) -> None:
    time = play(sources, {"step": above}, epochs)
    [reason] = explain_watermark(time, sources, {"step": above}, NOON + now * S)
    shown = {name: getattr(reason, name) for name in found}
    for name in ("at_us", "since_us"):
        if shown.get(name) is not None:
            shown[name] = (shown[name] - NOON) // S
    assert shown == found


def test_drained_input_holds_nothing_back() -> None:
    time = play(ONE, {"step": ["views"]}, [(0, {"views": {"": 10}})], final=True)
    [reason] = explain_watermark(time, ONE, {"step": ["views"]}, NOON)
    assert reason.kind == "ended"
    assert next_move(reason, NOON) == ""


def test_steps_with_the_same_reason_are_told_together() -> None:
    steps = {"a": ["fast", "slow"], "b": ["slow", "fast"], "c": ["fast"], "d": []}
    time = play(TWO, steps, [(0, {"fast": {"": 90}, "slow": {"": 10}})])
    reasons = explain_watermark(time, TWO, steps, NOON, waits={"a": NOON + 70 * S, "b": NOON + 60 * S})
    assert [(reason.steps, reason.kind, reason.source) for reason in reasons] == [
        (("a", "b"), "behind", "slow"),
        (("c",), "behind", "fast"),
        (("d",), "no_time", ""),
    ]
    assert reasons[0].waits_for_us == NOON + 60 * S


def test_who_is_aligned_with_the_slow_one_and_waits_is_named() -> None:
    sources = [TimedSource("fast", align="g", max_drift_us=S), TimedSource("slow", align="g", max_drift_us=S)]
    steps = {"both": ["fast", "slow"]}
    time = play(sources, steps, [(0, {"fast": {"": 90}, "slow": {"": 10}})])
    [reason] = explain_watermark(time, sources, steps, NOON)
    assert (reason.source, reason.held) == ("slow", ("fast",))
    assert "aligned with it, fast waits" in tell_reason(reason, NOON + 5 * S)


TOLD: list[tuple[list[TimedSource], list[Epoch], int, tuple[str, ...]]] = [
    (ONE, [(0, {"views": {"": 10}})], 190,
     ("step: time stands at 2024-01-01T12:00:04.999Z", "held back by views", "newest row is of 2024-01-01T12:00:10Z",
      "less out_of_order='5s'", "no row came since 2024-01-01T12:00:00Z (3m10s)")),
    (ONE, [(0, {"views": {"p0": 90, "p1": 30}})], 30, ("held back by views, split p1",)),
    (ONE, [(0, {"views": {"": 10}})], 0, ("time is at 2024-01-01T12:00:04.999Z; the slowest input is views",)),
    (ONE, [(0, {})], 7200, ("time stands at its beginning", "views, which has not brought a row since", "(2h)")),
    ([TimedSource("views", said_by="Adaptive")], [(0, {"views": {"": 10}}), (3, {"views": {"": 1}})], 60,
     ("where Adaptive said 2024-01-01T12:00:10Z; its rows are no newer since",)),
]  # fmt: skip


@pytest.mark.parametrize(("sources", "epochs", "now", "words"), TOLD)
def test_people_are_told_who_where_and_since_when(
    sources: list[TimedSource], epochs: list[Epoch], now: int, words: tuple[str, ...]
) -> None:
    time = play(sources, {"step": ["views"]}, epochs)
    clock = NOON + epochs[-1][0] * S
    [reason] = explain_watermark(time, sources, {"step": ["views"]}, clock)
    told = tell_reason(reason, NOON + now * S)
    for each in words:
        assert each in told


MOVES: list[tuple[Reason, int, str]] = [
    (Reason(("s",), "no_time", 0), 0, "time="),
    (Reason(("s",), "behind", 0, source="v", at_us=1, since_us=0), 9, "idle='1m' in app.read"),
    (Reason(("s",), "behind", 0, source="v", at_us=1, since_us=0, idle_us=30 * S), 9, "idle='30s' will let"),
    (Reason(("s",), "behind", 0, source="v", at_us=1, since_us=0, out_of_order_us=S), 9, "a shorter out_of_order"),
    (Reason(("s",), "behind", 0, source="v", at_us=1, since_us=0, silent=False), 9, "still grows"),
    (Reason(("s",), "behind", 0, source="v", at_us=1, since_us=0, said_by="flush"), 9, "whether flush still says"),
    (Reason(("s",), "not_begun", 0, source="v", since_us=0), 9, "idle='1m'"),
    (Reason(("s",), "idle", 0, since_us=0), 9, "the next row of any input"),
    (Reason(("s",), "behind", 0, source="v", at_us=1, since_us=9), 9, ""),
]


@pytest.mark.parametrize(("reason", "now", "words"), MOVES)
def test_the_next_move_fits_the_reason(reason: Reason, now: int, words: str) -> None:
    move = next_move(reason, now)
    assert words in move
    assert bool(words) == bool(move)


def test_only_a_long_standstill_that_something_waits_for_is_worth_a_word() -> None:
    reason = Reason(("s",), "behind", 0, source="v", at_us=1, since_us=0, waits_for_us=50)
    assert not stands_still(reason, 29 * S)
    assert stands_still(reason, 30 * S)
    assert not stands_still(Reason(("s",), "behind", 0, source="v", at_us=1, since_us=0), 90 * S)
    assert not stands_still(Reason(("s",), "ended", 0, since_us=0, waits_for_us=50), 90 * S)
