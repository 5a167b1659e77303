"""Relations: a stream while a query is lowered, with the names by which the query knows its columns.

A column of a relation is an expression over the fields of its stream, mostly just one field. Names are found without
regard to case, as Spark does; a name that two tables have needs its table in front.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from headrace.dataflow.stream import Stream
from headrace.errors import HeadraceError, ProgramError
from headrace.model.nearest import nearest
from headrace.sql.expr import check, quote_name
from headrace.sql.parse import column_path
from headrace.tables.dialect import ParsedStatement, render
from headrace.tables.flink_functions import in_words_of_spark

if TYPE_CHECKING:
    from headrace.dataflow.site import Site
    from headrace.windows.kinds import Assigner

WINDOW_TIME: Final = "window_time"
"""The last instant of a window: the event time of its result."""
Part = Callable[[Any], Any]


@dataclass(frozen=True)
class ScopeColumn:
    """One column as a query names it."""

    table: str
    """The name or alias of its table; empty where it has none."""
    name: str
    text: str
    """SQL over the fields of the relation's stream; empty for a bound of a window that rows are not in yet."""
    role: str = ""
    """``window_start``, ``window_end`` or ``window_time``, where it is such a bound."""
    hidden: bool = False
    """Whether it is found with its table in front only, because another column stands for both (JOIN … USING)."""


@dataclass(frozen=True)
class Relation:
    """Rows, and what a query calls their columns."""

    stream: Stream[Any]
    columns: tuple[ScopeColumn, ...]
    time: str | None = None
    """The text of the column that holds the event time of the rows, where one does."""
    assigner: Assigner | None = None
    """Windows that the rows are to be put in: columns with a role say which bound of them they are."""
    session_keys: tuple[str, ...] = ()
    """Fields by which sessions of ``assigner`` are kept apart."""
    closed: tuple[str, str] | None = None
    """The texts of start and end of the window that a row is a result of, where the end of it is its time."""
    clocks: frozenset[str] = frozenset()
    """Names that stand for the wall clock, in small letters (`headrace.tables.wall_clock`)."""
    fires: bool = False
    """Whether all rows of such a window come at once, when it closes."""

    @property
    def fields(self) -> list[str]:
        return list(self.stream.node.codec.names)

    def named(self, alias: str, names: Sequence[str] = ()) -> Relation:
        """The same rows under another name, and their columns under other names where some are given."""
        renamed = [
            replace(column, table=alias, name=names[i] if i < len(names) else column.name)
            for i, column in enumerate(self.columns)
        ]
        return replace(self, columns=tuple(renamed))

    def over(self, stream: Stream[Any], more: tuple[ScopeColumn, ...] = ()) -> Relation:
        """The same columns, and some more, over a stream that has their fields."""
        return replace(self, stream=stream, columns=(*self.columns, *more))


def relation_of(
    stream: Stream[Any], table: str, time: str | None = None, closed: tuple[str, str] | None = None
) -> Relation:
    """The columns of a stream, under the name of a table; ``time`` and ``closed`` are names of columns."""
    names = stream.node.codec.names
    columns = [ScopeColumn(table, name, quote_name(name)) for name in names]
    time_sql = None if time is None else quote_name(time)
    bounds = None if closed is None else (quote_name(closed[0]), quote_name(closed[1]))
    if bounds is not None and WINDOW_TIME not in names:
        time_sql = window_time_sql(bounds[1])
        columns.append(ScopeColumn(table, WINDOW_TIME, time_sql))
    return Relation(stream, tuple(columns), time_sql, closed=bounds, fires=bounds is not None)


def window_time_sql(end: str) -> str:
    """The last instant of a window, by the text of its end."""
    return f"({end} - INTERVAL '0.000001' SECOND)"


# --- mistakes, at their place


@dataclass(frozen=True)
class QueryPlace:
    """Where a query stands: in the program, and in a text."""

    statement: ParsedStatement
    site: Site

    def error(self, tree: Any, what: str, *, expected: str = "", next_move: str = "", kind: Any = ProgramError) -> Any:
        """An error that points at the first character of a part of the query."""
        at = self.statement.place(tree)
        where = self.statement.where(at, str(self.site))
        error = kind(what, where=where, expected=expected, found=self.statement.point(at), next_move=next_move)
        # It has its place, which nobody around it knows better.
        error.in_query = True
        return error

    def moved(self, error: HeadraceError, tree: Any) -> HeadraceError:
        """An error of a step, pointing at the part of the query that asked for the step."""
        if not getattr(error, "in_query", False):
            at = self.statement.place(tree)
            error.where = self.statement.where(at, str(self.site))
            detail = f" ({error.found})" if error.found and "\n" not in error.found else ""
            error.what = f"{error.what}{detail}"
            error.found = self.statement.point(at)
            error.in_query = True  # type: ignore[attr-defined]
        return error


class AtTree:
    """Errors raised inside point at a part of the query: ``with AtTree(place, tree): …``."""

    def __init__(self, place: QueryPlace, tree: Any) -> None:
        self._place, self._tree = place, tree

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, HeadraceError):
            self._place.moved(error, self._tree)


# --- names of columns


def find_column(relation: Relation, tree: Any, place: QueryPlace) -> tuple[ScopeColumn, tuple[str, ...]]:
    """The column that a name stands for, and the path into it."""
    found = lookup(relation, column_path(tree))
    if isinstance(found, list):
        raise _unknown(relation, tree, found, place)
    return found


def lookup(relation: Relation, path: tuple[str, ...]) -> tuple[ScopeColumn, tuple[str, ...]] | list[ScopeColumn]:
    """The column of a path of names, with the rest of the path; or the columns it could be, if not just one."""
    low = [part.lower() for part in path]
    if len(path) > 1:
        of_table = [c for c in relation.columns if c.table.lower() == low[0] and c.name.lower() == low[1]]
        if len(of_table) == 1:
            return of_table[0], path[2:]
        if any(c.table.lower() == low[0] for c in relation.columns):
            return of_table
    same = [c for c in relation.columns if c.name.lower() == low[0] and not c.hidden]
    if len(same) > 1:
        exact = [c for c in same if c.name == path[0]]
        same = exact if len(exact) == 1 else same
    return (same[0], path[1:]) if len(same) == 1 else same


def _unknown(relation: Relation, tree: Any, could_be: Iterable[ScopeColumn], place: QueryPlace) -> Any:
    path = column_path(tree)
    name = ".".join(path)
    choices = [f"{c.table}.{c.name}" if c.table else c.name for c in could_be]
    if choices:
        return place.error(
            tree,
            f"{name} could be {' or '.join(choices)}",
            expected="the name of its table in front",
            next_move=f"write {choices[0]}",
        )
    tables = sorted({c.table for c in relation.columns if c.table})
    known = list(dict.fromkeys(c.name for c in relation.columns))
    if len(path) > 1 and path[0].lower() in [each.lower() for each in tables]:
        known = [c.name for c in relation.columns if c.table.lower() == path[0].lower()]
    close = nearest(path[-1], known)
    listed = ", ".join(known[:12]) + (" …" if len(known) > 12 else "")
    return place.error(
        tree,
        f"there is no column {name!r}",
        expected=f"one of {listed}",
        next_move=f"did you mean {' or '.join(close)}?" if close else "name a column of a table in FROM",
    )


# --- expressions


def expression_sql(relation: Relation, tree: Any, place: QueryPlace, part: Part | None = None) -> str:
    """The text of an expression over the fields of a relation's stream, checked.

    ``part`` is asked first for each part of the tree: it gives the text that stands for it, or None.
    """
    text = rendered(relation, tree, place, part)
    with AtTree(place, tree):
        check(text, relation.stream.node.codec.schema, str(place.site))
    return text


def rendered(relation: Relation, tree: Any, place: QueryPlace, part: Part | None = None) -> str:
    """The same, not checked."""
    return render(_substituted(relation, tree, place, part))


def _substituted(relation: Relation, tree: Any, place: QueryPlace, part: Part | None) -> Any:
    from sqlglot import exp

    def fields_for(node: Any) -> Any:
        if part is not None and (text := part(node)) is not None:
            return exp.Var(this=text)
        if isinstance(node, exp.Query | exp.Exists):
            raise place.error(
                node,
                "a query cannot stand here",
                expected="an expression over the columns of one row",
                next_move="queries stand in WHERE, HAVING and the select list; compute the value in a query in FROM",
            )
        if isinstance(node, exp.Column):
            return _field(relation, node, place)
        return node

    return in_words_of_spark(tree.copy()).transform(fields_for, copy=False)


def _field(relation: Relation, node: Any, place: QueryPlace) -> Any:
    from sqlglot import exp

    if isinstance(node.this, exp.Star):
        raise place.error(node, "* cannot stand here", expected="the name of a column")
    column, rest = find_column(relation, node, place)
    if not column.text:
        raise place.error(node, f"{column.name} cannot be used here", expected="a column of the table itself")
    text = column.text + "".join(f".{quote_name(part)}" for part in rest)
    return exp.Var(this=text)


def bare_field(relation: Relation, tree: Any, place: QueryPlace) -> str | None:
    """The field that an expression is nothing but the name of."""
    from sqlglot import exp

    while isinstance(tree, exp.Paren):
        tree = tree.this
    if not isinstance(tree, exp.Column) or isinstance(tree.this, exp.Star):
        return None
    column, rest = find_column(relation, tree, place)
    fields = {quote_name(name): name for name in relation.fields}
    return None if rest else fields.get(column.text)


def conjuncts(tree: Any) -> list[Any]:
    """The conditions that AND joins."""
    from sqlglot import exp

    if isinstance(tree, exp.Paren):
        inner = conjuncts(tree.this)
        return inner if len(inner) > 1 else [tree]
    if isinstance(tree, exp.And):
        return [*conjuncts(tree.this), *conjuncts(tree.expression)]
    return [tree]
