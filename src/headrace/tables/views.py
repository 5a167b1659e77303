"""Views: queries under a name. A plain one keeps nothing and is made anew by each query that reads it.

A materialized view keeps the newest row of each of its keys, as a step under its name: it can be read from outside
while the program runs, and by queries. Its key is the unique key of its query, or the one that PRIMARY KEY says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.dataflow.graph import KeyedNode
from headrace.dataflow.site import Site
from headrace.dataflow.stream import Stream
from headrace.errors import ProgramError
from headrace.model.nearest import did_you_mean
from headrace.sql.expr import quote_name
from headrace.tables.catalog import Table, catalog_of, time_column
from headrace.tables.declared import in_statement
from headrace.tables.dialect import ParsedStatement
from headrace.tables.statements import CreateView

if TYPE_CHECKING:
    from headrace.tables.program import SqlProgram


def view_query(program: SqlProgram, statement: CreateView, parsed: ParsedStatement, site: Site) -> ParsedStatement:
    """The query of a view, its columns under the names that the view gives them."""
    if not statement.columns:
        return statement.query
    from sqlglot import exp

    alias = exp.TableAlias(
        this=exp.to_identifier("view_rows"), columns=[exp.to_identifier(each) for each in statement.columns]
    )
    renamed = exp.select("*").from_(exp.Subquery(this=statement.query.tree, alias=alias))
    return statement.query.part(renamed)


def materialize(program: SqlProgram, statement: CreateView, parsed: ParsedStatement, site: Site) -> None:
    """Makes the step that keeps the rows of a view."""
    name = statement.name.lower()
    for option, text in (statement.options or {}).items():
        raise _error(
            parsed, text.at, site, f"a materialized view has no option {option!r}",
            "leave WITH out; rows of windows are kept for a while in Python: .queryable(keep=…)",
        )  # fmt: skip
    rows = program.query(view_query(program, statement, parsed, site), f"{name}_rows")
    key = _key_of(statement, rows, parsed, site)
    with in_statement(parsed, parsed.offset, site):
        kept = _kept_rows(rows, key, name)
    table = Table(statement.name, kept, time_column(rows.node), tuple(key))
    catalog_of(program.app).tables[name] = table


def _kept_rows(rows: Stream[Any], key: list[str], name: str) -> Stream[Any]:
    node = rows.node
    if isinstance(node, KeyedNode) and node.op in ("aggregate", "latest") and node.kind.key == tuple(key):
        # The step of the query keeps these very rows already.
        node.name = None
        return Stream(rows.app, node).named(name).queryable()
    return rows.key_by(*map(quote_name, key)).latest().named(name).queryable()


def _key_of(statement: CreateView, rows: Stream[Any], parsed: ParsedStatement, site: Site) -> list[str]:
    names = list(rows.node.codec.names)
    low = {name.lower(): name for name in names}
    for each in statement.primary_key:
        if each.lower() not in low:
            raise _error(
                parsed, parsed.offset, site, f"the view {statement.name!r} has no column {each!r}",
                did_you_mean(each, names, f"PRIMARY KEY (…) of {', '.join(names)}"),
            )  # fmt: skip
    unique = rows.node.kind.key
    said = [low[each.lower()] for each in statement.primary_key]
    if said and unique and rows.node.kind.corrects and set(said) != set(unique):
        raise _error(
            parsed, parsed.offset, site,
            f"rows of the query replace each other by {', '.join(unique)}, not by {', '.join(said)}",
            f"PRIMARY KEY ({', '.join(unique)}), or leave it out",
        )  # fmt: skip
    if said or unique:
        return said or list(unique or ())
    raise _error(
        parsed, parsed.offset, site, f"nothing says which rows of {statement.name!r} replace each other",
        f"say it: CREATE MATERIALIZED VIEW {statement.name} PRIMARY KEY ({names[0]}) AS …",
    )  # fmt: skip


def _error(parsed: ParsedStatement, at: int, site: Site, what: str, next_move: str) -> ProgramError:
    error = ProgramError(what, where=parsed.where(at, str(site)), found=parsed.point(at), next_move=next_move)
    error.in_query = True  # type: ignore[attr-defined]
    return error
