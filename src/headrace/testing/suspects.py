"""What in a step may make its results depend on more than its rows: read off its declarations and its code."""

from __future__ import annotations

import dis
from collections.abc import Iterator, Mapping
from typing import Any, Final

from headrace.dataflow.graph import AsyncNode, ChangesNode, KeyedNode, LookupNode, LoopNode, Node, ReadNode
from headrace.testing.deliveries import CLOCK, CUTS, ORDER

_ASKING: Final = {"random": "chance", "time": "the clock", "uuid": "chance", "secrets": "chance", "os": "the machine"}
_ARRIVAL: Final = ("first", "last", "collect")


def suspect(node: Node, factors: tuple[str, ...], late: Mapping[str, tuple[int, int]]) -> list[str]:
    """What to look at in a step, in words; ``late``: step → how many of its rows were late in two runs that differ."""
    found = list(_in_code(node))
    if node.name is not None and node.name in late:
        before, after = late[node.name]
        found.append(
            f"{before} of its rows are late in one and {after} in the other: a longer out_of_order= waits for them"
        )
    match node:
        case KeyedNode():
            found += _in_keyed(node, factors)
        case ChangesNode():
            found.append(
                "changes() takes every version of a row for one of its own, and how many there are depends on epochs"
            )
        case AsyncNode() | LookupNode():
            found.append("it asks other systems, which may answer otherwise each time")
        case LoopNode():
            found.append("rows go round in a loop once per epoch")
        case ReadNode() if node.idle_us is not None:
            found.append("idle= lets a silent input go by the wall clock")
    return list(dict.fromkeys(found))


def _in_keyed(node: KeyedNode, factors: tuple[str, ...]) -> Iterator[str]:
    for decl in node.decls:
        if decl.ttl is not None and decl.ttl.clock == "wall":
            yield f'{decl.name} expires by the wall clock: hr.ttl(…, clock="event") counts event time'
        if decl.ttl is not None and decl.ttl.expired == "show":
            yield f"{decl.name} shows what has expired until it is cleaned up, whenever that is"
        if decl.kind == "wall_timer":
            yield f"{decl.name} fires by the wall clock: hr.Timer fires by event time"
    in_order = node.spec is not None and node.spec.in_time_order
    if node.spec is not None and node.spec.uses_wall_clock and CLOCK in factors:
        yield "it works by the wall clock"
    if node.op in ("process", "connect", "broadcast") and not in_order and {CUTS, ORDER} & set(factors):
        timers = any(decl.kind in ("timer", "timers") for decl in node.decls)
        yield (
            f"it handles rows as they come{', and timers behind all rows of an epoch' if timers else ''}: "
            'process(…, order="time") handles them in the order of their time'
        )
    if node.op == "reduce" and ORDER in factors:
        yield "its function gives something else where rows come in another order"
    if node.op == "latest" and ORDER in factors:
        yield "of two rows of one time the one that comes last is the newest"
    aggs = {**node.aggs, **getattr(node.spec, "aggs", {})}
    for name, agg in aggs.items():
        if getattr(agg, "kind", "") in _ARRIVAL and ORDER in factors:
            yield f"{name} depends on which row comes first: by=… says which counts"


def _in_code(node: Node) -> Iterator[str]:
    for label, function in _functions(node):
        code = getattr(function, "__code__", None)
        if code is None:
            continue
        for step in dis.get_instructions(code):
            place = f"{label}, line {_line(step, code.co_firstlineno)}"
            if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and step.argval == "epoch":
                yield f"{place} uses ctx.epoch, which says where epochs end"
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and step.argval == "now":
                yield f"{place} uses now, the wall clock"
            elif step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                yield f"{place} changes the global {step.argval}, which no checkpoint keeps"
            elif step.opname == "STORE_ATTR":
                yield f"{place} sets .{step.argval} of an object, which no checkpoint keeps: declare a state for it"
            elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
                yield from _about_name(place, step.argval, function)


def _about_name(place: str, name: str, function: Any) -> Iterator[str]:
    value = getattr(function, "__globals__", {}).get(name)
    cells = dict(zip(function.__code__.co_freevars, getattr(function, "__closure__", None) or ()))
    if value is None and name in cells:
        value = cells[name].cell_contents
    module = getattr(value, "__module__", None) or getattr(value, "__name__", "")
    root = str(module).partition(".")[0]
    if root in _ASKING:
        yield f"{place} asks {name}: {_ASKING[root]} is another one at each replay"
    elif isinstance(value, list | dict | set):
        yield f"{place} uses {name}, a {type(value).__name__} outside of the function, which no checkpoint keeps"


def _line(step: Any, first: int) -> int:
    positions = getattr(step, "positions", None)
    return first if positions is None or positions.lineno is None else int(positions.lineno)


def _functions(node: Node) -> Iterator[tuple[str, Any]]:
    fn = getattr(node, "fn", None)
    if fn is None or isinstance(fn, type):
        return
    if hasattr(fn, "__code__"):
        yield getattr(fn, "__name__", "it"), fn
        return
    for name, method in vars(type(fn)).items():
        if callable(method) and name != "__init__":
            yield f"{type(fn).__name__}.{name}", method
