"""The interval join against a naive join of all rows, in every way an engine may run it; cases are in ``cases``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.joins.interval import IntervalJoinOperator
from headrace.model.ids import MAX_TIME
from headrace.model.rows import codec_of
from headrace.testing.operators import EpochInput, verify_operator
from headrace.testing.rig import OperatorRig
from tests.joins.streams import (
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
