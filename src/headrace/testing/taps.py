"""A program as a harness compiles it: every stream has a tap, and the sinks of the program are quiet."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.connectors.program.sinks import CollectSink, DiscardSink
from headrace.dataflow.graph import ExprNode, FeedNode, ReadNode, WriteNode
from headrace.errors import ProgramError
from headrace.model.ids import KEY_GROUPS
from headrace.model.report import TAP
from headrace.plan.compile import compile_app
from headrace.plan.rules import RULES
from headrace.plan.rules.decoding import decode_in_workers

if TYPE_CHECKING:
    from headrace.dataflow.app import App
    from headrace.dataflow.graph import Node
    from headrace.plan.physical import Program


def compile_with_taps(
    app: App, parallelism: int, session: Any, *, feed_sinks: bool
) -> tuple[Program, dict[int, CollectSink]]:
    """The program, and what each stream gives, by its node. ``session``: evaluates expressions, where one is given."""
    # What a query became is run as in production: what its steps keep depends on what is asked of them.
    nodes = [node for node in app.nodes if not isinstance(node, (WriteNode, FeedNode)) and not node.inner]
    if session is not None:
        # Taking from the middle of a chain of expressions would cut it, and Spark could not evaluate the rest.
        inner = {before for node in nodes if isinstance(node, ExprNode) for before in node.inputs}
        nodes = [node for node in nodes if not (isinstance(node, (ReadNode, ExprNode)) and node in inner)]
    number = max((node.id for node in app.nodes), default=0) + 1
    taken: dict[int, CollectSink] = {}
    taps: list[WriteNode] = []
    # Names of their own for each harness: what another one on the same store left to be released is not for us.
    mark = os.urandom(4).hex()
    for offset, node in enumerate(nodes):
        sink = taken[node.id] = CollectSink().bind(node.codec, f"{TAP}{mark}.{node.id}")
        taps.append(
            WriteNode(id=number + offset, inputs=(node,), codec=node.codec, at=node.at, name=sink.output, sink=sink)
        )
    # Rows are pushed as objects here, so there are no files for a worker to decode.
    rules = tuple(rule for rule in RULES if rule is not decode_in_workers)
    program = compile_app(app, parallelism=parallelism, key_groups=KEY_GROUPS, taps=taps, rules=rules)
    if feed_sinks:
        return program, taken
    quiet = tuple(
        output if output.name.startswith(TAP) else replace(output, sink=DiscardSink()) for output in program.outputs
    )
    return replace(program, outputs=quiet), taken


def sink_of(taken: dict[int, CollectSink], node: Node) -> CollectSink:
    """What collects the rows of a stream."""
    if node.id not in taken:
        raise ProgramError(
            "the harness was made before this stream",
            where=f"take from {node.label}",
            next_move="build the whole program first, then the harness",
        )
    return taken[node.id]


def taken_rows(sink: CollectSink) -> list[Any]:
    """What a stream gave; the sink is empty then."""
    rows = list(sink.rows)
    sink.clear()
    return rows


def taken_changes(program: Program, sink: CollectSink, node: Node) -> list[tuple[str, Any]]:
    """What a changelog gave, each row behind what it is; the sink is empty then. Refuses other streams."""
    if not next(each for each in program.outputs if each.name == sink.output).changelog:
        raise ProgramError(
            "rows of this stream do not say what they are",
            where=f"take_changes from {node.label}",
            expected="a changelog",
            found=str(node.kind),
            next_move='take its rows: h.take(stream); or those of stream.changes(kind="op")',
        )
    changes = list(sink.changes)
    sink.clear()
    return changes


def check_parallelism(parallelism: object) -> None:
    """Refuses what is no number of shards."""
    if isinstance(parallelism, bool) or not isinstance(parallelism, int) or not 1 <= parallelism <= KEY_GROUPS:
        raise ProgramError(
            "the harness cannot have this many shards",
            where="Harness(parallelism=…)",
            expected=f"a whole number from 1 to {KEY_GROUPS}, the number of key groups",
            found=repr(parallelism),
            next_move="choose a small number: 2 shows what happens where keys lie on several shards",
        )
