"""``PROCTIME()``: columns that stand for the wall clock. They hold nothing; windows over one go by the clock.

Such a column is no column of the rows. It is a name that a relation carries along, through select lists and views,
until a window function asks for it.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.sql.parse import column_path
from headrace.tables.dialect import is_call
from headrace.tables.scope import Relation, lookup

PROCTIME: Final = "proctime"


def is_clock(relation: Relation, tree: Any) -> bool:
    """Whether a part of a query is a name of the wall clock, or PROCTIME() itself."""
    from sqlglot import exp

    if is_call(tree, PROCTIME) and not tree.expressions:
        return True
    if not isinstance(tree, exp.Column) or isinstance(tree.this, exp.Star):
        return False
    path = column_path(tree)
    return path[-1].lower() in relation.clocks and isinstance(lookup(relation, path), list)


def without_clocks(relation: Relation, select: Any) -> tuple[Any, frozenset[str]]:
    """A SELECT without what it gives of the wall clock, and the names under which it gives that."""
    from sqlglot import exp

    names: set[str] = set()
    kept = []
    for tree in select.expressions:
        value = tree.this if isinstance(tree, exp.Alias) else tree
        if is_clock(relation, value):
            names.add((tree.alias or value.name or PROCTIME).lower())
            continue
        if isinstance(tree, exp.Star) or (isinstance(tree, exp.Column) and isinstance(tree.this, exp.Star)):
            names |= relation.clocks
        kept.append(tree)
    if len(kept) == len(select.expressions):
        return select, frozenset(names)
    rest = select.copy()
    rest.set("expressions", [tree.copy() for tree in kept])
    return rest, frozenset(names)
