"""Joins without a limit against naive joins of all rows, and what they keep; cases are in ``cases``."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from headrace.joins.unbounded import LatestJoinOperator, UnboundedJoinOperator
from headrace.model.rows import codec_of
from headrace.state.ttl import TTL, ttl
from headrace.testing.operators import EpochInput, verify_operator
from tests.joins.streams import (
    HOWS,
    KEYS,
    RUNNING,
    Epoch,
    Left,
    Right,
    Running,
    epochs,
    join_rig,
    left,
    naive_all,
    naive_latest,
    right,
    run,
)


def every(lives: TTL | None = None, on: str | None = None) -> UnboundedJoinOperator:
    return UnboundedJoinOperator("join", codec_of(Left), codec_of(Right), lives, on)


def newest(lives: TTL | None = None, how: str = "inner") -> LatestJoinOperator:
    return LatestJoinOperator("join", codec_of(Left), codec_of(Right), how, lives)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [every, newest])
def test_state_goes_when_the_time_to_live_is_over(make: Any) -> None:
    rig = join_rig(make(ttl("10us")), outlets=())
    rig.epoch((0, [left("a", 1, 1), left("b", 1, 2)]), (1, [right("a", 1, "x")]), clock=100)
    rig.fold()
    assert rig.runs
    rig.epoch(clock=200)
    rig.fold()
    assert not rig.runs


def test_only_the_newest_rows_are_kept() -> None:
    rig = join_rig(newest(), outlets=())
    for at in range(20):
        rig.epoch((0, [left(key, at) for key in "ab"]), (1, [right("a", at)]))
        rig.fold()
    assert sum(table.rows for _, opened in rig.runs for table in opened.tables.values()) == 3


@given(epochs(), RUNNING)
def test_any_epochs_give_what_a_naive_join_of_all_rows_gives(made: list[Epoch], running: Running) -> None:
    rig = join_rig(every(), outlets=())
    wanted = naive_all(made)
    for number, (found, expected) in enumerate(zip(run(rig, made, running), wanted, strict=True)):
        assert found.main == expected.main, f"epoch {number}"


@given(epochs(), HOWS, RUNNING)
def test_any_epochs_give_the_newest_rows_of_each_key_that_changed(
    made: list[Epoch], how: str, running: Running
) -> None:
    rig = join_rig(newest(how=how), outlets=())
    wanted = naive_latest(made, how)
    for number, (found, expected) in enumerate(zip(run(rig, made, running), wanted, strict=True)):
        assert found.main == expected.main, f"epoch {number}"


@pytest.mark.parametrize(
    "make", [every, lambda: every(on="`left`.n + length(`right`.text) > 2"), lambda: newest(how="full")]
)
def test_the_engine_may_run_it_as_it_likes(make: Any) -> None:
    made = [
        EpochInput([(0, [left("a", 1, 1), left("b", 2, 2), left("a", 2, 3)]), (1, [right("a", 3, "x")])], watermark=2),
        EpochInput(
            [(1, [right("a", 9, "z"), right("b", 3, "q")]), (0, [left("a", 3, 4), left("c", 5, 5)])], watermark=8
        ),
        EpochInput([(0, []), (1, [right("c", 12, "w"), right("a", 4, "v")])], watermark=13),
    ]
    verify_operator(make, made, row_type=(Left, Right), key=KEYS, time=lambda row: int(row.at))
