"""Joins without a limit: every pair once, or the newest rows of a key; against naive joins of all rows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from headrace.model.rows import codec_of
from headrace.operators.joins.unbounded import LatestJoinOperator, UnboundedJoinOperator
from headrace.state.ttl import TTL, ttl
from headrace.testing.operators import EpochInput, verify_operator
from tests.operators.joins.streams import (
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


def every(how: str = "inner", lives: TTL | None = None) -> UnboundedJoinOperator:
    return UnboundedJoinOperator("join", codec_of(Left), codec_of(Right), how, lives)  # type: ignore[arg-type]


def newest(how: str = "inner", lives: TTL | None = None) -> LatestJoinOperator:
    return LatestJoinOperator("join", codec_of(Left), codec_of(Right), how, lives)  # type: ignore[arg-type]


def pairs(rig: Any) -> list[tuple[int | None, str | None]]:
    found = [row.value for row in rig.out.get("main", [])]
    return [(pair.left and pair.left.n, pair.right and pair.right.text) for pair in found]


def test_every_pair_comes_once_however_far_apart_its_rows_are() -> None:
    rig = join_rig(every(), outlets=())
    rig.epoch((0, [left("a", 1, 1)]), watermark=1000)
    rig.epoch((1, [right("a", 5000, "x")]), watermark=9000)
    assert pairs(rig) == [(1, "x")]
    rig.epoch((0, [left("a", 2, 2)]), (1, [right("a", 3, "y")]))
    assert sorted(pairs(rig)) == [(1, "y"), (2, "x"), (2, "y")]


def test_an_outer_row_comes_alone_at_once_and_is_replaced_by_its_first_pair() -> None:
    rig = join_rig(every("left"), outlets=())
    rig.epoch((0, [left("a", 1, 1)]))
    assert pairs(rig) == [(1, None)]
    rig.epoch((1, [right("a", 2, "x")]))
    assert pairs(rig) == [(1, "x")]


def test_rows_need_no_event_time() -> None:
    rig = join_rig(every(), outlets=(), time=None)
    rig.epoch((0, [left("a", 1, 1)]), (1, [right("a", 2, "x")]))
    assert pairs(rig) == [(1, "x")]
    assert [row.at for row in rig.out["main"]] == [None]


def test_one_side_may_have_event_time() -> None:
    rig = join_rig(every(), outlets=(), time=(None, lambda row: int(row.at)))
    rig.epoch((0, [left("a", 1, 1)]), (1, [right("a", 7, "x")]))
    assert [row.at for row in rig.out["main"]] == [7]


@pytest.mark.parametrize("make", [every, newest])
def test_rows_are_forgotten_when_their_time_to_live_is_over(make: Any) -> None:
    rig = join_rig(make("inner", ttl("10us")), outlets=())
    rig.epoch((0, [left("a", 1, 1), left("b", 1, 2)]), clock=100)
    rig.epoch((1, [right("a", 1, "x")]), clock=109)
    assert pairs(rig) == [(1, "x")]
    rig.epoch((1, [right("b", 1, "y")]), clock=110)
    assert pairs(rig) == []
    rig.epoch(clock=200)
    rig.fold()
    assert not rig.runs


def test_a_time_to_live_may_be_one_of_event_time() -> None:
    rig = join_rig(every("inner", ttl("10us", clock="event")), outlets=())
    rig.epoch((0, [left("a", 5, 1)]), watermark=14)
    rig.epoch((1, [right("a", 20, "x")]), watermark=15)
    assert pairs(rig) == [(1, "x")]
    rig.epoch((1, [right("a", 20, "y")]))
    assert pairs(rig) == []


def test_the_newest_rows_of_a_key_come_once_per_epoch() -> None:
    rig = join_rig(newest(), outlets=())
    rig.epoch((0, [left("a", 1, 1), left("a", 3, 3), left("a", 2, 2)]))
    assert pairs(rig) == []
    rig.epoch((1, [right("a", 1, "x"), right("a", 2, "y")]))
    assert pairs(rig) == [(3, "y")]
    rig.epoch((0, [left("a", 2, 9)]))
    assert pairs(rig) == []
    rig.epoch((0, [left("a", 3, 4)]))
    assert pairs(rig) == [(4, "y")]


def test_only_the_newest_rows_are_kept() -> None:
    rig = join_rig(newest(), outlets=())
    for at in range(20):
        rig.epoch((0, [left(key, at) for key in "ab"]), (1, [right("a", at)]))
        rig.fold()
    assert sum(table.rows for _, opened in rig.runs for table in opened.tables.values()) == 3


@given(epochs(), HOWS, RUNNING)
def test_any_epochs_give_what_a_naive_join_of_all_rows_gives(made: list[Epoch], how: str, running: Running) -> None:
    rig = join_rig(every(how), outlets=())
    wanted = naive_all(made, how)
    for number, (found, expected) in enumerate(zip(run(rig, made, running), wanted, strict=True)):
        assert found.main == expected.main, f"epoch {number}"


@given(epochs(), HOWS, RUNNING)
def test_any_epochs_give_the_newest_rows_of_each_key_that_changed(
    made: list[Epoch], how: str, running: Running
) -> None:
    rig = join_rig(newest(how), outlets=())
    wanted = naive_latest(made, how)
    for number, (found, expected) in enumerate(zip(run(rig, made, running), wanted, strict=True)):
        assert found.main == expected.main, f"epoch {number}"


@pytest.mark.parametrize("make", [every, newest])
def test_the_engine_may_run_it_as_it_likes(make: Any) -> None:
    made = [
        EpochInput([(0, [left("a", 1, 1), left("b", 2, 2), left("a", 2, 3)]), (1, [right("a", 3, "x")])], watermark=2),
        EpochInput(
            [(1, [right("a", 9, "z"), right("b", 3, "q")]), (0, [left("a", 3, 4), left("c", 5, 5)])], watermark=8
        ),
        EpochInput([(0, []), (1, [right("c", 12, "w"), right("a", 4, "v")])], watermark=13),
    ]
    verify_operator(lambda: make("full"), made, row_type=(Left, Right), key=KEYS, time=lambda row: int(row.at))
