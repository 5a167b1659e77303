"""From the graph of an app to the program that runs.

The graph is cut into fragments: one per source (level 0), one per exchange depth (level 1, 2, …). A keyed step runs one
level behind the deepest step it reads; a step without state runs wherever its rows come from, in several fragments
where they come from several. Nodes come in topological order, and so do a fragment's operators.

Before that, steps are put in that keep what was given out, where rows have to be taken back
(`headrace.plan.rules.changelogs`).

What comes out of the graph runs everything in the workers and moves rows as they are. The rules of
`headrace.plan.rules` rewrite it: they decide what the JVM does and what is combined. Expressions are checked last,
because the rules decide where they run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace.dataflow.checks import reachable
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
    readers,
    upstream,
)
from headrace.dataflow.update_kinds import finds_by_key
from headrace.errors import ProgramError
from headrace.model.keyspec import KeySpec
from headrace.model.migrations import Migration, registered_migrations
from headrace.model.report import TAP
from headrace.model.type_shape import type_text
from headrace.model.watermarks import TimedSource
from headrace.operators.spec import StepInfo
from headrace.plan.build import changes_rows, declared_states, operator_builder, step_info, step_rules, uses_watermark
from headrace.plan.physical import (
    EdgePlan,
    Fragment,
    LoopPlan,
    OpPlan,
    OutputPlan,
    Program,
    SourcePlan,
    StepPlan,
    Target,
)
from headrace.plan.replaying import find_bound_to_epochs
from headrace.plan.rules import RULES
from headrace.plan.rules.changelogs import keep_given_rows
from headrace.plan.rules.columns import keep_needed_columns
from headrace.plan.state_times import step_times
from headrace.plan.state_types import step_types
from headrace.sql.expr import check_supported

if TYPE_CHECKING:
    from headrace.dataflow.app_graph import AppGraph
    from headrace.plan.rules import Nodes, Rule


def compile_app(
    app: AppGraph, *, parallelism: int, key_groups: int, taps: Sequence[WriteNode] = (), rules: Sequence[Rule] = RULES,
    whole_rows: bool = False,
) -> Program:  # fmt: skip
    """The program of an app. Raises ProgramError for every mistake that can be found without running it.

    ``taps`` are further outputs that the app itself does not know of. ``whole_rows``: for those who look at the rows
    that steps are given (`keep_needed_columns`).
    """
    nodes = (*reachable(app, [tap.inputs[0] for tap in taps]), *taps)
    return compile_nodes(
        app.name, nodes, parallelism=parallelism, key_groups=key_groups, rules=rules, whole_rows=whole_rows
    )


def prepare(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The graph with everything that is put in before it is compiled; of one that has it, the graph itself."""
    return keep_needed_columns(keep_given_rows(nodes))


def compile_nodes(
    app: str, nodes: tuple[Node, ...], *, parallelism: int, key_groups: int, rules: Sequence[Rule] = RULES,
    whole_rows: bool = False,
) -> Program:  # fmt: skip
    """The program of a checked graph."""
    said = keep_given_rows(nodes)
    nodes = keep_needed_columns(said, whole_rows=whole_rows)
    program = _Compiler(app, nodes, parallelism, key_groups, said).compile()
    by_id = {node.id: node for node in nodes}
    for rule in rules:
        program = rule(program, by_id)
    _check_expressions(program, by_id)
    return program


class _Edge(NamedTuple):
    """An exchange: rows of a node, moved by a key (None: to every shard), for the steps of one level."""

    node: Node
    key: KeySpec | None
    level: int


class _Draft:
    """A fragment while it grows; targets name nodes until all operators are known."""

    def __init__(self) -> None:
        self.ops: dict[int, Node] = {}
        self.targets: dict[int, dict[str, list[Target]]] = {}
        self.entries: dict[int, list[Target]] = {}
        self.entry: list[Target] = []
        self.errors: list[Target] = []


class _Compiler:
    def __init__(
        self, app: str, nodes: tuple[Node, ...], parallelism: int, key_groups: int, said: tuple[Node, ...]
    ) -> None:
        self.app = app
        self.nodes = nodes
        self.said = said
        """The nodes before columns were left out: a program is the same one whatever it leaves out."""
        self.parallelism = parallelism
        self.key_groups = key_groups
        self.readers = readers(nodes)
        self.reads = [node for node in nodes if isinstance(node, ReadNode)]
        self.keyed = [node for node in nodes if isinstance(node, KeyedNode)]
        self.writes = [node for node in nodes if isinstance(node, WriteNode)]
        self.output_index = {node: i for i, node in enumerate(self.writes)}
        self.position = {node.id: i for i, node in enumerate(nodes)}
        self.loops = [node for node in nodes if isinstance(node, LoopNode)]
        self.loop_index = {node: i for i, node in enumerate(self.loops)}
        self.depth: dict[Node, int] = {}
        self.edges: dict[_Edge, int] = {}
        self.infos: dict[Node, StepInfo] = {node: step_info(node) for node in self.keyed}
        for node in nodes:
            self.depth[node] = self._depth(node)

    def compile(self) -> Program:
        levels = max((self.depth[node] for node in self.keyed), default=0)
        for node in self.keyed:
            for edge in self._edges_into(node):
                self.edges.setdefault(edge, len(self.edges))
        drafts = {level: self._level_draft(level) for level in range(1, levels + 1)}
        steps = {node.name or "": self._step_plan(node) for node in self.keyed}
        migrations = registered_migrations()
        return Program(
            app=self.app,
            sources=tuple(self._source_plan(read) for read in self.reads),
            levels=tuple(self._freeze(drafts[level]) for level in range(1, levels + 1)),
            edges=tuple(self._edge_plan(edge, index) for edge, index in self.edges.items()),
            outputs=tuple(
                OutputPlan(
                    node.name or "",
                    node.sink,
                    node.codec,
                    node.site,
                    changelog=node.inputs[0].kind.rows == "changelog",
                    by_key=finds_by_key(node.sink, node.inputs[0].kind),
                )
                for node in self.writes
            ),
            steps=steps,
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
            parallelism=self.parallelism,
            key_groups=self.key_groups,
            fingerprint=_fingerprint(self.said, steps, migrations),
            loops=tuple(self._loop_plan(loop) for loop in self.loops),
            migrations=migrations,
            bound_to_epochs=find_bound_to_epochs(self.nodes),
        )

    # -- levels -------------------------------------------------------------------------------------------------

    def _depth(self, node: Node) -> int:
        deepest = max((self.depth[before] for before in node.inputs), default=0)
        return deepest + 1 if isinstance(node, KeyedNode) and node.needs_exchange else deepest

    def _edges_into(self, node: KeyedNode) -> tuple[_Edge, ...]:
        """The exchanges before a step, by port. Steps that stand on one level share them."""
        if not node.needs_exchange:
            return ()
        return tuple(_Edge(before, key, self.depth[node]) for before, key in node.keyed_inputs)

    def _level_draft(self, level: int) -> _Draft:
        draft = _Draft()
        for node in self.keyed:
            if self.depth[node] == level:
                for port, edge in enumerate(self._edges_into(node)):
                    target = self._op(draft, node)._replace(port=port)
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
                case UnionNode():
                    targets += self._route(draft, reader)
                case ChangesNode() if not changes_rows(reader):
                    targets += self._route(draft, reader)
                case WriteNode():
                    targets.append(Target("out", self.output_index[reader]))
                case FeedNode():
                    targets.append(Target("loop", self.loop_index[reader.loop]))
                case KeyedNode() if reader.needs_exchange:
                    mine = [Target("edge", self.edges[edge]) for edge in self._edges_into(reader) if edge.node is node]
                    # A stream that is joined with itself by one key comes through one exchange, once.
                    targets += [target for target in dict.fromkeys(mine) if target not in targets]
                case _:
                    targets.append(self._op(draft, reader))
        return targets

    # -- plans --------------------------------------------------------------------------------------------------

    def _source_plan(self, read: ReadNode) -> SourcePlan:
        draft = _Draft()
        draft.entry = self._route(draft, read)
        for tap in self.readers[read]:
            if isinstance(tap, TapNode) and tap.tag == "errors":
                draft.errors += self._route(draft, tap)
        return SourcePlan(
            name=read.name or "",
            source=read.source,
            codec=read.codec,
            time=read.time,
            prefix=(),
            out=read.codec,
            fragment=self._freeze(draft),
            node=read.id,
            mark=read.marking.mark,
            generator=read.marking.generator,
            aligned=bool(read.alignment.group),
        )

    def _loop_plan(self, loop: LoopNode) -> LoopPlan:
        draft = _Draft()
        draft.entry = self._route(draft, loop)
        return LoopPlan(loop.name or "", loop.codec, self._freeze(draft), loop.was)

    def _edge_plan(self, edge: _Edge, index: int) -> EdgePlan:
        sources = self._timed_above(edge.node)
        changelog = edge.node.kind.rows == "changelog"
        return EdgePlan(index, edge.level, edge.node.codec, edge.key, edge.node.id, sources, changelog=changelog)

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
        types = step_types(node, self.infos[node])
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
            lifetimes={decl.name: (decl.ttl.span_us, decl.ttl.refresh) for decl in node.decls if decl.ttl is not None},
            key=node.key.type,
            rules=step_rules(node, self.infos[node]),
            declared=declared_states(node, self.infos[node]),
            times=step_times(node, types),
            types=types,
            choice=self.infos[node].choice,
        )

    def _freeze(self, draft: _Draft) -> Fragment:
        order = sorted(draft.ops, key=self.position.__getitem__)
        position = {node_id: i for i, node_id in enumerate(order)}

        def placed(targets: list[Target]) -> tuple[Target, ...]:
            return tuple(
                target._replace(place=position[target.place]) if target.kind == "op" else target for target in targets
            )

        def op_plan(node_id: int) -> OpPlan:
            targets = {tag: placed(each) for tag, each in draft.targets[node_id].items()}
            node = draft.ops[node_id]
            return _op_plan(node, self.infos.get(node), targets)

        return Fragment(
            ops=tuple(map(op_plan, order)),
            entries={edge: placed(targets) for edge, targets in draft.entries.items()},
            entry=placed(draft.entry),
            errors=placed(draft.errors),
        )


def _op_plan(node: Node, info: StepInfo | None, targets: dict[str, tuple[Target, ...]]) -> OpPlan:
    keyed = node if isinstance(node, KeyedNode) else None
    local = keyed is not None and not keyed.needs_exchange
    return OpPlan(
        step=node.label,
        build=operator_builder(node, info),
        targets=targets,
        stateful=node.stateful,
        rekey=keyed.key if keyed is not None and local else None,
        codec=node.inputs[0].codec if local else None,
        node=node.id,
    )


def _check_expressions(program: Program, nodes: Nodes) -> None:
    """An expression that no rule moved to the JVM runs in the worker, which knows a part of SQL."""
    for node in (nodes[op.node] for fragment in program.fragments for op in fragment.ops):
        if isinstance(node, ExprNode):
            for _, text in node.exprs:
                check_supported(text, node.inputs[0].codec.schema, node.site)


def _fingerprint(nodes: tuple[Node, ...], steps: Mapping[str, StepPlan], migrations: Sequence[Migration]) -> str:
    """What the program looks like from the store's side: names, verbs, types and what steps store, not code."""
    own = (node for node in nodes if not (isinstance(node, WriteNode) and (node.name or "").startswith(TAP)))
    lines = [f"{node.verb} {node.label if node.name else ''} {node.codec.schema}" for node in own]
    lines += [f"{step.step} keeps {step.choice.table}" for step in steps.values() if step.choice is not None]
    lines += [f"{each.name} makes {type_text(each.new)} of {type_text(each.old)}" for each in migrations]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
