"""Which state of a step a test asks for, and the type in which it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headrace.aggregates.declare import Aggregator
from headrace.dataflow.graph import KeyedNode, Node
from headrace.errors import ProgramError, StoreError
from headrace.model.job import VALUE_TABLE
from headrace.model.keys import encode_key
from headrace.model.keyspec import ANYWHERE
from headrace.plan.build import declared_states, step_info
from headrace.read.entries import HeldWindowsReader
from headrace.read.steps import runs_of
from headrace.read.store import Store, open_state
from headrace.read.values import AggregateReader
from headrace.windows.spec import WindowSpec

if TYPE_CHECKING:
    from headrace.state.handles import StateDecl
    from headrace.state.manifest import JobState


def declared_state(node: Node, of: Any) -> StateDecl | None:
    """The declaration of a state that a test asks for; None for the one state of a rolling step."""
    decls = node.decls if isinstance(node, KeyedNode) else ()
    if of is None and node.stateful and not decls:
        return None
    found = next((decl for decl in decls if of is not None and decl.name == of.name), None)
    if found is None or found.kind in ("side", "counter"):
        stored = [decl.name for decl in decls if decl.kind not in ("side", "counter")]
        raise ProgramError(
            f"{node.label} keeps no such state",
            where="Harness.state",
            expected=f"one of {', '.join(stored)}" if stored else "a keyed step",
            found="none was named" if of is None else str(of.name),
            next_move="name it by its class: h.state(step, Fraud.seen, key)" if stored else "",
        )
    return found


def held_state(store: str, held: JobState | None, node: Node, of: Any, key: Any) -> Any:
    """What a state holds for a key in the newest published epoch, which is ``held``; None for nothing."""
    decl = declared_state(node, of)
    names = [name for name in (node.name, node.was) if name and held is not None and runs_of(held, name)]
    shared = decl is not None and decl.kind == "broadcast"
    if not names:
        return {} if shared and key is None else None
    table, was = (VALUE_TABLE, None) if decl is None else (decl.name, decl.was)
    clock = None if decl is None or decl.ttl is None else decl.ttl.clock
    key_type = decl.args[0] if decl is not None and shared else getattr(node, "key", ANYWHERE).type
    try:
        address = f"{names[0]}.{table}"
        reader = open_state(Store(store), address, value_type(node, decl), key=key_type, was=was, clock=clock)
    except StoreError as error:
        if type(error) is not StoreError:
            raise
        return {} if shared and key is None else None  # It is declared, and nothing was ever written to it.
    if shared and key is None:
        return {reader.decoded(each): value for each, value in reader.items()}
    if not isinstance(node, KeyedNode) or _holds_rows(node):
        return reader.value(encode_key(key))
    if isinstance(reader, HeldWindowsReader):
        reader.shows_pane = "pane" in node.codec.names
    value = reader.value(encode_key(key))
    return _finished(value, node) if isinstance(reader, AggregateReader | HeldWindowsReader) else value


def _holds_rows(node: KeyedNode) -> bool:
    """Whether a window holds its rows, which have not come to anything yet: its state says how many there are."""
    return isinstance(node.spec, WindowSpec) and node.spec.keeps_rows


def _finished(result: Any, node: KeyedNode) -> Any:
    """A result in the type of the step's rows; what only the program can finish is finished by it."""
    if result is None or (node.spec is not None and node.fn is not None):
        # What the rows of a window come to before its function sees them has no type of its own.
        return result
    aggs = node.aggs or getattr(node.spec, "aggs", {})
    for name, agg in aggs.items():
        if isinstance(agg, Aggregator):
            held = result[name]
            acc = agg.zero() if held is None else msgspec.convert(held, agg.accumulator_type())
            result[name] = agg.result(acc)
    return msgspec.convert(result, node.codec.type)


def value_type(node: Node, decl: StateDecl | None) -> Any:
    """The type that a reader of the state wants; None for plain Python."""
    if decl is None:
        # Aggregates are finished and given their type behind the view.
        if not isinstance(node, KeyedNode):
            return None
        info = step_info(node)
        known = declared_states(node, info).get(VALUE_TABLE)
        # Slices, and fragments of sessions, are read as rows of results.
        in_columns = info.choice is not None and info.choice.operator != "by row"
        finished = known is not None and known.kind in ("aggregate", "windows") and not in_columns
        return None if finished else node.codec.type
    if decl.kind in ("timer", "wall_timer", "timers"):
        return None
    generic: Any = {"map": dict, "list": list}.get(decl.kind)
    return decl.value_type if generic is None else generic[decl.args]
