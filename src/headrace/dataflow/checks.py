"""Mistakes found while a program is built: each says where, what was expected, what was found, and the next move.

The first part is called by verbs about their arguments. The last, `reachable`, looks at the whole when it is about
to run or to be shown: names, readers, former names.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.connectors.sink_contract import Sink
from headrace.connectors.source_contract import Source
from headrace.dataflow.clocks import has_event_time
from headrace.dataflow.graph import (
    FUNCTION_OPS,
    AsyncNode,
    BatchForm,
    KeyedNode,
    LoopNode,
    Node,
    TapNode,
    WriteNode,
    carrying_nodes,
    readers,
    upstream,
)
from headrace.dataflow.site import Site
from headrace.errors import ProgramError
from headrace.model.amounts import count_of
from headrace.model.hints import function_hints
from headrace.model.rows import RowCodec
from headrace.model.shapes import union_members
from headrace.model.user_line import user_frame
from headrace.model.values import type_name
from headrace.sql.expr import infer
from headrace.state.handles import StateDecl

if TYPE_CHECKING:
    from headrace.dataflow.app_graph import AppGraph, OnGraph


class HeadraceWarning(UserWarning):
    """Something in a program that is allowed, and probably not meant."""


def check_source(source: Any, at: Site) -> None:
    if not isinstance(source, Source):
        raise ProgramError(
            "this is no source",
            where=str(at),
            expected='hr.source.files("events/"), hr.source.items(rows) or another of hr.source',
            found=repr(source),
            next_move='give the source: app.read("views", hr.source.files("events/"), Impression)',
        )


def check_sink(sink: Any, at: Site) -> None:
    if not isinstance(sink, Sink):
        raise ProgramError(
            "this is no sink",
            where=str(at),
            expected='hr.sink.files("out/"), hr.sink.console() or another of hr.sink',
            found=repr(sink),
            next_move='give the sink: stream.write(hr.sink.files("out/"))',
        )


def check_condition(text: str, codec: RowCodec, at: Site) -> None:
    found = infer(text, codec.schema)
    if found is not None and not pa.types.is_boolean(found):
        raise ProgramError(
            "a condition has to be true or false",
            where=str(at),
            expected="a boolean expression, like n > 0",
            found=f"{text!r}, which is {found}",
            next_move="compare it with something",
        )


def check_time(text: str, codec: RowCodec, at: Site) -> None:
    """The event time of a read has to be a timestamp."""
    found = infer(text, codec.schema)
    if found is not None and not pa.types.is_timestamp(found):
        fix = "timestamp_millis" if pa.types.is_integer(found) else "to_timestamp"
        raise ProgramError(
            "the event time has to be a timestamp",
            where=str(at),
            expected="a field of type hr.Timestamp or datetime, or SQL that gives one",
            found=f"time={text!r}, which is {found}",
            next_move=f"type the field hr.Timestamp, or write time='{fix}({text})'",
        )


def check_member(codec: RowCodec, wanted: Any, at: Site) -> None:
    members = union_members(codec.type) or (codec.type,)
    asked = union_members(wanted) or (wanted,)
    for each in asked:
        if each not in members:
            raise ProgramError(
                f"{type_name(each)} is not among the rows of this stream",
                where=str(at),
                expected=f"one of {', '.join(map(type_name, members))}",
                found=type_name(wanted),
                next_move="name a member of the stream's union",
            )


def check_union(first: OnGraph, others: Sequence[OnGraph], at: Site) -> None:
    check_same_app(first, others, at)
    for other in others:
        if other.node.codec is not first.node.codec:
            raise ProgramError(
                "union takes streams of one type",
                where=str(at),
                expected=type_name(first.node.codec.type),
                found=type_name(other.node.codec.type),
                next_move="bring them to one type with map or select first, or to a union of tagged Records",
            )


def check_same_app(first: OnGraph, others: Sequence[OnGraph], at: Site) -> None:
    for other in others:
        if other.app is not first.app:
            raise ProgramError(
                "streams of two apps cannot meet",
                where=str(at),
                expected=f"streams of the app {first.app.name!r}",
                found=f"{other!r} of the app {other.app.name!r}",
            )


def check_side(node: Node, tag: Any, at: Site) -> StateDecl:
    if not isinstance(node, KeyedNode) or node.op not in FUNCTION_OPS or node.fn is None:
        raise ProgramError(
            "side takes an output of a process function",
            where=str(at),
            expected="the stream that process(…) gave",
            found=node.label,
        )
    owner = type(node.fn).__name__
    sides = {decl.name: decl for decl in node.decls if decl.kind == "side"}
    name = tag.name if isinstance(tag, StateDecl) else tag
    if not isinstance(tag, StateDecl) or name not in sides or tag.kind != "side":
        raise ProgramError(
            f"this is no side output of {owner}",
            where=str(at),
            expected=" or ".join(f"{owner}.{each}" for each in sides) or f"odd: hr.Side[…] on {owner}",
            found=f"{getattr(tag, 'kind', '') or ''} {name!r}".strip() if isinstance(tag, StateDecl) else repr(tag),
            next_move=f"declare it on {owner}: {name if isinstance(name, str) else 'odd'}: hr.Side[…]",
        )
    return sides[name]


def check_late(node: Node, at: Site) -> None:
    if not has_event_time(node):
        raise ProgramError(
            ".late needs event time",
            where=str(at),
            expected=f"a source of {node.label} with time=",
            found="none of its sources has one",
            next_move="say it where the source is read: app.read(…, time=Tx.at)",
        )


def batch_form(fn: Any) -> BatchForm:
    """Which kind of batch a function wants, from the annotation of its first argument; Arrow if it does not say."""
    target = fn if hasattr(fn, "__annotations__") else type(fn).__call__
    try:
        hints = function_hints(target, user_frame())
    except (NameError, AttributeError):
        # Imported for type checkers only: the text itself says enough.
        hints = dict(getattr(target, "__annotations__", {}))
    for name, hint in hints.items():
        if name == "return":
            continue
        text = hint if isinstance(hint, str) else getattr(hint, "__module__", "")
        if text.startswith(("polars", "pl.")):
            return "polars"
        if text.startswith(("pandas", "pd.")):
            return "pandas"
    return "arrow"


# -- the whole program ---------------------------------------------------------------------------------------------


def reachable(app: AppGraph, also: Iterable[Node] = ()) -> tuple[Node, ...]:
    """The checked program in topological order: what outputs, queryable steps and the nodes in `also` lead back to.

    Raises ProgramError for mistakes that show only in the whole; warns about steps that nobody reads.
    """
    app._settle_names()
    nodes = app.nodes
    ends = [node for node in nodes if isinstance(node, WriteNode) or node.queryable]
    ends.extend(node for node in also if node in nodes)
    kept = upstream(ends)
    if not ends:
        raise ProgramError(
            f"the app {app.name!r} has no outputs, so nothing would run",
            expected="a stream that is written, shown or queryable",
            found=f"{count_of(len(nodes), 'step')} that nobody reads" if nodes else "no steps at all",
            next_move="end it with stream.write(hr.sink.console())",
        )
    _check_named(kept)
    _check_former(kept)
    _check_fed(kept, nodes)
    _warn_unread(nodes, kept)
    return tuple(node for node in nodes if node in kept)


def _check_named(kept: set[Node]) -> None:
    for node in sorted(kept, key=lambda each: each.id):
        keeps = node.stateful or (isinstance(node, AsyncNode) and node.loop is not None)
        if keeps and node.name is None:
            raise ProgramError(
                f"this {node.verb} keeps state and has no name",
                where=node.site,
                expected="a name, so that its state is found again after a restart or a change of the program",
                found=f"{node.verb} without .named(…)",
                next_move=f"write {_named_call(node)}",
            )


def _named_call(node: Node) -> str:
    """How a step is written with a name. Windows have none: what stands behind them makes the step."""
    verb = node.verb
    if not isinstance(node, KeyedNode) or node.op != "window":
        return f'.{verb}(…).named("…")'
    if len(node.inputs) == 2:
        return '.co_group(…).map(…).named("…")'
    reduces = getattr(node.spec, "reduce", None) is not None
    return f'.window(…).{"reduce" if reduces else "aggregate"}(…).named("…")'


def _check_former(kept: set[Node]) -> None:
    names = {node.name: node for node in kept if node.stateful}
    former: dict[str, Node] = {}
    for node in sorted(kept, key=lambda each: each.id):
        if node.was is None:
            continue
        other = former.setdefault(node.was, node)
        if node.was in names or other is not node:
            reason = "the name of another step" if node.was in names else f"continued by {other.name!r} too"
            raise ProgramError(
                f"{node.name!r} cannot continue {node.was!r}",
                where=node.site,
                expected="a former name that no step of the program has or continues",
                found=f"{node.was!r} is {reason}",
                next_move="rename one of them, or leave was= out",
            )


def _check_fed(kept: set[Node], nodes: Sequence[Node]) -> None:
    for node in sorted(kept, key=lambda each: each.id):
        if isinstance(node, LoopNode) and (node.fed_by is None or node.fed_by not in nodes):
            raise ProgramError(
                f"nobody feeds the loop {node.name!r}",
                where=node.site,
                expected="a stream of the loop's rows that is fed back into the loop",
                found="a loop that is read only",
                next_move="close it: stream.feed(loop)",
            )


def _warn_unread(nodes: Sequence[Node], kept: set[Node]) -> None:
    inner = carrying_nodes(nodes)
    nodes = [node for node in nodes if node not in inner]
    reading = readers(nodes)
    for node in nodes:
        if node not in kept and not reading[node] and not isinstance(node, TapNode):
            warnings.warn_explicit(
                f"{node.site}: nobody reads {node.label}, so it will not run; write it, show it or make it queryable",
                HeadraceWarning,
                node.at.file,
                node.at.line,
            )
