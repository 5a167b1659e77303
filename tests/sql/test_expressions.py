"""SQL evaluated in the worker. That it means what Spark means is held in tests/spark/test_evaluators_agree.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import ExpressionError
from headrace.sql.bind import ExprTree, bind
from headrace.sql.evaluate.expressions import EVALUATORS, compile_exprs, compile_predicate
from headrace.sql.expr import infer, resolve
from tests.sql import expression_cases as cases

BATCH = cases.table()
ALL = [text for group in cases.GROUPS for text in cases.expressions(group)]
SMALL = pa.schema([("n", pa.int64()), ("d", pa.int64()), ("s", pa.string()), ("b", pa.bool_())])


def small(*rows: tuple[Any, ...]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(SMALL.names, row, strict=True)) for row in rows], schema=SMALL)


def value(text: str, batch: pa.RecordBatch, kind: pa.DataType | None = None) -> list[Any]:
    out = pa.schema([("r", kind or infer(text, batch.schema))])
    return list(compile_exprs({"r": text}, batch.schema, out)(batch).column(0).to_pylist())


@pytest.mark.parametrize("group", cases.GROUPS)
def test_a_batch_gives_what_its_rows_give_alone(group: str) -> None:
    """Broadcasting, slices with an offset and empty batches change nothing."""
    twice = pa.concat_batches([BATCH, BATCH])
    for text in cases.expressions(group):
        compute = compile_exprs({"r": text}, BATCH.schema, pa.schema([("r", infer(text, BATCH.schema))]))
        whole = repr(compute(BATCH).column(0).to_pylist())
        alone = [compute(BATCH.slice(i, 1)).column(0)[0].as_py() for i in range(BATCH.num_rows)]
        assert repr(alone) == whole, text
        halves = [compute(twice.slice(at, 5)).column(0).to_pylist() for at in (10, 15)]
        assert repr(halves[0] + halves[1]) == whole, text
        assert compute(BATCH.slice(3, 0)).num_rows == 0


def _operations(node: ExprTree) -> set[str]:
    return {node.op}.union(*map(_operations, node.args))


def test_every_operation_is_evaluated_and_every_evaluator_is_reached() -> None:
    reached = set().union(*(_operations(bind(resolve(text, BATCH.schema), BATCH.schema)) for text in ALL))
    assert reached == set(EVALUATORS)


def test_null_is_neither_true_nor_false_for_a_predicate() -> None:
    batch = small((1, 0, "a", True), (None, 0, None, None), (-1, 0, "b", False))
    for text, expected in {
        "n > 0": [True, False, False],
        "NOT n > 0": [False, False, True],
        "n > 0 OR b": [True, False, False],
        "n IS NULL OR n < 0": [False, True, True],
        "NULL": [False, False, False],
        "TRUE": [True, True, True],
        "b": [True, False, False],
    }.items():
        holds = compile_predicate(text, SMALL)(batch)
        assert holds.dtype == np.bool_
        assert holds.tolist() == expected, text
    assert compile_predicate("n > 0", SMALL)(batch.slice(0, 0)).tolist() == []


def test_a_predicate_must_be_a_condition() -> None:
    with pytest.raises(ExpressionError) as raised:
        compile_predicate("n + 1", SMALL, "tweets.py:7")
    assert raised.value.where == "tweets.py:7"
    assert "BIGINT" in raised.value.found


def test_an_error_names_the_expression_and_the_row() -> None:
    with pytest.raises(ExpressionError) as raised:
        value("1 + n / d", small((4, 2, "", None), (7, 0, "", None)))
    assert raised.value.what == "division by zero in n / d"
    assert raised.value.found == "a row with n=7, d=0"
    assert "NULLIF" in raised.value.next_move


@pytest.mark.parametrize("text", cases.lines(cases.RAISING))
def test_a_row_without_a_value_is_an_error_and_never_null(text: str) -> None:
    with pytest.raises(ExpressionError):
        value(text, BATCH.slice(1, 1))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CASE WHEN d <> 0 THEN n / d ELSE -1 END", [2.0, -1.0, -1.0]),
        ("IF(d = 0, NULL, n div d)", [2, None, None]),
        ("d <> 0 AND n / d > 1", [True, False, None]),
        ("d = 0 OR n / d > 1", [True, True, None]),
        ("COALESCE(n, 1 / d)", [4.0, 7.0, None]),
        ("n / NULLIF(d, 0)", [2.0, None, None]),
        ("try_divide(n, d)", [2.0, None, None]),
        ("CASE WHEN s RLIKE '^[0-9]+$' THEN CAST(s AS INT) END", [12, None, None]),
        ("TRY_CAST(s AS INT)", [12, None, None]),
        ("n IN (4, 7, 1 / d)", [True, True, None]),
    ],
)
def test_what_a_condition_rules_out_cannot_fail(text: str, expected: list[Any]) -> None:
    batch = small((4, 2, "12", True), (7, 0, "x", True), (None, None, None, None))
    assert value(text, batch) == expected


def test_behind_a_null_operand_nothing_is_evaluated() -> None:
    assert value("n + CAST(s AS INT)", small((None, 0, "x", None), (1, 0, "2", None))) == [None, 3]
    with pytest.raises(ExpressionError):
        value("n + CAST(s AS INT)", small((1, 0, "x", None)))


def test_results_are_cast_to_the_declared_columns() -> None:
    batch = small((7, 2, "a", True))
    assert value("n / d", batch, pa.int64()) == [3]
    assert value("n", batch, pa.string()) == ["7"]
    assert value("1.5", batch, pa.float64()) == [1.5]
    assert value("NULL", batch, pa.timestamp("us", "UTC")) == [None]
    with pytest.raises(ExpressionError):
        value("3000000000", batch, pa.int32())


def test_columns_without_an_expression_are_taken_as_they_are() -> None:
    out = pa.schema(
        [("mp", BATCH.schema.field("mp").type), ("twice", pa.int64()), ("st", BATCH.schema.field("st").type)]
    )
    result = compile_exprs({"twice": "n * 2"}, BATCH.schema, out)(BATCH)
    assert result.schema == out
    assert result.column("mp").equals(BATCH.column("mp"))
    assert repr(result.column("st").to_pylist()) == repr(BATCH.column("st").to_pylist())
    assert result.column("twice")[1].as_py() == 2


def test_a_result_no_column_can_hold_is_refused_while_compiling() -> None:
    with pytest.raises(ExpressionError) as raised:
        compile_exprs({"r": "at - due"}, BATCH.schema, pa.schema([("r", pa.int64())]), "tweets.py:7")
    assert "INTERVAL" in raised.value.what and raised.value.where == "tweets.py:7"


def test_encoded_columns_pass_through() -> None:
    schema = pa.schema([pa.field("blob", pa.binary(), metadata={b"headrace": b"msgpack"}), ("n", pa.int64())])
    batch = pa.RecordBatch.from_arrays([pa.array([b"\x01", None]), pa.array([1, 2])], schema=schema)
    result = compile_exprs({"blob": "blob", "n": "n + 1"}, schema, schema)(batch)
    assert result.to_pydict() == {"blob": [b"\x01", None], "n": [2, 3]}


def test_a_long_list_gives_what_a_short_one_gives() -> None:
    batch = small((1, 0, "a", None), (99, 0, "z", None), (None, 0, None, None))
    listed = ", ".join(map(str, range(30)))
    assert value(f"n IN ({listed})", batch) == [True, False, None]
    assert value(f"n IN ({listed}, NULL)", batch) == [True, None, None]
    assert value(f"n NOT IN ({listed})", batch) == [False, True, None]
