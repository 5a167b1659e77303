"""What an expression is evaluated on: the columns of one batch, and which of its rows count at this point.

A value is a polars Series (nested ones an Arrow array) of the batch's length, or of length 1 when it is the same for
every row; operations broadcast. SQL evaluates lazily where it says so: behind a false condition nothing may fail.
Here everything is computed for all rows, and the scope knows the *active* ones; an error in a row that is not active
is none. That is why operations report errors through `EvalScope.settle` and never raise on their own.

How types are kept: DECIMAL as Int128 of its unscaled value, intervals as Int64 microseconds, the rest as polars does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ExpressionError
from headrace.sql import types as t
from headrace.sql.nodes import ExprTree
from headrace.sql.types import SqlType

Value = Any
"""A `pl.Series`, or a `pa.Array` for arrays, maps, structs and opaque columns."""

_DTYPES: dict[SqlType, Any] = {
    t.BOOLEAN: pl.Boolean(),
    t.TINYINT: pl.Int8(),
    t.SMALLINT: pl.Int16(),
    t.INT: pl.Int32(),
    t.BIGINT: pl.Int64(),
    t.FLOAT: pl.Float32(),
    t.DOUBLE: pl.Float64(),
    t.STRING: pl.String(),
    t.BINARY: pl.Binary(),
    t.DATE: pl.Date(),
    t.TIMESTAMP: pl.Datetime("us", "UTC"),
    t.INTERVAL: pl.Int64(),
    t.DAYS: pl.Int64(),
    t.MONTHS: pl.Int32(),
    t.NULL: pl.Null(),
}


def dtype_of(kind: SqlType) -> Any:
    return pl.Int128() if t.is_decimal(kind) else _DTYPES[kind]


def in_arrow(kind: SqlType) -> bool:
    """Whether values of this type stay Arrow arrays."""
    return t.is_nested(kind) or kind == t.OPAQUE


def to_value(array: pa.Array, kind: SqlType) -> Value:
    """An Arrow array as a value of this type."""
    if in_arrow(kind):
        return array
    series = pl.Series("", array)
    return series.to_physical() if t.is_decimal(kind) else series


def field_array(batch: Any, name: str, index: int) -> pa.Array:
    """One field of a struct column, null where the struct is."""
    if isinstance(batch, pa.RecordBatch):
        # Unlike field(), flatten() lets a null struct have null fields.
        return batch.column(name).flatten()[index]
    # Pairs of a join make a field without the rest of the struct.
    return batch.side_field(name, index)


def to_array(value: Value, kind: SqlType) -> pa.Array:
    """A value as an Arrow array, decimals with their own precision and scale."""
    if in_arrow(kind):
        return value
    if not t.is_decimal(kind):
        return value.to_arrow()
    # Arrow knows no Int128, but the bytes of a decimal are just that: only the type on top has to change.
    whole = value.cast(pl.Decimal(38, 0)).to_arrow()
    return pa.Array.from_buffers(pa.decimal128(38, kind.scale), len(whole), whole.buffers(), offset=whole.offset)


def spread(value: Value, rows: int) -> Value:
    """The value in its full length."""
    if len(value) == rows:
        return value
    if isinstance(value, pl.Series):
        return value.new_from_index(0, rows)
    return value.take(pa.array([0] * rows, pa.int64()))


def is_null(value: Value) -> pl.Series:
    return value.is_null() if isinstance(value, pl.Series) else pl.Series("", value.is_null())


def pick(mask: pl.Series, yes: Value, no: Value) -> Value:
    """`yes` where the mask is true, `no` elsewhere."""
    if isinstance(yes, pl.Series):
        return yes.zip_with(mask, no)
    rows = max(len(mask), len(yes), len(no))
    return pc.if_else(spread(mask, rows).to_arrow(), spread(yes, rows), spread(no, rows))


def divide(one: pl.Series, two: pl.Series) -> pl.Series:
    """Doubles divided. polars multiplies by the reciprocal of a single divisor, which is not the same number."""
    rows = max(len(one), len(two)) if len(one) and len(two) else 0
    return spread(one, rows) / spread(two, rows)  # type: ignore[no-any-return]


def by_row(make: Callable[..., Any], kind: SqlType, *values: pl.Series) -> pl.Series:
    """`make` of each row's values in Python; null where one of them is. For what polars has no word for."""
    rows = 1 if all(len(value) == 1 for value in values) else next(len(value) for value in values if len(value) != 1)
    if len(values) == 1:
        made = [None if value is None else make(value) for value in values[0].to_list()]
    else:
        columns = [spread(value, rows).to_list() for value in values]
        made = [None if None in row else make(*row) for row in zip(*columns, strict=True)]
    return pl.Series("", made, dtype=dtype_of(kind))


class EvalScope:
    """One batch and its active rows (None: all of them)."""

    __slots__ = ("active", "batch", "columns", "evaluate", "text")

    def __init__(self, batch: pa.RecordBatch, text: str, evaluate: Callable[[ExprTree, EvalScope], Value]) -> None:
        self.batch = batch
        self.text = text
        self.evaluate = evaluate
        self.active: pl.Series | None = None
        self.columns: dict[str, Value] = {}

    def value(self, node: ExprTree) -> Value:
        return self.evaluate(node, self)

    def column(self, name: str, kind: SqlType) -> Value:
        found = self.columns.get(name)
        if found is None:
            found = self.columns[name] = to_value(self.batch.column(name), kind)
        return found

    def within(self, mask: pl.Series) -> EvalScope:
        """The same batch with fewer active rows; null in the mask counts as false."""
        inner = EvalScope(self.batch, self.text, self.evaluate)
        inner.columns = self.columns
        mask = mask.fill_null(False)
        inner.active = mask if self.active is None else self.active & mask
        return inner

    def settle(self, node: ExprTree, result: pl.Series, bad: pl.Series, what: str) -> pl.Series:
        """The result of an operation that failed in the `bad` rows: an error, or null for ``try_…``."""
        if not bad.any():
            return result
        if node.value == "try":
            picked: pl.Series = pick(bad.fill_null(False), result.clear(1), result)
            return picked
        counted = bad if self.active is None else bad & self.active
        if counted.any():
            raise self._error(node, counted, what)
        return result

    def _error(self, node: ExprTree, bad: pl.Series, what: str) -> ExpressionError:
        first = bad.arg_true()[0] if len(bad) > 1 else 0
        shown = [f"{name}={_python_value(self.batch.column(name)[first])!r:.60}" for name in self._names(node)]
        return ExpressionError(
            f"{what} in {node.text or self.text}",
            expected="rows for which the expression has a value (Spark's ANSI mode)",
            found=("a row with " + ", ".join(shown)) if shown else f"the expression {self.text}",
            next_move="guard it with CASE WHEN or NULLIF, use try_cast or try_divide, or filter such rows before",
        )

    def _names(self, node: ExprTree) -> list[str]:
        names = [node.value] if node.op == "column" else []
        for arg in node.args:
            names += [name for name in self._names(arg) if name not in names]
        return names


def both(node: ExprTree, scope: EvalScope, right_first: bool = False) -> tuple[pl.Series, pl.Series]:
    """The two arguments of an operation that is null when one is; behind a null the other may not fail."""
    first, second = (1, 0) if right_first else (0, 1)
    one = scope.value(node.args[first])
    inner = scope.within(one.is_not_null()) if one.null_count() and node.args[second].args else scope
    two = inner.value(node.args[second])
    return (two, one) if right_first else (one, two)


def _python_value(scalar: pa.Scalar) -> Any:
    """The value for people; times beyond those of Python as their number."""
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return getattr(scalar, "value", scalar)
