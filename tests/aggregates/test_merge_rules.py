"""Every merge rule and every finish: one key cell by cell gives what columns of many keys give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date
from decimal import Context, Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.aggregates import list_rules
from headrace.aggregates.list_rules import (
    ARRIVALS,
    LIST,
    LIST_RULES,
    SET,
    SKETCH,
    TOP,
    list_cell,
    list_of,
    plain_values,
    python_list,
)
from headrace.aggregates.results import RowFinish, read_results
from headrace.aggregates.rules import (
    BESIDE,
    GREATEST,
    LATEST,
    LEAST,
    MAX,
    MIN,
    SINCE,
    SUM,
    RowMerge,
    merge_columns,
    merge_field,
    rule_of,
)
from headrace.aggregates.sketch import UNKNOWN
from headrace.errors import FunctionFailed
from headrace.model.columns import DECIMAL, TIMESTAMP
from tests.effort import examples

LARGEST = 2**63 - 1
WIDE = Context(prec=60)
FLOATS = st.sampled_from([0.0, -0.0, 1.5, -2.0, math.inf, -math.inf, math.nan])
INTS = st.integers(-3, 3) | st.sampled_from([-LARGEST - 1, -LARGEST, LARGEST, 2**62])
DECIMALS = st.sampled_from([Decimal("1.25"), Decimal("1.75"), Decimal(-1), Decimal("1E-18")]) | st.integers(
    10**37, 10**38 - 1
).map(lambda units: Decimal(units).scaleb(-18, WIDE))
KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), INTS),
    (pa.float64(), FLOATS),
    (DECIMAL, DECIMALS),
    (TIMESTAMP, st.integers(-5, 5)),
    (pa.date32(), st.dates(date(1969, 12, 30), date(1970, 1, 3))),
    (pa.string(), st.sampled_from(["", "a", "ß", "a "])),
    (pa.binary(), st.sampled_from([b"", b"\0", b"\xff"])),
    (pa.bool_(), st.booleans()),
]
NUMBERS = [kind for kind in KINDS if kind[0] in (pa.int64(), pa.float64(), DECIMAL)]
TIMES = [kind for kind in KINDS if kind[0] in (pa.int64(), pa.float64(), TIMESTAMP)]

Columns = tuple[list[pa.Field], list[st.SearchStrategy[Any]], list[str]]
"""Fields, what their cells may be, and what results say of them."""


def by_itself(kind: str, rule: str, told: tuple[pa.DataType, st.SearchStrategy[Any]]) -> Columns:
    field = merge_field(f"x.{rule}", told[0], rule)
    return [field], [told[1] if rule in (SUM, SINCE) else st.none() | told[1]], [kind, field.name]


def mean_of(told: tuple[pa.DataType, st.SearchStrategy[Any]]) -> Columns:
    fields = [merge_field("x.total", told[0], SUM), merge_field("x.rows", pa.int64(), SUM)]
    return fields, [told[1], st.integers(0, 2)], ["avg", "x.total", "x.rows"]


def chosen(kind: str, rule: str, told: tuple[pa.DataType, st.SearchStrategy[Any]], *, ties: bool) -> Columns:
    fields = [
        merge_field("x.by", told[0], rule, ties="x.came" if ties else ""),
        merge_field("x.value", pa.string(), BESIDE, of="x.by"),
        merge_field("x.came", pa.int64(), BESIDE, of="x.by"),
    ]
    cells = [st.none() | told[1], st.sampled_from(["a", "b", "c"]), st.none() | st.integers(0, 5)]
    return fields, cells, [kind, "x.by", "x.value"]


def listed(kind: str, rule: str, element: pa.DataType, values: Any, *, most: int | None = None) -> Columns:
    field = merge_field(f"x.{rule}", list_of(element), rule, most=most)
    return [field], [st.none() | st.lists(values, max_size=3)], [kind, field.name, *(["0.5"] if rule == SKETCH else [])]


BUCKETS = pa.struct([("bucket", pa.int32()), ("count", pa.int64())])
ARRIVED = pa.struct([("came", pa.int64()), ("value", pa.string())])
BUCKET = st.builds(
    lambda bucket, count: {"bucket": bucket, "count": count},
    st.integers(-5, 5) | st.just(UNKNOWN),
    st.integers(1, 3),
)


def paired(by: pa.DataType, values: st.SearchStrategy[Any], *, came: bool) -> tuple[pa.DataType, Any]:
    fields = [("by", by), *([("came", pa.int64())] if came else []), ("value", pa.string())]
    made = st.builds(
        lambda by, came, value: {"by": by, "came": came, "value": value},
        values,
        st.integers(0, 9),
        st.sampled_from(["a", "b"]),
    )
    return pa.struct(fields), made if came else made.map(lambda row: {"by": row["by"], "value": row["value"]})


CASES: dict[str, Columns] = {
    **{f"sum of {kind[0]}": by_itself("sum", SUM, kind) for kind in NUMBERS},
    **{f"avg of {kind[0]}": mean_of(kind) for kind in NUMBERS[1:]},
    **{f"{rule} of {kind[0]}": by_itself(rule, rule, kind) for kind in TIMES for rule in (MIN, MAX)},
    **{f"{rule} of {kind[0]}": by_itself("min", rule, kind) for kind in KINDS for rule in (LEAST, GREATEST, LATEST)},
    "since": by_itself("max", SINCE, (pa.int64(), st.integers(0, 3))),
    **{
        f"{rule} by {kind[0]}{' with ties' if ties else ''}": chosen(name, rule, kind, ties=ties)
        for kind in KINDS
        for name, rule in (("first", LEAST), ("max", GREATEST), ("last", LATEST))
        for ties in (False, True)
    },
    **{f"set of {kind[0]}": listed("count_distinct", SET, *kind) for kind in KINDS},
    **{f"list of {kind[0]}": listed("collect", LIST, *kind) for kind in KINDS},
    "arrivals": listed("collect", ARRIVALS, ARRIVED,
                       st.builds(lambda came: {"came": came, "value": str(came)}, st.integers(0, 9))),
    "sketch": listed("quantile", SKETCH, BUCKETS, BUCKET),
    **{f"top of {kind[0]}": listed("top", TOP, *kind, most=2) for kind in KINDS},
    **{
        f"top by {kind[0]}{' with arrivals' if came else ''}": listed("top", TOP, *paired(*kind, came=came), most=2)
        for kind in KINDS
        for came in (False, True)
    },
}  # fmt: skip


def with_lists(case: str) -> bool:
    return rule_of(CASES[case][0][0]) in LIST_RULES


@pytest.mark.parametrize("case", CASES)
@given(data=st.data())
@settings(max_examples=examples(30))
def test_cell_by_cell_is_as_in_columns(case: str, data: st.DataObject) -> None:
    fields, cells, told = CASES[case]
    few = data.draw(st.sampled_from((2048, 0))) if with_lists(case) else 2048
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    rows = data.draw(st.lists(st.tuples(*cells), min_size=sum(lengths), max_size=sum(lengths)))
    columns = [written(field, column) for field, column in zip(fields, zip(*rows), strict=True)]
    bounds = np.cumsum([0, *lengths]).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(list_rules, "_FEW_VALUES", few)
        scalar = [one_by_one(fields, told, columns, start, end) for start, end in pairwise(bounds)]
    starts, errors = np.array(bounds[:-1]), [each for each in scalar if isinstance(each, FunctionFailed)]
    if errors:
        with pytest.raises(FunctionFailed, match=errors[0].what):
            merge_columns(fields, columns, starts)
        return
    merged = merge_columns(fields, columns, starts)
    for column in merged:
        column.validate(full=True)
    results = read_results(pa.RecordBatch.from_arrays(merged, schema=pa.schema(fields)), {"x": told})["x"]
    assert_same(scalar, plain_values(results))


def written(field: pa.Field, cells: Sequence[Any]) -> pa.Array:
    """A column as it is written: cells of lists have been merged, so no value stands twice or in the wrong place."""
    if rule_of(field) not in LIST_RULES:
        return pa.array(cells, field.type)
    ones = [[[value] for value in cell or ()] or [None] for cell in cells]
    merged = [merge_columns([field], [pa.array(one, field.type)], np.zeros(1, np.int64))[0] for one in ones]
    return pa.concat_arrays(merged)


def one_by_one(fields: list[pa.Field], told: list[str], columns: list[pa.Array], start: int, end: int) -> Any:
    """The result of one stretch, or the error."""
    read = [
        list_cell(column) if rule_of(field) in LIST_RULES else plain_values(column).__getitem__
        for field, column in zip(fields, columns)
    ]
    try:
        merged = RowMerge(fields).merge([[cell(row) for cell in read] for row in range(start, end)])
    except FunctionFailed as error:
        return error
    named = dict(zip((field.name for field in fields), merged))
    return RowFinish({"x": told}, fields).finish(named)["x"]


def assert_same(scalar: Sequence[Any], bulk: Sequence[Any]) -> None:
    assert [_with_nan(each) for each in scalar] == [_with_nan(each) for each in bulk]


def _with_nan(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_nan(each) for each in value]
    return "not-a-number" if isinstance(value, float) and math.isnan(value) else value


def test_a_cell_in_python_merges_like_one_in_an_array() -> None:
    field = merge_field("x.top", list_of(pa.float64()), TOP, most=2)
    cell = pa.array([math.nan, 2.0])
    merge = RowMerge([field]).merge
    (mixed,) = merge([[cell], [python_list(TOP, pa.array([3.0, 1.0]))]])
    assert [row[0] for row in mixed][1:] == [3.0]


def test_only_the_whole_sum_of_a_merge_must_fit() -> None:
    field = merge_field("x.sum", pa.int64(), SUM)
    assert RowMerge([field]).merge([[LARGEST], [1], [-1]]) == [LARGEST]
