"""The types of what each step keeps, off the annotations of the program: for the programs that come after it.

`step_types` is asked once per step, when the program is compiled; what it says goes into manifests
(`headrace.model.job.DeclaredState`). Partial aggregates in columns say their types themselves, and timers have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.aggregates.accumulate import describe_accumulators
from headrace.model.job import ROW, VALUE_TABLE
from headrace.model.type_shape import TypeShape, describe_type
from headrace.operators.spec import StoredType

if TYPE_CHECKING:
    from headrace.dataflow.graph import KeyedNode
    from headrace.operators.spec import StepInfo
    from headrace.state.handles import StateDecl


class StateType(NamedTuple):
    """The types of one state, and how it is kept."""

    stored: StoredType
    key: TypeShape | None
    """Of its keys."""


def step_types(node: KeyedNode, info: StepInfo) -> dict[str, StateType]:
    """Everything a step keeps → its kind, and the types of its values and keys."""
    key = None if node.key.type is None else describe_type(node.key.type)
    types = {
        name: StateType(stored, None if stored.kind == "broadcast" else key)
        for name, stored in _nameless(node, info).items()
    }
    for decl in node.decls:
        if decl.kind not in ("side", "counter"):
            mine = describe_type(decl.args[0]) if decl.kind == "broadcast" else key
            types[decl.name] = StateType(_type_of_state(decl), mine)
    return types


def _nameless(node: KeyedNode, info: StepInfo) -> dict[str, StoredType]:
    """What nobody named."""
    if node.spec is not None:
        found = dict(node.spec.stored(info))
        if hasattr(node.spec, "assigner"):
            found.setdefault(VALUE_TABLE, StoredType(ROW, None))
        return found
    match node.op:
        case "reduce" | "latest":
            return {VALUE_TABLE: StoredType(ROW, describe_type(node.codec.type), node.codec.type)}
        case "aggregate":
            accumulators = describe_accumulators(node.aggs, node.input.codec, f"step {info.step}", info.codec)
            return {VALUE_TABLE: StoredType(ROW, accumulators)}
    return {}


def _type_of_state(decl: StateDecl) -> StoredType:
    match decl.kind:
        case "timer" | "wall_timer" | "timers":
            return StoredType(decl.kind, None)
        case "map":
            names, values = decl.args
            shape = TypeShape("map", keys=describe_type(names), items=describe_type(values))
            return StoredType(decl.kind, shape, values)
        case "list":
            return StoredType(decl.kind, TypeShape("list", items=describe_type(decl.args[0])), decl.args[0])
    return StoredType(decl.kind, describe_type(decl.value_type), decl.value_type)
