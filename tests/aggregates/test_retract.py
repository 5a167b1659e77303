"""Retraction: what is left after rows were taken out is what the other rows amount to."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.aggregates.declare import avg_distinct, sum_distinct
from headrace.aggregates.list_rules import plain_values
from headrace.aggregates.retract import Retractable, retractable
from headrace.aggregates.rules import nothing
from headrace.errors import FunctionFailed, ProgramError
from headrace.model.batch import Rows
from headrace.model.rows import codec_of


class Seen(hr.Record):
    n: int | None
    real: float
    price: Decimal
    text: str
    at: hr.Timestamp


CODEC = codec_of(Seen)
Element = Callable[[Seen], Any]
"""What of a row an aggregate looks at."""
AGGS: dict[str, tuple[Any, Element]] = {
    "count": (hr.count(where="n > 0"), lambda row: ()),
    **{f"sum {x}": (hr.sum(x), lambda row: ()) for x in ("n", "real", "price")},
    **{f"avg {x}": (hr.avg(x), lambda row: ()) for x in ("n", "real", "price")},
    **{
        f"{name} {x}": (kind(x), lambda row, x=x: repr(getattr(row, x)).replace("-0.0", "0.0"))
        for name, kind in (("min", hr.min), ("max", hr.max), ("distinct", hr.count_distinct), ("collect", hr.collect))
        for x in ("n", "real", "price", "text", "at")
    },
    **{
        f"{name} {x}": (kind(x), lambda row, x=x: repr(getattr(row, x)).replace("-0.0", "0.0"))
        for name, kind in (("sum distinct", sum_distinct), ("avg distinct", avg_distinct))
        for x in ("n", "real", "price")
    },
    "first": (hr.first("text"), lambda row: (int(row.at), row.text)),
    "last": (hr.last("n"), lambda row: (int(row.at), row.n)),
    "max by": (hr.max("text", by="n"), lambda row: (row.n, row.text)),
    "top": (hr.top("text", 2), lambda row: row.text),
    "top by": (hr.top("text", 2, by="n", where="text <> ''"), lambda row: (row.n, row.text)),
}
ROWS = st.builds(
    Seen,
    n=st.none() | st.integers(-2, 2),
    real=st.sampled_from([0.0, -0.0, 1.5, -2.0, math.nan, math.inf, -math.inf]),
    price=st.sampled_from([Decimal("0.1"), Decimal(-5), Decimal("1E-18")]),
    text=st.sampled_from(["a", "b", ""]),
    at=st.integers(0, 3),
)


def lifted(agg: Retractable, rows: Sequence[Seen]) -> list[pa.Array]:
    """The merged columns of one key."""
    if not rows:
        return [nothing(field, 1) for field in agg.fields]
    times = np.array([int(row.at) for row in rows])
    return agg.merge(agg.lift(Rows.of_objects(CODEC, list(rows), times)), np.zeros(1, np.int64))


def in_python(columns: Sequence[pa.Array]) -> list[Any]:
    """The cells of one key."""
    cells = []
    for column in columns:
        if not pa.types.is_list(column.type):
            cells += plain_values(column)
        elif pa.types.is_struct(column.type.value_type):
            flat = column.flatten()
            cells.append(list(zip(*(plain_values(flat.field(i)) for i in range(flat.type.num_fields)))))
        else:
            cells.append(plain_values(column.flatten()))
    return cells


def without(rows: Sequence[Seen], removed: Sequence[Seen], element: Element) -> list[Seen]:
    """The rows that are left: of equal ones the newest go."""
    left = list(rows)
    for row in removed:
        last = max(i for i, each in enumerate(left) if element(each) == element(row))
        del left[last]
    return left


@pytest.mark.parametrize("name", AGGS)
@given(data=st.data(), rows=st.lists(ROWS, max_size=8))
def test_what_is_left_is_what_the_other_rows_amount_to(name: str, data: st.DataObject, rows: list[Seen]) -> None:
    declared, element = AGGS[name]
    agg = retractable("x", declared, CODEC, "here")
    removed = [row for row in rows if data.draw(st.booleans())]
    if name in ("count",) or name.startswith(("sum", "avg")):
        rest = [row for row in rows if not any(row is each for each in removed)]
    else:
        # Rows that an aggregate does not take are in none of its partials.
        rest = without(rows, removed, element)
    whole, less = lifted(agg, rows), lifted(agg, removed)
    expected = agg.read(lifted(agg, rest))
    left = agg.retract(whole, less)
    assert shown(agg.read(left)) == shown(expected)
    scalar = agg.retract_cells(in_python(whole), in_python(less))
    assert shown([agg.read_cells(scalar)]) == shown(expected)


def shown(results: Any) -> str:
    return repr(plain_values(results) if isinstance(results, pa.Array) else results).replace("-0.0", "0.0")


def test_many_keys_are_retracted_at_once() -> None:
    agg = retractable("x", hr.collect("text"), CODEC, "here")
    rows = [Seen(1, 0.0, Decimal(0), text, hr.Timestamp(0)) for text in "abacab"]
    cells = agg.lift(Rows.of_objects(CODEC, rows, np.zeros(6, np.int64)))
    merged = agg.merge(cells, np.array([0, 3]))
    gone = pa.concat_arrays([cells[0].slice(0, 1), cells[0].slice(3, 1)])
    assert agg.read(agg.retract(merged, [gone])).to_pylist() == [["a", "b"], ["a", "b"]]


def test_what_was_never_added_cannot_be_taken_out() -> None:
    agg = retractable("x", hr.max("text"), CODEC, "here")
    rows = [Seen(1, 0.0, Decimal(0), text, hr.Timestamp(0)) for text in "ab"]
    for retract in (agg.retract, lambda *both: agg.retract_cells(*map(in_python, both))):
        with pytest.raises(FunctionFailed, match="never added"):
            retract(lifted(agg, rows[:1]), lifted(agg, rows[1:]))


def test_a_difference_beyond_64_bits_is_refused() -> None:
    agg = retractable("x", hr.sum("n"), CODEC, "here")
    large, negative = [pa.array([2**63 - 1])], [pa.array([-1])]
    for retract in (agg.retract, lambda *both: agg.retract_cells(*map(in_python, both))):
        with pytest.raises(FunctionFailed, match="leaves 64 bits"):
            retract(large, negative)


def test_a_difference_of_decimals_beyond_38_digits_is_refused() -> None:
    agg = retractable("x", hr.sum("price"), CODEC, "here")
    kind = agg.fields[0].type
    large = Decimal("9" * (kind.precision - kind.scale))
    for retract in (agg.retract, lambda *both: agg.retract_cells(*map(in_python, both))):
        with pytest.raises(FunctionFailed, match="leaves 38 digits"):
            retract([pa.array([large], kind)], [pa.array([-large], kind)])


def test_a_sketch_refuses_to_forget_rows() -> None:
    with pytest.raises(ProgramError, match="sketch does not know its rows"):
        retractable("x", hr.quantile("real", 0.5), CODEC, "here")


NUMBERS = st.lists(st.floats(-1e300, 1e300) | st.floats(-10, 10), max_size=30)


@given(NUMBERS, NUMBERS, st.randoms(use_true_random=False))
def test_sums_of_floats_lose_no_more_than_one_rounding_and_a_billionth_of_a_billionth_of_all_there_was(
    stay: list[float], go: list[float], rng: random.Random
) -> None:
    """The tolerance: what is left differs from the exact sum by one rounding of it, and by 1e-30 of the sum of all
    magnitudes for each number that was ever added or taken out."""
    agg = retractable("x", hr.sum("real"), CODEC, "here")
    rows = [*stay, *go]
    rng.shuffle(rows)
    cells, gone = None, None
    for number in rows:
        cells = one_more(agg, cells, number)
    for number in go:
        gone = one_more(agg, gone, number)
    if cells is None:
        return
    left = cells if gone is None else agg.retract_cells(cells, gone)
    exact = sum((Fraction(number) for number in stay), Fraction(0))
    all_there_was = 2 * sum(abs(Fraction(number)) for number in rows)
    allowed = abs(exact) * Fraction(2) ** -52 + len(rows) ** 2 * all_there_was * Fraction(1, 10**30)
    if len(rows) < 30 and all_there_was < Fraction(10) ** 307:
        assert abs(Fraction(agg.read_cells(left) or 0.0) - exact) <= allowed


def one_more(agg: Retractable, cells: list[Any] | None, number: float) -> list[Any]:
    mine = in_python(lifted(agg, [Seen(1, number, Decimal(1), "", hr.Timestamp(0))]))
    return mine if cells is None else agg.plus(cells, mine)


def test_small_numbers_are_there_again_when_large_ones_have_gone() -> None:
    agg = retractable("x", hr.sum("real"), CODEC, "here")
    rows = [Seen(1, number, Decimal(1), "", hr.Timestamp(0)) for number in (0.1, 1e16, 0.2)]
    columns, large = lifted(agg, rows), lifted(agg, rows[1:2])
    assert agg.read(agg.retract(columns, large)).to_pylist() == [pytest.approx(0.3, abs=1e-15)]
    assert agg.read_cells(agg.retract_cells(in_python(columns), in_python(large))) == pytest.approx(0.3, abs=1e-15)
