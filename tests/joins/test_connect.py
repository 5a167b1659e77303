"""Two keyed streams that share state: both sides, timers, sides, counters, errors and late rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import headrace as hr
from headrace.dataflow.functions import declarations
from headrace.errors import FunctionFailed
from headrace.joins.connect import CoProcessOperator
from headrace.model.rows import codec_of
from headrace.testing.operators import EpochInput, verify_operator
from headrace.testing.rig import OperatorRig, values
from tests.joins.streams import KEYS, Left, Right, left, right


class Told(hr.Record):
    key: str
    what: str


class Match(hr.CoProcess[Left, Right, Told, str]):
    """Tells of pairs, and of left rows that waited ten microseconds for nothing."""

    waiting: hr.ValueState[int]
    texts: hr.ListState[str]
    seen: hr.MapState[str, int]
    patience: hr.Timer
    odd: hr.Side[Right]
    lefts: hr.Counter

    def on_left(self, event: Left, ctx: hr.Context[str]) -> Iterator[Told]:
        self.lefts.inc()
        if event.n < 0:
            raise ValueError("less than nothing")
        self.waiting.set(event.n)
        self.patience.set(event.at + hr.Duration(10))
        for text in self.texts:
            yield Told(ctx.key, f"{event.n} after {text}")

    def on_right(self, event: Right, ctx: hr.Context[str]) -> Iterator[Told]:
        self.texts.append(event.text)
        self.seen[event.text] = self.seen.get(event.text, 0) + 1
        if event.text == "odd":
            self.odd.emit(event)
        n = self.waiting.get()
        if n is not None:
            self.waiting.clear()
            self.patience.clear()
            yield Told(ctx.key, f"{n} before {event.text}")

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Told]:
        yield Told(ctx.key, f"{self.waiting.get()} in vain")


def operator() -> CoProcessOperator:
    return CoProcessOperator("match", Match(), declarations(Match), codec_of(Told), key_type=str)


def rig(*outlets: str) -> OperatorRig:
    return OperatorRig(operator(), (Left, Right), KEYS, outlets=outlets)


def test_both_sides_see_the_state_of_their_key() -> None:
    r = rig()
    assert values(r.epoch((0, [left("a", 1, 7), left("b", 1, 8)]))) == []
    assert values(r.epoch((1, [right("a", 2, "x")]))) == [Told("a", "7 before x")]
    assert values(r.epoch((0, [left("a", 3, 9)]))) == [Told("a", "9 after x")]


def test_timers_of_one_side_are_cleared_by_the_other() -> None:
    r = rig()
    r.epoch((0, [left("a", 1, 7), left("b", 1, 8)]), (1, [right("a", 5, "x")]), watermark=10)
    assert values(r.epoch(watermark=11)) == [Told("b", "8 in vain")]
    assert r.report.fired == 1


def test_sides_counters_and_errors_are_those_of_a_process_function() -> None:
    r = rig("side:odd", "errors")
    r.epoch((0, [left("a", 1, -1), left("a", 2, 1)]), (1, [right("a", 3, "odd")]))
    assert values(r.out["side:odd"]) == [right("a", 3, "odd")]
    assert r.report.counters == {"lefts": 2}
    assert [failed.key for failed in values(r.out["errors"])] == ["a"]
    assert values(r.out["main"]) == [Told("a", "1 before odd")]


def test_a_failure_names_the_method_and_the_row() -> None:
    with pytest.raises(FunctionFailed, match="on_left raised ValueError: less than nothing"):
        rig().epoch((0, [left("a", 1, -1)]))


def test_late_rows_leave_by_the_door_of_their_side() -> None:
    r = rig("late_left", "late_right")
    r.epoch(watermark=10)
    r.epoch((0, [left("a", 10, 1), left("a", 11, 2)]), (1, [right("a", 9, "x")]), watermark=10)
    assert values(r.out["late_left"]) == [left("a", 10, 1)]
    assert values(r.out["late_right"]) == [right("a", 9, "x")]
    assert r.report.late == 2


def test_the_engine_may_run_it_as_it_likes() -> None:
    epochs = [
        EpochInput([(0, [left("a", 1, 1), left("b", 2, 2), left("a", 3, -1)]), (1, [right("a", 3, "x")])], watermark=2),
        EpochInput(
            [(1, [right("c", 4, "odd"), right("a", 3, "y")]), (0, [left("c", 5, 4), left("a", 6, 5)])], watermark=12
        ),
        EpochInput([(0, []), (1, [right("b", 20, "z")])], watermark=30),
    ]
    verify_operator(
        operator, epochs, row_type=(Left, Right), key=KEYS, time=lambda row: int(row.at),
        outlets=("side:odd", "errors", "late_left", "late_right"),
    )  # fmt: skip
