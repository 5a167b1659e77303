"""Rows are combined before an exchange where the step behind it merges partial results.

Only where the step has the exchange for itself, where rows stay, and nobody reads its late rows: otherwise rows are
wanted as they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.dataflow.graph import KeyedNode
from headrace.operators.contract import COMBINING
from headrace.operators.spec import COMBINED_PORT
from headrace.plan.build import combined_rows, step_info
from headrace.plan.physical import OpPlan, Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.dataflow.graph import Node
    from headrace.operators.spec import CombinedRows
    from headrace.plan.physical import EdgePlan, Fragment, Program


def combine_before_exchange(program: Program, nodes: Mapping[int, Node]) -> Program:
    for edge in program.edges:
        level = program.levels[edge.level - 1]
        targets = level.entries[edge.index]
        if len(targets) != 1 or edge.changelog:
            continue
        op = level.ops[targets[0].place]
        node = nodes[op.node]
        if not isinstance(node, KeyedNode) or len(node.inputs) > 1 or "late" in op.targets:
            continue
        combined = combined_rows(node, step_info(node, program.steps[node.name or ""].choice))
        if combined is not None:
            program = _combine(program, edge, node, combined)
    return program


def _combine(program: Program, edge: EdgePlan, node: KeyedNode, combined: CombinedRows) -> Program:
    """The program with an operator before every entrance of the edge, and partial results on it."""
    into_edge = Target("edge", edge.index)
    op = OpPlan(
        step=f"{COMBINING}{node.label}",
        build=combined.build,
        targets={"main": (into_edge,)},
        rekey=node.key,
        codec=node.input.codec,
        hashed=False,
        node=node.id,
    )

    def before(fragment: Fragment) -> Fragment:
        if into_edge not in fragment.targets:
            return fragment
        into_op = Target("op", len(fragment.ops))
        redirected = fragment.retarget(lambda target: into_op if target == into_edge else target)
        return replace(redirected, ops=(*redirected.ops, op))

    levels = list(map(before, program.levels))
    behind = levels[edge.level - 1]
    (target,) = behind.entries[edge.index]
    entries = {**behind.entries, edge.index: (target._replace(port=COMBINED_PORT),)}
    levels[edge.level - 1] = replace(behind, entries=entries)
    partials = replace(edge, codec=combined.codec, combined=True)
    return replace(
        program,
        sources=tuple(replace(source, fragment=before(source.fragment)) for source in program.sources),
        loops=tuple(replace(loop, fragment=before(loop.fragment)) for loop in program.loops),
        levels=tuple(levels),
        edges=tuple(partials if each.index == edge.index else each for each in program.edges),
    )
