"""The interval join: cases as data, and against a naive join of all rows in every way an engine may run it."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.ids import MAX_TIME
from headrace.model.rows import codec_of
from headrace.operators.joins.interval import IntervalJoinOperator
from headrace.testing.operators import EpochInput, verify_operator
from headrace.testing.rig import OperatorRig
from tests.operators.joins.streams import (
    HOWS,
    KEYS,
    OUTLETS,
    RUNNING,
    Epoch,
    Left,
    Right,
    Running,
    epochs,
    join_rig,
    left,
    naive_interval,
    right,
    run,
)


def operator(low: int, high: int, how: str = "inner") -> IntervalJoinOperator:
    return IntervalJoinOperator("join", codec_of(Left), codec_of(Right), low, high, how)  # type: ignore[arg-type]


class Case(NamedTuple):
    """Epochs of (lefts, rights, watermark), rows (key, time); what comes out of each, as (left time, right time)."""

    name: str
    low: int
    high: int
    how: str
    epochs: list[tuple[list[tuple[str | None, int]], list[tuple[str | None, int]], int]]
    main: list[list[tuple[int | None, int | None]]]
    others: dict[str, list[list[int]]] = {}


CASES = [
    Case("both bounds belong to it", 0, 10, "inner", [([("a", 5)], [("a", 4), ("a", 5), ("a", 15), ("a", 16)], 0)],
         [[(5, 5), (5, 15)]]),
    Case("keys do not mix", 0, 10, "inner", [([("a", 1), ("b", 2)], [("b", 3), ("c", 3)], 0)], [[(2, 3)]]),
    Case("a pair comes with its later row, whichever that is", -10, 10, "inner",
         [([("a", 5)], [], 0), ([], [("a", 8)], 0), ([("a", 9)], [], 0)], [[], [(5, 8)], [(9, 8)]]),
    Case("every pair comes once", 0, 10, "inner",
         [([("a", 1), ("a", 2)], [("a", 3)], 0), ([("a", 3)], [("a", 3), ("a", 4)], 0)],
         [[(1, 3), (2, 3)], [(3, 3), (3, 3), (3, 4), (1, 3), (1, 4), (2, 3), (2, 4)]]),
    Case("equal rows are rows of their own", 0, 0, "inner", [([("a", 1), ("a", 1)], [("a", 1), ("a", 1)], 0)],
         [[(1, 1)] * 4]),
    Case("the right side may come before the left", -10, -5, "inner",
         [([], [("a", 1), ("a", 7)], 0), ([("a", 10)], [], 0)], [[], [(10, 1)]]),
    Case("a left row is kept until its last partner could have come", 0, 10, "inner",
         [([("a", 5)], [], 14), ([], [("a", 15)], 15), ([], [("a", 15)], 15)], [[], [(5, 15)], []]),
    Case("a right row is forgotten once the watermark has passed it", 0, 10, "inner",
         [([], [("a", 5)], 4), ([("a", 5)], [], 5), ([("a", 4)], [], 5)], [[], [(5, 5)], []]),
    Case("a left join tells of the lonely when the watermark has passed their last chance", 0, 10, "left",
         [([("a", 5), ("b", 6)], [("a", 6)], 14), ([], [], 15), ([], [], 16)], [[(5, 6)], [], [(6, None)]],
         {"unmatched_left": [[], [], [6]]}),
    Case("a partner that comes later is a partner", 0, 10, "left",
         [([("a", 5)], [], 7), ([], [("a", 9)], 9), ([], [], 100)], [[], [(5, 9)], []]),
    Case("a right join tells of right rows", 0, 10, "right",
         [([("a", 5)], [("a", 4), ("a", 6), ("b", 7)], 6), ([], [], 7)], [[(5, 6), (None, 4)], [(None, 7)]]),
    Case("a full join tells of both", -5, 5, "full",
         [([("a", 1)], [("b", 2)], 5), ([], [], 7)], [[], [(1, None), (None, 2)]]),
    Case("unmatched rows can be read beside an inner join", -5, 5, "inner",
         [([("a", 1)], [("b", 2)], 6)], [[]], {"unmatched_left": [[1]], "unmatched_right": [[]]}),
    Case("the end of time ends all waiting", 0, 10, "full",
         [([("a", 1)], [("b", 2)], 0), ([], [], MAX_TIME)], [[], [(1, None), (None, 2)]]),
    Case("a row behind the watermark meets what is still kept", 0, 10, "inner",
         [([("a", 5)], [], 8), ([], [("a", 7)], 8), ([("a", 1)], [("a", 9)], 8)],
         [[], [(5, 7)], [(1, 9), (5, 9)]]),
    Case("a row that can meet nothing any more is late", 0, 10, "full",
         [([("a", 50)], [("a", 55)], 20), ([("a", 10), ("a", 11)], [("a", 10), ("a", 11)], 20)],
         [[(50, 55)], [(11, 11)]], {"late_left": [[], [10]], "late_right": [[], [10]]}),
    Case("late rows of the right side have an hour of the left's memory", 0, 10, "inner",
         [([("a", 50)], [], 55), ([], [("a", 45), ("a", 46), ("a", 52)], 55)], [[], [(50, 52)]],
         {"late_right": [[], [45]]}),
    Case("null keys have no partners", 0, 10, "full", [([(None, 5)], [(None, 5)], 0)], [[(5, None), (None, 5)]]),
    Case("null keys leave an inner join without a trace", 0, 10, "inner",
         [([(None, 5)], [(None, 5)], 0), ([(None, 5)], [], 100)], [[], []]),
    Case("times before 1970 are times", -2, 2, "inner", [([("a", -5)], [("a", -7), ("a", -3), ("a", -2)], -100)],
         [[(-5, -7), (-5, -3)]]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("limit", [1 << 40, 1], ids=["in memory", "spilled"])
def test_case(case: Case, limit: int) -> None:
    rig = join_rig(operator(case.low, case.high, case.how), overlay_limit_bytes=limit)
    for number, (lefts, rights, watermark) in enumerate(case.epochs):
        rig.epoch((0, [left(*row) for row in lefts]), (1, [right(*row) for row in rights]), watermark=watermark)
        assert Counter(_times(row.value) for row in rig.out.get("main", [])) == Counter(case.main[number])
        for tag, wanted in case.others.items():
            assert sorted(row.value.at for row in rig.out.get(tag, [])) == sorted(wanted[number])


def _times(pair: Any) -> tuple[int | None, int | None]:
    return (pair.left and pair.left.at, pair.right and pair.right.at)


def test_a_pair_has_the_time_of_its_later_row() -> None:
    rig = join_rig(operator(-10, 10))
    rig.epoch((0, [left("a", 5)]), (1, [right("a", 3), right("a", 9)]))
    assert sorted(row.at or 0 for row in rig.out["main"]) == [5, 9]


def test_a_lonely_row_has_the_time_of_its_last_chance_so_that_it_is_not_late_behind_the_join() -> None:
    rig = join_rig(operator(-10, 10, "full"))
    rig.epoch((0, [left("a", 5)]), (1, [right("b", 6)]), watermark=14)
    rig.epoch(watermark=16)
    assert [row.at for row in rig.out["main"]] == [15, 16]
    assert [row.at for row in rig.out["unmatched_left"]] == [15]


def test_a_row_that_looks_back_is_alone_at_once_and_has_its_own_time() -> None:
    rig = join_rig(operator(-10, -5, "left"))
    rig.epoch((0, [left("a", 20)]), watermark=15)
    assert [row.at for row in rig.out["main"]] == [20]


def test_late_rows_are_counted_whether_they_are_read_or_not() -> None:
    for outlets in (OUTLETS, ()):
        rig = join_rig(operator(0, 10), outlets=outlets)
        rig.epoch(watermark=100)
        rig.epoch((0, [left("a", 90), left("a", 91)]), (1, [right("a", 90)]))
        assert rig.report.late == 2


def test_state_goes_when_no_partner_can_come() -> None:
    rig = join_rig(operator(0, 10, "full"))
    for start in range(0, 200, 10):
        rig.epoch((0, [left(key, start + 1) for key in "abc"]), (1, [right("a", start + 3)]), watermark=start)
        rig.fold()
    kept = sum(table.rows for _, opened in rig.runs for name, table in opened.tables.items() if name == "!left")
    assert kept <= 9
    rig.epoch(watermark=1000)
    rig.fold()
    assert not rig.runs


def test_rows_that_expire_in_their_own_epoch_are_never_written() -> None:
    rig = join_rig(operator(0, 10))
    rig.epoch((0, [left("a", 5)]), (1, [right("a", 7)]), watermark=100)
    assert not rig.runs


@given(epochs(), st.tuples(st.integers(-12, 12), st.integers(0, 12)), HOWS, RUNNING)
def test_any_epochs_give_what_a_naive_join_of_all_rows_gives(
    made: list[Epoch], bounds: tuple[int, int], how: str, running: Running
) -> None:
    low, high = bounds[0], bounds[0] + bounds[1]
    rig = join_rig(operator(low, high, how))
    wanted = naive_interval(made, low, high, how)
    for number, (found, expected) in enumerate(zip(run(rig, made, running), wanted, strict=True)):
        assert found.main == expected.main, f"epoch {number}"
        assert found.sides == expected.sides, f"epoch {number}"


EPOCHS = [
    EpochInput([(0, [left("a", 1, 1), left("b", 2, 2), left("a", 9, 3)]),
                (1, [right("a", 3, "x"), right("c", 1, "y")])], watermark=2),
    EpochInput([(1, [right("a", 9, "z"), right("b", 30, "q")]),
                (0, [left("a", 3, 4), left("c", 5, 5), left("a", 9, 6)])], watermark=8),
    EpochInput([(0, []), (1, [right("a", 12, "w"), right("a", 12, "v")])], watermark=13),
    EpochInput([(0, [left("a", 4, 7), left("b", 25, 8)]),
                (1, [right("a", 2, "late"), right("b", 26, "u")])], watermark=20),
    EpochInput([], watermark=MAX_TIME, final=True),
]  # fmt: skip


@pytest.mark.parametrize("how", ["inner", "full"])
def test_the_engine_may_run_it_as_it_likes(how: str) -> None:
    verify_operator(
        lambda: operator(-2, 6, how), EPOCHS, row_type=(Left, Right), key=KEYS,
        time=lambda row: int(row.at), outlets=OUTLETS if how == "full" else (),
    )  # fmt: skip


def test_two_keys_of_one_hash_stay_apart() -> None:
    rig: OperatorRig = join_rig(operator(-50, 50), hash_of=lambda key: 7 << 60)
    rig.epoch((0, [left(key, at) for at in range(6) for key in "abc"]))
    rig.epoch((0, [left(key, at) for at in range(6, 9) for key in "cab"]))
    rig.fold()
    rig.epoch((1, [right("b", 4)]))
    assert sorted(row.value.left.at for row in rig.out["main"]) == list(range(9))
    assert {row.value.left.key for row in rig.out["main"]} == {"b"}
