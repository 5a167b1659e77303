"""Functions of Python in SQL: ``CREATE FUNCTION usd AS 'shop:usd'``, and what a call of one becomes.

A call becomes a column: its arguments are computed by expressions, the function is called for the rows of a batch
behind them, and the query reads the result as any column. So a function sees what a Python step sees, and the rows
that WHERE left out are never given to it. A function of a row takes values and gives one; with ``Annotated[pa.Array,
float]`` as its return type it takes and gives whole columns.

Aggregates of the user are in `headrace.tables.python_aggregates`, functions that yield rows in
`headrace.tables.table_functions`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, get_args, get_origin

import pyarrow as pa

from headrace.aggregates.declare import Aggregator
from headrace.errors import ProgramError
from headrace.model.hints import function_hints
from headrace.model.record import row_type
from headrace.model.shapes import column_of, union_members
from headrace.sql.expr import quote_name
from headrace.sql.functions import FUNCTIONS
from headrace.tables.aggregate_calls import NAMES, aggregates_in
from headrace.tables.context import QueryContext, free_name
from headrace.tables.dialect import is_call, render
from headrace.tables.python_aggregates import PythonAggregate, read_aggregate
from headrace.tables.scope import AtTree, Relation, ScopeColumn, expression_sql
from headrace.tables.table_functions import PythonTableFunction, read_table_function, yielded_type

Refusal = Callable[..., ProgramError]
CALLS: Final = "python_calls"
"""What stands in front of the columns that calls became: no star shows them, and no name of a query meets them."""


@dataclass(frozen=True)
class PythonFunction:
    """A function that queries can call."""

    name: str
    fn: Callable[..., Any]
    result: Any
    """The type of what it gives; None is always possible."""
    columnar: bool
    """Whether it takes and gives Arrow arrays."""


def read_function(name: str, fn: Any, error: Refusal) -> PythonFunction | PythonAggregate | PythonTableFunction:
    """Looks at what CREATE FUNCTION names. ``error(what, expected=…, next_move=…)`` makes what is raised."""
    if name.lower() in FUNCTIONS or name.lower() in NAMES:
        raise error(
            f"{name} is a function of SQL already", expected="a name of its own", next_move=f"my_{name.lower()}"
        )
    if (isinstance(fn, type) and issubclass(fn, Aggregator)) or isinstance(fn, Aggregator):
        return read_aggregate(name, fn, error)
    if not callable(fn) or isinstance(fn, type):
        raise error(f"{name} is no function", expected="a function that gives a value for each row")
    try:
        returned = function_hints(fn).get("return")
    except NameError as unknown:
        raise error(f"an annotation of {name} contains an unknown name", expected=str(unknown)) from unknown
    if (yielded := yielded_type(fn, returned)) is not None:
        return read_table_function(name, fn, yielded, error)
    if returned is None:
        raise error(
            f"the type that {name} gives is not known", expected=f"def {name}(…) -> float: …",
            next_move="annotate what it returns",
        )  # fmt: skip
    if get_origin(returned) is Annotated and get_args(returned)[0] is pa.Array:
        return PythonFunction(name, fn, get_args(returned)[1] | None, True)
    if returned is pa.Array:
        raise error(f"the type of the values that {name} gives is not known", expected="-> Annotated[pa.Array, float]")
    return PythonFunction(name, fn, returned if type(None) in union_members(returned) else returned | None, False)


@dataclass(frozen=True)
class PythonCall:
    """One call in a query."""

    function: PythonFunction
    arguments: tuple[str, ...]
    """The columns that hold them."""
    result: str
    """The column that it fills."""


@dataclass(frozen=True)
class PythonCalls:
    """What `map_batches` calls: fills the columns of calls, and leaves those of their arguments out."""

    calls: tuple[PythonCall, ...]
    row: Any
    """The type of the rows that come in."""
    kept: tuple[str, ...]
    """The columns that go on."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        from headrace.model.rows import codec_of

        columns = codec_of(self.row).columns
        filled = {name: batch.column(name) for name in self.kept}
        for call in self.calls:
            arrays = [batch.column(name) for name in call.arguments]
            target = column_of(call.function.result)
            if call.function.columnar:
                given = call.function.fn(*arrays)
                filled[call.result] = pa.array(given) if not isinstance(given, pa.Array) else given
                filled[call.result] = filled[call.result].cast(target.arrow)
                continue
            values = [columns[name].decode(array) for name, array in zip(call.arguments, arrays, strict=True)]
            rows = zip(*values, strict=True) if values else iter([()] * batch.num_rows)
            filled[call.result] = target.encode([call.function.fn(*row) for row in rows])
        return pa.RecordBatch.from_pydict(filled)


def with_calls(ctx: QueryContext, relation: Relation, tree: Any) -> tuple[Relation, Any]:
    """The relation with a column for each call in a part of a query, and that part with columns in their place."""
    functions = {name: each for name, each in ctx.catalog.functions.items() if isinstance(each, PythonFunction)}
    if not functions or next(_calls(tree, functions), None) is None:
        return relation, tree
    tree = tree.copy()
    while waves := [call for call in _calls(tree, functions) if next(_inner(call, functions), None) is None]:
        relation, names = _computed(ctx, relation, waves, functions)
        for call, name in zip(waves, names, strict=True):
            column = _column(name, call)
            if call is tree:
                return relation, column
            call.replace(column)
    return relation, tree


def _calls(tree: Any, functions: dict[str, PythonFunction]) -> Iterator[Any]:
    """The calls in a part of a query, of a SELECT those outside of FROM and WHERE; queries inside it have their own."""
    from sqlglot import exp

    if is_call(tree, *functions) and next(aggregates_in(tree), None) is None:
        # What is called with results of groups is called behind them.
        yield tree
    for child in tree.iter_expressions():
        if not isinstance(child, exp.Query | exp.From | exp.Join | exp.Where | exp.With):
            yield from _calls(child, functions)


def _inner(call: Any, functions: dict[str, PythonFunction]) -> Iterator[Any]:
    for argument in call.expressions:
        yield from _calls(argument, functions)


def _column(name: str, call: Any) -> Any:
    from sqlglot import exp

    column = exp.column(name, table=CALLS, quoted=True)
    starts = [node.meta["start"] for node in call.walk() if "start" in node.meta]
    if starts:
        column.this.meta["start"] = min(starts)
    return column


def _computed(
    ctx: QueryContext, relation: Relation, trees: list[Any], functions: dict[str, PythonFunction]
) -> tuple[Relation, list[str]]:
    """The relation with the results of calls, and the name of each of them; calls that are the same are made once."""
    fields = relation.fields
    texts: dict[str, str] = {}
    calls: dict[str, PythonCall] = {}
    names = []
    for tree in trees:
        known = calls.get(render(tree))
        if known is None:
            function = functions[str(tree.this).lower()]
            _check_arguments(ctx, function, tree)
            taken = [*fields, *texts, *(call.result for call in calls.values())]
            arguments = [free_name(f"{function.name.lower()}_argument_{i}_{len(calls)}", taken)
                         for i in range(len(tree.expressions))]  # fmt: skip
            for name, argument in zip(arguments, tree.expressions, strict=True):
                texts[name] = expression_sql(relation, argument, ctx.place)
            known = PythonCall(function, tuple(arguments), free_name(f"{function.name.lower()}_result", taken))
            calls[render(tree)] = known
        names.append(known.result)
    with AtTree(ctx.place, trees[0]):
        stream = relation.stream.with_columns(**texts) if texts else relation.stream
        taken_codec, given_codec = stream.node.codec, relation.stream.node.codec
        annotations = {name: given_codec.annotations[name] for name in fields}
        out = row_type("Row", {**annotations, **{call.result: call.function.result for call in calls.values()}})
        run = PythonCalls(tuple(calls.values()), taken_codec.type, tuple(fields))
        stream = stream.map_batches(run, out, form="arrow")
    results = tuple(ScopeColumn(CALLS, call.result, quote_name(call.result), hidden=True) for call in calls.values())
    return relation.over(stream, results), names


def _check_arguments(ctx: QueryContext, function: PythonFunction, tree: Any) -> None:
    try:
        inspect.signature(function.fn).bind(*tree.expressions)
    except (TypeError, ValueError) as error:
        raise ctx.place.error(
            tree,
            f"{function.name} is called with {len(tree.expressions)} arguments",
            expected=f"{function.name}{inspect.signature(function.fn)}",
            next_move=str(error),
        ) from None
