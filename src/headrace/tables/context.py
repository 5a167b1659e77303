"""What the lowering of one query carries along: its app, its place in the text, its steps, the tables it can read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from headrace.tables.scope import QueryPlace, Relation
from headrace.tables.steps import QuerySteps

if TYPE_CHECKING:
    from headrace.dataflow.app_graph import AppGraph
    from headrace.tables.catalog import Catalog
    from headrace.tables.dialect import ParsedStatement


_NO_TABLES: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True)
class QueryContext:
    """Handed to every part of the lowering; never changed, but for the steps that are collected in it."""

    app: AppGraph
    catalog: Catalog
    place: QueryPlace
    steps: QuerySteps
    lower: Callable[[QueryContext, Any], Relation]
    """Makes the relation of a query inside this one."""
    tables: Mapping[str, Any] = field(default_factory=dict)
    """Tables of this query alone: what was given with it and what WITH names, by their names in small letters."""
    ranks: Mapping[str, int] = field(default_factory=dict)
    """For the select list that is lowered next: up to which number the outer query wants rows, by column."""
    ttls: Mapping[str, Any] = field(default_factory=dict)
    """What hints of the SELECT at hand say of joins, by table (`headrace.tables.hints`)."""
    emits: Mapping[str, str] = field(default_factory=dict)
    """When windows of the SELECT at hand give results beside the one at their end: ``early``, ``allow_late``."""
    views: tuple[str, ...] = ()
    """The views that this query stands in, outermost first."""
    lowered: dict[Any, Any] = field(default_factory=dict)
    """The relations of queries that were lowered before: the same query over the same tables is made once."""

    def with_tables(self, more: Mapping[str, Any]) -> QueryContext:
        return replace(self, tables={**self.tables, **more})

    def of_view(self, name: str, statement: ParsedStatement) -> QueryContext:
        """The context of a view: its text, and no table but those of the catalog."""
        place = QueryPlace(statement, self.place.site)
        return replace(self, place=place, tables=_NO_TABLES, ranks={}, views=(*self.views, name))


def free_name(stem: str, taken: Any) -> str:
    """A name that is not among these: the stem, or the stem with a number behind it."""
    low = {name.lower() for name in taken}
    if stem.lower() not in low:
        return stem
    number = 2
    while f"{stem}_{number}".lower() in low:
        number += 1
    return f"{stem}_{number}"
