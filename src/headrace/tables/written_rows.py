"""VALUES, and SELECT without FROM: rows that a query has written down, as a bounded source of their own.

The rows are known when the query is read: their expressions are evaluated then, and brought to common types column by
column. The source is named by what it holds, so that equal rows are one source, and other rows are read as new ones.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

import pyarrow as pa

from headrace.connectors.program.sources import WrittenRows
from headrace.dataflow.graph import ReadNode
from headrace.dataflow.stream import Stream
from headrace.errors import HeadraceError
from headrace.model.record import row_type
from headrace.model.rows import codec_of
from headrace.model.shapes import annotation_of, split_optional
from headrace.sql.evaluate.expressions import compile_exprs
from headrace.sql.expr import check, infer
from headrace.sql.types import SqlType, common_type, from_arrow
from headrace.tables.context import QueryContext
from headrace.tables.dialect import render
from headrace.tables.flink_functions import in_words_of_spark
from headrace.tables.scope import AtTree, Relation, relation_of

_NOTHING: Final = pa.schema([pa.field("one_row", pa.int64())])
"""What the expressions of VALUES can read: no column, so it has the name that nobody gives."""
_ONE_ROW: Final = pa.record_batch([pa.array([1])], schema=_NOTHING)


def written_rows(ctx: QueryContext, values: Any) -> Relation:
    """The relation of VALUES; its columns are ``col1``, ``col2``, … until somebody names them."""
    from sqlglot import exp

    cells = [list(row.expressions) if isinstance(row, exp.Tuple) else [row] for row in values.expressions]
    for row in cells[1:]:
        if len(row) != len(cells[0]):
            raise ctx.place.error(
                row[0], f"this row has {len(row)} values, and the first one {len(cells[0])}",
                expected="as many values in each row",
            )  # fmt: skip
    columns = [_column(ctx, [row[place] for row in cells]) for place in range(len(cells[0]))]
    types = {f"col{place + 1}": column[0] for place, column in enumerate(columns)}
    rows = list(zip(*(column[1] for column in columns), strict=True))
    return relation_of(_source(ctx, types, rows), "")


def one_row(ctx: QueryContext) -> Relation:
    """What SELECT without FROM reads: a row without columns that a query could name."""
    relation = relation_of(_source(ctx, {"one_row": int}, [(1,)]), "")
    return Relation(relation.stream, ())


def _source(ctx: QueryContext, types: dict[str, Any], rows: list[tuple[Any, ...]]) -> Stream[Any]:
    """The source of some rows: the one that the app has already, or a new one."""
    row = row_type("WrittenRow", types)
    digest = sha256(repr([str(codec_of(row).schema), rows]).encode()).hexdigest()[:10]
    name = f"values_{digest}"
    for node in ctx.app.nodes:
        if isinstance(node, ReadNode) and node.name == name and isinstance(node.source, WrittenRows):
            return Stream(ctx.app, node)
    app: Any = ctx.app
    stream: Stream[Any] = app.read(name, WrittenRows([row(*each) for each in rows]), row)
    return stream


def _column(ctx: QueryContext, trees: list[Any]) -> tuple[Any, list[Any]]:
    """The type of a column, and its values."""
    texts = [_text(ctx, tree) for tree in trees]
    common: SqlType | None = None
    for tree, text in zip(trees, texts, strict=True):
        kind = _kind(ctx, tree, text)
        if kind is None:
            continue
        both = kind if common is None else common_type(common, kind)
        if both is None:
            raise ctx.place.error(
                tree, f"{kind} cannot stand in a column of {common}", expected="values of one type in each column",
                next_move=f"write CAST(… AS {common})",
            )  # fmt: skip
        common = both
    wanted = str(common or "STRING")
    arrays = [_value(ctx, tree, f"CAST({text} AS {wanted})") for tree, text in zip(trees, texts, strict=True)]
    annotation = split_optional(annotation_of(arrays[0].type))[0]
    codec = codec_of(row_type("Cell", {"cell": annotation | None}))
    values = [codec.to_objects([array])[0].cell for array in arrays]
    return annotation | None if None in values else annotation, values


def _text(ctx: QueryContext, tree: Any) -> str:
    from sqlglot import exp

    if (inner := tree.find(exp.Column, exp.Query)) is not None:
        raise ctx.place.error(
            inner, "rows that are written down read no table", expected="literals, and expressions over them",
            next_move="SELECT … FROM the table; UNION ALL puts both together",
        )  # fmt: skip
    return render(in_words_of_spark(tree.copy()))


def _kind(ctx: QueryContext, tree: Any, text: str) -> SqlType | None:
    """The type of a value; None of null, which is of any."""
    from sqlglot import exp

    if isinstance(tree, exp.Null):
        return None
    with AtTree(ctx.place, tree):
        check(text, _NOTHING, str(ctx.place.site))
        found = infer(text, _NOTHING)
    if found is None:
        raise ctx.place.error(
            tree, "what this is cannot be known before the program runs", expected="literals, and functions of them",
            next_move="compute it in the query that reads these rows",
        )  # fmt: skip
    return from_arrow(found)


def _value(ctx: QueryContext, tree: Any, text: str) -> pa.Array:
    where = str(ctx.place.site)
    kind = infer(text, _NOTHING)
    assert kind is not None, "the type was known before it was cast"
    try:
        batch = compile_exprs({"value": text}, _NOTHING, pa.schema([pa.field("value", kind)]), where)(_ONE_ROW)
    except HeadraceError as error:
        raise ctx.place.moved(error, tree) from None
    return batch.column("value")
