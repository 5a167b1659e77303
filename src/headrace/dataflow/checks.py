"""Mistakes found while a program is built: each says where, what was expected, what was found, and the next move.

The first part is called by verbs about their arguments. The last, `check_program`, looks at the whole when it is about
to run or to be shown: names, readers, former names.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.dataflow.functions import Process, process_types
from headrace.dataflow.graph import BatchForm, KeyedNode, Node, ReadNode, TapNode, WriteNode, readers, upstream
from headrace.dataflow.naming import snake_case
from headrace.dataflow.site import Site, user_frame
from headrace.errors import ProgramError
from headrace.model.expr import infer
from headrace.model.hints import function_hints
from headrace.model.keyspec import KeySpec
from headrace.model.rows import RowCodec
from headrace.model.shapes import union_members
from headrace.model.values import type_name
from headrace.sinks.contract import Sink
from headrace.sources.contract import Source
from headrace.state.handles import StateDecl

if TYPE_CHECKING:
    from headrace.dataflow.app import App
    from headrace.dataflow.stream import Stream

KEYED_VERBS = ("process", "reduce", "aggregate", "latest")
STREAM_VERBS = (
    "where", "select", "with_columns", "map", "flat_map", "filter", "only", "map_batches", "key_by", "union", "side",
    "errors", "late", "named", "queryable", "write", "show",
)  # fmt: skip


class HeadraceWarning(UserWarning):
    """Something in a program that is allowed, and probably not meant."""


class UnknownVerb(ProgramError, AttributeError):
    """A verb that streams of this kind do not have."""


def unknown_verb(label: str, name: str) -> UnknownVerb:
    if name.startswith("_"):
        return UnknownVerb(name)
    if name in KEYED_VERBS:
        return UnknownVerb(
            f"{name} needs a key",
            where=_where(),
            expected=f"a keyed stream: stream.key_by(…).{name}(…)",
            found=f"{name} on {label}, which has no key",
            next_move="say which rows belong together: key_by(Tx.card), key_by('card')",
        )
    if name == "late":
        return UnknownVerb(
            "late rows come out of keyed steps",
            where=_where(),
            expected="the stream that process, reduce, aggregate or latest gave",
            found=label,
        )
    near = get_close_matches(name, (*STREAM_VERBS, *KEYED_VERBS), n=2)
    return UnknownVerb(
        f"a stream has no {name!r}",
        where=_where(),
        expected=f"one of {', '.join(STREAM_VERBS)}",
        found=name,
        next_move=f"did you mean {' or '.join(near)}?" if near else "",
    )


def unknown_keyed_verb(key: str, name: str) -> UnknownVerb:
    if name.startswith("_"):
        return UnknownVerb(name)
    stream_verb = name in STREAM_VERBS
    return UnknownVerb(
        f"a keyed stream has no {name!r}",
        where=_where(),
        expected=f"one of {', '.join(KEYED_VERBS)}",
        found=f"{name} after key_by({key})",
        next_move=f"write .{name}(…) before key_by, or after the keyed step" if stream_verb else "",
    )


def _where() -> str:
    frame = user_frame()
    return str(Site(frame.f_code.co_filename, frame.f_lineno)) if frame is not None else ""


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


def check_union(first: Stream[Any], others: Sequence[Any], at: Site) -> None:
    from headrace.dataflow.stream import Stream

    for other in others:
        if not isinstance(other, Stream):
            raise ProgramError("union takes streams", where=str(at), expected="a stream", found=repr(other))
        if other.app is not first.app:
            raise ProgramError(
                "streams of two apps cannot meet",
                where=str(at),
                expected=f"streams of the app {first.app.name!r}",
                found=f"{other!r} of the app {other.app.name!r}",
            )
        if other.node.codec is not first.node.codec:
            raise ProgramError(
                "union takes streams of one type",
                where=str(at),
                expected=type_name(first.node.codec.type),
                found=type_name(other.node.codec.type),
                next_move="bring them to one type with map or select first, or to a union of tagged Records",
            )


def check_side(node: Node, tag: Any, at: Site) -> StateDecl:
    if not isinstance(node, KeyedNode) or node.op != "process":
        raise ProgramError(
            "side outputs come out of process functions",
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


def check_late(app: App, node: Node, at: Site) -> None:
    timed = any(isinstance(each, ReadNode) and each.time is not None for each in upstream([node]))
    if not timed:
        raise ProgramError(
            "without event time nothing is late",
            where=str(at),
            expected=f"a source of {node.label} with time=",
            found="none of its sources has one",
            next_move="say it where the source is read: app.read(…, time=Tx.at)",
        )


def check_process(fn: Any, codec: RowCodec, key: KeySpec, at: Site) -> None:
    if isinstance(fn, type) and issubclass(fn, Process):
        raise ProgramError(
            f"process takes an instance of {fn.__name__}",
            where=str(at),
            expected=f"process({fn.__name__}(…))",
            found=f"the class {fn.__name__}",
            next_move="add the parentheses",
        )
    if not isinstance(fn, Process):
        raise ProgramError(
            "process takes a process function",
            where=str(at),
            expected="an instance of a class derived from hr.Process[In, Out, Key]",
            found=repr(fn),
            next_move="for plain functions there are map, flat_map and filter",
        )
    cls = type(fn)
    taken, given, kept = process_types(cls)
    _check_methods(cls, at)
    if given is Any:
        raise ProgramError(
            f"the type of the rows that {cls.__name__} gives is not known",
            where=str(at),
            expected=f"class {cls.__name__}(hr.Process[In, Out, Key])",
            found=f"class {cls.__name__} without it",
            next_move="name the row type as the second argument of hr.Process[…]",
        )
    if not _accepts(taken, codec.type):
        raise ProgramError(
            f"{cls.__name__} takes other rows than this stream has",
            where=str(at),
            expected=type_name(taken),
            found=type_name(codec.type),
            next_move="map the stream to that type first, or change hr.Process[In, …]",
        )
    if isinstance(kept, type) and isinstance(key.type, type) and not issubclass(key.type, kept):
        raise ProgramError(
            f"{cls.__name__} has another type of key than this stream",
            where=str(at),
            expected=type_name(kept),
            found=f"key_by({key}), which is {type_name(key.type)}",
            next_move="key by another column, or change hr.Process[…, …, Key]",
        )


def _check_methods(cls: type, at: Site) -> None:
    if cls.on_event is Process.on_event:  # type: ignore[attr-defined]
        raise ProgramError(
            f"{cls.__name__} has no on_event",
            where=str(at),
            expected="def on_event(self, event, ctx)",
            found="a class without it",
        )
    timers = [
        value.name
        for base in cls.__mro__
        for value in base.__dict__.values()
        if isinstance(value, StateDecl) and value.kind in ("timer", "wall_timer", "timers")
    ]
    if timers and cls.on_timer is Process.on_timer:  # type: ignore[attr-defined]
        raise ProgramError(
            f"{cls.__name__} sets timers and has no on_timer",
            where=str(at),
            expected="def on_timer(self, timer, ctx)",
            found=f"timers {', '.join(timers)}",
        )


def _accepts(taken: Any, given: Any) -> bool:
    """Whether rows of one type may go where the other is asked for; doubtful cases are left to the type checker."""
    wanted = union_members(taken) or (taken,)
    for each in union_members(given) or (given,):
        classes = [want for want in wanted if isinstance(want, type)]
        if len(classes) == len(wanted) and isinstance(each, type) and not issubclass(each, tuple(classes)):
            return False
    return True


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


def default_name(node: Node) -> str | None:
    """The name of a step that nobody named: a process function's class in snake case."""
    if isinstance(node, KeyedNode) and node.op == "process":
        return snake_case(type(node.fn).__name__)
    return None


def check_program(app: App, also: Iterable[Node] = ()) -> tuple[Node, ...]:
    """The nodes that will run, in order, with every name in place."""
    app._settle_names()
    nodes = app.nodes
    ends = [node for node in nodes if isinstance(node, WriteNode) or node.queryable]
    ends.extend(node for node in also if node in nodes)
    kept = upstream(ends)
    if not ends:
        raise ProgramError(
            f"the app {app.name!r} has no outputs, so nothing would run",
            expected="a stream that is written, shown or queryable",
            found=f"{len(nodes)} steps that nobody reads" if nodes else "no steps at all",
            next_move="end it with stream.write(hr.sink.console())",
        )
    _check_named(kept)
    _check_former(kept)
    _warn_unread(nodes, kept)
    return tuple(node for node in nodes if node in kept)


def _check_named(kept: set[Node]) -> None:
    for node in sorted(kept, key=lambda each: each.id):
        if node.stateful and node.name is None:
            raise ProgramError(
                f"this {node.verb} keeps state and has no name",
                where=node.site,
                expected="a name, so that its state is found again after a restart or a change of the program",
                found=f"{node.verb} without .named(…)",
                next_move=f'write .{node.verb}(…).named("…")',
            )


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


def _warn_unread(nodes: Sequence[Node], kept: set[Node]) -> None:
    reading = readers(nodes)
    for node in nodes:
        if node not in kept and not reading[node] and not isinstance(node, TapNode):
            warnings.warn_explicit(
                f"{node.site}: nobody reads {node.label}, so it will not run; write it, show it or make it queryable",
                HeadraceWarning,
                node.at.file,
                node.at.line,
            )
