"""Table functions of Python in SQL: ``LATERAL TABLE(words(t.text)) AS w(word)``, a function that yields rows.

It is called for each row, with values of its columns, and each row that it yields stands beside that one. What it
yields are Records, whose fields are the columns, or plain values, which are one column.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args, get_origin

import pyarrow as pa

from headrace.model.expansion import SOURCE_ROW
from headrace.model.record import Record, row_type
from headrace.model.rows import codec_of
from headrace.model.shapes import column_of
from headrace.sql.expr import quote_name
from headrace.tables.context import QueryContext, free_name
from headrace.tables.scope import AtTree, Relation, ScopeColumn, expression_sql

_YIELDING = (Iterator, Iterable, Generator)


@dataclass(frozen=True)
class PythonTableFunction:
    """A function that yields rows."""

    name: str
    fn: Callable[..., Iterable[Any]]
    columns: tuple[tuple[str, Any], ...]
    """Names and types of what it yields."""
    of_records: bool


def yielded_type(fn: Any, returned: Any) -> Any:
    """The type of what a function yields, as its annotation says it; None: it does not yield."""
    origin = get_origin(returned)
    if inspect.isgeneratorfunction(inspect.unwrap(fn)) or origin in _YIELDING:
        return get_args(returned)[0] if get_args(returned) else Any
    return None


def read_table_function(name: str, fn: Any, yielded: Any, error: Any) -> PythonTableFunction:
    """Looks at a function that yields."""
    if yielded is Any:
        raise error(
            f"what {name} yields is not known", expected=f"def {name}(…) -> Iterator[Word]: …",
            next_move="annotate what it yields: a Record, or a plain type",
        )  # fmt: skip
    if isinstance(yielded, type) and issubclass(yielded, Record):
        annotations = codec_of(yielded).annotations
        return PythonTableFunction(name, fn, tuple(annotations.items()), True)
    return PythonTableFunction(name, fn, ((name.lower(), yielded),), False)


@dataclass(frozen=True)
class RowsOfFunction:
    """What `map_batches` calls: each row beside each row that the function yields for it."""

    function: PythonTableFunction
    row: Any
    """The type of the rows that come in."""
    kept: tuple[str, ...]
    """The columns that go on."""
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    outer: bool
    """Whether a row stays for which nothing is yielded."""

    def __call__(self, batch: pa.RecordBatch) -> pa.Table:
        columns = codec_of(self.row).columns
        values = [columns[name].decode(batch.column(name)) for name in self.arguments]
        given = zip(*values, strict=True) if values else iter([()] * batch.num_rows)
        places: list[int] = []
        rows: list[Any] = []
        for place, arguments in enumerate(given):
            found = list(self.function.fn(*arguments))
            if not found and self.outer:
                found = [None]
            places += [place] * len(found)
            rows += found
        taken = batch.select(list(self.kept)).take(pa.array(places, pa.int64()))
        table = pa.Table.from_batches([taken])
        for (name, kind), result in zip(self.function.columns, self.results, strict=True):
            parts = [None if row is None else getattr(row, name) if self.function.of_records else row for row in rows]
            table = table.append_column(result, column_of(kind | None).encode(parts))
        return table.append_column(SOURCE_ROW, pa.array(places, pa.int64()))


def with_rows_of(
    ctx: QueryContext, relation: Relation, function: PythonTableFunction, call: Any, alias: Any, *, outer: bool
) -> Relation:
    """Each row beside each row that a call yields for it. ``alias``: what the columns are called."""
    place = ctx.place
    _check_arguments(ctx, function, call)
    names = [each.name for each in (alias.columns if alias is not None else ())]
    if len(names) > len(function.columns):
        raise place.error(
            call, f"{function.name} yields {len(function.columns)} columns",
            expected=", ".join(name for name, _ in function.columns),
        )  # fmt: skip
    table = alias.name if alias is not None else ""
    names += [name for name, _ in function.columns][len(names) :]
    texts: dict[str, str] = {}
    for number, argument in enumerate(call.expressions):
        name = free_name(f"{function.name.lower()}_argument_{number}", [*relation.fields, *texts])
        texts[name] = expression_sql(relation, argument, place)
    results = _free_names(names, relation.fields)
    with AtTree(place, call):
        stream = relation.stream.with_columns(**texts) if texts else relation.stream
        kinds = {result: kind | None for result, (_, kind) in zip(results, function.columns, strict=True)}
        out = row_type("Row", {**relation.stream.node.codec.annotations, **kinds})
        run = RowsOfFunction(
            function, stream.node.codec.type, tuple(relation.fields), tuple(texts), tuple(results), outer
        )
        stream = stream.map_batches(run, out, form="arrow")
    more = [ScopeColumn(table, name, quote_name(field)) for name, field in zip(names, results, strict=True)]
    return replace(relation, stream=stream, columns=(*relation.columns, *more))


def _free_names(names: Sequence[str], taken: Sequence[str]) -> list[str]:
    free: list[str] = []
    for name in names:
        free.append(free_name(name, [*taken, *free]))
    return free


def _check_arguments(ctx: QueryContext, function: PythonTableFunction, call: Any) -> None:
    try:
        inspect.signature(function.fn).bind(*call.expressions)
    except (TypeError, ValueError) as error:
        raise ctx.place.error(
            call, f"{function.name} is called with {len(call.expressions)} arguments",
            expected=f"{function.name}{inspect.signature(function.fn)}", next_move=str(error),
        ) from None  # fmt: skip
