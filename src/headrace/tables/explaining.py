"""``EXPLAIN``: what a query or an INSERT becomes, what it keeps, whether that is bounded, and what to know before.

The statement is lowered as if it were executed, in a graph that is put back afterwards: nothing of it stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from headrace.connectors.program.sinks import DiscardSink
from headrace.dataflow.graph import KeyedNode, Node, ReadNode, WriteNode, upstream
from headrace.joins.spec import AsOfJoin, CoGroup, IntervalJoin, RegularJoin, UnboundedJoin, WindowJoin
from headrace.model.time import format_span
from headrace.operators.changelogs.top_spec import TopSpec
from headrace.operators.horizons.spec import HorizonSpec
from headrace.plan.explain import explain_text
from headrace.tables.catalog import catalog_of
from headrace.tables.dialect import ParsedStatement
from headrace.tables.statements import CreateView, InsertInto, Statement
from headrace.windows.spec import WindowSpec

if TYPE_CHECKING:
    from headrace.tables.program import SqlProgram


@contextmanager
def scratch(program: SqlProgram) -> Iterator[None]:
    """What is said inside is forgotten afterwards: steps, tables that were opened, names."""
    app, catalog = program.app, catalog_of(program.app)
    nodes, number = list(app._nodes), app._next_id
    names = [(node, node.name, node.queryable) for node in nodes]
    tables, views, declared = dict(catalog.tables), dict(catalog.views), dict(catalog.declared)
    own = (dict(program.tables), dict(program.texts), set(program.materialized), dict(program.inserts))
    try:
        yield
    finally:
        app._nodes, app._next_id = nodes, number
        for node, name, queryable in names:
            node.name, node.queryable = name, queryable
        catalog.tables, catalog.views, catalog.declared = tables, views, declared
        program.tables, program.texts, program.materialized, program.inserts = own


def explain_statement(program: SqlProgram, parsed: ParsedStatement) -> str:
    """The plan of a statement, in words."""
    with scratch(program):
        before = set(program.app.nodes)
        result = _result(program, parsed)
        if result is None:
            return "nothing runs for this statement\n"
        app = program.app
        shown = {*upstream([result]), result}
        app._nodes = [node for node in app.nodes if node in shown and (node in before or node in shown)]
        text = explain_text(app)
        rows = result.inputs[0] if isinstance(result, WriteNode) else result
        return "\n".join([*_summary(program, rows), "", text])


def _result(program: SqlProgram, parsed: ParsedStatement) -> Node | None:
    """The last step of what a statement becomes; None where it becomes none."""
    if isinstance(parsed.tree, InsertInto):
        program.execute(parsed)
        return program.app.nodes[-1]
    if isinstance(parsed.tree, CreateView) and parsed.tree.materialized:
        program.execute(parsed)
        return catalog_of(program.app).tables[parsed.tree.name.lower()].stream.node
    if isinstance(parsed.tree, CreateView):
        parsed = parsed.tree.query
    elif isinstance(parsed.tree, Statement):
        return None
    rows = program.query(parsed, "query")
    rows.write(_AnySink(), name="result")
    return program.app.nodes[-1]


class _AnySink(DiscardSink):
    """Takes whatever comes, so that every query can be explained."""

    def describe(self) -> str:
        return "to whoever asks"


def _summary(program: SqlProgram, rows: Node) -> list[str]:
    lines = [f"result: {rows.kind}"]
    kept = [_bound(node) for node in upstream([rows]) | {rows} if isinstance(node, KeyedNode)]
    unbounded = sorted(name for name, bounded in kept if not bounded)
    for name, bounded in sorted(kept):
        lines.append(f"state: {name}, {'bounded' if bounded else 'not bounded by time'}")
    if not kept:
        lines.append("state: none")
    for warning in _warnings(program, rows, unbounded):
        lines.append(f"warning: {warning}")
    return lines


_ENDS: Final = (IntervalJoin, WindowJoin, CoGroup, AsOfJoin, HorizonSpec)
"""What time takes rows away from by itself."""


def _bound(node: KeyedNode) -> tuple[str, bool]:
    """What a step keeps, and whether time takes it away again."""
    spec: Any = node.spec
    name = node.name or node.op
    ttl = getattr(spec, "ttl", None)
    if isinstance(spec, WindowSpec) and spec.assigner.timed:
        return f"{name}: windows, until they are closed", True
    if isinstance(spec, _ENDS):
        return f"{name}: rows, until time has passed them", True
    if isinstance(spec, UnboundedJoin | RegularJoin):
        if ttl is not None:
            return f"{name}: rows of both sides, for {format_span(ttl.span_us)}", True
        return f"{name}: all rows of both sides", False
    if isinstance(spec, TopSpec):
        return f"{name}: rows of each key, as many as may still be shown", False
    return f"{name}: a result for each key", node.kind.key == ()


def _warnings(program: SqlProgram, rows: Node, unbounded: list[str]) -> Iterator[str]:
    reads = [node for node in upstream([rows]) | {rows} if isinstance(node, ReadNode)]
    timed = [node for node in reads if node.time is not None]
    if unbounded:
        yield "state that time does not end: group by windows, join within an interval, or SET 'state.ttl' for joins"
    if timed and any(node.marking.out_of_order_us == 0 and node.marking.mark is None for node in timed):
        names = ", ".join(sorted(node.name or "" for node in timed if node.marking.out_of_order_us == 0))
        yield f"rows of {names} that do not come in the order of their time are late: say how long is waited for them"
