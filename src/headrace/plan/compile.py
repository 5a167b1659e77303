"""From what the user said to what will run.

The graph is cut into fragments: one per source (level 0), one per exchange depth (level 1, 2, …). A keyed step runs one
level behind the deepest step it reads; a step without state runs wherever its rows come from, in several fragments
where they come from several. Nodes are older than their readers, so a fragment's operators sorted by node are in
topological order.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from headrace.dataflow.graph import (
    ChangesNode,
    ExprNode,
    FeedNode,
    KeyedNode,
    LoopNode,
    Node,
    ReadNode,
    TapNode,
    UnionNode,
    WriteNode,
    reachable,
    readers,
    upstream,
)
from headrace.errors import ProgramError
from headrace.model.keys import key_sql
from headrace.model.keyspec import KeySpec
from headrace.model.watermarks import TimedSource
from headrace.model.wire import assign_slots, wire_schema
from headrace.operators.spec import COMBINED_PORT, Combined
from headrace.plan.build import check_expressions, declared_states, operator_builder, step_info, uses_watermark
from headrace.plan.physical import (
    EdgePlan,
    Fragment,
    LoopPlan,
    OpPlan,
    OutputPlan,
    Prefixed,
    Program,
    SourcePlan,
    StepPlan,
    Target,
)

if TYPE_CHECKING:
    from headrace.dataflow.app import App


def compile_app(app: App, *, parallelism: int, key_groups: int, taps: Sequence[WriteNode] = ()) -> Program:
    """The program of an app. Raises ProgramError for every mistake that can be found without running it.

    ``taps`` are further outputs that the app itself does not know of.
    """
    nodes = reachable(app, [tap.inputs[0] for tap in taps])
    return _Compiler(app.name, (*nodes, *taps), parallelism, key_groups).compile()


class _Edge(NamedTuple):
    """An exchange: rows of a node, moved by a key (None: to every shard), for the steps of one level."""

    node: Node
    key: KeySpec | None
    level: int
    combined: KeyedNode | None = None
    """The step whose rows are combined before it; no other shares it."""


class _Draft:
    """A fragment while it grows; targets name nodes until all operators are known."""

    def __init__(self) -> None:
        self.ops: dict[int, Node] = {}
        self.combining: set[int] = set()
        """Steps of which not the operator itself is here, but what combines its rows."""
        self.targets: dict[int, dict[str, list[Target]]] = {}
        self.entries: dict[int, list[Target]] = {}
        self.entry: list[Target] = []
        self.errors: list[Target] = []


class _Compiler:
    def __init__(self, app: str, nodes: tuple[Node, ...], parallelism: int, key_groups: int) -> None:
        self.app = app
        self.nodes = nodes
        self.parallelism = parallelism
        self.key_groups = key_groups
        self.readers = readers(nodes)
        self.reads = [node for node in nodes if isinstance(node, ReadNode)]
        self.keyed = [node for node in nodes if isinstance(node, KeyedNode)]
        self.writes = [node for node in nodes if isinstance(node, WriteNode)]
        self.output_index = {node: i for i, node in enumerate(self.writes)}
        self.loops = [node for node in nodes if isinstance(node, LoopNode)]
        self.loop_index = {node: i for i, node in enumerate(self.loops)}
        self.depth: dict[Node, int] = {}
        self.edges: dict[_Edge, int] = {}
        self.marks = any(uses_watermark(node) for node in self.keyed)
        for node in nodes:
            self.depth[node] = self._depth(node)
        self.combined = self._find_combined()

    def compile(self) -> Program:
        levels = max((self.depth[node] for node in self.keyed), default=0)
        for node in self.keyed:
            for edge in self._edges_into(node):
                self.edges.setdefault(edge, len(self.edges))
        drafts = {level: self._level_draft(level) for level in range(1, levels + 1)}
        chains = [self._chain(read) for read in self.reads]
        edges, slots = self._edge_plans()
        sources = tuple(self._source_plan(read, *chain, edges) for read, chain in zip(self.reads, chains, strict=True))
        program = Program(
            app=self.app,
            sources=sources,
            levels=tuple(self._freeze(drafts[level]) for level in range(1, levels + 1)),
            edges=edges,
            outputs=tuple(OutputPlan(node.name or "", node.sink, node.codec, node.site) for node in self.writes),
            steps={node.name or "": self._step_plan(node) for node in self.keyed},
            schema=wire_schema(slots),
            timed=tuple(
                TimedSource(
                    read.name or "",
                    read.out_of_order_us,
                    read.idle_us,
                    read.marking.said_by,
                    read.alignment.group,
                    read.alignment.max_drift_us,
                )
                for read in self.reads
                if read.time is not None
            ),
            marks=self.marks,
            direct=self._direct_sources(sources),
            direct_edges=frozenset(source.direct.index for source in sources if source.direct is not None),
            parallelism=self.parallelism,
            key_groups=self.key_groups,
            fingerprint="",
            loops=tuple(self._loop_plan(loop) for loop in self.loops),
        )
        return replace(program, fingerprint=_fingerprint(self.nodes))

    # -- levels -------------------------------------------------------------------------------------------------

    def _depth(self, node: Node) -> int:
        deepest = max((self.depth[before] for before in node.inputs), default=0)
        return deepest + 1 if isinstance(node, KeyedNode) and node.needs_exchange else deepest

    def _edges_into(self, node: KeyedNode) -> tuple[_Edge, ...]:
        """The exchanges before a step, by port. Steps that stand on one level share them."""
        if not node.needs_exchange:
            return ()
        combined = node if node in self.combined else None
        return tuple(_Edge(before, key, self.depth[node], combined) for before, key in node.keyed_inputs)

    def _find_combined(self) -> dict[Node, Combined]:
        """Steps whose rows are combined before their exchange, which then nobody shares."""
        alone = Counter((node.input, node.key, self.depth[node]) for node in self.keyed if node.needs_exchange)
        found: dict[Node, Combined] = {}
        for node in self.keyed:
            reads_late = any(isinstance(tap, TapNode) and tap.tag == "late" for tap in self.readers[node])
            if node.spec is None or len(node.inputs) > 1 or not node.needs_exchange or reads_late:
                continue
            if alone[node.input, node.key, self.depth[node]] == 1:
                combined = node.spec.combined(step_info(node))
                if combined is not None:
                    found[node] = combined
        return found

    def _level_draft(self, level: int) -> _Draft:
        draft = _Draft()
        for node in self.keyed:
            if self.depth[node] == level:
                for port, edge in enumerate(self._edges_into(node)):
                    target = self._op(draft, node)._replace(port=COMBINED_PORT if edge.combined else port)
                    draft.entries.setdefault(self.edges[edge], []).append(target)
        return draft

    def _op(self, draft: _Draft, node: Node) -> Target:
        """The operator of a node in a fragment, made with everything behind it when first asked for."""
        if node.id not in draft.ops:
            draft.ops[node.id] = node
            targets: dict[str, list[Target]] = {"main": self._route(draft, node)}
            for tap in self.readers[node]:
                if isinstance(tap, TapNode):
                    targets.setdefault(tap.tag, []).extend(self._route(draft, tap))
            draft.targets[node.id] = {tag: found for tag, found in targets.items() if found}
        return Target("op", node.id)

    def _route(self, draft: _Draft, node: Node) -> list[Target]:
        """Where the main rows of a node go inside (and out of) a fragment."""
        targets: list[Target] = []
        for reader in self.readers[node]:
            match reader:
                case TapNode():
                    pass
                case UnionNode() | ChangesNode():
                    targets += self._route(draft, reader)
                case WriteNode():
                    targets.append(Target("out", self.output_index[reader]))
                case FeedNode():
                    targets.append(Target("loop", self.loop_index[reader.loop]))
                case KeyedNode() if reader.needs_exchange:
                    mine = [self._enter(draft, edge) for edge in self._edges_into(reader) if edge.node is node]
                    # A stream that is joined with itself by one key comes through one exchange, once.
                    targets += [target for target in dict.fromkeys(mine) if target not in targets]
                case _:
                    targets.append(self._op(draft, reader))
        return targets

    def _enter(self, draft: _Draft, edge: _Edge) -> Target:
        """An exchange, or what combines rows before it."""
        target = Target("edge", self.edges[edge])
        if edge.combined is None:
            return target
        node = edge.combined
        draft.ops[node.id] = node
        draft.combining.add(node.id)
        draft.targets[node.id] = {"main": [target]}
        return Target("op", node.id)

    # -- sources ------------------------------------------------------------------------------------------------

    def _chain(self, read: ReadNode) -> tuple[list[ExprNode], Node, _Draft]:
        """The expressions that the JVM evaluates, the node they end at, and the fragment behind it."""
        prefix: list[ExprNode] = []
        last: Node = read
        while True:
            following = [reader for reader in self.readers[last] if not isinstance(reader, TapNode)]
            if len(following) != 1 or not isinstance(following[0], ExprNode) or read.marking.generator is not None:
                break
            splits = read.time is not None and read.source.has_splits
            if following[0].op == "where" and (splits or read.marking.mark is not None):
                # Rows that a filter hides must still move the time of their split, so it runs behind the marks.
                break
            last = following[0]
            prefix.append(following[0])
        draft = _Draft()
        draft.entry = self._route(draft, last)
        for tap in self.readers[read]:
            if isinstance(tap, TapNode) and tap.tag == "errors":
                draft.errors += self._route(draft, tap)
        return prefix, last, draft

    def _source_plan(
        self, read: ReadNode, prefix: list[ExprNode], last: Node, draft: _Draft, edges: tuple[EdgePlan, ...]
    ) -> SourcePlan:
        return SourcePlan(
            name=read.name or "",
            source=read.source,
            codec=read.codec,
            time=read.time,
            prefix=tuple(Prefixed(node.op, node.exprs, node.codec.schema) for node in prefix),
            out=last.codec,
            fragment=self._freeze(draft),
            direct=self._direct(read, draft, edges),
            mark=read.marking.mark,
            generator=read.marking.generator,
            aligned=bool(read.alignment.group),
        )

    def _direct(self, read: ReadNode, draft: _Draft, edges: tuple[EdgePlan, ...]) -> EdgePlan | None:
        """The edge that the JVM can write itself: nothing but one exchange on columns stands behind the source."""
        if draft.ops or draft.errors or len(draft.entry) != 1 or draft.entry[0].kind != "edge":
            return None
        edge = edges[draft.entry[0].place]
        if read.marking.mark is not None or read.marking.generator is not None or self._has_loop(edge):
            return None
        if read.time is not None and (self.marks or read.source.has_splits or edge.sources != (read.name,)):
            return None
        columns = None if edge.key is None else edge.key.columns
        if columns is None or key_sql([(name, edge.codec.schema.field(name).type) for name in columns]) is None:
            return None
        return edge

    def _has_loop(self, edge: EdgePlan) -> bool:
        """Whether rows of a loop come along an edge: those move no time, and were not read by anybody."""
        node = next(each.node for each, index in self.edges.items() if index == edge.index)
        return any(isinstance(above, LoopNode) for above in upstream([node]))

    def _loop_plan(self, loop: LoopNode) -> LoopPlan:
        draft = _Draft()
        draft.entry = self._route(draft, loop)
        return LoopPlan(loop.name or "", loop.codec, self._freeze(draft))

    def _direct_sources(self, sources: tuple[SourcePlan, ...]) -> dict[int, str]:
        return {
            source.direct.index: source.name
            for source in sources
            if source.direct is not None and source.time is not None
        }

    # -- plans --------------------------------------------------------------------------------------------------

    def _edge_plans(self) -> tuple[tuple[EdgePlan, ...], list[object]]:
        codecs = [self.combined[edge.combined].codec if edge.combined else edge.node.codec for edge in self.edges]
        slots, placed = assign_slots([[field.type for field in codec.schema] for codec in codecs])
        plans = tuple(
            EdgePlan(index, edge.level, codec, edge.key, places, self._timed_above(edge.node), bool(edge.combined))
            for (edge, index), codec, places in zip(self.edges.items(), codecs, placed, strict=True)
        )
        return plans, slots

    def _timed_above(self, node: Node) -> tuple[str, ...]:
        above = upstream([node])
        return tuple(read.name or "" for read in self.reads if read in above and read.time is not None)

    def _step_plan(self, node: KeyedNode) -> StepPlan:
        if uses_watermark(node) and not self._timed_above(node):
            timers = ", ".join(decl.name for decl in node.decls if decl.kind in ("timer", "timers"))
            raise ProgramError(
                f"the step {node.label!r} works on event time, and no source above it has any",
                where=node.site,
                expected='time= in app.read, or the wall clock: hr.WallTimer, clock="wall"',
                found=f"{timers or node.verb} on event time",
                next_move='say which column tells the time: app.read(…, time="at")',
            )
        return StepPlan(
            step=node.name or "",
            was=node.was,
            level=self.depth[node],
            sources=self._timed_above(node),
            uses_watermark=uses_watermark(node),
            states={
                **{decl.name: decl.kind for decl in node.decls},
                **({} if node.spec is None else node.spec.states()),
            },
            renamed={decl.name: decl.was for decl in node.decls if decl.was},
            ttl={
                **{decl.name: decl.ttl.clock for decl in node.decls if decl.ttl is not None},
                **({} if node.spec is None else node.spec.expiring()),
            },
            key=node.key.type,
            declared=declared_states(node),
        )

    def _freeze(self, draft: _Draft) -> Fragment:
        order = sorted(draft.ops)
        position = {node_id: i for i, node_id in enumerate(order)}

        def placed(targets: list[Target]) -> tuple[Target, ...]:
            return tuple(
                target._replace(place=position[target.place]) if target.kind == "op" else target for target in targets
            )

        ops = []
        for node_id in order:
            node = draft.ops[node_id]
            targets = {tag: placed(found) for tag, found in draft.targets[node_id].items()}
            if node_id in draft.combining and isinstance(node, KeyedNode):
                ops.append(_combining_plan(node, self.combined[node], targets))
            else:
                ops.append(_op_plan(node, targets))
        return Fragment(
            ops=tuple(ops),
            entries={edge: placed(targets) for edge, targets in draft.entries.items()},
            entry=placed(draft.entry),
            errors=placed(draft.errors),
        )


def _op_plan(node: Node, targets: dict[str, tuple[Target, ...]]) -> OpPlan:
    check_expressions(node)
    keyed = node if isinstance(node, KeyedNode) else None
    local = keyed is not None and not keyed.needs_exchange
    return OpPlan(
        step=node.label,
        build=operator_builder(node),
        targets=targets,
        stateful=node.stateful,
        rekey=keyed.key if keyed is not None and local else None,
        codec=node.inputs[0].codec if local else None,
    )


def _combining_plan(node: KeyedNode, combined: Combined, targets: dict[str, tuple[Target, ...]]) -> OpPlan:
    return OpPlan(
        step=f"combining before {node.label}",
        build=combined.build,
        targets=targets,
        rekey=node.key,
        codec=node.input.codec,
        hashed=False,
    )


def _fingerprint(nodes: tuple[Node, ...]) -> str:
    """What the program looks like from the store's side: names, verbs and types, not code."""
    lines = [f"{node.verb} {node.label if node.name else ''} {node.codec.schema}" for node in nodes]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
