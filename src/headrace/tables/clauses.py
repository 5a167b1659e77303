"""What of a query's tree the lowering reads, and the refusal of everything else.

The parser knows the clauses of many databases. A clause that no module here lowers would be dropped without a word and
the answer be another one, so for each kind of node that makes up a query the parts are listed that are lowered; any
other part that is set is refused at its character. A part that is lowered from now on is added here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from headrace.tables.scope import QueryPlace

_QUERY: Final = ("with_", "order", "limit", "offset")
_LOWERED: Final[dict[str, frozenset[str]]] = {
    name: frozenset(parts)
    for name, parts in {
        "Select": (
            *_QUERY, "expressions", "distinct", "from_", "match", "laterals", "joins", "where", "group", "having",
            "qualify", "windows", "hint",
        ),
        "Union": (*_QUERY, "this", "expression", "distinct"),
        "Intersect": (*_QUERY, "this", "expression", "distinct"),
        "Except": (*_QUERY, "this", "expression", "distinct"),
        "Values": ("expressions", "alias"),
        "Subquery": (*_QUERY, "this", "alias"),
        "Table": ("this", "alias", "version"),
        "Version": ("this", "kind", "expression"),
        "Join": ("this", "on", "side", "kind", "using", "method"),
        "Lateral": ("this", "view", "outer", "alias"),
        "Unnest": ("expressions", "alias", "offset"),
        "CTE": ("this", "alias", "materialized"),
        "With": ("expressions", "recursive"),
        "TableAlias": ("this", "columns"),
        "Distinct": ("expressions",),
        "Group": ("expressions", "grouping_sets", "cube", "rollup"),
        "Limit": ("expression",),
        "Fetch": ("direction", "count"),
        "LimitOptions": ("rows",),
        "Order": ("expressions",),
        "Ordered": ("this", "desc", "nulls_first"),
        "Star": ("except_",),
        "Window": ("this", "partition_by", "order", "spec", "alias", "over"),
        "WindowSpec": ("kind", "start", "start_side", "end", "end_side"),
        "Filter": ("this", "expression"),
        "In": ("this", "expressions", "query"),
        "Between": ("this", "low", "high"),
        "Cast": ("this", "to"),
        "TryCast": ("this", "to", "safe", "requires_string"),
    }.items()
}  # fmt: skip
_OWN_MEANING: Final = {("Fetch", "limit_options"), ("Limit", "limit_options"), ("Group", "all")}
"""Parts that are there though nothing was said, or that say something by being false."""

_WORDS: Final = {
    "Select.kind": "SELECT AS STRUCT",
    "Select.distribute": "DISTRIBUTE BY",
    "Select.sort": "SORT BY",
    "Select.cluster": "CLUSTER BY",
    "Select.connect": "CONNECT BY",
    "Select.locks": "FOR UPDATE",
    "Select.match": "MATCH_RECOGNIZE",
    "Table.db": "a database in front of a table",
    "Table.catalog": "a catalog in front of a table",
    "Table.hints": "a hint behind a table",
    "Table.joins": "a join in brackets",
    "Union.by_name": "UNION BY NAME",
    "Union.on": "CORRESPONDING BY",
    "Distinct.on": "DISTINCT ON",
    "Group.totals": "WITH TOTALS",
    "Limit.expressions": "LIMIT … BY",
    "LimitOptions.percent": "a percentage of rows",
    "LimitOptions.with_ties": "WITH TIES",
    "Ordered.with_fill": "WITH FILL",
    "WindowSpec.exclude": "EXCLUDE in a frame",
    "Window.first": "KEEP",
    "In.unnest": "IN UNNEST(…)",
    "Between.symmetric": "BETWEEN SYMMETRIC",
    "Join.using": "USING",
    "pivots": "PIVOT",
    "sample": "TABLESAMPLE",
    "ordinality": "WITH ORDINALITY",
    "method": "this way of joining",
    "format": "FORMAT",
    "default": "DEFAULT",
}
_INSTEAD: Final = {
    "pivots": "SUM(x) FILTER (WHERE k = 'a') AS a, … GROUP BY … gives a column for each value",
    "sample": "WHERE with a hash of a column keeps a part of the rows",
    "db": "write the name of the table alone",
    "catalog": "write the name of the table alone",
    "joins": "write the joins without brackets, or (SELECT … FROM a JOIN b ON …)",
    "by_name": "select the columns of both sides in one order",
    "replace": "* EXCEPT (a), and the new column behind it",
    "rename": "* EXCEPT (a), a AS b",
    "ilike": "name the columns",
    "sort": "ORDER BY the event time, or ORDER BY … LIMIT n",
    "distribute": "rows go to the shard of their key by themselves",
    "cluster": "rows go to the shard of their key by themselves",
    "into": "INSERT INTO x SELECT …",
    "ordinality": "CROSS JOIN UNNEST(items) AS u(item) WITH ORDINALITY",
}
_INSTEAD_OF: Final = {
    "Distinct.on": "ROW_NUMBER() OVER (PARTITION BY … ORDER BY …) = 1 in QUALIFY",
    "Limit.expressions": "ROW_NUMBER() OVER (PARTITION BY … ORDER BY …) <= n in QUALIFY",
    "Group.all": "name the columns in GROUP BY",
    "WindowSpec.exclude": "subtract what the current row adds",
}


def check_clauses(place: QueryPlace, tree: Any) -> None:
    """Refuses what of a query, and of the queries inside it, would be left out."""
    for node in tree.walk():
        kind = type(node).__name__
        lowered = _LOWERED.get(kind)
        if lowered is None:
            continue
        for part, value in _further_parts(kind, node, lowered):
            raise _refused(place, node, value, f"{kind}.{part}")
        _check_values(place, node, kind)


def _further_parts(kind: str, node: Any, lowered: frozenset[str]) -> Iterator[tuple[str, Any]]:
    for part, value in node.args.items():
        if part in lowered or value is None or value == []:
            continue
        if (kind, part) in _OWN_MEANING:
            # Options of a limit have parts of their own, which are looked at where they stand.
            if kind == "Group":
                yield part, value
            continue
        if value is not False and not (kind in ("Cast", "TryCast") and part == "safe"):
            yield part, value


def _refused(place: QueryPlace, node: Any, value: Any, name: str, what: str = "") -> Any:
    part = name.split(".")[1]
    words = what or _WORDS.get(name) or _WORDS.get(part) or part.strip("_").replace("_", " ").upper()
    return place.error(
        _spot(node, value), f"{words} cannot be had over streams",
        expected="what the guide Streaming SQL lists",
        next_move=_INSTEAD_OF.get(name) or _INSTEAD.get(part) or "leave it out",
    )  # fmt: skip


def _spot(node: Any, value: Any) -> Any:
    """The nearest part of the tree that knows its place."""
    values = value if isinstance(value, list) else [value]
    for each in [*values, node, *_parents(node)]:
        if hasattr(each, "walk") and any("start" in inner.meta for inner in each.walk()):
            return each
    return node


def _parents(node: Any) -> Iterator[Any]:
    while (node := node.parent) is not None:
        yield node


# --- parts that are lowered for some values only


def _check_values(place: QueryPlace, node: Any, kind: str) -> None:
    match kind:
        case "Join":
            _check_join(place, node)
        case "Version":
            table = node.parent
            joined = type(table.parent).__name__ == "Join"
            if not joined or str(node.this) != "TIMESTAMP" or str(node.args.get("kind")) != "AS OF":
                raise place.error(
                    _spot(node, table), "a table as of a time stands in a join only",
                    expected="JOIN prices FOR SYSTEM_TIME AS OF o.time AS p ON …",
                    next_move="for the rows of a stretch of time, WHERE over their event time",
                )  # fmt: skip
        case "WindowSpec":
            if str(node.args.get("kind")).upper() not in ("ROWS", "RANGE"):
                raise _refused(place, node, node, "WindowSpec.kind", "a frame of groups")
        case "With":
            names = [each.alias.lower() for each in node.expressions]
            for i, each in enumerate(node.expressions):
                if names[i] in names[:i]:
                    raise place.error(
                        _spot(each, each.args["alias"]), f"WITH names {each.alias!r} twice",
                        expected="a name of its own for each query",
                    )  # fmt: skip


def _check_join(place: QueryPlace, join: Any) -> None:
    side, kind, method = (str(join.args.get(each) or "").upper() for each in ("side", "kind", "method"))
    on, using = join.args.get("on"), join.args.get("using")
    what = ""
    if method not in ("", "NATURAL"):
        what = f"{method} JOIN"
    elif kind not in ("", "INNER", "OUTER", "CROSS", "SEMI", "ANTI"):
        what = f"{kind} JOIN"
    elif side not in ("", "LEFT", "RIGHT", "FULL") or (kind in ("SEMI", "ANTI") and side not in ("", "LEFT")):
        what = f"{side} {kind} JOIN".replace("  ", " ")
    if what:
        instead = (
            "JOIN rates FOR SYSTEM_TIME AS OF o.at AS r ON …" if method == "ASOF" else "name the sides the other way"
        )
        raise place.error(
            _spot(join, join.this), f"{what} is not part of streaming SQL",
            expected="[INNER], LEFT, RIGHT, FULL, SEMI, ANTI or CROSS JOIN", next_move=instead,
        )  # fmt: skip
    if (kind == "CROSS" or method == "NATURAL") and (on is not None or using):
        raise place.error(
            _spot(join, on if on is not None else using), f"{kind or method} JOIN takes no condition",
            expected="JOIN … ON, or no condition",
        )  # fmt: skip
    if type(join.this).__name__ in ("Unnest", "Lateral"):
        always = on is None or (type(on).__name__ == "Boolean" and bool(on.this))
        if not always or using or side not in ("", "LEFT"):
            raise place.error(
                _spot(join, on if not always else join.this), "elements of a row are joined CROSS, or LEFT … ON TRUE",
                expected="CROSS JOIN UNNEST(t.items) AS u(item)", next_move="put conditions into WHERE",
            )  # fmt: skip
