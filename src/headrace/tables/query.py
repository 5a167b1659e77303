"""Queries become streams: the door to the lowering, for `App.sql` and for statements."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import UnionType
from typing import TYPE_CHECKING, Any

from headrace.dataflow.asynchronous import answer_type, request_plan
from headrace.dataflow.naming import check_name
from headrace.dataflow.stream import Stream
from headrace.errors import ProgramError
from headrace.model.requests import AsyncFunction
from headrace.tables.catalog import Catalog, Table, catalog_of, time_column
from headrace.tables.clauses import check_clauses
from headrace.tables.context import QueryContext
from headrace.tables.dialect import ParsedStatement, parse_query
from headrace.tables.lookup_joins import LookupTable, lookup_of
from headrace.tables.lowering import lower, settled
from headrace.tables.scope import AtTree, QueryPlace
from headrace.tables.steps import QuerySteps, QueryStream

if TYPE_CHECKING:
    from headrace.dataflow.app_graph import AppGraph
    from headrace.dataflow.site import Site


def lower_query(
    app: AppGraph, query: ParsedStatement, catalog: Catalog, *, name: str | None = None, at: Site,
    tables: Mapping[str, Any] | None = None,
) -> QueryStream:  # fmt: skip
    """The stream of a query. ``name`` is the identity of what it keeps; it may be given later, by ``.named``."""
    given = {key.lower(): _table_of(key, stream) for key, stream in (tables or {}).items()}
    steps = QuerySteps()
    place = QueryPlace(query, at)
    check_clauses(place, query.tree)
    ctx = QueryContext(app, catalog, place, steps, lower, given)
    before = set(app.nodes)
    relation = settled(ctx, lower(ctx, query.tree), query.tree)
    for node in set(app.nodes) - before - {relation.stream.node}:
        node.inner = True
    stream = QueryStream(app, relation.stream.node, steps)
    if name is not None:
        stream.name_steps(check_name(name, "a query", str(at)), None, at)
    return stream


def run_sql(
    app: AppGraph, first: Any, second: Any, name: str | None, tables: Mapping[str, Any], at: Site
) -> QueryStream:
    """What ``app.sql`` gives for its arguments: a query, or a type and a query."""
    into, text = _asked(first, second, at)
    tables = _asked_tables(tables, at)
    _check_tables(app, tables, at)
    query = parse_query(text, where=str(at))
    stream = lower_query(app, query, catalog_of(app), name=name if into is None else None, at=at, tables=tables)
    if into is None:
        return stream
    with AtTree(QueryPlace(query, at), query.tree):
        typed = QueryStream(app, stream.select(into).node, stream.steps)
    if name is not None:
        typed.name_steps(check_name(name, "a query", str(at)), None, at)
    return typed


def _asked(first: Any, second: Any, at: Site) -> tuple[Any, str]:
    if isinstance(first, str) and second is None:
        return None, first
    if isinstance(first, type | UnionType) and isinstance(second, str):
        return first, second
    raise ProgramError(
        "sql takes a query, and a type before it where the result has one",
        where=str(at),
        expected='app.sql("SELECT …"), or app.sql(Total, "SELECT …")',
        found=f"sql({first!r:.60}{'' if second is None else f', {second!r:.60}'})",
    )


def _check_tables(app: AppGraph, tables: Mapping[str, Any], at: Site) -> None:
    for key, stream in tables.items():
        if isinstance(stream, LookupTable):
            continue
        if not isinstance(stream, Stream) or stream.app is not app:
            raise ProgramError(
                f"the table {key!r} is no stream of this app",
                where=str(at),
                expected='a stream: app.sql("SELECT … FROM orders", orders=orders)',
                found=repr(stream),
                next_move="give the stream itself; a key is named in the query: GROUP BY, JOIN … ON",
            )


def _asked_tables(tables: Mapping[str, Any], at: Site) -> dict[str, Any]:
    """What was given with a query, with functions that await as tables that can be asked."""
    given = dict(tables)
    for key, fn in tables.items():
        if isinstance(fn, AsyncFunction) or inspect.iscoroutinefunction(fn):
            request_plan("lookup", fn, at, capacity=1, timeout="10s", retry=None)
            given[key] = lookup_of(key, fn, answer_type(fn, verb="lookup", given=None, at=at, optional=True))
    return given


def _table_of(key: str, stream: Any) -> Any:
    if isinstance(stream, LookupTable):
        return stream
    return Table(key, stream, time_column(stream.node))
