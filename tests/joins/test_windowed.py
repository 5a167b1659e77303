"""Window joins and co-groups against naive windows over all rows; cases are in ``cases``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.dataflow.functions import declarations
from headrace.joins.windowed import CoGroupOperator, WindowJoinOperator
from headrace.model.ids import MIN_TIME
from headrace.model.pairs import PairCodec
from headrace.model.rows import codec_of
from headrace.operators.spec import StepInfo
from headrace.testing.operators import EpochInput, verify_operator
from headrace.testing.rig import values
from tests.joins.streams import (
    HOWS,
    KEYS,
    OUTLETS,
    RUNNING,
    Epoch,
    Expected,
    Left,
    Pair,
    Right,
    Running,
    epochs,
    join_rig,
    left,
    right,
    run,
)

TAKEN = (codec_of(Left), codec_of(Right))


def info(out: Any, decls: Any = ()) -> StepInfo:
    return StepInfo("join", TAKEN, out, str | None, ("key",), decls)


def operator(window: Any, how: Any = "inner") -> WindowJoinOperator:
    return WindowJoinOperator(window, how, info(PairCodec(*TAKEN)))


def span(us: int) -> str:
    return f"{us}us"


def naive_windows(made: Sequence[Epoch], size: int, every: int, how: str) -> list[Expected]:
    """Windows [start, start + size) that begin at multiples of ``every``."""
    held: dict[tuple[Any, int], tuple[list[Left], list[Right]]] = {}
    watermark = MIN_TIME
    found = []
    for epoch in made:
        expected = Expected()
        for port, rows in enumerate((epoch.lefts, epoch.rights)):
            for row in rows:
                first = (row.at // every) * every
                starts = [
                    first - back * every for back in range(size // every + 1) if first - back * every + size > row.at
                ]
                alive = [start for start in starts if start + size - 1 > watermark]
                if starts and not alive:
                    expected.sides[OUTLETS[2 + port]][row, row.at] += 1
                for start in alive:
                    # Null keys meet nobody, but are rows of one key to the engine.
                    held.setdefault((KEYS[port](row), start), ([], []))[port].append(row)  # type: ignore[arg-type]
        watermark = max(watermark, epoch.watermark)
        for (key, start), (lefts, rights) in list(held.items()):
            end = start + size - 1
            if end > watermark:
                continue
            del held[key, start]
            if lefts and rights and key is not None:
                expected.main.update((Pair(mine, other), end) for mine in lefts for other in rights)
                continue
            for port, alone in enumerate((lefts, rights)):
                expected.sides[OUTLETS[port]].update((row, end) for row in alone)
                if how in (("left", "full"), ("right", "full"))[port]:
                    expected.main.update((Pair(row, None) if port == 0 else Pair(None, row), end) for row in alone)
        found.append(expected)
    return found


@given(epochs(), st.sampled_from([(10, 10), (7, 7), (10, 5), (8, 3)]), HOWS, RUNNING)
def test_any_epochs_give_what_naive_windows_give(
    made: list[Epoch], window: tuple[int, int], how: str, running: Running
) -> None:
    size, every = window
    rig = join_rig(operator(hr.sliding(span(size), every=span(every)), how))
    wanted = naive_windows(made, size, every, how)
    for number, (found, expected) in enumerate(zip(run(rig, made, running), wanted, strict=True)):
        assert found.main == expected.main, f"epoch {number}"
        assert found.sides == expected.sides, f"epoch {number}"


EPOCHS = [
    EpochInput([(0, [left("a", 1, 1), left("b", 2, 2), left("a", 9, 3)]),
                (1, [right("a", 3, "x"), right("c", 1, "y")])], watermark=2),
    EpochInput([(1, [right("a", 9, "z"), right("b", 30, "q")]), (0, [left("a", 3, 4), left("c", 5, 5)])], watermark=14),
    EpochInput([(0, [left("a", 4, 7), left("b", 35, 8)]), (1, [right("a", 2, "late")])], watermark=100),
]  # fmt: skip


@pytest.mark.parametrize("window", [hr.tumbling(span(10)), hr.sliding(span(10), every=span(4)), hr.session(span(4))])
def test_the_engine_may_run_it_as_it_likes(window: Any) -> None:
    verify_operator(
        lambda: operator(window, "full"), EPOCHS, row_type=(Left, Right), key=KEYS, time=lambda row: int(row.at),
        outlets=OUTLETS,
    )  # fmt: skip


class Sides(hr.CoWindowProcess[Left, Right, str, str]):
    total: hr.ValueState[int]
    lonely: hr.Side[Left]
    calls: hr.Counter

    def on_window(self, lefts: Sequence[Left], rights: Sequence[Right], ctx: hr.WindowContext[str]) -> Iterator[str]:
        self.calls.inc()
        if any(row.n < 0 for row in lefts):
            raise ValueError("less than nothing")
        self.total.set(self.total.get(0) + len(lefts) + len(rights))
        if not rights:
            for row in lefts:
                self.lonely.emit(row)
        texts = ",".join(row.text for row in rights)
        yield f"{ctx.key} {ctx.window.start}: {[row.n for row in lefts]} {texts} of {self.total.get()}"


def groups() -> CoGroupOperator:
    return CoGroupOperator(hr.tumbling(span(10)), Sides(), info(codec_of(str), declarations(Sides)))


def test_a_function_sees_both_sides_of_each_window() -> None:
    rig = join_rig(groups(), outlets=("side:lonely", "errors", "late_right"))
    rig.epoch((0, [left("a", 1, 1), left("a", 12, 2), left("b", 3, -1)]), (1, [right("a", 5, "x")]), watermark=9)
    assert values(rig.out["main"]) == ["a 0: [1] x of 2"]
    assert [failed.key for failed in values(rig.out["errors"])] == ["b"]
    rig.epoch((1, [right("a", 2, "late")]), watermark=19)
    assert values(rig.out["main"]) == ["a 10: [2]  of 3"]
    assert values(rig.out["side:lonely"]) == [left("a", 12, 2)]
    assert values(rig.out["late_right"]) == [right("a", 2, "late")]
    assert rig.report.counters == {"calls": 1}


def test_the_engine_may_run_a_co_group_as_it_likes() -> None:
    verify_operator(
        groups, EPOCHS, row_type=(Left, Right), key=KEYS, time=lambda row: int(row.at),
        outlets=("side:lonely", "late_left", "late_right"),
    )  # fmt: skip
