"""A compiled program in words and pictures: steps, their state, exchanges, where they run, and what sinks promise.

Titles and notes come from the graph; places and exchanges are read from the Program, so what is shown is what runs. One
outline is derived first; the text, the Mermaid graph and the data for machines are three ways to show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.dataflow.checks import reachable
from headrace.dataflow.graph import (
    AsyncNode,
    BatchNode,
    CallNode,
    ChangesNode,
    ExprNode,
    FeedNode,
    KeyedNode,
    KindNode,
    LookupNode,
    LoopNode,
    MeasureNode,
    Node,
    ReadNode,
    RetimeNode,
    TapNode,
    UnionNode,
    WriteNode,
    carrying_nodes,
)
from headrace.dataflow.outputs import describe_function
from headrace.model.amounts import count_of
from headrace.model.time import format_span
from headrace.model.values import type_name
from headrace.plan.compile import compile_nodes, prepare
from headrace.plan.rules.columns import describe_reads
from headrace.plan.rules.decoding import plan_decoding
from headrace.plan.sides import SIDES, has_seam, one_side
from headrace.sql.expr import parse
from headrace.sql.mistakes import unchecked_functions

if TYPE_CHECKING:
    from headrace.dataflow.app_graph import AppGraph
    from headrace.model.requests import RequestPlan
    from headrace.operators.spec import OperatorChoice
    from headrace.plan.physical import EdgePlan, Program
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
    kind: str = "append"
    """What those rows are to each other, and their unique key."""
    name: str = ""
    runs: list[str] = []
    """Where it runs: "jvm" or "worker", or both where sources are decoded in different places; empty: nothing runs."""
    operator: str = ""
    """Which operator runs it, where the planner chose among several."""
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
    combined: bool = False
    """Whether rows are combined before they move."""


class Outline(msgspec.Struct):
    """The whole program."""

    app: str
    steps: list[Step]
    exchanges: list[Exchange]


_OPERATORS = {"sliced": "on slices in columns", "sessions": "on fragments in columns", "by row": "row by row"}


def outline(app: AppGraph) -> Outline:
    """What will run, in words, however many tasks there are. Raises what `compile_app` raises."""
    all_nodes = prepare(reachable(app))
    program = compile_nodes(app.name, all_nodes, parallelism=1, key_groups=1)
    inner = carrying_nodes(all_nodes)
    nodes = tuple(node for node in all_nodes if node not in inner)
    places = derive_places(program)
    exchanges = [_exchange(program, edge) for edge in program.edges]
    first_exchange = {step: each.number for each in reversed(exchanges) for step in each.steps}
    reads = describe_reads(program)
    steps = []
    for node in nodes:
        step = _step(node)
        step.notes += reads.get(node.id, ())
        step.runs = sorted(places.get(node.id, ()))
        step.exchange = first_exchange.get(node.id, 0)
        choice = program.steps[step.name].choice if isinstance(node, KeyedNode) else None
        if choice is not None:
            _tell_choice(choice, getattr(node, "spec", None), step)
        steps.append(step)
    return Outline(app.name, steps, exchanges)


def _tell_choice(choice: OperatorChoice, spec: Any, step: Step) -> None:
    step.operator = choice.operator
    step.notes.append(f"runs {_OPERATORS[choice.operator]}: {choice.why}")
    aggregates = ", ".join(getattr(spec, "aggs", ()))
    step.state.insert(0, f"{choice.table}: {aggregates}" if aggregates else choice.table)


def _exchange(program: Program, edge: EdgePlan) -> Exchange:
    shown = "nothing: to every shard" if edge.key is None else str(edge.key)
    level = program.levels[edge.level - 1]
    steps = list(dict.fromkeys(level.ops[target.place].node for target in level.entries[edge.index]))
    return Exchange(edge.index + 1, shown, edge.after, steps, edge.combined)


def derive_places(program: Program) -> dict[int, set[str]]:
    """Node → where it runs, "jvm" or "worker", by what the Program says. Both sides of a backfill count."""
    places: dict[int, set[str]] = {}
    sides = [plan_decoding(one_side(program, side)) for side in SIDES] if has_seam(program) else [program]
    for side in sides:
        for source in side.sources:
            decoded_in = "worker" if source.decoded or source.source.python else "jvm"
            places.setdefault(source.node, set()).add(decoded_in)
            for step in source.prefix:
                places.setdefault(step.node, set()).add("worker" if source.decoded else "jvm")
    for op in (op for fragment in program.fragments for op in fragment.ops):
        places.setdefault(op.node, set()).add("worker")
    return places


def _step(node: Node) -> Step:
    step = Step(
        id=node.id,
        verb=node.verb,
        title="",
        site=node.site,
        inputs=[each.id for each in node.inputs],
        rows=type_name(node.codec.type),
        kind=str(node.kind),
        name=node.name or "",
        queryable=node.queryable,
    )
    if isinstance(node, ReadNode):
        _describe_read(node, step)
    elif isinstance(node, ExprNode):
        step.title = f"{node.op} {_expressions(node)}"
        unchecked = {name for _, text in node.exprs for name in unchecked_functions(parse(text))}
        if unchecked:
            step.notes.append(f"not checked before it runs: {', '.join(f'{name}()' for name in sorted(unchecked))}")
    elif isinstance(node, CallNode):
        step.title = f"{node.op} {type_name(node.fn) if node.op == 'only' else describe_function(node.fn)}"
    elif isinstance(node, AsyncNode):
        step.inputs = [node.inputs[0].id]
        step.title = f"map_async {describe_function(node.plan.fn)}"
        step.notes.append(_describe_requests(node.plan))
    elif isinstance(node, LookupNode):
        step.title = f"lookup {describe_function(node.plan.fn)} by {node.by}"
        kept = node.cache
        cached = f"; answers serve {format_span(kept.for_us)}, up to {kept.size} per worker" if kept else ""
        step.notes.append(_describe_requests(node.plan) + cached)
    elif isinstance(node, MeasureNode):
        step.title = f"of each match {', '.join(str(measure) for _, measure in node.measures)}"
    elif isinstance(node, BatchNode):
        step.title = f"map_batches {describe_function(node.fn)} ({node.form})"
    elif isinstance(node, UnionNode):
        step.title = f"union of {len(node.inputs)}"
    elif isinstance(node, ChangesNode):
        step.title = f"changes with their kind in {node.column}" if node.column else "changes"
    elif isinstance(node, KindNode | RetimeNode):
        step.title = node.words
    elif isinstance(node, KeyedNode):
        _describe_keyed(node, step)
    elif isinstance(node, TapNode):
        step.title = f"side {node.verb}" if node.tag.startswith("side:") else node.tag
    elif isinstance(node, LoopNode):
        step.title = "loop"
    elif isinstance(node, FeedNode):
        step.title, step.feeds = f"feed {node.loop.name}, for the next epoch", node.loop.id
    elif isinstance(node, WriteNode):
        step.title, step.guarantee = f"write {node.sink.describe()}", node.sink.guarantee
    return step


def _describe_read(node: ReadNode, step: Step) -> None:
    step.title = f"read {node.source.describe()}"
    if node.time is None:
        return
    note = f"event time {node.time}"
    if node.out_of_order_us:
        note += f", out of order by {format_span(node.out_of_order_us)}"
    if node.marking.said_by:
        note += f", moved by {node.marking.said_by}"
    if node.idle_us is not None:
        note += f", idle after {format_span(node.idle_us)}"
    if node.alignment.group:
        note += f", at most {format_span(node.alignment.max_drift_us)} ahead of {node.alignment.group}"
    step.notes.append(note)


def _describe_requests(plan: RequestPlan) -> str:
    order = "in order" if plan.ordered else "as they are answered"
    again = f", up to {count_of(plan.retry.times, 'time')} again" if plan.retry.times else ""
    left = "; open ones are carried to the next epoch" if plan.wait == "carry" else ""
    most = count_of(plan.capacity, "request")
    return f"up to {most} at once, {order}, within {format_span(plan.timeout_us)}{again}{left}"


def _describe_keyed(node: KeyedNode, step: Step) -> None:
    if node.op == "process":
        step.title = f"process {type(node.fn).__name__}"
        step.state = [_describe_state(decl) for decl in node.decls]
        step.notes += () if node.spec is None else node.spec.tell()
    elif node.spec is not None and node.op != "aggregate":
        step.title = " ".join([node.op, *([] if node.fn is None else [describe_function(node.fn)])])
        step.notes += node.spec.tell()
        step.state = [_describe_state(decl) for decl in node.decls]
        step.state += [f"{name}: {kind}" for name, kind in node.spec.states().items()]
    elif node.op == "aggregate":
        step.title = f"aggregate {', '.join(node.aggs)}"
        step.state = [f"accumulators of {', '.join(node.aggs)}"]
        step.notes += () if node.spec is None else node.spec.tell()
    else:
        step.title = node.op if node.fn is None else f"{node.op} {describe_function(node.fn)}"
        step.state = [f"a {step.rows} per key"]
    step.notes += () if node.was is None else (f"was {node.was}",)
    if not node.needs_exchange:
        step.notes.append(f"no exchange: the rows already lie by {node.key}")


def _describe_state(decl: StateDecl) -> str:
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


def explain_text(app: AppGraph) -> str:
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
        combined = ", rows combined before it" if exchange.combined else ""
        yield f"{fork}⇄ exchange {exchange.number} by {exchange.key}{shared}{combined}"
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


_PLACES = {"jvm": "in the JVM", "worker": "in the worker"}


def place_words(step: Step) -> str:
    """Where its expressions run."""
    return " and ".join(_PLACES[place] for place in step.runs)


def _headline(step: Step) -> str:
    named = f"{step.name}: " if step.name else ""
    parts = [f"{named}{step.title}"]
    if step.verb not in ("write", "feed", "where", "filter"):
        parts.append(f"→ {step.rows}")
    if step.runs and step.verb in ("where", "select", "with_columns"):
        parts.append(f"[{place_words(step)}]")
    if step.guarantee:
        parts.append(f"[{step.guarantee}]")
    if step.queryable:
        parts.append("[queryable]")
    return " ".join(parts) + f"  ({step.site})"


def _details(step: Step) -> Iterator[str]:
    if step.kind != "append":
        yield f"  {step.kind}"
    yield from (f"  {note}" for note in step.notes)
    yield from (f"  keeps {each}" if step.verb != "process" else f"  {each}" for each in step.state)
