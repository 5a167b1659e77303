"""Joins: which verb a JOIN is, by its conditions and by what its sides are.

Equalities between the sides are the key. Where the bounds of one kind of windows are equal on both sides it is a window
join, where conditions bound how far apart the event times are an interval join, with FOR SYSTEM_TIME AS OF an as-of
join; anything else is a regular join, which keeps both sides. Conditions of WHERE take part in inner joins: those over
one side go before the join, so that less is kept. Null equals nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from headrace.dataflow.update_kinds import let_withdraw
from headrace.model.record import row_type
from headrace.model.time import Duration
from headrace.sql.expr import infer, quote_name
from headrace.sql.parse import column_path
from headrace.sql.types import common_type, from_arrow
from headrace.tables.context import QueryContext, free_name
from headrace.tables.hints import SideTtl, join_ttl
from headrace.tables.scope import (
    AtTree,
    Relation,
    ScopeColumn,
    expression_sql,
    find_column,
    lookup,
    rendered,
)
from headrace.tables.time_bounds import TimeBounds, TimePoint, point_of, time_bounds

_ONE_KEY: Final = "one_key"
"""The key of a join without an equality: all rows have it."""


@dataclass
class JoinParts:
    """A join while it is lowered."""

    ctx: QueryContext
    left: Relation
    right: Relation
    how: str
    tree: Any
    keys: list[tuple[str, str]] = field(default_factory=list)
    """Equal expressions: of the left side and of the right side, as text over their fields."""
    matched: str = ""
    """What is true of a pair that has a right side."""
    bounds: TimeBounds = field(default_factory=TimeBounds)
    timed: list[Any] = field(default_factory=list)
    """The conditions that said the bounds."""
    rest: list[Any] = field(default_factory=list)
    """Further conditions."""

    @property
    def both(self) -> Relation:
        """The columns of both sides, to find names in; it is no stream."""
        return replace(self.left, columns=self.left.columns + self.right.columns)


def joined(
    ctx: QueryContext, left: Relation, right: Relation, how: str, tree: Any, conditions: Iterable[Any],
    needed: frozenset[str] | None,
) -> Relation:  # fmt: skip
    """The join of two relations. ``needed``: the names that the query uses, in small letters; None: all."""
    parts = JoinParts(ctx, concrete(left, needed), concrete(right, needed), how, tree)
    _check_names(parts)
    for each in conditions:
        sort_condition(parts, each)
    if how in ("semi", "anti"):
        return _one_sided(parts)
    pairs = _pairs(parts)
    relation = _selected(parts, pairs, needed)
    for each in parts.rest:
        # What a join could not take itself; outer joins were refused before.
        relation = _filtered(ctx, relation, each)
    return relation


def concrete(relation: Relation, needed: frozenset[str] | None) -> Relation:
    """The relation with a field for each column that is a computation and that somebody needs."""
    fields = {quote_name(name) for name in relation.fields}
    virtual = [c for c in relation.columns if c.text not in fields]
    if not virtual:
        return relation
    texts: dict[str, str] = {}
    columns = []
    for column in relation.columns:
        if column in virtual:
            if needed is not None and column.name.lower() not in needed and column.text != relation.time:
                continue
            known = next((name for name, text in texts.items() if text == column.text), None)
            name = known or free_name(column.name, [*relation.fields, *texts])
            texts[name] = column.text
            column = replace(column, text=quote_name(name))
        columns.append(column)
    stream = relation.stream.with_columns(**texts) if texts else relation.stream
    moved = {text: quote_name(name) for name, text in texts.items()}
    closed = relation.closed
    return replace(
        relation,
        stream=stream,
        columns=tuple(columns),
        time=moved.get(relation.time or "", relation.time),
        closed=closed and (moved.get(closed[0], closed[0]), moved.get(closed[1], closed[1])),
    )


# --- conditions


def sides_of(parts: JoinParts, tree: Any) -> frozenset[str] | None:
    """The sides whose columns a condition reads; None where it reads something else."""
    from sqlglot import exp

    found = set()
    if tree.find(exp.Query) is not None:
        return None
    for node in tree.find_all(exp.Column):
        hit = lookup(parts.both, column_path(node))
        if isinstance(hit, list):
            return None
        found.add("left" if any(hit[0] is c for c in parts.left.columns) else "right")
    return frozenset(found)


def sort_condition(parts: JoinParts, tree: Any) -> None:
    """Says what a condition of ON is to the join."""
    from sqlglot import exp

    place = parts.ctx.place
    sides = sides_of(parts, tree)
    if sides is None:
        for node in tree.find_all(exp.Column):
            find_column(parts.both, node, place)
    plain = tree
    while isinstance(plain, exp.Paren):
        plain = plain.this
    if sides == frozenset({"right"}) and parts.how in ("inner", "left", "semi", "anti"):
        parts.right = _filtered(parts.ctx, parts.right, tree)
    elif sides == frozenset({"left"}) and parts.how in ("inner", "right", "semi"):
        parts.left = _filtered(parts.ctx, parts.left, tree)
    elif isinstance(plain, exp.EQ) and _take_key(parts, plain):
        return
    elif (bounds := time_bounds(plain, lambda column: _time_point(parts, column), place)) is not None:
        parts.bounds = parts.bounds.both(bounds)
        parts.timed.append(tree)
    else:
        parts.rest.append(tree)


def _take_key(parts: JoinParts, tree: Any) -> bool:
    """Whether an equality is one between an expression of one side and one of the other."""
    one, two = sides_of(parts, tree.this), sides_of(parts, tree.expression)
    if {one, two} != {frozenset({"left"}), frozenset({"right"})}:
        return False
    first, second = (tree.this, tree.expression) if one == frozenset({"left"}) else (tree.expression, tree.this)
    left = expression_sql(parts.left, first, parts.ctx.place)
    right = expression_sql(parts.right, second, parts.ctx.place)
    if left in [key[0] for key in parts.keys] or right in [key[1] for key in parts.keys]:
        return False
    # Rows of one time are an interval join rather than a key that nothing ever leaves.
    if left == parts.left.time and right == parts.right.time and parts.left.closed is None:
        return False
    parts.keys.append((left, right))
    return True


def _time_point(parts: JoinParts, column: Any) -> TimePoint | None:
    """The event time that a column is, if it is one."""
    found = lookup(parts.both, column_path(column))
    if isinstance(found, list) or found[1]:
        return None
    right = not any(found[0] is c for c in parts.left.columns)
    return point_of(parts.right if right else parts.left, found[0], right=right)


def _filtered(ctx: QueryContext, relation: Relation, tree: Any) -> Relation:
    text = expression_sql(relation, tree, ctx.place)
    with AtTree(ctx.place, tree):
        relation = relation.over(relation.stream.where(text))
        let_withdraw(relation.stream.node, ctx.place.site)
    return relation


def _sided(parts: JoinParts, tree: Any) -> str:
    """A condition over both sides, as the join takes it."""

    def column(node: Any) -> str | None:
        from sqlglot import exp

        if not isinstance(node, exp.Column):
            return None
        found, rest = find_column(parts.both, node, parts.ctx.place)
        side = "left" if any(found is c for c in parts.left.columns) else "right"
        return f"{side}.{found.text}" + "".join(f".{quote_name(part)}" for part in rest)

    return f"({rendered(parts.both, tree, parts.ctx.place, column)})"


# --- the step


def _pairs(parts: JoinParts) -> Any:
    version = _version(parts.tree)
    if version is not None:
        return _as_of(parts, version)
    window = _window_keys(parts)
    low, high = parts.bounds
    facts = not parts.left.stream.node.kind.corrects and not parts.right.stream.node.kind.corrects
    with AtTree(parts.ctx.place, parts.tree):
        left, right = _keyed(parts)
        if window:
            _check_no_rest(parts, "a window join")
            _check_no_ttl(parts, "a window join")
            # Results of closed windows come with the last instant of theirs as their time: rows of one window have
            # equal keys and equal times.
            pairs: Any = left.join(right, within=(Duration(0), Duration(0)), how=parts.how)
            role = "window_join"
        elif low is not None and high is not None and facts:
            _check_no_rest(parts, "an interval join")
            _check_no_ttl(parts, "an interval join")
            pairs = left.join(right, within=(Duration(low), Duration(high)), how=parts.how)
            role = "interval_join"
        else:
            pairs, role = _regular(parts, left, right), "join"
    parts.ctx.steps.add(pairs, role, parts.tree, parts.keys)
    return pairs


def _regular(parts: JoinParts, left: Any, right: Any) -> Any:
    conditions = [*parts.timed, *parts.rest]
    on = " AND ".join(_sided(parts, each) for each in conditions) or None
    parts.rest = []
    hinted = _hinted_ttl(parts)
    ttl = parts.ctx.catalog.state_ttl if hinted is None else hinted.span
    return left.join(right, within=None, how=parts.how, on=on, ttl=ttl)


def _hinted_ttl(parts: JoinParts) -> SideTtl | None:
    return join_ttl(parts.ctx, {c.table.lower() for c in parts.both.columns if c.table})


def _check_no_ttl(parts: JoinParts, what: str) -> None:
    """Rows that time takes away by itself need no hint, and would not follow it."""
    right = {c.table.lower() for c in parts.right.columns}
    for name, side in parts.ctx.ttls.items():
        if name in right:
            raise parts.ctx.place.error(
                side.tree, f"{what} keeps its rows until time has passed them", expected="STATE_TTL of a regular join",
                next_move="leave the hint out",
            )  # fmt: skip


def _one_sided(parts: JoinParts) -> Relation:
    with AtTree(parts.ctx.place, parts.tree):
        left, right = _keyed(parts)
        stream = _regular(parts, left, right)
    parts.ctx.steps.add(stream, f"{parts.how}_join", parts.tree, parts.keys)
    return parts.left.over(stream)


def _check_no_rest(parts: JoinParts, what: str) -> None:
    if parts.rest and parts.how != "inner":
        raise parts.ctx.place.error(
            parts.rest[0], f"{what} that keeps rows without a partner takes no further condition",
            expected="equalities, and conditions over one side",
            next_move="put the condition into a query over one side, or join INNER",
        )  # fmt: skip


def _window_keys(parts: JoinParts) -> bool:
    """Whether both sides are results of closed windows, and their windows are equal."""
    one, two = parts.left.closed, parts.right.closed
    return one is not None and two is not None and {(one[0], two[0]), (one[1], two[1])} <= set(parts.keys)


def _keyed(parts: JoinParts) -> tuple[Any, Any]:
    """Both sides by the columns that have to be equal, made where they are computed."""
    pairs = [_alike(parts, left, right) for left, right in parts.keys] or [("1", "1")]
    sides = []
    for i, relation in enumerate((parts.left, parts.right)):
        fields = {quote_name(name): name for name in relation.fields}
        computed: dict[str, str] = {}
        names = []
        for position, key in enumerate(pairs):
            name = fields.get(key[i])
            if name is None:
                stem = _ONE_KEY if not parts.keys else f"key_{position + 1}"
                name = free_name(stem, [*relation.fields, *computed])
                computed[name] = key[i]
            names.append(name)
        stream = relation.stream.with_columns(**computed) if computed else relation.stream
        parts.matched = f"right.{quote_name(names[0])} IS NOT NULL"
        sides.append(stream.key_by(*names))
    return sides[0], sides[1]


def _alike(parts: JoinParts, left: str, right: str) -> tuple[str, str]:
    """Both expressions in one type."""
    kinds = [
        infer(text, relation.stream.node.codec.schema) for text, relation in ((left, parts.left), (right, parts.right))
    ]
    if kinds[0] == kinds[1] or None in kinds:
        return left, right
    common = common_type(from_arrow(kinds[0]), from_arrow(kinds[1]))
    if common is None:
        return left, right
    texts = [
        text if from_arrow(kind) == common else f"CAST({text} AS {common})"
        for text, kind in zip((left, right), kinds, strict=True)
    ]
    return texts[0], texts[1]


# --- the columns of pairs


def _check_names(parts: JoinParts) -> None:
    left = {c.table.lower() for c in parts.left.columns if c.table}
    for name in sorted({c.table for c in parts.right.columns if c.table}):
        if name.lower() in left:
            raise parts.ctx.place.error(
                parts.tree, f"two tables are named {name!r}", expected="a name of its own for each",
                next_move=f"give one an alias: {name} AS other",
            )  # fmt: skip


def _selected(parts: JoinParts, pairs: Any, needed: frozenset[str] | None) -> Relation:
    """The columns of both sides, side by side in one row."""
    texts: dict[str, str] = {}
    types: dict[str, Any] = {}
    columns: list[ScopeColumn] = []
    fields: dict[tuple[str, str], str] = {}
    missing = {"left": parts.how in ("right", "full"), "right": parts.how in ("left", "full")}
    version = _version(parts.tree) is not None
    for side, relation in (("left", parts.left), ("right", parts.right)):
        names = {quote_name(name): name for name in relation.fields}
        special = {relation.time, *(relation.closed or ())} if side == "left" else set()
        for column in relation.columns:
            if needed is not None and column.name.lower() not in needed and column.text not in special:
                continue
            name = fields.get((side, column.text))
            if name is None:
                stem = names[column.text]
                front = column.table if column.table.isidentifier() else side
                name = stem if stem not in texts else free_name(f"{front}_{column.name}", texts)
                kind = relation.stream.node.codec.annotations[stem]
                texts[name] = f"{side}.{column.text}"
                types[name] = kind | None if missing[side] or (version and side == "right") else kind
                fields[side, column.text] = name
            columns.append(replace(column, text=quote_name(name)))
    if version and parts.how == "inner":
        matched = free_name("matched", texts)
        texts[matched], types[matched] = parts.matched, bool
    if not texts:
        texts["one_row"], types["one_row"] = "1", int
    with AtTree(parts.ctx.place, parts.tree):
        stream = pairs.select(row_type("Row", types), **texts)
        let_withdraw(stream.node, parts.ctx.place.site)
        if version and parts.how == "inner":
            stream = stream.where(quote_name(matched))
    windowed = _window_keys(parts)

    def over_left(text: str) -> str:
        return quote_name(fields["left", text])

    closed = parts.left.closed if windowed and parts.how in ("inner", "left") else None
    time = parts.left.time if (version or closed is not None) and parts.left.time else None
    return Relation(
        stream,
        tuple(columns),
        time=over_left(time) if time and ("left", time) in fields else None,
        closed=(over_left(closed[0]), over_left(closed[1])) if closed else None,
    )


# --- FOR SYSTEM_TIME AS OF


def _version(tree: Any) -> Any:
    table = getattr(tree, "this", None)
    return table.args.get("version") if table is not None else None


def _as_of(parts: JoinParts, version: Any) -> Any:
    place = parts.ctx.place
    at = version.args.get("expression")
    if type(at).__name__ != "Column" or _time_point(parts, at) != TimePoint(right=False, offset_us=0):
        raise place.error(
            at or parts.tree, "a table is joined as of the event time of the left row",
            expected="FOR SYSTEM_TIME AS OF l.time, where l.time is the event time of the left table",
            next_move="for what holds now, join without FOR SYSTEM_TIME",
        )  # fmt: skip
    if parts.how not in ("inner", "left") or not parts.keys:
        raise place.error(
            parts.tree, "a join as of a time is INNER or LEFT, with an equality",
            expected="JOIN prices FOR SYSTEM_TIME AS OF o.time AS p ON o.currency = p.currency",
        )  # fmt: skip
    _check_no_rest(parts, "a join as of a time")
    _check_no_ttl(parts, "a join as of a time")
    with AtTree(place, parts.tree):
        left, right = _keyed(parts)
        if parts.right.stream.node.kind.rows == "upsert":  # Each version holds from its time on.
            right = right._stream.changes().key_by(*right.key.columns)
        pairs = left.join_asof(right)
    parts.ctx.steps.add(pairs, "as_of_join", parts.tree, parts.keys)
    return pairs
