"""The join as of a time against a naive search of all rows, and what it keeps; cases are in ``cases``."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.joins.as_of import AsOfJoinOperator
from headrace.model.ids import MAX_TIME
from headrace.model.rows import codec_of
from headrace.testing.operators import EpochInput, verify_operator
from tests.joins.streams import (
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
