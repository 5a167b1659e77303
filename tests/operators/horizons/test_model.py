"""Horizons equal a recomputation from all rows: in any order and batches, with crashes, folds and changing shards."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.testing.operators import EpochInput, verify_operator
from headrace.testing.rig import NO_LIMIT
from tests.operators.horizons.features import MIXES, Model, Tx, operator_of, rig_of, told, tx

rows = st.builds(tx, st.sampled_from("ab"), st.none() | st.integers(-9, 9), st.integers(0, 70))


def _moved(row: Tx, now: int, back: int) -> Tx:
    return row.replace(at=max(now - back, 0) + int(row.at) % 13)


@st.composite
def epochs_of_rows(draw: Any) -> list[dict[str, Any]]:
    """Rows around a time that goes on from epoch to epoch, with some far ahead and some very late."""
    now, made = 0, []
    for _ in range(draw(st.integers(1, 6))):
        around = st.builds(_moved, rows, st.just(now), st.sampled_from([0, 0, 0, 5, 20, 25, 40]))
        batches = draw(st.lists(st.lists(around, max_size=6), max_size=3))
        now += draw(st.sampled_from([0, 2, 6, 15, 40]))
        made.append(
            {
                "batches": batches,
                "watermark": draw(st.none() | st.just(now - draw(st.sampled_from([0, 3, 30])))),
                "crash": draw(st.sampled_from(["", "", "whole", "half"])),
                "fold": draw(st.sampled_from([None, 2, 99])),
                "shards": draw(st.integers(1, 3)),
            }
        )
    return made


@given(
    epochs=epochs_of_rows(),
    mix=st.sampled_from(list(MIXES)),
    per_row=st.booleans(),
    limit=st.sampled_from([1, NO_LIMIT]),
)
def test_horizons_equal_a_recomputation_from_all_rows(
    epochs: list[dict[str, Any]], mix: str, per_row: bool, limit: int
) -> None:
    aggs = MIXES[mix]
    rig, model = rig_of(aggs, per_row=per_row, overlay_limit_bytes=limit), Model(aggs, per_row=per_row)
    for epoch in epochs:
        batches, watermark = epoch["batches"], epoch["watermark"]
        rig.parallelism = epoch["shards"]
        if epoch["crash"]:
            rig.attempt(*batches, watermark=watermark, finish=epoch["crash"] == "whole")
        found = told(rig.epoch(*batches, watermark=watermark))
        expected = model.epoch([row for batch in batches for row in batch], watermark)
        assert [_near(each) for each in found] == [_near(each) for each in expected]
        if epoch["fold"] is not None:
            rig.fold(newest=epoch["fold"])


def _near(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """Floats as far as the order in which they are added up leaves them the same."""
    return tuple(round(each, 9) if isinstance(each, float) else each for each in result)


EPOCHS = [
    EpochInput([tx(card, n, 10 * e + at) for e in (0,) for card in "abc" for n, at in ((1, 3), (4, 9), (None, 5))], 5),
    EpochInput([tx(card, n, at) for card in "ab" for n, at in ((2, 14), (7, 11), (2, 14), (3, 1))], 12),
    EpochInput([tx("a", n, at) for n, at in ((5, 33), (6, 20), (8, 33), (1, 2))], 30),
    EpochInput([tx("c", 3, 34), tx("b", 9, 36)], 60),
    EpochInput([tx("a", 1, 61), tx("b", 1, 40), tx("d", 1, 5)], 70),
    EpochInput([tx("a", 2, 300), tx("b", 3, 71)], 200),
    EpochInput([tx("a", 3, 301), tx("d", 2, 202)], 210),
]


@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize(("mix", "outlets"), [("all kinds", ()), ("beside totals", ()), ("counts and sums", ("late",))])
def test_nothing_that_an_engine_does_changes_results(mix: str, per_row: bool, outlets: tuple[str, ...]) -> None:
    verify_operator(
        lambda: operator_of(MIXES[mix], per_row=per_row),
        EPOCHS,
        row_type=Tx,
        key=lambda row: row.card,
        time=lambda row: int(row.at),
        outlets=outlets,
        ttl=None if mix == "beside totals" else {"value": "event"},
    )
