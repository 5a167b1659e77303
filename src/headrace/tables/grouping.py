"""GROUP BY: rows brought together by key, and by window where the bounds of one are among the keys.

Without windows the result is a rolling aggregate, whose rows replace each other; with them each window gives its
result once, when the watermark has passed its end. What stands behind GROUP BY is rewritten to columns of the result:
aggregate calls and expressions that were grouped by. Results of closed windows can be grouped by their window again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.aggregates.declare import Agg, count
from headrace.dataflow.keyed import KeyedStream
from headrace.dataflow.naming import proposal
from headrace.dataflow.windows import early, tumbling
from headrace.errors import HeadraceError
from headrace.model.keyspec import WHOLE_STREAM
from headrace.model.time import Duration
from headrace.model.window import PANE, WINDOW_END, WINDOW_START
from headrace.sql.expr import quote_name
from headrace.sql.parse import column_path
from headrace.tables.aggregate_calls import OWN, aggregates_in, declare_call, is_aggregate, read_call
from headrace.tables.catalog import INSTANT_US
from headrace.tables.context import QueryContext, free_name
from headrace.tables.grouping_sets import GROUPING_ID, Sets, expanded, grouping_sets
from headrace.tables.hints import ALLOW_LATE, EARLY
from headrace.tables.python_aggregates import own_aggregate
from headrace.tables.scope import (
    WINDOW_TIME,
    AtTree,
    Relation,
    ScopeColumn,
    bare_field,
    expression_sql,
    lookup,
    window_time_sql,
)
from headrace.tables.window_tables import old_bound, old_window
from headrace.windows.kinds import Assigner, Cumulating, Session
from headrace.windows.spec import WindowSpec

OPENED: Final = "opened"
"""Start of the window that rows are results of, where they are grouped by it again."""


@dataclass
class QueryGroupKey:
    """One expression of GROUP BY."""

    tree: Any
    canonical: str
    field: str = ""
    """The column of the result that holds it; empty for a bound of a window."""
    role: str = ""


@dataclass
class QueryGroups:
    """GROUP BY, while it is lowered."""

    ctx: QueryContext
    relation: Relation
    keys: list[QueryGroupKey] = field(default_factory=list)
    assigner: Assigner | None = None
    aggs: dict[str, Agg[Any]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    """What stands for an aggregate call in the result, by its canonical text."""
    sets: Sets | None = None
    arguments: dict[str, str] = field(default_factory=dict)
    """Columns that aggregates of Python read, and what they are."""


def is_grouped(select: Any) -> bool:
    """Whether a SELECT gives aggregates, or groups."""
    parts = [*select.expressions, select.args.get("having"), select.args.get("qualify"), select.args.get("order")]
    return any(select.args.get(each) is not None for each in ("group", "having")) or any(
        True for part in parts if part is not None for _ in aggregates_in(part)
    )


def grouped(ctx: QueryContext, select: Any, relation: Relation) -> tuple[Relation, Callable[[Any], Any]]:
    """The groups of a SELECT, and what rewrites its expressions to columns of the groups."""
    groups = QueryGroups(ctx, relation)
    _read_keys(groups, select)
    _read_aggregates(groups, select)
    result = _aggregated(groups, select)

    def rewrite(tree: Any) -> Any:
        return _rewritten(groups, result, tree)

    return result, rewrite


def canonical(relation: Relation, tree: Any, ctx: QueryContext) -> str:
    """The text of an expression over the fields, bounds of windows among them; equal texts are equal expressions."""
    from sqlglot import exp

    def bound(node: Any) -> str | None:
        if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star):
            found = lookup(relation, column_path(node))
            if not isinstance(found, list) and not found[0].text:
                return f"<{found[0].role}>"
        return None

    from headrace.tables.scope import rendered

    while isinstance(tree, exp.Paren):
        tree = tree.this
    return rendered(relation, tree, ctx.place, bound)


# --- keys


def _read_keys(groups: QueryGroups, select: Any) -> None:
    group = select.args.get("group")
    if group is None:
        return
    trees, groups.sets = grouping_sets(group, groups.ctx.place)
    for tree in trees:
        tree = _meant(groups, select, tree)
        assigner = old_window(tree, groups.relation, groups.ctx.place)
        if assigner is not None:
            _take_windows(groups, assigner, tree)
            groups.keys += [QueryGroupKey(tree, "", role=WINDOW_START), QueryGroupKey(tree, "", role=WINDOW_END)]
            continue
        text = canonical(groups.relation, tree, groups.ctx)
        if any(key.canonical == text for key in groups.keys):
            continue
        groups.keys.append(_key(groups, tree, text))
    roles = {key.role for key in groups.keys} - {""}
    if roles and groups.relation.assigner is not None:
        _take_windows(groups, groups.relation.assigner, select)
        if isinstance(groups.assigner, Cumulating) and roles == {WINDOW_START}:
            raise groups.ctx.place.error(
                group,
                "cumulating windows of one start are several windows",
                expected="GROUP BY window_start, window_end",
            )
    elif not roles:
        _regroup_closed(groups)


def _meant(groups: QueryGroups, select: Any, tree: Any) -> Any:
    """What GROUP BY 1 and GROUP BY alias stand for."""
    from sqlglot import exp

    if isinstance(tree, exp.Literal) and not tree.is_string:
        number = int(tree.this) if str(tree.this).isdigit() else 0
        if not 1 <= number <= len(select.expressions):
            raise groups.ctx.place.error(
                tree, f"there is no column {tree.this} in the select list", expected=f"1 to {len(select.expressions)}"
            )
        chosen = select.expressions[number - 1]
        return chosen.this if isinstance(chosen, exp.Alias) else chosen
    if isinstance(tree, exp.Column) and not tree.table and not isinstance(tree.this, exp.Star):
        found = lookup(groups.relation, column_path(tree))
        if isinstance(found, list) and not found:
            for item in select.expressions:
                if isinstance(item, exp.Alias) and item.alias.lower() == tree.name.lower():
                    return item.this
    return tree


def _key(groups: QueryGroups, tree: Any, text: str) -> QueryGroupKey:
    if text.startswith("<"):
        return QueryGroupKey(tree, text, role=text.strip("<>"))
    for part in aggregates_in(tree):
        raise groups.ctx.place.error(part, "rows cannot be grouped by an aggregate", expected="columns of the rows")
    if groups.sets is None and (name := bare_field(groups.relation, tree, groups.ctx.place)) is not None:
        return QueryGroupKey(tree, text, name)
    taken = [*groups.relation.fields, *(key.field for key in groups.keys), WINDOW_START, WINDOW_END]
    stem = proposal(tree.name if tree.name.isidentifier() else text) or "key"
    return QueryGroupKey(tree, text, free_name(stem[:40].strip("_") or "key", taken))


def _take_windows(groups: QueryGroups, assigner: Assigner, tree: Any) -> None:
    if groups.assigner is not None and groups.assigner != assigner:
        raise groups.ctx.place.error(tree, "rows are grouped by one kind of windows at a time")
    groups.assigner = assigner
    fields = {key.field for key in groups.keys if key.field}
    apart = set(groups.relation.session_keys)
    if isinstance(assigner, Session) and groups.relation.assigner is assigner and fields != apart:
        names = ", ".join(sorted(fields))
        raise groups.ctx.place.error(
            tree, "sessions have to be kept apart by what they are grouped by",
            expected=f"SESSION(TABLE t PARTITION BY {names}, …)" if fields else "SESSION without PARTITION BY",
            next_move="group by the columns of PARTITION BY and the bounds of the window, and by nothing else",
        )  # fmt: skip


def _regroup_closed(groups: QueryGroups) -> None:
    """Results of closed windows, grouped by their window again: of one window all have the same time."""
    closed = groups.relation.closed
    if closed is None:
        return
    by_text = {key.canonical: key for key in groups.keys}
    if not {closed[0], closed[1]} <= set(by_text):
        return
    by_text[closed[0]].role, by_text[closed[1]].role = OPENED, WINDOW_END
    by_text[closed[0]].field = by_text[closed[1]].field = ""
    for key in groups.keys:
        if key.canonical == groups.relation.time:
            key.role, key.field = WINDOW_TIME, ""
    groups.assigner = tumbling(Duration(INSTANT_US))


# --- aggregates


def _read_aggregates(groups: QueryGroups, select: Any) -> None:
    from sqlglot import exp

    aliases: dict[int, str] = {}
    for item in select.expressions:
        if isinstance(item, exp.Alias) and is_aggregate(item.this):
            aliases[id(item.this)] = item.alias
    parts = [*select.expressions, select.args.get("having"), select.args.get("qualify"), select.args.get("order")]
    for part in parts:
        for tree in aggregates_in(part) if part is not None else ():
            _read_aggregate(groups, tree, aliases.get(id(tree), ""))


def _read_aggregate(groups: QueryGroups, tree: Any, alias: str) -> None:
    text = canonical(groups.relation, tree, groups.ctx)
    if text in groups.texts:
        return
    taken = {key.field for key in groups.keys} | {WINDOW_START, WINDOW_END, PANE, OPENED, GROUPING_ID}

    def free(stem: str) -> str:
        return free_name(stem, [*taken, *groups.aggs])

    call = read_call(tree, groups.ctx.place)
    named = call.function.removeprefix(OWN)
    good = alias if alias.isidentifier() and not alias.startswith("__") else ""
    name = free(good or (proposal(text)[:40].strip("_") or named))
    with AtTree(groups.ctx.place, tree):
        if call.function.startswith(OWN):
            taken |= {*groups.relation.fields, *groups.arguments, name}
            own, columns = own_aggregate(groups.ctx, groups.relation, call, free)
            groups.arguments |= columns
            groups.aggs[name], groups.texts[text] = own, quote_name(name)
            return
        result = declare_call(call, groups.relation, groups.ctx.place, name, free)
        for agg in result.aggs.values():
            agg.check(groups.relation.stream.node.codec, str(groups.ctx.place.site))
    groups.aggs |= result.aggs
    groups.texts[text] = result.text


# --- the step


def _aggregated(groups: QueryGroups, select: Any) -> Relation:
    ctx = groups.ctx
    stream = _with_keys(groups, select)
    fields = [key.field for key in groups.keys if key.field]
    if groups.sets is not None:
        fields.append(GROUPING_ID)
    if any(key.role == OPENED for key in groups.keys):
        fields.append(OPENED)
    aggs: Any = groups.aggs or {free_name("rows_in_group", fields): count()}
    with AtTree(ctx.place, select.args.get("group") or select):
        if groups.assigner is not None:
            keyed = stream.key_by(*fields) if fields else stream
            made: Any = keyed.window(groups.assigner, **_emits(groups)).aggregate(**aggs)
            role = "window"
        else:
            keyed = stream.key_by(*fields) if fields else KeyedStream(stream, WHOLE_STREAM)
            made, role = keyed.aggregate(**aggs), "groups"
    ctx.steps.add(made, role, select, ", ".join(key.canonical for key in groups.keys))
    columns = [ScopeColumn("", name, quote_name(name)) for name in made.node.codec.names]
    if groups.assigner is None:
        return Relation(made, tuple(columns))
    start = OPENED if OPENED in fields else WINDOW_START
    last = window_time_sql(WINDOW_END)
    columns = [column for column in columns if column.name not in (WINDOW_START, OPENED)]
    columns += [ScopeColumn("", WINDOW_START, start), ScopeColumn("", WINDOW_TIME, last)]
    if made.node.kind.corrects:
        # The result of a window comes several times, so it is no fact with a time.
        return Relation(made, tuple(columns))
    return Relation(made, tuple(columns), last, closed=(start, WINDOW_END), fires=True)


def gives_again(relation: Relation) -> bool:
    """Whether groups are those of windows whose results may come several times."""
    spec = getattr(relation.stream.node, "spec", None)
    return isinstance(spec, WindowSpec) and spec.repeats


def _emits(groups: QueryGroups) -> dict[str, Any]:
    """When windows give results beside the one at their end."""
    said = groups.ctx.emits
    again = groups.assigner is None or any(key.role == OPENED for key in groups.keys)
    corrects = groups.relation.stream.node.kind.corrects
    if not said or again or corrects or isinstance(groups.assigner, Session):
        return {}
    asked: dict[str, Any] = {}
    if EARLY in said:
        asked["fire"] = early(said[EARLY])
    if ALLOW_LATE in said:
        asked["allow_late"] = said[ALLOW_LATE]
    return asked


def _with_keys(groups: QueryGroups, select: Any) -> Any:
    """The rows with all keys as columns of their own."""
    ctx, relation = groups.ctx, groups.relation
    if groups.sets is not None:
        texts = {key.field: expression_sql(relation, key.tree, ctx.place) for key in groups.keys if key.field}
        with AtTree(ctx.place, select):
            stream = relation.stream.with_columns(**groups.arguments) if groups.arguments else relation.stream
            return expanded(stream, texts, groups.sets, [key.field for key in groups.keys])
    computed = {
        key.field: expression_sql(relation, key.tree, ctx.place)
        for key in groups.keys
        if key.field and key.field not in relation.fields
    }
    computed |= groups.arguments
    if relation.closed and any(key.role == OPENED for key in groups.keys):
        computed[OPENED] = relation.closed[0]
    with AtTree(ctx.place, select.args.get("group") or select):
        return relation.stream.with_columns(**computed) if computed else relation.stream


# --- expressions over groups


def _rewritten(groups: QueryGroups, result: Relation, tree: Any) -> Any:
    from sqlglot import exp

    if isinstance(tree, exp.Query):
        return tree
    if isinstance(tree, exp.Alias | exp.Ordered | exp.Tuple):
        made = tree.copy()
        made.set("this", _rewritten(groups, result, tree.this)) if tree.this else None
        return made
    text = _result_text(groups, tree)
    if text is not None:
        return _over_result(text, tree)
    if isinstance(tree, exp.Column):
        raise groups.ctx.place.error(
            tree, f"{'.'.join(column_path(tree)) or '*'} is neither grouped by nor in an aggregate",
            expected="columns of GROUP BY, and aggregates",
            next_move=f"add it to GROUP BY, or take FIRST({tree.name}), MAX({tree.name}), …" if tree.name else "",
        )  # fmt: skip
    made = tree.copy()
    for key, value in tree.args.items():
        if isinstance(value, exp.Expression):
            made.set(key, _rewritten(groups, result, value))
        elif isinstance(value, list):
            made.set(key, [_rewritten(groups, result, v) if isinstance(v, exp.Expression) else v for v in value])
    return made


def _result_text(groups: QueryGroups, tree: Any) -> str | None:
    """What an expression is in the result, if it is a key, a bound of a window or an aggregate."""
    from sqlglot import exp

    ctx = groups.ctx
    if is_aggregate(tree):
        return groups.texts[canonical(groups.relation, tree, ctx)]
    if isinstance(tree, exp.Star) or (isinstance(tree, exp.Column) and isinstance(tree.this, exp.Star)):
        raise ctx.place.error(tree, "* cannot stand in a query with groups", expected="columns of GROUP BY, aggregates")
    if isinstance(tree, exp.Anonymous):
        if bound := old_bound(tree, ctx.place):
            if groups.assigner is None:
                raise ctx.place.error(tree, "this query has no such windows", expected="GROUP BY TUMBLE(…)")
            return _bound_text(bound)
        if groups.sets is not None and str(tree.this).lower() in ("grouping", "grouping_id"):
            trees = list(tree.expressions) or [key.tree for key in groups.keys if key.field]
            texts = [canonical(groups.relation, each, ctx) for each in trees]
            return groups.sets.grouping_sql(texts, [key.canonical for key in groups.keys], tree, ctx.place)
    if isinstance(tree, exp.Literal | exp.Null | exp.Boolean | exp.Var | exp.DataType | exp.Identifier | exp.Interval):
        return None
    if isinstance(tree, exp.Window | exp.WindowSpec | exp.Order) or not isinstance(tree, exp.Expression):
        return None
    try:
        text = canonical(groups.relation, tree, ctx)
    except HeadraceError:
        if isinstance(tree, exp.Column):
            raise
        return None
    for key in groups.keys:
        if key.canonical == text and text:
            return _bound_text(key.role) if key.role else quote_name(key.field)
    if groups.assigner is not None and text in (f"<{WINDOW_START}>", f"<{WINDOW_END}>", f"<{WINDOW_TIME}>"):
        return _bound_text(text.strip("<>"))
    if groups.assigner is not None and text and text == groups.relation.time and groups.relation.closed:
        return _bound_text(WINDOW_TIME)
    return None


def _bound_text(role: str) -> str:
    """The column of the result that is a bound of its window."""
    return WINDOW_START if role == OPENED else role


def _over_result(text: str, tree: Any) -> Any:
    """A tree of a text over the result, that stands where the other stood."""
    from headrace.tables.dialect import parse_query

    made = parse_query(f"SELECT {text}").tree.expressions[0]
    starts = [node.meta["start"] for node in tree.walk() if "start" in node.meta]
    for node in made.walk():
        node.meta.pop("start", None)
        if starts and not node.args.get("expressions"):
            node.meta["start"] = min(starts)
    return made
