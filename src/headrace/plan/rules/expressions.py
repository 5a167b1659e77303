"""Expressions right behind a source run where it is decoded: in the JVM, unless workers decode it.

They become the *prefix* of the source. The prefix ends at the first step that is no expression, and where rows are
needed as they were read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.dataflow.graph import ExprNode
from headrace.plan.physical import PrefixedStep, Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.dataflow.graph import Node
    from headrace.plan.physical import Fragment, Program, SourcePlan


def evaluate_where_decoded(program: Program, nodes: Mapping[int, Node]) -> Program:
    return replace(program, sources=tuple(_with_prefix(source, nodes) for source in program.sources))


def _with_prefix(source: SourcePlan, nodes: Mapping[int, Node]) -> SourcePlan:
    while (node := _first_expression(source.fragment, nodes)) is not None and _may_run_before_marks(source, node):
        source = replace(
            source,
            prefix=(*source.prefix, PrefixedStep(node.op, node.exprs, node.codec.schema, node.id)),
            out=node.codec,
            fragment=_without_first(source.fragment),
        )
    return source


def _first_expression(fragment: Fragment, nodes: Mapping[int, Node]) -> ExprNode | None:
    """The expressions that all rows of a source pass first, and no other rows do."""
    if len(fragment.entry) != 1 or fragment.entry[0].kind != "op":
        return None
    node = nodes[fragment.ops[fragment.entry[0].place].node]
    return node if isinstance(node, ExprNode) and list(fragment.targets).count(fragment.entry[0]) == 1 else None


def _may_run_before_marks(source: SourcePlan, node: ExprNode) -> bool:
    """Whether a source's time can be told from what these expressions leave of its rows."""
    if source.generator is not None:
        # A watermark generator is given the rows as they were read.
        return False
    # Rows that a filter hides must still move the time of their split.
    by_row = source.mark is not None or (source.time is not None and source.source.has_splits)
    return node.op != "where" or not by_row


def _without_first(fragment: Fragment) -> Fragment:
    """The fragment that is entered behind its first operator."""
    first = fragment.entry[0].place

    def moved(target: Target) -> Target:
        behind = target.kind == "op" and target.place > first
        return target._replace(place=target.place - 1) if behind else target

    behind = replace(fragment, ops=fragment.ops[:first] + fragment.ops[first + 1 :],
                     entry=fragment.ops[first].targets.get("main", ()))  # fmt: skip
    return behind.retarget(moved)
