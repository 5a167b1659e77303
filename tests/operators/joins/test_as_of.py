"""The join as of a time: cases as data, and against a naive search of all rows."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.ids import MAX_TIME
from headrace.model.rows import codec_of
from headrace.operators.joins.as_of import AsOfJoinOperator
from headrace.testing.operators import EpochInput, verify_operator
from tests.operators.joins.streams import (
    KEYS,
    RUNNING,
    Epoch,
    Left,
    Right,
    Running,
    epochs,
    join_rig,
    left,
    naive_as_of,
    right,
    run,
)


def operator(tolerance: int | None = None) -> AsOfJoinOperator:
    return AsOfJoinOperator("join", codec_of(Left), codec_of(Right), tolerance)


class Case(NamedTuple):
    """Epochs of (lefts, rights, watermark), rows (key, time); what comes out, as (left time, right time or None)."""

    name: str
    tolerance: int | None
    epochs: list[tuple[list[tuple[str | None, int]], list[tuple[str | None, int]], int]]
    main: list[list[tuple[int, int | None]]]


CASES = [
    Case("the newest at or before the time counts", None,
         [([("a", 5)], [("a", 3), ("a", 4), ("a", 6)], 10)], [[(5, 4)]]),
    Case("the same time counts", None, [([("a", 5)], [("a", 5)], 10)], [[(5, 5)]]),
    Case("a row waits until the watermark has come to it", None,
         [([("a", 5)], [("a", 1)], 4), ([], [("a", 3)], 4), ([], [], 5)], [[], [], [(5, 3)]]),
    Case("without an answer it comes alone", None, [([("a", 5)], [("a", 6), ("b", 1)], 10)], [[(5, None)]]),
    Case("an answer may be too old", 3, [([("a", 5), ("a", 9)], [("a", 2)], 10)], [[(5, 2), (9, None)]]),
    Case("versions of earlier epochs hold", None,
         [([], [("a", 1), ("a", 7)], 3), ([("a", 6), ("a", 8)], [], 10), ([("a", 20)], [], 20)],
         [[], [(6, 1), (8, 7)], [(20, 7)]]),
    Case("a row behind the watermark is late", None, [([], [("a", 1)], 10), ([("a", 10), ("a", 11)], [], 11)],
         [[], [(11, 1)]]),
    Case("a right row behind the watermark holds for what comes later", None,
         [([], [("a", 1)], 10), ([], [("a", 5)], 10), ([("a", 12)], [], 12)], [[], [], [(12, 5)]]),
    Case("null keys have no answer", None, [([(None, 5)], [(None, 1)], 0)], [[(5, None)]]),
    Case("the end of time answers everything", None, [([("a", 5)], [("a", 4)], 0), ([], [], MAX_TIME)], [[], [(5, 4)]]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("limit", [1 << 40, 1], ids=["in memory", "spilled"])
@pytest.mark.parametrize("folds", [False, True], ids=["", "folded"])
def test_case(case: Case, limit: int, folds: bool) -> None:
    rig = join_rig(operator(case.tolerance), overlay_limit_bytes=limit)
    for number, (lefts, rights, watermark) in enumerate(case.epochs):
        rig.epoch((0, [left(*row) for row in lefts]), (1, [right(*row) for row in rights]), watermark=watermark)
        found = [(row.value.left.at, row.value.right and row.value.right.at) for row in rig.out.get("main", [])]
        assert Counter(found) == Counter(case.main[number])
        if folds:
            rig.fold()


def test_of_several_versions_of_one_time_the_last_to_come_counts() -> None:
    rig = join_rig(operator())
    rig.epoch((1, [right("a", 3, "first"), right("a", 3, "second")]), watermark=1)
    rig.epoch((1, [right("a", 3, "third")]), watermark=1)
    rig.epoch((0, [left("a", 4)]), watermark=4)
    assert [row.value.right.text for row in rig.out["main"]] == ["third"]


def test_a_result_has_the_time_of_its_left_row() -> None:
    rig = join_rig(operator())
    rig.epoch((0, [left("a", 5)]), (1, [right("a", 2)]), watermark=9)
    assert [row.at for row in rig.out["main"]] == [5]


def test_versions_that_a_newer_one_has_replaced_go() -> None:
    rig = join_rig(operator())
    for at in range(0, 100, 10):
        rig.epoch((1, [right(key, at) for key in "ab"]), watermark=at)
        rig.fold()
    assert sum(table.rows for _, opened in rig.runs for table in opened.tables.values()) == 2
    rig.epoch((0, [left("a", 95), left("b", 99)]), watermark=100)
    assert [row.value.right.at for row in rig.out["main"]] == [90, 90]


def test_versions_older_than_the_tolerance_go_altogether() -> None:
    rig = join_rig(operator(5))
    rig.epoch((1, [right("a", 10)]), watermark=15)
    rig.fold()
    assert not rig.runs


@given(epochs(), st.sampled_from([None, 0, 4]), RUNNING)
def test_any_epochs_give_what_a_naive_search_gives(made: list[Epoch], tolerance: int | None, running: Running) -> None:
    rig = join_rig(operator(tolerance), outlets=("unmatched_left", "late_left", "late_right"))
    wanted = naive_as_of(made, tolerance)
    for number, (found, expected) in enumerate(zip(run(rig, made, running), wanted, strict=True)):
        assert found.main == expected.main, f"epoch {number}"
        assert found.sides == expected.sides, f"epoch {number}"


def test_the_engine_may_run_it_as_it_likes() -> None:
    made = [
        EpochInput(
            [(0, [left("a", 4, 1), left("b", 2, 2)]), (1, [right("a", 1, "x"), right("a", 3, "y")])], watermark=2
        ),
        EpochInput(
            [(1, [right("a", 4, "z"), right("b", 9, "q")]), (0, [left("a", 7, 3), left("a", 4, 4)])], watermark=6
        ),
        EpochInput([(0, [left("a", 5, 5), left("b", 12, 6)]), (1, [right("a", 2, "old")])], watermark=12),
        EpochInput([(0, [left("a", 20, 7)]), (1, [])], watermark=MAX_TIME, final=True),
    ]
    verify_operator(
        lambda: operator(8), made, row_type=(Left, Right), key=KEYS, time=lambda row: int(row.at),
        outlets=("unmatched_left", "late_left", "late_right"),
    )  # fmt: skip
