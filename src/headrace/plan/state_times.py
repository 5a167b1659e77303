"""Where in the states of a step times are, off the annotations of the program: for readers who do not have it.

`step_times` is asked once per step, when the program is compiled; what it says goes into manifests
(`headrace.model.job.DeclaredState`).
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

from headrace.aggregates.declare import Aggregator
from headrace.dataflow.aggregation import key_columns
from headrace.model.job import VALUE_TABLE
from headrace.model.shapes import field_shapes, is_record_class, split_optional, strip, union_members
from headrace.model.time import Timestamp
from headrace.model.time_shape import DATETIME, TIME, TIMESTAMP, TimeShape

if TYPE_CHECKING:
    from headrace.dataflow.graph import KeyedNode
    from headrace.state.handles import StateDecl


def step_times(node: KeyedNode, names: Iterable[str]) -> dict[str, tuple[TimeShape | None, TimeShape | None]]:
    """State → where the times of its values and of its keys are; those without any are left out.

    ``names``: of everything that the step keeps, declared or not: all of it has the keys of the step.
    """
    key = times_of(node.key.type)
    states: dict[str, tuple[TimeShape | None, TimeShape | None]] = dict.fromkeys(names, (None, key))
    states |= {decl.name: (_times_of_state(decl), key) for decl in node.decls if decl.kind not in ("side", "counter")}
    for decl in node.decls:
        if decl.kind == "broadcast":
            # One mapping for all keys of the step: what it is asked by are its own.
            states[decl.name] = _times_of_state(decl), times_of(decl.args[0])
    if _has_rows(node):
        states[VALUE_TABLE] = _times_of_result(node), key
    return {name: shapes for name, shapes in states.items() if shapes != (None, None)}


def _has_rows(node: KeyedNode) -> bool:
    """Whether the step has a state that nobody named: rows by key, or by key and window."""
    return node.op in ("aggregate", "reduce", "latest", "normalise") or hasattr(node.spec, "assigner")


def _times_of_state(decl: StateDecl) -> TimeShape | None:
    match decl.kind:
        case "timer" | "wall_timer":
            return TIME
        case "timers":
            return TimeShape(items=TIME)
        case "map":
            return TimeShape(names=times_of(decl.args[0]), items=times_of(decl.args[1])).some
        case "list":
            return TimeShape(items=times_of(decl.args[0])).some
    return times_of(decl.value_type)


def _times_of_result(node: KeyedNode) -> TimeShape | None:
    """Of the row that a reader makes of what is stored: the columns of the key, and what stands beside them."""
    taken, spec = node.input.codec, node.spec
    aggs = node.aggs or getattr(spec, "aggs", {})
    fields = {name: times_of(annotation) for name, annotation in key_columns(taken, node.key).items()}
    if aggs:
        # Nobody but the program finishes an Aggregator of the user's own: its accumulator is shown.
        fields |= {
            name: times_of(agg.accumulator_type() if isinstance(agg, Aggregator) else agg.result_type(taken))
            for name, agg in aggs.items()
        }
    elif node.op in ("reduce", "latest", "normalise") or getattr(spec, "reduce", None) is not None:
        # The row that stands for all others is of the type of those.
        whole = times_of(taken.type)
        if whole is not None:
            inside = {**fields, **whole.fields} if spec is not None else whole.fields
            return msgspec.structs.replace(whole, fields={name: each for name, each in inside.items() if each})
    there = {name: shape for name, shape in fields.items() if shape is not None}
    return TimeShape(fields=there).some


# --- from an annotation


def times_of(annotation: Any) -> TimeShape | None:
    """Where the times of values of this annotation are; None where they have none."""
    return _shape_of(annotation, ()) if _has_times(annotation, set()) else None


def _has_times(annotation: Any, seen: set[Any]) -> bool:
    bare = strip(annotation)
    if _time_kind(bare):
        return True
    if is_record_class(bare):
        if bare in seen:
            return False
        seen.add(bare)
        return any(_has_times(field.type, seen) for field in field_shapes(bare))
    return any(_has_times(part, seen) for part in _parts_of(bare))


def _parts_of(bare: Any) -> tuple[Any, ...]:
    """The annotations inside of one that is no Record."""
    if is_typeddict(bare) or (isinstance(bare, type) and hasattr(bare, "_fields")):
        return tuple(get_type_hints(bare).values())
    return tuple(part for part in get_args(bare) if part is not Ellipsis and not isinstance(part, str | int | bytes))


def _time_kind(bare: Any) -> str:
    if bare is Timestamp:
        return TIMESTAMP
    return DATETIME if isinstance(bare, type) and issubclass(bare, datetime) else ""


def _shape_of(annotation: Any, above: tuple[Any, ...]) -> TimeShape | None:
    """``above``: the Records and tuples that the annotation stands in, the outermost first."""
    bare = split_optional(annotation)[0]
    members = union_members(bare)
    if members:
        return _shape_of_union([strip(member) for member in members if member is not types.NoneType], above)
    if kind := _time_kind(bare):
        return TimeShape(time=kind)
    if not _has_times(bare, set()):
        return None
    if is_record_class(bare):
        return _shape_of_record(bare, above)
    return _shape_of_container(bare, above)


def _shape_of_union(members: list[Any], above: tuple[Any, ...]) -> TimeShape | None:
    shapes = {member: shape for member in members if (shape := _shape_of(member, above)) is not None}
    tagged = {member: tag for member in members if (tag := _tag_of(member)) is not None}
    made = TimeShape()
    if len(tagged) > 1:
        cases = {str(value): shapes[member] for member, (_, value) in tagged.items() if member in shapes}
        made = TimeShape(tag=next(iter(tagged.values()))[0], cases=cases)
    for member, shape in shapes.items():
        if shape.time and any(other is not member and _is_number(other) for other in members):
            # Nothing tells such a number from a time.
            continue
        if shape.time and str in members:
            shape = TIME
        if len(tagged) < 2 or member not in tagged:
            made = msgspec.structs.replace(made, **dict(_nonempty_fields(shape)))
    return made.some


def _nonempty_fields(shape: TimeShape) -> list[tuple[str, Any]]:
    return [(name, each) for name in shape.__struct_fields__ if (each := getattr(shape, name))]


def _is_number(bare: Any) -> bool:
    return not _time_kind(bare) and (getattr(bare, "__supertype__", bare) in (int, float) or bare is Any)


def _tag_of(bare: Any) -> tuple[str, Any] | None:
    """Field and value that tell a Struct from others; None where nothing does."""
    config = getattr(get_origin(bare) or bare, "__struct_config__", None)
    return None if config is None or config.tag is None else (config.tag_field, config.tag)


def _shape_of_record(cls: Any, above: tuple[Any, ...]) -> TimeShape | None:
    if cls in above:
        return TimeShape(up=len(above) - above.index(cls))
    fields = {field.encode_name: _shape_of(field.type, (*above, cls)) for field in field_shapes(cls)}
    config = getattr(get_origin(cls) or cls, "__struct_config__", None)
    if config is not None and config.array_like:
        tagged = config.tag is not None
        return TimeShape(places={i + tagged: shape for i, shape in enumerate(fields.values()) if shape is not None})
    return TimeShape(fields={name: shape for name, shape in fields.items() if shape is not None})


def _shape_of_container(bare: Any, above: tuple[Any, ...]) -> TimeShape | None:
    origin, parts = get_origin(bare), _parts_of(bare)
    if is_typeddict(bare):
        fields = {name: _shape_of(part, (*above, bare)) for name, part in get_type_hints(bare).items()}
        return TimeShape(fields={name: shape for name, shape in fields.items() if shape is not None}).some
    if (isinstance(bare, type) and hasattr(bare, "_fields")) or (origin is tuple and Ellipsis not in get_args(bare)):
        shapes = [_shape_of(part, (*above, bare)) for part in parts]
        return TimeShape(places={i: shape for i, shape in enumerate(shapes) if shape is not None})
    shapes = [_shape_of(part, above) for part in parts]
    if isinstance(origin, type) and issubclass(origin, Mapping) and len(parts) == 2:
        return TimeShape(names=shapes[0], items=shapes[1])
    if isinstance(origin, type) and issubclass(origin, Sequence | AbstractSet):
        return TimeShape(items=shapes[0])
    return None
