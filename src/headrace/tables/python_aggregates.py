"""Aggregates of Python in SQL: ``CREATE FUNCTION wavg AS 'shop:WeightedMean'``, a class derived from `hr.Aggregator`.

Its ``In`` is what a call gives it of each row: the value of its one argument, or of several a tuple, or a Record with
them as its fields, by their order. A row in which an argument is null is left out, as by all aggregates of SQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, get_args, get_origin

from headrace.aggregates.declare import Aggregator
from headrace.errors import ProgramError
from headrace.model.hints import function_hints
from headrace.model.record import Record
from headrace.tables.aggregate_calls import OWN, AggregateCall
from headrace.tables.context import QueryContext
from headrace.tables.scope import Relation, expression_sql

_TAKEN: Final = "add"


@dataclass(frozen=True)
class PythonAggregate:
    """An aggregate that queries can call."""

    name: str
    aggregator: Aggregator[Any, Any, Any]
    record: Any
    """The Record that its arguments fill; None: they are a value, or a tuple."""


class AggregateOfColumns(Aggregator[Any, Any, Any]):
    """An aggregator of the user's over columns of a row."""

    def __init__(self, function: PythonAggregate, columns: tuple[str, ...], condition: str | None) -> None:
        """``condition``: the column that says whether a row counts."""
        self.function, self.columns, self.condition = function, columns, condition
        self.inner = function.aggregator

    def zero(self) -> Any:
        return self.inner.zero()

    def add(self, acc: Any, x: Any) -> Any:
        values = [getattr(x, name) for name in self.columns]
        if None in values or (self.condition is not None and getattr(x, self.condition) is not True):
            return acc
        if self.function.record is not None:
            return self.inner.add(acc, self.function.record(*values))
        return self.inner.add(acc, values[0] if len(values) == 1 else tuple(values))

    def merge(self, a: Any, b: Any) -> Any:
        return self.inner.merge(a, b)

    def result(self, acc: Any) -> Any:
        return self.inner.result(acc)

    def accumulator_type(self) -> Any:
        return self.inner.accumulator_type()

    def result_type(self, codec: Any) -> Any:
        return self.inner.result_type(codec) | None


def read_aggregate(name: str, given: Any, error: Any) -> PythonAggregate:
    """Looks at an aggregator that CREATE FUNCTION names."""
    if isinstance(given, type):
        try:
            given = given()
        except TypeError as failed:
            raise error(
                f"{name} cannot be made without arguments", expected="an aggregator, or a class that needs none",
                next_move=str(failed),
            ) from failed  # fmt: skip
    try:
        given.accumulator_type()
    except ProgramError as failed:
        raise error(failed.what, expected=failed.expected, next_move=failed.next_move) from failed
    taken = _taken_type(given)
    record = taken if isinstance(taken, type) and issubclass(taken, Record) else None
    return PythonAggregate(name, given, record)


def _taken_type(aggregator: Aggregator[Any, Any, Any]) -> Any:
    for cls in type(aggregator).__mro__:
        for base in cls.__dict__.get("__orig_bases__", ()):
            if get_origin(base) is Aggregator and len(get_args(base)) == 3:
                return get_args(base)[0]
    hints = [hint for name, hint in function_hints(aggregator.add).items() if name != "return"]
    return hints[-1] if len(hints) == 2 else None


def with_own_names(ctx: QueryContext, select: Any) -> Any:
    """A SELECT in which calls of such aggregates have names that tell them apart from functions of values."""
    from sqlglot import exp

    names = {name for name, each in ctx.catalog.functions.items() if isinstance(each, PythonAggregate)}
    if not names or not any(str(call.this).lower() in names for call in select.find_all(exp.Anonymous)):
        return select
    marked = select.copy()
    for call in marked.find_all(exp.Anonymous):
        if str(call.this).lower() in names:
            call.set("this", OWN + str(call.this).lower())
    return marked


def own_aggregate(
    ctx: QueryContext, relation: Relation, call: AggregateCall, free: Any
) -> tuple[AggregateOfColumns, dict[str, str]]:
    """The aggregator of a call, and the columns that it reads: their names and what they are."""
    function: PythonAggregate = ctx.catalog.functions[call.function.removeprefix(OWN)]
    fields = getattr(function.record, "__struct_fields__", None)
    if not call.arguments or call.distinct or (fields is not None and len(fields) != len(call.arguments)):
        wanted = ", ".join(fields) if fields is not None else "x"
        raise ctx.place.error(
            call.tree, f"{function.name} is an aggregate of Python, and cannot be called so",
            expected=f"{function.name}({wanted}), without DISTINCT",
        )  # fmt: skip
    columns: dict[str, str] = {}
    for number, argument in enumerate(call.arguments):
        columns[free(f"{function.name}_argument_{number}")] = expression_sql(relation, argument, ctx.place)
    arguments, condition = tuple(columns), None
    if call.condition is not None:
        condition = free(f"{function.name}_counts")
        columns[condition] = expression_sql(relation, call.condition, ctx.place)
    return AggregateOfColumns(function, arguments, condition), columns
