"""The types of what each step keeps, off the annotations of the program: for the programs that come after it.

`step_types` is asked once per step, when the program is compiled; what it says goes into manifests
(`headrace.model.job.DeclaredState`). Partial aggregates in columns say their types themselves, and timers have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.aggregates.accumulate import describe_accumulators
from headrace.model.job import ROW, VALUE_TABLE
from headrace.model.type_shape import TypeShape, describe_type

if TYPE_CHECKING:
    from headrace.dataflow.graph import KeyedNode
    from headrace.operators.spec import StepInfo
    from headrace.state.handles import StateDecl

StateType = tuple[str, TypeShape | None, TypeShape | None]
"""Kind, type of the values, type of the keys."""


def step_types(node: KeyedNode, info: StepInfo) -> dict[str, StateType]:
    """Everything a step keeps → its kind, and the types of its values and keys."""
    key = None if node.key.type is None else describe_type(node.key.type)
    types: dict[str, StateType] = {}
    for name, (kind, shape) in _nameless(node, info).items():
        types[name] = kind, shape, key
    for decl in node.decls:
        if decl.kind not in ("side", "counter"):
            mine = describe_type(decl.args[0]) if decl.kind == "broadcast" else key
            types[decl.name] = decl.kind, _type_of_state(decl), mine
    return types


def _nameless(node: KeyedNode, info: StepInfo) -> dict[str, tuple[str, TypeShape | None]]:
    """What nobody named."""
    taken, where = node.input.codec, f"step {info.step}"
    if node.spec is not None:
        found: dict[str, tuple[str, TypeShape | None]] = dict(node.spec.stored(info))
        if hasattr(node.spec, "assigner"):
            found.setdefault(VALUE_TABLE, (ROW, None))
        return found
    match node.op:
        case "reduce" | "latest":
            return {VALUE_TABLE: (ROW, describe_type(node.codec.type))}
        case "aggregate":
            return {VALUE_TABLE: (ROW, describe_accumulators(node.aggs, taken, where))}
    return {}


def _type_of_state(decl: StateDecl) -> TypeShape | None:
    match decl.kind:
        case "timer" | "wall_timer" | "timers":
            return None
        case "map":
            return TypeShape("map", keys=describe_type(decl.args[0]), items=describe_type(decl.args[1]))
        case "list":
            return TypeShape("list", items=describe_type(decl.args[0]))
    return describe_type(decl.value_type)
