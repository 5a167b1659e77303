"""Accumulators of keys: of few rows they are what they are of many, and what was stored before is read."""

from __future__ import annotations

import math
from decimal import Decimal
from enum import Enum
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.aggregates import accumulate
from headrace.aggregates.accumulate import accumulators_codec, make_fold
from headrace.aggregates.declare import avg_distinct, sum_distinct
from headrace.model.batch import Rows
from headrace.model.rows import codec_of


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Seen(hr.Record):
    n: int | None
    real: float
    price: Decimal
    text: str | None
    at: hr.Timestamp
    color: Color
    pair: tuple[int, str]


CODEC = codec_of(Seen)
AGGS: dict[str, Any] = {
    "count": hr.count(),
    "count where": hr.count(where="n > 0"),
    **{f"sum {x}": hr.sum(x) for x in ("n", "real", "price")},
    **{f"avg {x}": hr.avg(x) for x in ("n", "real", "price")},
    **{f"min {x}": hr.min(x) for x in ("n", "real", "price", "text", "at", "pair")},
    **{f"max {x}": hr.max(x) for x in ("n", "real", "price", "text", "at", "pair")},
    **{f"max {x} by": hr.max(x, by="real") for x in ("n", "text", "color", "pair")},
    **{f"first {x}": hr.first(x) for x in ("n", "text", "color", "pair")},
    **{f"last {x}": hr.last(x, where="real > 0") for x in ("n", "text", "color", "pair")},
    **{f"distinct {x}": hr.count_distinct(x) for x in ("n", "real", "price", "text", "color", "pair")},
    **{f"sum distinct {x}": sum_distinct(x) for x in ("n", "real", "price")},
    **{f"avg distinct {x}": avg_distinct(x) for x in ("n", "real", "price")},
    **{f"collect {x}": hr.collect(x) for x in ("n", "price", "color", "pair")},
    **{f"top {x}": hr.top(x, 2) for x in ("n", "real", "price", "text", "pair")},
    "top by": hr.top("pair", 2, by="real"),
    "quantile": hr.quantile("real", 0.5),
}
ROWS = st.builds(
    Seen,
    n=st.none() | st.integers(-3, 3),
    real=st.sampled_from([0.0, -0.0, 1.5, -2.0, math.nan, math.inf]),
    price=st.sampled_from([Decimal("0.1"), Decimal(-5)]),
    text=st.none() | st.sampled_from(["", "a", "ß"]),
    at=st.integers(0, 5),
    color=st.sampled_from(Color),
    pair=st.tuples(st.integers(0, 2), st.sampled_from(["x", "y"])),
)


@pytest.mark.parametrize("name", AGGS)
@given(lengths=st.lists(st.integers(1, 4), min_size=1, max_size=4), data=st.data(), timed=st.booleans())
def test_few_rows_amount_to_what_many_do(name: str, lengths: list[int], data: st.DataObject, timed: bool) -> None:
    drawn = data.draw(st.lists(ROWS, min_size=sum(lengths), max_size=sum(lengths)))
    times = np.array([int(row.at) for row in drawn]) if timed else None
    starts = np.cumsum([0, *lengths[:-1]])
    fold = make_fold(AGGS[name], CODEC, "here", name)
    assert fold is not None
    results = []
    for few in (0, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(accumulate, "_FEW_ROWS", few)
            partials = fold.partials(Rows.of_objects(CODEC, drawn, times), starts)
        found = dict(zip(partials.groups, partials.accs))
        results.append([repr(each) for each in fold.results([found.get(group) for group in range(len(starts))])])
    assert [_zeros(each) for each in results[0]] == [_zeros(each) for each in results[1]]


def _zeros(text: str) -> str:
    return text.replace("-0.0", "0.0").removesuffix(".0")


def test_a_mean_of_decimals_that_was_stored_as_a_float_is_read() -> None:
    aggs = {"mean": hr.avg("price")}
    fold = make_fold(aggs["mean"], CODEC, "here")
    assert fold is not None
    (acc, _) = accumulators_codec(aggs, [fold]).decode(msgspec.msgpack.encode({"mean": [1.5, 2]}))
    assert fold.results([fold.merge(acc, (Decimal("1.5"), 1))]) == [Decimal(1)]
