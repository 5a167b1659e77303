"""Aggregate functions of SQL, as the aggregates that programs declare: `headrace.aggregates.declare` computes them all.

SQL's null is kept apart: a SUM of nothing is null, where ``hr.sum`` is 0, so a count goes along wherever there may be
nothing to add. FIRST and LAST go by event time and leave nulls out, as COLLECT_LIST does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa

from headrace.aggregates.declare import (
    Agg,
    avg_distinct,
    collect,
    count,
    count_distinct,
    first,
    last,
    quantile,
    sum_distinct,
)
from headrace.aggregates.declare import avg as mean
from headrace.aggregates.declare import max as greatest
from headrace.aggregates.declare import min as least
from headrace.aggregates.declare import sum as total
from headrace.model.nearest import nearest
from headrace.model.shapes import split_optional
from headrace.sql.expr import infer, quote_name
from headrace.sql.parse import column_path
from headrace.tables.scope import QueryPlace, Relation, expression_sql, lookup

Declare = Callable[..., Agg[Any]]

_OF_ONE: Final[dict[str, Declare]] = {
    "sum": total,
    "avg": mean,
    "mean": mean,
    "min": least,
    "max": greatest,
    "first": first,
    "first_value": first,
    "any_value": first,
    "last": last,
    "last_value": last,
    "collect_list": collect,
    "collect": collect,
    "array_agg": collect,
}
_OF_DIFFERENT: Final[dict[str, Declare]] = {"sum": sum_distinct, "avg": avg_distinct, "mean": avg_distinct}
_BY_ANOTHER: Final[dict[str, Declare]] = {"min_by": least, "max_by": greatest}
_COUNTS: Final = ("count", "count_if", "approx_count_distinct", "bool_and", "every", "bool_or", "some", "any")
_QUANTILES: Final = ("percentile_approx", "approx_percentile")
NAMES: Final = frozenset([*_OF_ONE, *_BY_ANOTHER, *_COUNTS, *_QUANTILES])
_REFUSED: Final = {
    "stddev": "AVG(x * x) - AVG(x) * AVG(x) gives the variance",
    "variance": "AVG(x * x) - AVG(x) * AVG(x) gives it",
    "listagg": "COLLECT_LIST(x) gives a list",
    "string_agg": "COLLECT_LIST(x) gives a list",
    "collect_set": "group by the value too, or take COLLECT_LIST(x)",
    "median": "PERCENTILE_APPROX(x, 0.5)",
    "percentile": "PERCENTILE_APPROX(x, 0.5)",
    "stddev_pop": "AVG(x * x) - AVG(x) * AVG(x) gives the variance",
    "stddev_samp": "AVG(x * x) - AVG(x) * AVG(x) gives the variance",
    "var_pop": "AVG(x * x) - AVG(x) * AVG(x) gives it",
    "var_samp": "AVG(x * x) - AVG(x) * AVG(x) gives it",
}
_DISTINCT_IS_THE_SAME: Final = ("min", "max", "first", "first_value", "any_value", "last", "last_value")


class AggregateCall(NamedTuple):
    """One call, as it was written."""

    function: str
    arguments: list[Any]
    distinct: bool
    condition: Any
    """The condition of FILTER (WHERE …), or None."""
    tree: Any


class AggregateResult(NamedTuple):
    """What a call becomes: aggregates by name, and SQL over their results."""

    aggs: dict[str, Agg[Any]]
    text: str


_CLASSES: Final = {
    "ArgMax": "max_by", "ArgMin": "min_by", "ApproxQuantile": "percentile_approx", "GroupConcat": "listagg",
    "PercentileCont": "percentile", "PercentileDisc": "percentile", "Median": "median",
}  # fmt: skip
"""Functions that the parser has nodes of their own for."""


OWN: Final = "\ue005"
"""Stands before the name of an aggregate of Python (`headrace.tables.python_aggregates`), which no query can write."""


def is_aggregate(tree: Any) -> bool:
    """Whether a part of a tree is a call of an aggregate function."""
    from sqlglot import exp

    if isinstance(tree, exp.Filter | exp.IgnoreNulls):
        return is_aggregate(tree.this)
    name = _function(tree)
    return name in NAMES or name in _REFUSED or name.startswith(OWN)


def _function(tree: Any) -> str:
    kind = type(tree).__name__
    return str(tree.this).lower() if kind == "Anonymous" else _CLASSES.get(kind, "")


def aggregates_in(tree: Any) -> Iterator[Any]:
    """The aggregate calls of an expression; what stands before OVER is none, and queries inside have their own."""
    from sqlglot import exp

    if isinstance(tree, exp.Query):
        return
    if is_aggregate(tree):
        yield tree
        return
    before_over = tree.this if isinstance(tree, exp.Window) else None
    for child in tree.iter_expressions():
        if child is before_over:
            inner: Any = child.this if isinstance(child, exp.Filter | exp.IgnoreNulls) else child
            for part in inner.iter_expressions():
                yield from aggregates_in(part)
        else:
            yield from aggregates_in(child)


def value_of_nothing(tree: Any) -> Any:
    """What an aggregate call is where there are no rows: 0 of counts, None of all others, which are null then."""
    from sqlglot import exp

    while isinstance(tree, exp.Filter | exp.IgnoreNulls):
        tree = tree.this
    counts = _function(tree) in ("count", "count_if", "approx_count_distinct")
    return exp.Literal.number(0) if counts else None


def read_call(tree: Any, place: QueryPlace) -> AggregateCall:
    """A call taken apart; what no aggregate can be is refused."""
    from sqlglot import exp

    condition = None
    call = tree
    if isinstance(call, exp.Filter):
        call, condition = call.this, call.expression.this
    if isinstance(call, exp.IgnoreNulls):
        call = call.this
    name = _function(call)
    if name in _REFUSED:
        raise place.error(tree, f"{name.upper()} cannot be had over streams", next_move=_REFUSED[name])
    arguments = list(call.expressions if isinstance(call, exp.Anonymous) else call.iter_expressions())
    distinct = len(arguments) == 1 and isinstance(arguments[0], exp.Distinct)
    if distinct:
        arguments = list(arguments[0].expressions)
    for argument in arguments:
        inner = next(aggregates_in(argument), None) or argument.find(exp.Window)
        if inner is not None:
            raise place.error(
                inner,
                "an aggregate of an aggregate needs a query of its own",
                expected="an expression over the columns of a row",
                next_move="SELECT MAX(n) FROM (SELECT COUNT(*) AS n FROM … GROUP BY …)",
            )
    return AggregateCall(name, arguments, distinct, condition, tree)


def declare_call(
    call: AggregateCall, relation: Relation, place: QueryPlace, name: str, free: Callable[[str], str]
) -> AggregateResult:
    """The aggregates that a call needs; the first of them has the name, ``free`` gives names for further ones."""
    from sqlglot import exp

    if call.function.startswith(OWN):
        raise place.error(
            call.tree, f"{call.function.removeprefix(OWN)} is an aggregate of Python, which has no window functions",
            expected="GROUP BY", next_move="COLLECT_LIST(x) OVER (…), and a function of the list",
        )  # fmt: skip
    where = None if call.condition is None else expression_sql(relation, call.condition, place)
    texts = [expression_sql(relation, each, place) for each in call.arguments if not isinstance(each, exp.Star)]
    out = quote_name(name)
    if call.function in _COUNTS:
        return _counted(call, texts, where, name, relation, place, free)
    if call.function in _QUANTILES:
        _check_arguments(call, 2, place)
        share = _share(call.arguments[1], place)
        return AggregateResult({name: quantile(texts[0], share, where=where)}, out)
    if call.function in _BY_ANOTHER:
        _check_arguments(call, 2, place)
        return AggregateResult({name: _BY_ANOTHER[call.function](texts[0], by=texts[1], where=where)}, out)
    _check_arguments(call, 1, place)
    declare = _OF_ONE[call.function]
    if call.distinct and call.function not in _DISTINCT_IS_THE_SAME:
        if call.function not in _OF_DIFFERENT:
            raise place.error(
                call.tree,
                f"{call.function.upper()}(DISTINCT …) cannot be had over streams",
                expected="COUNT, SUM or AVG of DISTINCT values, or no DISTINCT",
                next_move=f"{call.function.upper()}(x) FROM (SELECT DISTINCT …, x FROM …)",
            )
        declare = _OF_DIFFERENT[call.function]
    aggs = {name: declare(texts[0], where=where)}
    if call.function == "sum" and (where is not None or may_be_null(relation, call.arguments[0])):
        some = free(f"{name}_values")
        aggs[some] = count(where=_both(where, f"({texts[0]}) IS NOT NULL"))
        return AggregateResult(aggs, f"(CASE WHEN {quote_name(some)} > 0 THEN {out} END)")
    return AggregateResult(aggs, out)


def _counted(
    call: AggregateCall, texts: list[str], where: str | None, name: str, relation: Relation, place: QueryPlace,
    free: Callable[[str], str],
) -> AggregateResult:  # fmt: skip
    """COUNT and its like: conditions on rows that are counted."""
    out = quote_name(name)
    if call.function == "approx_count_distinct" or (call.function == "count" and call.distinct):
        if not texts:
            raise place.error(call.tree, "COUNT(DISTINCT …) takes values", expected="COUNT(DISTINCT a, b)")
        if len(texts) > 1:
            # Rows with a null among their values are not counted.
            for text in texts:
                where = _both(where, f"({text}) IS NOT NULL")
            texts = [_as_one(texts, relation)]
        return AggregateResult({name: count_distinct(texts[0], where=where)}, out)
    if call.function == "count":
        for text in texts:
            where = _both(where, f"({text}) IS NOT NULL")
        return AggregateResult({name: count(where=where)}, out)
    _check_arguments(call, 1, place)
    if call.distinct and call.function == "count_if":
        raise place.error(
            call.tree, "COUNT_IF(DISTINCT …) cannot be had over streams", expected="COUNT_IF(x)",
            next_move="COUNT(DISTINCT x) FILTER (WHERE x) counts values that are true",
        )  # fmt: skip
    if call.function == "count_if":
        return AggregateResult({name: count(where=_both(where, f"({texts[0]})"))}, out)
    every = call.function in ("bool_and", "every")
    counted = {name: count(where=_both(where, f"NOT ({texts[0]})" if every else f"({texts[0]})"))}
    answer = f"({out} = 0)" if every else f"({out} > 0)"
    if where is None and not may_be_null(relation, call.arguments[0]):
        return AggregateResult(counted, answer)
    some = free(f"{name}_values")
    counted[some] = count(where=_both(where, f"({texts[0]}) IS NOT NULL"))
    return AggregateResult(counted, f"(CASE WHEN {quote_name(some)} > 0 THEN {answer} END)")


def _as_one(texts: list[str], relation: Relation) -> str:
    """Several values as one text that no other values give: each behind its length."""
    parts = []
    for text in texts:
        kind = infer(text, relation.stream.node.codec.schema)
        # Zero and its opposite are one value, and two texts.
        plain = f"({text} + 0.0D)" if kind is not None and pa.types.is_floating(kind) else text
        written = f"CAST({plain} AS STRING)"
        parts.append(f"CAST(length({written}) AS STRING), ':', {written}")
    return f"concat({', '.join(parts)})"


def _both(one: str | None, two: str) -> str:
    return two if one is None else f"({one}) AND {two}"


def _check_arguments(call: AggregateCall, wanted: int, place: QueryPlace) -> None:
    from sqlglot import exp

    if len(call.arguments) != wanted or any(isinstance(each, exp.Star) for each in call.arguments):
        near = nearest(call.function, NAMES)
        raise place.error(
            call.tree,
            f"{call.function.upper()} takes {'one argument' if wanted == 1 else f'{wanted} arguments'}",
            expected=f"{call.function.upper()}({'x' if wanted == 1 else 'x, y'})",
            next_move=f"did you mean {' or '.join(near)}?" if near and near[0] != call.function else "",
        )


def _share(tree: Any, place: QueryPlace) -> float:
    from sqlglot import exp

    while isinstance(tree, exp.Cast | exp.Paren):
        tree = tree.this
    if isinstance(tree, exp.Literal) and not tree.is_string and 0 <= float(tree.this) <= 1:
        return float(tree.this)
    raise place.error(tree, "the share of a percentile is a number from 0 to 1", expected="PERCENTILE_APPROX(x, 0.99)")


def may_be_null(relation: Relation, tree: Any) -> bool:
    """Whether an expression may be null, as far as its columns and signs tell."""
    from sqlglot import exp

    if isinstance(tree, exp.Column) and not isinstance(tree.this, exp.Star):
        found = lookup(relation, column_path(tree))
        if isinstance(found, list) or found[1]:
            return True
        fields = {quote_name(name): name for name in relation.fields}
        name = fields.get(found[0].text)
        return name is None or split_optional(relation.stream.node.codec.annotations[name])[1]
    if isinstance(tree, exp.Literal):
        return False
    if isinstance(tree, exp.Add | exp.Sub | exp.Mul | exp.Neg | exp.Paren):
        return any(may_be_null(relation, part) for part in tree.iter_expressions())
    return True
