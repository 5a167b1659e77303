"""Tries to break an operator: `verify_operator`, and `verify_step` for a step of a program.

The contract of `headrace.operators.contract`, made executable: whatever an engine does, each epoch must give the same
rows. What an engine may do stands in `headrace.testing.ways`; what is compared, in `headrace.testing.operator_trial`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.dataflow.checks import HeadraceWarning, reachable
from headrace.dataflow.graph import (
    AsyncNode,
    BatchNode,
    CallNode,
    ExprNode,
    KeyedNode,
    LookupNode,
    Node,
    ReadNode,
    TapNode,
)
from headrace.dataflow.graph import upstream as nodes_above
from headrace.errors import ProgramError
from headrace.model.keyspec import ANYWHERE, KeySpec
from headrace.model.time import parse_time
from headrace.operators.contract import SIDE, Operator
from headrace.plan.build import operator_builder
from headrace.plan.ship import dump_program, load_program
from headrace.testing.operator_trial import OperatorTrial
from headrace.testing.rig import Key, everywhere
from headrace.testing.ways import EpochInput

if TYPE_CHECKING:
    from headrace.dataflow.joined import Joined
    from headrace.dataflow.stream import Stream

__all__ = ["EpochInput", "verify_operator", "verify_step"]

OperatorNode = CallNode | AsyncNode | LookupNode | BatchNode | ExprNode | KeyedNode
"""The nodes of a program that an operator is built for."""


def verify_operator(
    make: Callable[[], Operator],
    epochs: Sequence[EpochInput | Sequence[Any]],
    *,
    row_type: Any,
    key: Key | tuple[Key, ...] | None = None,
    time: Callable[[Any], int] | tuple[Callable[[Any], int] | None, ...] | None = None,
    outlets: Sequence[str] = (),
    ttl: Mapping[str, str] | None = None,
    seed: int = 0,
) -> None:
    """Runs an operator over the same epochs in every way and raises AssertionError where one gives other rows.

    ``make`` returns a new operator each time, as each worker makes one. ``epochs``: rows, or an `EpochInput` where the
    clocks move. ``row_type``: type or codec of the rows that go in; ``key`` and ``time`` of such a row, None for a
    step without state and for a stream without event time; a step with several inputs has a tuple of each, and epochs
    of (port, rows). ``outlets``: those that somebody reads beside ``main``
    (``errors`` and ``late`` change what a step does). ``ttl``: state → ``event`` or ``wall``, so that folds purge.
    """
    inputs = [epoch if isinstance(epoch, EpochInput) else EpochInput(epoch) for epoch in epochs]
    options = {"taken": row_type, "key": key, "time": time, "outlets": outlets, "ttl": ttl}
    OperatorTrial(make, [_timed(epoch) for epoch in inputs], options, seed).run()


def verify_step(
    step: Stream[Any] | Joined[Any, Any],
    epochs: Sequence[EpochInput | Sequence[Any]],
    *,
    time: Callable[[Any], int] | None = None,
    seed: int = 0,
) -> None:
    """`verify_operator` for one step of a program: its function, its key and its outlets are those of the program.

    ``epochs`` hold rows as they come *into* the step. Their time is the column that the source declares, where the rows
    still have it; otherwise ``time`` says it.
    """
    node = _operator_node(step)
    with warnings.catch_warnings():
        # That nobody reads other steps is not the question here.
        warnings.simplefilter("ignore", HeadraceWarning)
        reachable(step.app, [node])
    keyed = node if isinstance(node, KeyedNode) else None
    decls = () if keyed is None else keyed.decls
    sides = [SIDE + decl.name for decl in decls if decl.kind == "side"]
    taps = [tap.tag for tap in step.app.nodes if isinstance(tap, TapNode) and tap.inputs == (node,)]
    shipped = dump_program(operator_builder(node))

    def make() -> Operator:
        # Unpacked each time, as each worker does: a function that keeps something in itself has its own copy.
        made: Operator = load_program(shipped)()
        return made

    verify_operator(
        make,
        epochs,
        row_type=_single(tuple(before.codec for before in node.inputs)),
        key=None if keyed is None else _single(tuple(_key_of(keyed, key) for _, key in keyed.keyed_inputs)),
        time=time or _single(tuple(_time_above(node, before) for before in node.inputs)),
        outlets=sorted({*sides, *taps}),
        # What has expired may be purged at any time only if nobody is ever shown it.
        ttl={decl.name: decl.ttl.clock for decl in decls if decl.ttl is not None and decl.ttl.expired == "hide"},
        seed=seed,
    )


def _operator_node(step: Stream[Any] | Joined[Any, Any]) -> OperatorNode:
    node = step.node
    if isinstance(node, OperatorNode):
        return node
    raise ProgramError(
        "this stream has no operator of its own",
        where=f"verify_step of {node.label}",
        expected="what map, flat_map, map_async, lookup, map_batches, an expression or a keyed step gave",
        found=node.verb,
    )


def _single(per_input: tuple[Any, ...]) -> Any:
    return per_input[0] if len(per_input) == 1 else per_input


def _key_of(node: KeyedNode, key: KeySpec | None) -> Key:
    if key is None:
        return everywhere
    if key == ANYWHERE:
        return lambda row: None
    columns, fn = key.columns, key.fn
    if columns is None:
        assert fn is not None
        return fn
    if not columns:
        return lambda row: None
    if len(columns) == 1:
        return lambda row: getattr(row, columns[0])
    return lambda row: tuple(getattr(row, column) for column in columns)


def _time_above(node: Node, before: Node) -> Callable[[Any], int] | None:
    reads = [read for read in nodes_above([before]) if isinstance(read, ReadNode)]
    times = {read.time for read in reads}
    if times == {None}:
        return None
    named = [time.strip("`") for time in times if time is not None]
    if len(named) != 1 or named[0] not in before.codec.names:
        raise ProgramError(
            "the time of these rows is not known",
            where=f"verify_step of {node.label}",
            expected="a column of the rows that the source names as its time",
            found=", ".join(named),
            next_move="say it: verify_step(step, epochs, time=lambda row: row.at)",
        )
    return lambda row: int(getattr(row, named[0]))


def _timed(epoch: EpochInput) -> EpochInput:
    return replace(epoch, watermark=_us(epoch.watermark), clock=_us(epoch.clock))


def _us(time: int | str | None) -> int | None:
    return parse_time(time) if isinstance(time, str) else time
