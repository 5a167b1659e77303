"""Expressions before anything runs: built, read, checked, typed."""

from __future__ import annotations

import enum
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from headrace.errors import ExpressionError, ProgramError
from headrace.model.record import Record
from headrace.model.time import Timestamp
from headrace.sql.evaluate.expressions import compile_exprs
from headrace.sql.expr import (
    as_sql,
    check,
    check_result,
    check_supported,
    col,
    infer,
    literal_sql,
    parse,
    quote_name,
    supported,
)
from tests.sql import expression_cases as cases

SCHEMA = cases.SCHEMA
MSGPACK = {b"headrace": b"msgpack"}


class Impression(Record):
    tweet: str
    at: Timestamp
    order: int = 1


class Colour(enum.Enum):
    RED = "red"


def test_python_operators_build_sql_text() -> None:
    n = col("n")
    assert (n > 0).sql == "(n > 0)"
    assert ((n + 1) * 2 / 3 % 4 - 5).sql == "(((((n + 1) * 2) / 3) % 4) - 5)"
    assert (1 - n).sql == "(1 - n)"
    assert ((n >= 1) & (n <= 2) | ~(n == 3)).sql == "(((n >= 1) AND (n <= 2)) OR (NOT (n = 3)))"
    assert (n != col("k")).sql == "(n <> k)"
    assert (-n).sql == "(- n)"
    assert n.is_null().sql == "(n IS NULL)"
    assert n.is_not_null().sql == "(n IS NOT NULL)"
    assert n.is_in([1, 2]).sql == "(n IN (1, 2))"
    assert n.is_in([]).sql == "FALSE"
    assert n.between(1, 2).sql == "(n BETWEEN 1 AND 2)"
    assert col("s").like("a%").sql == "(s LIKE 'a%')"
    assert col("mp")["k"].sql == "mp['k']"
    assert n.cast("double").sql == "CAST(n AS double)"


@pytest.mark.parametrize(
    "name", ["values", "any", "Order", "select", "left", "a b", "1st", "ü", "x-y", "`", "current_date"]
)
def test_a_column_of_any_name_can_be_used(name: str) -> None:
    schema = pa.schema([(name, pa.int64())])
    assert infer((col(name) + 1).sql, schema) == pa.int64()
    assert infer(quote_name(name), schema) == pa.int64()


def test_names_are_quoted_where_sql_needs_it() -> None:
    assert col("we ird").sql == "`we ird`"
    assert col("st.Name").sql == "st.Name"
    assert col("order").sql == "`order`"
    assert quote_name("a`b") == "`a``b`"


@pytest.mark.parametrize("use", [bool, list, lambda e: e and e])
def test_an_expression_has_no_truth_and_no_items_in_python(use: Any) -> None:
    with pytest.raises(TypeError):
        use(col("n") > 0)


LITERALS: list[Any] = [
    None,
    True,
    -5,
    2**40,
    1.5,
    float("inf"),
    'it\'s a \\ \n\t %_\0 "text" 😀',
    b"\x00\xff",
    Decimal("-1.50"),
    date(2024, 2, 29),
    datetime(2024, 2, 29, 12, 13, 14, 15, tzinfo=UTC),
    UUID(int=7),
    Colour.RED,
]


@pytest.mark.parametrize("value", LITERALS, ids=repr)
def test_a_python_value_survives_as_a_literal(value: Any) -> None:
    text = literal_sql(value)
    kind = infer(text, SCHEMA) or pa.int64()
    found = compile_exprs({"r": text}, SCHEMA, pa.schema([("r", kind)]))(cases.table()).column(0)[0].as_py()
    expected = value.value if isinstance(value, enum.Enum) else str(value) if isinstance(value, UUID) else value
    assert found == expected


def test_datetimes_of_any_zone_and_spans_are_literals() -> None:
    east = datetime(2024, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    assert literal_sql(east) == "TIMESTAMP '2024-01-01 00:00:00.000000Z'"
    assert literal_sql(timedelta(seconds=-1.5)) == "INTERVAL '-1.500000' SECOND"
    assert supported((col("at") + timedelta(minutes=5)).sql, SCHEMA) is None


def test_a_value_that_has_no_literal_is_an_error() -> None:
    with pytest.raises(ExpressionError) as raised:
        col("n").between(1, object())
    assert "object" in raised.value.found


def test_text_an_expression_and_a_field_are_columns() -> None:
    assert as_sql(" n > 0 ") == "n > 0"
    assert as_sql(col("n") > 0) == "(n > 0)"
    assert as_sql(Impression.tweet) == "tweet"
    assert as_sql(Impression.order) == "`order`"
    assert (col("n") > Impression.at).sql == "(n > at)"
    with pytest.raises(ProgramError):
        as_sql(5)


def test_parse_knows_the_columns_behind_every_construct() -> None:
    columns = {
        "n > 0 AND x < k": {"n", "x", "k"},
        "st.in.z + st.a": {"st"},
        "mp['a'] + arr[n]": {"mp", "arr", "n"},
        "array(n, x)[1]": {"n", "x"},
        "transform(arr, v -> v + n)": {"arr", "n"},
        "CASE WHEN b THEN s ELSE u END": {"b", "s", "u"},
        "`we ird` || 'n'": {"we ird"},
        "1 + 1": set(),
        "date > timestamp": {"date", "timestamp"},
    }
    assert {text: set(parse(text).columns) for text in columns} == columns


@pytest.mark.parametrize(
    "text", ["", "n >", "n, k", "n AS m", "*", "st.*", "(SELECT 1)", "sum(n)", "row_number() OVER ()", "n > ?",
             "n -- x", "n > 0; DROP TABLE t", "DELETE FROM t", "'open", "n FROM t"]
)  # fmt: skip
def test_what_is_not_one_expression_over_one_row_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError) as raised:
        parse(text, "tweets.py:7")
    assert raised.value.where == "tweets.py:7"
    assert text in str(raised.value)


def test_an_unknown_column_is_answered_with_the_nearest_names() -> None:
    schema = pa.schema([("tweet", pa.string()), ("impressions", pa.int64()), ("at", pa.int64())])
    with pytest.raises(ExpressionError) as raised:
        check("impresions > 0", schema, "tweets.py:7")
    assert "impresions" in raised.value.what
    assert raised.value.next_move == "did you mean impressions?"
    assert str(raised.value).startswith("tweets.py:7: ")


def test_columns_are_found_without_regard_to_case_as_in_spark() -> None:
    assert check("N > BIG", SCHEMA).columns == {"n", "big"}
    two = pa.schema([("a", pa.int64()), ("A", pa.int64())])
    assert check("a + A", two).columns == {"a", "A"}


TYPES = {
    "n": pa.int64(),
    "n + 1": pa.int64(),
    "n / 2": pa.float64(),
    "n * 1.5": pa.decimal128(38, 18),
    "x * 1.5": pa.float64(),
    "length(s)": pa.int64(),
    "s || n": pa.string(),
    "n > 0": pa.bool_(),
    "at + INTERVAL 5 SECONDS": pa.timestamp("us", "UTC"),
    "d + 1": pa.date32(),
    "split(s, ',')": pa.list_(pa.string()),
    "mp": pa.map_(pa.string(), pa.int64()),
    "mp['a']": pa.int64(),
    "st.in": pa.struct([("z", pa.float64())]),
    "CASE WHEN b THEN 1 ELSE 2.5 END": pa.decimal128(38, 18),
    "COALESCE(d, at)": pa.timestamp("us", "UTC"),
    "CAST(n AS FLOAT)": pa.float64(),
    "bin": pa.binary(),
}


@pytest.mark.parametrize("text", TYPES)
def test_results_have_the_types_of_columns(text: str) -> None:
    assert infer(text, SCHEMA) == TYPES[text]


def test_what_cannot_be_typed_here_is_left_to_spark() -> None:
    assert infer("sha2(s, 256)", SCHEMA) is None
    assert infer("at - due", SCHEMA) is None


@pytest.mark.parametrize("text", cases.lines(cases.BEYOND))
def test_what_only_spark_can_do_is_refused_with_the_ways_out(text: str) -> None:
    with pytest.raises(ExpressionError) as raised:
        check_supported(text, SCHEMA, "tweets.py:7")
    if not text.startswith(("(SELECT", "sum")):
        assert "Harness(app, spark=session)" in raised.value.next_move
        assert raised.value.where == "tweets.py:7"


@pytest.mark.parametrize("text", cases.lines(cases.REFUSED))
def test_what_spark_would_refuse_is_refused_without_spark(text: str) -> None:
    with pytest.raises(ExpressionError):
        check_supported(text, SCHEMA)


def test_a_misspelled_function_is_answered_with_the_nearest_one() -> None:
    assert "upper" in (supported("uper(s)", SCHEMA) or "")
    assert "ctx.now" in (supported("current_timestamp()", SCHEMA) or "")


def test_a_result_that_does_not_fit_its_column_is_found_while_building() -> None:
    check_result("n / 2", SCHEMA, pa.field("half", pa.int64()))
    check_result("n", SCHEMA, pa.field("text", pa.string()))
    check_result("sha2(s, 256)", SCHEMA, pa.field("digest", pa.int64()))
    for text, kind in (("s", pa.int64()), ("b", pa.int64()), ("n", pa.bool_()), ("n", pa.timestamp("us", "UTC"))):
        with pytest.raises(ExpressionError) as raised:
            check_result(text, SCHEMA, pa.field("out", kind), "tweets.py:7")
        assert "'out'" in raised.value.what and "CAST" in raised.value.next_move


def test_a_column_of_encoded_values_can_only_be_passed_on() -> None:
    schema = pa.schema([pa.field("blob", pa.binary(), metadata=MSGPACK), ("n", pa.int64())])
    assert infer("blob", schema) == pa.binary()
    assert supported("blob", schema) is None
    assert supported("blob IS NULL", schema) is None
    assert supported("blob = X'00'", schema) is not None
    assert supported("length(blob)", schema) is not None


def test_importing_expressions_loads_neither_polars_nor_sqlglot() -> None:
    code = "import sys, headrace.sql.expr; print(sorted({'polars', 'sqlglot'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
