"""A program in words and pictures: steps, their state, exchanges, where expressions run, and what sinks promise.

Everything here is told from the graph as the user said it; how many tasks that makes is the planner's business. One
outline is derived first, and the text, the Mermaid graph and the data for machines are three ways to show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.dataflow.graph import (
    AsyncNode,
    BatchNode,
    CallNode,
    ChangesNode,
    ExprNode,
    FeedNode,
    KeyedNode,
    LookupNode,
    LoopNode,
    Node,
    ReadNode,
    TapNode,
    UnionNode,
    WriteNode,
    carrying_nodes,
    reachable,
    readers,
)
from headrace.dataflow.outputs import describe_function
from headrace.model.time import format_span
from headrace.model.values import type_name

if TYPE_CHECKING:
    from headrace.dataflow.app import App
    from headrace.model.requests import RequestPlan
    from headrace.state.handles import StateDecl


class Step(msgspec.Struct, omit_defaults=True):
    """One node, in words."""

    id: int
    verb: str
    title: str
    site: str
    inputs: list[int]
    rows: str
    """Type of the rows that come out."""
    name: str = ""
    runs: str = ""
    """Where it runs: "jvm", "worker", or "decoder" for where the source is decoded; empty: there is nothing to run."""
    notes: list[str] = []
    state: list[str] = []
    exchange: int = 0
    """Number of the (first) exchange before it; 0: none."""
    guarantee: str = ""
    queryable: bool = False
    feeds: int | None = None
    """The loop that its rows go back into."""


class Exchange(msgspec.Struct, omit_defaults=True):
    """Rows moved to the shard that owns their key."""

    number: int
    key: str
    after: int
    """The step whose rows move."""
    steps: list[int] = []
    """The keyed steps that share it."""


class Outline(msgspec.Struct):
    """The whole program."""

    app: str
    steps: list[Step]
    exchanges: list[Exchange]


def outline(app: App) -> Outline:
    """What will run, in words; raises what `graph.reachable` raises."""
    all_nodes = reachable(app)
    inner = carrying_nodes(all_nodes)
    nodes = tuple(node for node in all_nodes if node not in inner)
    places = places_of_expressions(nodes)
    exchanges: list[Exchange] = []
    by_edge: dict[tuple[Node, Any], Exchange] = {}
    steps = []
    for node in nodes:
        step = _step(node, places.get(node, "worker"))
        if isinstance(node, KeyedNode) and node.needs_exchange:
            for before, key in node.keyed_inputs:
                edge = (before, None if key is None else (key.columns, key.fn))
                if edge not in by_edge:
                    shown = "nothing: to every shard" if key is None else str(key)
                    by_edge[edge] = Exchange(len(exchanges) + 1, shown, before.id)
                    exchanges.append(by_edge[edge])
                by_edge[edge].steps.append(node.id)
                step.exchange = step.exchange or by_edge[edge].number
        steps.append(step)
    return Outline(app.name, steps, exchanges)


def places_of_expressions(nodes: tuple[Node, ...]) -> dict[Node, str]:
    """Expressions that stand directly behind a read, with no fork before them: Spark evaluates those.

    But for those behind files that workers can decode: they run where the files are decoded, which is in the worker if
    it needs the rows before the first exchange.
    """
    reading = readers(nodes)
    places: dict[Node, str] = {}
    for node in nodes:
        if not isinstance(node, ExprNode):
            continue
        before = node.inputs[0]
        alone = [each for each in reading[before] if not isinstance(each, TapNode)] == [node]
        # A watermark generator wants the rows as they were read, so nothing may run before it.
        if alone and isinstance(before, ReadNode) and before.marking.generator is None:
            places[node] = "jvm" if before.source.decoder(before.codec) is None else "decoder"
        elif alone and before in places:
            places[node] = places[before]
    return places


def _step(node: Node, place: str) -> Step:
    step = Step(
        id=node.id,
        verb=node.verb,
        title="",
        site=node.site,
        inputs=[each.id for each in node.inputs],
        rows=type_name(node.codec.type),
        name=node.name or "",
        queryable=node.queryable,
    )
    if isinstance(node, ReadNode):
        _tell_read(node, step)
    elif isinstance(node, ExprNode):
        step.title = f"{node.op} {_expressions(node)}"
        step.runs = place
    elif isinstance(node, CallNode):
        shown = type_name(node.fn) if node.op == "only" else describe_function(node.fn)
        step.title, step.runs = f"{node.op} {shown}", "worker"
    elif isinstance(node, AsyncNode):
        step.inputs = [node.inputs[0].id]
        step.title, step.runs = f"map_async {describe_function(node.plan.fn)}", "worker"
        step.notes.append(_told_requests(node.plan))
    elif isinstance(node, LookupNode):
        step.title, step.runs = f"lookup {describe_function(node.plan.fn)} by {node.by}", "worker"
        kept = node.cache
        cached = f"; answers serve {format_span(kept.for_us)}, up to {kept.size} per worker" if kept else ""
        step.notes.append(_told_requests(node.plan) + cached)
    elif isinstance(node, BatchNode):
        step.title, step.runs = f"map_batches {describe_function(node.fn)} ({node.form})", "worker"
    elif isinstance(node, UnionNode):
        step.title = f"union of {len(node.inputs)}"
    elif isinstance(node, ChangesNode):
        step.title = "changes"
    elif isinstance(node, KeyedNode):
        _tell_keyed(node, step)
    elif isinstance(node, TapNode):
        step.title = f"side {node.verb}" if node.tag.startswith("side:") else node.tag
    elif isinstance(node, LoopNode):
        step.title = "loop"
    elif isinstance(node, FeedNode):
        step.title, step.feeds = f"feed {node.loop.name}, for the next epoch", node.loop.id
    elif isinstance(node, WriteNode):
        step.title, step.guarantee = f"write {node.sink.describe()}", node.sink.guarantee
    return step


def _tell_read(node: ReadNode, step: Step) -> None:
    step.title, step.runs = f"read {node.source.describe()}", "worker" if node.source.python else "jvm"
    if node.time is None:
        return
    told = f"event time {node.time}"
    if node.out_of_order_us:
        told += f", out of order by {format_span(node.out_of_order_us)}"
    if node.marking.said_by:
        told += f", moved by {node.marking.said_by}"
    if node.idle_us is not None:
        told += f", idle after {format_span(node.idle_us)}"
    if node.alignment.group:
        told += f", at most {format_span(node.alignment.max_drift_us)} ahead of {node.alignment.group}"
    step.notes.append(told)


def _told_requests(plan: RequestPlan) -> str:
    order = "in order" if plan.ordered else "as they are answered"
    again = f", up to {plan.retry.times} times again" if plan.retry.times else ""
    left = "; open ones are carried to the next epoch" if plan.wait == "carry" else ""
    return f"up to {plan.capacity} requests at once, {order}, within {format_span(plan.timeout_us)}{again}{left}"


def _tell_keyed(node: KeyedNode, step: Step) -> None:
    step.runs = "worker"
    if node.op == "process":
        step.title = f"process {type(node.fn).__name__}"
        step.state = [_declared(decl) for decl in node.decls]
        if node.order == "time":
            step.notes.append("the rows of each epoch in order of event time")
    elif node.spec is not None and node.op != "aggregate":
        step.title = " ".join([node.op, *([] if node.fn is None else [describe_function(node.fn)])])
        step.notes += node.spec.tell()
        step.state = [_declared(decl) for decl in node.decls]
        step.state += [f"{name}: {kind}" for name, kind in node.spec.states().items()]
    elif node.op == "aggregate":
        step.title = f"aggregate {', '.join(node.aggs)}"
        step.state = [f"accumulators of {', '.join(node.aggs)}"]
        step.notes += () if node.spec is None else node.spec.tell()
    else:
        step.title = node.op if node.fn is None else f"{node.op} {describe_function(node.fn)}"
        step.state = [f"a {step.rows} per key"]
    if node.was is not None:
        step.notes.append(f"was {node.was}")
    if not node.needs_exchange:
        step.notes.append(f"no exchange: the rows already lie by {node.key}")


def _declared(decl: StateDecl) -> str:
    told = f"{decl.name}: {decl.kind.replace('_', ' ')}"
    if decl.args:
        told += f" of {' → '.join(map(type_name, decl.args))}"
    if decl.ttl is not None:
        told += f", ttl {format_span(decl.ttl.span_us)} by {decl.ttl.clock} clock"
    if decl.max_len is not None:
        told += f", at most {decl.max_len}"
    if decl.was is not None:
        told += f", was {decl.was}"
    return told


def _expressions(node: ExprNode) -> str:
    if node.op == "where":
        return node.exprs[0][1]
    told = [name if text.strip("`") == name else f"{name} = {text}" for name, text in node.exprs]
    if node.op == "with_columns":
        told = [each for each in told if " = " in each] or told
    return ", ".join(told)


# -- text --------------------------------------------------------------------------------------------------------


def explain_text(app: App) -> str:
    """The program as a tree, sources first."""
    told = outline(app)
    children: dict[int, list[Step]] = {}
    for step in told.steps:
        for before in step.inputs:
            children.setdefault(before, []).append(step)
    lines = [f"app {told.app}"]
    shown: set[int] = set()
    for step in told.steps:
        if not step.inputs:
            lines.append("")
            lines.extend(_branch(step, told, children, shown, "", ""))
    return "\n".join(lines) + "\n"


def _branch(
    step: Step, told: Outline, children: dict[int, list[Step]], shown: set[int], lead: str, rest: str
) -> Iterator[str]:
    if step.id in shown:
        yield f"{lead}→ {_headline(step)}, shown above"
        return
    shown.add(step.id)
    yield lead + _headline(step)
    kids = _grouped(step, told, children.get(step.id, []))
    bar = rest + ("│  " if kids else "   ")
    for line in _details(step):
        yield bar + line
    for i, (exchange, members) in enumerate(kids):
        last = i == len(kids) - 1
        fork, under = (rest + "└─ ", rest + "   ") if last else (rest + "├─ ", rest + "│  ")
        if exchange is None:
            yield from _branch(members[0], told, children, shown, fork, under)
            continue
        shared = f", shared by {len(members)} steps" if len(members) > 1 else ""
        yield f"{fork}⇄ exchange {exchange.number} by {exchange.key}{shared}"
        for j, member in enumerate(members):
            end = j == len(members) - 1
            inner = (under + "└─ ", under + "   ") if end else (under + "├─ ", under + "│  ")
            yield from _branch(member, told, children, shown, *inner)


def _grouped(step: Step, told: Outline, kids: list[Step]) -> list[tuple[Exchange | None, list[Step]]]:
    """The readers of a step, those behind one exchange together."""
    groups: list[tuple[Exchange | None, list[Step]]] = []
    for exchange in (each for each in told.exchanges if each.after == step.id):
        groups.append((exchange, [kid for kid in kids if kid.id in exchange.steps]))
    groups.extend((None, [kid]) for kid in kids if not kid.exchange)
    return sorted(groups, key=lambda group: group[1][0].id)


_PLACES = {"jvm": "in the JVM", "worker": "in the worker", "decoder": "where it is decoded"}


def _headline(step: Step) -> str:
    named = f"{step.name}: " if step.name else ""
    parts = [f"{named}{step.title}"]
    if step.verb not in ("write", "feed", "where", "filter"):
        parts.append(f"→ {step.rows}")
    if step.runs and step.verb in ("where", "select", "with_columns"):
        parts.append(f"[{_PLACES[step.runs]}]")
    if step.guarantee:
        parts.append(f"[{step.guarantee}]")
    if step.queryable:
        parts.append("[queryable]")
    return " ".join(parts) + f"  ({step.site})"


def _details(step: Step) -> Iterator[str]:
    yield from (f"  {note}" for note in step.notes)
    yield from (f"  keeps {each}" if step.verb != "process" else f"  {each}" for each in step.state)


# -- Mermaid -----------------------------------------------------------------------------------------------------

_SHAPES = {
    "read": ('[("', '")]'),
    "write": ('[/"', '"/]'),
    "keyed": ('[["', '"]]'),
    "tap": ('(["', '"])'),
    "step": ('["', '"]'),
}


def explain_mermaid(app: App) -> str:
    """The program as a Mermaid flowchart."""
    told = outline(app)
    moved = {(each.after, step): each for each in told.exchanges for step in each.steps}
    lines = ["flowchart LR"]
    for step in told.steps:
        opening, closing = _SHAPES[_shape(step)]
        lines.append(f"    n{step.id}{opening}{'<br/>'.join(map(_escaped, _box(step)))}{closing}")
    for step in told.steps:
        for before in step.inputs:
            exchange = moved.get((before, step.id))
            if exchange is not None:
                label = f"exchange {exchange.number} by {exchange.key}"
                lines.append(f'    n{before} ==>|"{_escaped(label)}"| n{step.id}')
            else:
                lines.append(f"    n{before} --> n{step.id}")
        if step.feeds is not None:
            lines.append(f'    n{step.id} -.->|"next epoch"| n{step.feeds}')
    return "\n".join(lines) + "\n"


def _shape(step: Step) -> str:
    if step.verb in ("read", "write"):
        return step.verb
    if step.verb in ("loop", "feed"):
        return "read" if step.verb == "loop" else "write"
    if step.state or step.verb in ("process", "reduce", "latest", "aggregate", "window", "join", "connect"):
        return "keyed"
    return "tap" if step.title in ("errors", "late") or step.title.startswith("side ") else "step"


def _box(step: Step) -> Iterator[str]:
    if step.name:
        yield step.name
    yield step.title
    if step.runs and step.verb in ("where", "select", "with_columns"):
        yield _PLACES[step.runs]
    yield from step.notes
    yield from step.state
    if step.guarantee:
        yield step.guarantee
    if step.queryable:
        yield "queryable"


def _escaped(text: str) -> str:
    for plain, code in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;"), ("\n", " ")):
        text = text.replace(plain, code)
    return text
