"""The rules of cells that are lists, against the same done value by value."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import date
from decimal import Context, Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.aggregates.list_rules import ARRIVALS, LIST, SET, SKETCH, TOP, list_of, plain_values
from headrace.aggregates.results import read_lists
from headrace.aggregates.rules import BESIDE, GREATEST, LATEST, LEAST, SUM, merge_columns, merge_field, nothing
from headrace.aggregates.sketch import quantile_of
from headrace.errors import FunctionFailed
from headrace.model.columns import DECIMAL, TIMESTAMP

BUCKETS = pa.struct([("bucket", pa.int32()), ("count", pa.int64())])
ARRIVED = pa.struct([("came", pa.int64()), ("value", pa.string())])
CHOSEN = pa.struct([("by", pa.float64()), ("came", pa.int64()), ("value", pa.string())])

LENGTHS = st.lists(st.integers(1, 4), min_size=1, max_size=6)
"""How many rows each stretch has."""


def cells_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[list[int], list[list[Any] | None]]]:
    """Stretches, and a cell for each of their rows."""
    cell = st.none() | st.lists(values, max_size=4)
    return LENGTHS.flatmap(
        lambda lengths: st.tuples(st.just(lengths), st.lists(cell, min_size=sum(lengths), max_size=sum(lengths)))
    )


def merge(field: pa.Field, cells: Sequence[Any], lengths: Sequence[int]) -> pa.ListArray:
    starts = np.cumsum([0, *lengths[:-1]])
    (merged,) = merge_columns([field], [pa.array(cells, field.type)], starts)
    merged.validate(full=True)
    assert merged.type == field.type
    return merged


def joined(cells: Sequence[Any], lengths: Sequence[int]) -> list[list[Any]]:
    """All values of each stretch, in the order of its rows."""
    flat, found = iter(cells), []
    for length in lengths:
        found.append([value for _ in range(length) for value in next(flat) or ()])
    return found


NUMBERS = st.integers(-3, 3) | st.sampled_from([-(2**63), 2**63 - 1, 10**15])
KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), NUMBERS),
    (pa.int64(), st.integers(0, 5)),
    (pa.string(), st.sampled_from(["", "a", "b", "ß", "a "])),
    (pa.binary(), st.sampled_from([b"", b"\0", b"a", b"\xff"])),
    (pa.bool_(), st.booleans()),
    (pa.date32(), st.dates(date(1969, 12, 1), date(1970, 2, 1))),
    (DECIMAL, st.sampled_from([Decimal("1.0"), Decimal(1), Decimal("0.5"), Decimal(-1)])),
]


@given(st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind[0]), cells_of(kind[1]))))
def test_a_set_has_each_value_once(drawn: Any) -> None:
    kind, (lengths, cells) = drawn
    merged = merge(merge_field("x.set", list_of(kind), SET), cells, lengths).to_pylist()
    expected = [set(values) for values in joined(cells, lengths)]
    # A stretch of one row is what it was, and nobody writes a value twice into one cell.
    singles = [length == 1 for length in lengths]
    assert [set(each or ()) for each in merged] == expected
    assert all(single or len(each) == len(set(each)) for single, each in zip(singles, merged))


@pytest.mark.parametrize(
    ("kind", "value"), [(pa.bool_(), True), (pa.bool_(), False), (pa.string(), ""), (pa.int64(), -5)]
)
def test_a_set_of_one_value_is_that_value(kind: pa.DataType, value: Any) -> None:
    assert merge(merge_field("x.set", list_of(kind), SET), [[value], [value], [value]], [3]).to_pylist() == [[value]]


def test_zero_is_zero_and_not_a_number_is_one_value() -> None:
    field = merge_field("x.set", list_of(pa.float64()), SET)
    (merged,) = merge(field, [[0.0, math.nan], [-0.0, 1.5], [math.nan, 1.5]], [3]).to_pylist()
    assert len(merged) == 3
    assert sorted(each for each in merged if each == each) == [0.0, 1.5]


@given(cells_of(st.tuples(st.integers(-40_000, 40_000) | st.integers(0, 3), st.integers(1, 5))))
def test_sketches_add_up(drawn: Any) -> None:
    lengths, pairs = drawn
    cells = [
        None if cell is None else [{"bucket": b, "count": n} for b, n in sorted(dict(cell).items())] for cell in pairs
    ]
    field = merge_field("x.sketch", list_of(BUCKETS), SKETCH)
    merged = merge(field, cells, lengths)
    found = [{each["bucket"]: each["count"] for each in cell or ()} for cell in merged.to_pylist()]
    expected = [dict(_added(values)) for values in joined(cells, lengths)]
    assert found == expected
    assert all(list(sketch) == sorted(sketch) for sketch in found)
    for q in (0.0, 0.3, 0.5, 1.0):
        results = read_lists("quantile", field, merged, [repr(q)]).to_pylist()
        assert results == [quantile_of(sketch, q) for sketch in expected]


def _added(values: Sequence[dict[str, int]]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for each in values:
        counts[each["bucket"]] += each["count"]
    return counts


@given(cells_of(st.sampled_from(["a", "b", ""])))
def test_a_list_is_all_values_as_they_come(drawn: Any) -> None:
    lengths, cells = drawn
    field = merge_field("x.list", list_of(pa.string()), LIST)
    merged = merge(field, cells, lengths)
    assert [cell or [] for cell in merged.to_pylist()] == joined(cells, lengths)
    assert read_lists("collect", field, merged, []).to_pylist() == joined(cells, lengths)


@given(cells_of(st.tuples(st.integers(0, 9), st.sampled_from(["a", "b"]))))
def test_values_that_say_when_they_came_are_in_that_order(drawn: Any) -> None:
    lengths, pairs = drawn
    cells = [None if cell is None else [{"came": c, "value": v} for c, v in sorted(cell)] for cell in pairs]
    field = merge_field("x.arrivals", list_of(ARRIVED), ARRIVALS)
    results = read_lists("collect", field, merge(field, cells, lengths), []).to_pylist()
    ordered = [sorted(values, key=lambda each: each["came"]) for values in joined(cells, lengths)]
    assert results == [[each["value"] for each in values] for values in ordered]


@given(cells_of(st.tuples(st.sampled_from([0.5, -1.0, 3.0, -0.0, 0.0]), st.integers(0, 99))), st.integers(1, 3))
def test_a_top_has_the_greatest_and_of_equal_ones_the_first(drawn: Any, most: int) -> None:
    lengths, pairs = drawn
    cells = [
        None
        if cell is None
        else sorted(({"by": by, "came": c, "value": f"{by} {c}"} for by, c in cell), key=_top_order)[:most]
        for cell in pairs
    ]
    field = merge_field("x.top", list_of(CHOSEN), TOP, most=most)
    results = read_lists("top", field, merge(field, cells, lengths), []).to_pylist()
    expected = [sorted(values, key=_top_order)[:most] for values in joined(cells, lengths)]
    assert results == [[each["value"] for each in values] for values in expected]


def _top_order(value: dict[str, Any]) -> tuple[float, int]:
    return -value["by"], value["came"]


@given(cells_of(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 4)), st.integers(1, 3))
def test_values_may_be_compared_by_themselves(drawn: Any, most: int) -> None:
    lengths, cells = drawn
    cells = [None if cell is None else sorted(cell, reverse=True)[:most] for cell in cells]
    field = merge_field("x.top", list_of(pa.int64()), TOP, most=most)
    results = read_lists("top", field, merge(field, cells, lengths), []).to_pylist()
    assert results == [sorted(values, reverse=True)[:most] for values in joined(cells, lengths)]


def test_of_equal_rows_that_say_when_they_came_the_first_counts_and_for_the_latest_the_last() -> None:
    by, came, value = [7, 7, None, 7, 1], [5, 3, 1, 9, 2], ["five", "three", "none", "nine", "two"]
    for rule, expected in ((GREATEST, "three"), (LATEST, "nine"), (LEAST, "two")):
        fields = [
            merge_field("x.by", pa.int64(), rule, ties="x.came"),
            merge_field("x.value", pa.string(), BESIDE, of="x.by"),
            merge_field("x.came", pa.int64(), BESIDE, of="x.by"),
        ]
        columns = [pa.array(by), pa.array(value), pa.array(came)]
        merged = merge_columns(fields, columns, np.array([0]))
        assert merged[1].to_pylist() == [expected]
        # Written before rows said it: such a row came before all others.
        older = [pa.array(by), pa.array(value), pa.array([*came[:3], None, 2])]
        expected = {GREATEST: "nine", LATEST: "five", LEAST: "two"}[rule]
        assert merge_columns(fields, older, np.array([0]))[1].to_pylist() == [expected]


def test_a_column_that_older_rows_do_not_have_says_nothing() -> None:
    field = merge_field("x.list", list_of(pa.int64()), LIST)
    older = nothing(field, 2)
    (merged,) = merge_columns([field], [pa.concat_arrays([older, pa.array([[1], [2]], field.type)])], np.array([0, 1]))
    assert read_lists("collect", field, merged, []).to_pylist() == [[], [1, 2]]


def test_times_in_lists_are_microseconds_and_decimals_are_short() -> None:
    assert plain_values(pa.array([[1, 2], []], list_of(TIMESTAMP))) == [[1, 2], []]
    assert list(map(str, plain_values(pa.array([Decimal("1.50"), Decimal(100)], DECIMAL)))) == ["1.5", "100"]
    inner = pa.struct([("at", TIMESTAMP), ("prices", pa.list_(DECIMAL)), ("by", pa.map_(pa.string(), DECIMAL))])
    row = {"at": 1, "prices": [Decimal("2.50"), None], "by": {"a": Decimal("3.00")}}
    nested = pa.array([[row, None], None, [], [dict.fromkeys(row)]], pa.list_(inner))
    plain = [
        [{"at": 1, "prices": [Decimal("2.5"), None], "by": {"a": Decimal(3)}}, None],
        None,
        [],
        [dict.fromkeys(row)],
    ]
    assert repr(plain_values(nested)) == repr(plain)
    assert repr(plain_values(nested.slice(1))) == repr(plain[1:])


WIDE = Context(prec=60)
UNITS = st.integers(-(10**38) + 1, 10**38 - 1) | st.integers(-(10**20), 10**20)


@given(LENGTHS.flatmap(lambda n: st.tuples(st.just(n), st.lists(UNITS, min_size=sum(n), max_size=sum(n)))))
def test_sums_of_decimals_are_exact_or_refused(drawn: Any) -> None:
    lengths, units = drawn
    field = merge_field("total.sum", DECIMAL, SUM)
    column = pa.array([None, *(Decimal(unit).scaleb(-18, WIDE) for unit in units)], DECIMAL).slice(1)
    bounds = np.cumsum([0, *lengths]).tolist()
    sums = [sum(units[start:end]) for start, end in pairwise(bounds)]
    if any(abs(total) >= 10**38 for total in sums):
        with pytest.raises(FunctionFailed, match="the sum 'total' leaves 38 digits"):
            merge_columns([field], [column], np.array(bounds[:-1]))
        return
    (merged,) = merge_columns([field], [column], np.array(bounds[:-1]))
    merged.validate(full=True)
    assert [int(total.scaleb(18, WIDE)) for total in merged.to_pylist()] == sums
