"""The worker's evaluator gives what Spark gives: the same type, the same value, an error for the same rows."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headrace.errors import ExpressionError
from headrace.sql import types as expr_types
from headrace.sql.evaluate.expressions import compile_exprs
from headrace.sql.expr import infer, supported
from tests.sql import expression_cases as cases
from tests.sql.test_expressions_docs import EXAMPLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

BATCH = cases.table()
PER_QUERY = 40
_CAST = {pa.int64(): "BIGINT", pa.float64(): "DOUBLE", pa.decimal128(38, 18): "DECIMAL(38,18)"}
# Java's exponentials and logarithms may differ from C's in the last bit or two.
LAST_BITS = 1e-15


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> Iterator[DataFrame]:
    frame = spark.createDataFrame(pa.Table.from_batches([BATCH])).coalesce(1).cache()
    frame.count()
    # pyspark logs every failed query with its Java trace, and here many fail on purpose.
    logger = logging.getLogger("SQLQueryContextLogger")
    before, logger.disabled = logger.disabled, True
    yield frame
    logger.disabled = before
    frame.unpersist()


def _inferred(text: str) -> pa.DataType:
    kind = infer(text, cases.SCHEMA)
    assert kind is not None, f"{text}: {supported(text, cases.SCHEMA)}"
    return kind


def _as_column(text: str) -> str:
    """The text with the cast that a column of ours puts around it."""
    kind = _CAST.get(infer(text, cases.SCHEMA))
    return f"CAST(({text}) AS {kind})" if kind else f"({text})"


def _in_worker(text: str, batch: pa.RecordBatch = BATCH) -> pa.Array:
    out = pa.schema([("r", _inferred(text))])
    return compile_exprs({"r": text}, cases.SCHEMA, out)(batch).column(0)


def _in_spark(rows: DataFrame, texts: list[str]) -> list[pa.ChunkedArray]:
    found: list[pa.ChunkedArray] = []
    for at in range(0, len(texts), PER_QUERY):
        chunk = texts[at : at + PER_QUERY]
        table = rows.selectExpr("id", *(f"{_as_column(text)} AS r{i}" for i, text in enumerate(chunk))).toArrow()
        found += [table.sort_by("id").column(f"r{i}") for i in range(len(chunk))]
    return found


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, float) and isinstance(two, float):
        if math.isnan(one) or math.isnan(two):
            return math.isnan(one) and math.isnan(two)
        if one == two:
            return math.copysign(1, one) == math.copysign(1, two)
        return math.isclose(one, two, rel_tol=LAST_BITS)
    if isinstance(one, (list, tuple)) and isinstance(two, (list, tuple)):
        return len(one) == len(two) and all(map(_same, one, two))
    return type(one) is type(two) and one == two


GROUPS = {group: cases.expressions(group) for group in cases.GROUPS}
# NULL alone has no type of its own, so it stands in no column.
GROUPS["reference"] = [text for text, _ in EXAMPLES if infer(text, cases.SCHEMA) is not None]


@pytest.mark.parametrize("group", GROUPS)
def test_values_are_the_same_in_both_evaluators(rows: DataFrame, group: str) -> None:
    texts = GROUPS[group]
    differences = []
    for text, theirs in zip(texts, _in_spark(rows, texts), strict=True):
        expected = theirs.cast(_inferred(text)).to_pylist()
        for row, (one, two) in enumerate(zip(expected, _in_worker(text).to_pylist(), strict=True)):
            if not _same(one, two):
                differences.append(f"{text}: row {row}: Spark {one!r}, worker {two!r}")
    assert differences == []


@pytest.mark.parametrize("group", GROUPS)
def test_inferred_types_are_those_of_spark(rows: DataFrame, group: str) -> None:
    texts = GROUPS[group]
    from pyspark.sql.pandas.types import to_arrow_type

    differences = []
    for at in range(0, len(texts), PER_QUERY):
        chunk = texts[at : at + PER_QUERY]
        fields = rows.selectExpr(*(f"({text}) AS r{i}" for i, text in enumerate(chunk))).schema
        for text, field in zip(chunk, fields, strict=True):
            arrow = to_arrow_type(field.dataType, timezone="UTC")
            theirs = expr_types.to_arrow(expr_types.from_arrow(arrow))
            if theirs != _inferred(text):
                differences.append(f"{text}: Spark {field.dataType.simpleString()}, inferred {_inferred(text)}")
    assert differences == []


def _spark_error(rows: DataFrame, text: str, run: bool) -> str:
    """The class of the error Spark raises for this text, or nothing."""
    try:
        selected = rows.selectExpr(text)
        if run:
            selected.toArrow()
    except Exception as error:
        return type(error).__name__
    return ""


def _worker_refuses(text: str) -> bool:
    with contextlib.suppress(ExpressionError):
        return supported(text, cases.SCHEMA) is not None
    return True


@pytest.mark.parametrize("text", cases.lines(cases.RAISING))
def test_both_raise_for_the_same_row(rows: DataFrame, text: str) -> None:
    assert _spark_error(rows.where("id = 1"), _as_column(text), run=True) not in ("", "AnalysisException")
    with pytest.raises(ExpressionError):
        _in_worker(text, BATCH.slice(1, 1))


@pytest.mark.parametrize("text", cases.lines(cases.REFUSED))
def test_what_spark_refuses_is_refused_before_anything_runs(rows: DataFrame, text: str) -> None:
    assert _worker_refuses(text)
    assert _spark_error(rows, f"({text}) > 1" if "sum" in text else text, run=False) in (
        "AnalysisException",
        "ParseException",
    )


@pytest.mark.parametrize("text", cases.lines(cases.BEYOND))
def test_what_only_spark_can_do_is_refused_with_a_reason(rows: DataFrame, text: str) -> None:
    assert _spark_error(rows, text, run=False) == ""
    assert _worker_refuses(text)
