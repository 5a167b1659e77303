"""One row and columns: an expression means the same in both forms, or the form for one row stands back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ExpressionError
from headrace.sql.bind import bind
from headrace.sql.evaluate.expressions import compile_exprs
from headrace.sql.evaluate.scalar import compile_scalar
from headrace.sql.expr import resolve

TIME = pa.timestamp("us", "UTC")
KINDS = {
    "i": pa.int64(), "j": pa.int32(), "x": pa.float64(), "s": pa.string(), "b": pa.bool_(), "t": TIME, "u": TIME,
}  # fmt: skip
SCHEMA = pa.schema(list(KINDS.items()))
TIMES = st.none() | st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(0, 10**7)
ROWS = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**62), 2**62) | st.integers(-3, 3),
        "j": st.none() | st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 3),
        "x": st.none() | st.floats(-1e6, 1e6),
        "s": st.none() | st.sampled_from(["", "a", "b"]),
        "b": st.none() | st.booleans(),
        "t": TIMES,
        "u": TIMES,
    }
)
NUMBERS = st.recursive(
    st.sampled_from(["i", "j", "3", "-1", "2.5D"]),
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda each: f"({' '.join(each)})"),
    max_leaves=4,
)
CONDITIONS = st.recursive(
    st.one_of(
        st.tuples(NUMBERS, st.sampled_from(["<", "<=", "=", "<>", ">", ">="]), NUMBERS).map(" ".join),
        st.sampled_from(
            ["b", "s = 'a'", "s < 'b'", "i IS NULL", "x IS NOT NULL", "i / j > 1", "CAST(i AS DOUBLE) > 1"]
        ),
        st.sampled_from(
            ["t >= u + INTERVAL '5' SECOND", "u - t < INTERVAL '3' SECOND", "t - INTERVAL '1' DAY < u", "t = u"]
        ),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(lambda each: f"({' '.join(each)})"),
        inner.map(lambda each: f"(NOT {each})"),
    ),
    max_leaves=4,
)


def value_or_error(compute: Any) -> Any:
    try:
        return compute()
    except ExpressionError:
        return ExpressionError


@settings(max_examples=300, deadline=None)
@given(CONDITIONS, ROWS)
def test_a_row_alone_has_the_value_that_columns_give_it(text: str, row: dict[str, Any]) -> None:
    scalar = compile_scalar(bind(resolve(text, SCHEMA), SCHEMA))
    if scalar is None:
        return
    out = pa.schema([("value", pa.bool_())])
    columns = compile_exprs({"value": text}, SCHEMA, out)
    batch = pa.RecordBatch.from_pylist([row], schema=SCHEMA)
    computed = value_or_error(lambda: columns(batch).column(0))
    of_columns = computed if computed is ExpressionError else computed[0].as_py()
    assert value_or_error(lambda: scalar(row.__getitem__)) == of_columns
