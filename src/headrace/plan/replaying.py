"""What keeps a program from coming to the same state when rows of several epochs are read again as one.

A rewind that holds outputs back reads what the abandoned epochs had read in one epoch. Most steps do not notice: which
rows there are, and in which order each split brought them, is the same. What is listed here does notice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.dataflow.graph import AsyncNode, KeyedNode, LookupNode, LoopNode, Node, ReadNode
from headrace.operators.spec import WALL


def find_bound_to_epochs(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Each of them in words."""
    return tuple(dict.fromkeys(text for node in nodes for text in _of_node(node)))


def find_outside_answers(nodes: Iterable[Node]) -> Iterator[str]:
    """What keeps a program from the same rows even where each epoch is run again by itself."""
    for node in nodes:
        if isinstance(node, AsyncNode | LookupNode):
            yield f"the step {node.label!r} asks other systems, which may answer otherwise now"


def _of_node(node: Node) -> Iterator[str]:
    match node:
        case ReadNode() if node.idle_us is not None:
            yield f"the source {node.name!r} falls idle by the wall clock"
        case ReadNode() if node.marking.generator is not None:
            yield f"the source {node.name!r} has a watermark generator, which is asked once per epoch"
        case LoopNode():
            yield f"rows go round in the loop {node.name!r}, once per epoch"
        case AsyncNode() | LookupNode():
            yield from find_outside_answers([node])
        case KeyedNode():
            yield from _of_step(node)


def _of_step(node: KeyedNode) -> Iterator[str]:
    kinds = {decl.kind for decl in node.decls}
    lasting = {decl.ttl.clock for decl in node.decls if decl.ttl is not None}
    if "wall_timer" in kinds or WALL in lasting or (node.spec is not None and node.spec.uses_wall_clock):
        yield f"the step {node.label!r} works by the wall clock"
    in_order = node.spec is not None and node.spec.in_time_order
    if kinds & {"timer", "timers"} and not in_order:
        yield f"the step {node.label!r} sets timers, and which rows come before one fires depends on where epochs end"
