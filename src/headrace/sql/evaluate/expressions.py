"""SQL expressions evaluated in the worker, by polars, with the meaning Spark gives them in ANSI mode.

Text is compiled once (`compile_exprs`, `compile_predicate`) and applied to many batches. What cannot be evaluated here
is refused while compiling, with the ways out; a row for which an expression has no value (division by zero, a failed
cast) raises ExpressionError, as Spark would. Where the JVM evaluates, nothing here is used; one suite holds both
together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import ExpressionError
from headrace.sql import types as t
from headrace.sql.bind import ExprTree, Unsupported, bind
from headrace.sql.evaluate import casts as sql_casts
from headrace.sql.evaluate import logic as sql_logic
from headrace.sql.evaluate import nested as sql_nested
from headrace.sql.evaluate import numbers as sql_numbers
from headrace.sql.evaluate import text as sql_text
from headrace.sql.evaluate import times as sql_times
from headrace.sql.evaluate.scope import EvalScope, Value, field_array, spread, to_array
from headrace.sql.expr import resolve, unsupported_error
from headrace.sql.nodes import cast_to

EVALUATORS: dict[str, Callable[[ExprTree, EvalScope], Value]] = {
    **sql_logic.EVALUATORS,
    **sql_numbers.EVALUATORS,
    **sql_casts.EVALUATORS,
    **sql_text.EVALUATORS,
    **sql_times.EVALUATORS,
    **sql_nested.EVALUATORS,
}

Compute = Callable[[pa.RecordBatch], pa.Array]


def compile_exprs(
    exprs: Mapping[str, str], schema: pa.Schema, out_schema: pa.Schema, where: str = ""
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function from batches of `schema` to batches of `out_schema`.

    Each column of `out_schema` is the expression of its name, cast to the declared type; a column without one is taken
    from the input as it is.
    """
    computes = [_compile_column(exprs.get(field.name), field, schema, where) for field in out_schema]

    def apply(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([compute(batch) for compute in computes], schema=out_schema)

    return apply


def compile_predicate(
    text: str, schema: pa.Schema, where: str = ""
) -> Callable[[pa.RecordBatch], npt.NDArray[np.bool_]]:
    """A function from batches to one boolean per row: whether the condition is true (null is not)."""
    node = bound_expression(text, schema, where)
    if node.type not in (t.BOOLEAN, t.NULL):
        raise ExpressionError(
            "this expression is not a condition",
            where=where,
            expected="BOOLEAN, as n > 0",
            found=f"{text!r}, which is {node.type}",
            next_move="compare it with something",
        )
    node = cast_to(node, t.BOOLEAN)

    def apply(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        if not batch.num_rows:
            return np.zeros(0, np.bool_)
        value = spread(_evaluate(node, EvalScope(batch, text, _evaluate)), batch.num_rows)
        holds: npt.NDArray[np.bool_] = value.fill_null(False).to_numpy()
        return holds

    return apply


def _evaluate(node: ExprTree, scope: EvalScope) -> Value:
    return EVALUATORS[node.op](node, scope)


def bound_expression(text: str, schema: pa.Schema, where: str = "") -> ExprTree:
    """The typed tree of an expression. Raises ExpressionError where the worker cannot evaluate it."""
    parsed = resolve(text, schema, where)
    try:
        return bind(parsed, schema)
    except Unsupported as reason:
        raise unsupported_error(text, str(reason), where) from None


def _compile_column(text: str | None, field: pa.Field, schema: pa.Schema, where: str) -> Compute:
    if text is None:
        text = "`" + field.name.replace("`", "``") + "`"
    node = bound_expression(text, schema, where)
    if node.op == "column" and schema.field(node.value).type == field.type:
        return lambda batch: batch.column(node.value)
    if node.op == "field" and node.args[0].op == "column":
        name, index = node.args[0].value, node.value
        if schema.field(name).type.field(index).type == field.type:
            return lambda batch: field_array(batch, name, index)
    node = _as_declared(node, text, field, where)

    def compute(batch: pa.RecordBatch) -> pa.Array:
        if not batch.num_rows:
            return pa.array([], field.type)
        value = spread(_evaluate(node, EvalScope(batch, text, _evaluate)), batch.num_rows)
        array = to_array(value, node.type)
        return array if array.type == field.type else array.cast(field.type)

    return compute


def _as_declared(node: ExprTree, text: str, field: pa.Field, where: str) -> ExprTree:
    declared = t.from_field(field)
    if declared.name == node.type.name and t.is_nested(declared):
        return node
    try:
        return cast_to(node, declared, text=f"CAST({text} AS {declared})")
    except Unsupported:
        raise ExpressionError(
            f"column {field.name!r} is declared as {declared}, and the expression gives {node.type}",
            where=where,
            expected=str(declared),
            found=f"{text!r}, which is {node.type}",
            next_move="change the expression or the type of the field",
        ) from None
