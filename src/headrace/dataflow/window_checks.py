"""Mistakes in what a user says about windows, found by the verb ``window`` and those behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace.aggregates.declare import column_annotation
from headrace.dataflow.aggregation import refuse_row_columns
from headrace.dataflow.clocks import has_event_time
from headrace.dataflow.graph import Node
from headrace.dataflow.projection import known_column
from headrace.dataflow.site import Site
from headrace.errors import ProgramError
from headrace.model.time import Duration, Timestamp
from headrace.model.values import type_name
from headrace.sql.expr import check as check_expression
from headrace.sql.expr import check_supported, infer
from headrace.state.handles import StateDecl
from headrace.windows.evictors import Evictor, KeepDelta, KeepSpan
from headrace.windows.kinds import Assigner, RowCount, Session, Unbounded
from headrace.windows.triggers import EveryRows, OnDelta, PerEpoch, Periodic, PerRow, Timeout, Trigger

BUILT_IN = (PerRow, PerEpoch, Periodic, EveryRows, OnDelta, Timeout)
_SCOPED = ("value", "list", "map", "reducing", "aggregating")


def check_window(assigner: Any, fire: Any, panes: Any, allow_late_us: int, evict: Any, node: Node, at: Site) -> None:
    """Everything that can be said of ``window(…)`` over the rows of a node."""
    _check_kinds(assigner, fire, panes, evict, at)
    if allow_late_us < 0:
        raise ProgramError(
            "allow_late= cannot be negative",
            where=str(at),
            expected='allow_late="0s" or more',
            next_move="leave allow_late= out",
        )
    timed = has_event_time(node)
    _check_assigner(assigner, node, timed, at)
    if isinstance(assigner, RowCount):
        _check_row_count(fire, panes, evict, at)
    elif isinstance(assigner, Unbounded) and fire is None:
        raise ProgramError(
            "an unbounded window needs fire=: it never ends",
            where=str(at),
            expected='fire=hr.every("1m"), hr.per_epoch(), hr.every(rows=100) or another trigger',
            found="no fire=",
            next_move="say when results are given out; or use tumbling, sliding or session windows",
        )
    if allow_late_us and not (assigner.timed and assigner.clock == "event"):
        raise ProgramError(
            "allow_late= needs windows in event time",
            where=str(at),
            expected='allow_late= with tumbling, sliding, cumulating or session windows of clock="event"',
            found=f"allow_late= with {_named(assigner)}",
            next_move="leave allow_late= out",
        )
    for trigger in (fire, fire.of) if isinstance(fire, Timeout) else (fire,):
        refuse_row_columns(trigger, "a window", at)
        _check_trigger(trigger, assigner, node, timed, at)
    _check_evictor(evict, node, timed, at)


def _check_kinds(assigner: Any, fire: Any, panes: Any, evict: Any, at: Site) -> None:
    if not isinstance(assigner, Assigner):
        raise ProgramError(
            "window takes a kind of window",
            where=str(at),
            expected='hr.tumbling("1h"), hr.sliding("1h", every="5m"), hr.session("30m") or the like',
            found=repr(assigner),
            next_move=f"write window(hr.tumbling({assigner!r}))" if isinstance(assigner, str) else "",
        )
    if fire is not None and not isinstance(fire, Trigger):
        is_class = isinstance(fire, type) and issubclass(fire, Trigger)
        raise ProgramError(
            "fire= takes a trigger",
            where=str(at),
            expected='hr.early("1s"), hr.every(rows=100), hr.per_epoch() or another trigger',
            found=repr(fire),
            next_move=f"add the parentheses: fire={fire.__name__}()" if is_class else "",
        )
    if panes not in ("accumulate", "discard"):
        raise ProgramError(
            "panes= must be accumulate or discard",
            where=str(at),
            expected='panes="accumulate" or "discard"',
            found=repr(panes),
        )
    if evict is not None and not isinstance(evict, Evictor):
        raise ProgramError(
            "evict= takes an evictor",
            where=str(at),
            expected='hr.keep_rows(100), hr.keep_span("1m") or hr.keep_delta(…)',
            found=repr(evict),
        )


def _check_assigner(assigner: Assigner, node: Node, timed: bool, at: Site) -> None:
    if assigner.timed and assigner.clock == "event" and not timed:
        raise ProgramError(
            "windows in event time need a source with event time",
            where=str(at),
            expected=f"a source of {node.label} with time=, or windows by the wall clock",
            found="none of its sources has one",
            next_move='say which column tells the time: app.read(…, time="at"); or clock="wall"',
        )
    if isinstance(assigner, Session) and assigner.gap_sql is not None:
        _check_gap(assigner.gap_sql, node, at)
        found = infer(assigner.gap_sql, node.codec.schema)
        if found is not None and not pa.types.is_integer(found):
            raise ProgramError(
                "the gap of a session must be a span",
                where=str(at),
                expected="a column of hr.Duration, or whole microseconds",
                found=f"{assigner.gap_sql}, which is {found}",
            )


def _check_gap(gap: str, node: Node, at: Site) -> None:
    try:
        check_expression(gap, node.codec.schema, str(at))
        check_supported(gap, node.codec.schema, str(at))
    except ProgramError as error:
        raise ProgramError(
            f"the gap of a session is neither a span nor SQL over a row: {error.what}",
            where=str(at),
            expected='a span like "30m"; or SQL that gives the gap of each row, a Duration or whole microseconds, over '
            f"{', '.join(node.codec.names)}",
            found=repr(gap),
            next_move=error.next_move,
        ) from error


def _check_row_count(fire: Any, panes: str, evict: Any, at: Site) -> None:
    given = {"fire": fire is not None, "panes": panes != "accumulate", "evict": evict is not None}
    for option, is_given in given.items():
        if is_given:
            raise ProgramError(
                "windows of rows take no fire=, panes= or evict=",
                where=str(at),
                expected="hr.rows(n, every=…) alone",
                found=f"{option}= beside it",
                next_move=f"leave {option}= out, or use window(hr.unbounded(), …)",
            )


def _check_trigger(fire: Any, assigner: Assigner, node: Node, timed: bool, at: Site) -> None:
    match fire:
        case Periodic() if fire.clock == "event" and (not timed or (assigner.timed and assigner.clock == "wall")):
            raise ProgramError(
                "a trigger by event time needs event time",
                where=str(at),
                expected='clock="wall"',
                found=f"a trigger by event time for {_named(assigner)}",
                next_move='write hr.early(…, clock="wall") or hr.every(…, clock="wall")',
            )
        case OnDelta() if isinstance(assigner, Session):
            raise ProgramError(
                "on_delta does not support session windows",
                where=str(at),
                expected="windows that do not merge",
                found="session windows",
                next_move="use tumbling or unbounded windows, or another trigger",
            )
        case OnDelta() if fire.column is not None:
            _check_number(fire.column, node, at)


def _check_number(column: str, node: Node, at: Site) -> None:
    check_expression(column, node.codec.schema, str(at))
    check_supported(column, node.codec.schema, str(at))
    found = infer(column, node.codec.schema)
    if found is not None and not (pa.types.is_integer(found) or pa.types.is_floating(found)):
        raise ProgramError(
            "on_delta compares numbers",
            where=str(at),
            expected="a column of int or float, or a function of two rows",
            found=f"{column}, which is {found}",
        )


def _check_evictor(evict: Any, node: Node, timed: bool, at: Site) -> None:
    if isinstance(evict, KeepSpan) and not timed:
        raise ProgramError(
            "keep_span needs event time",
            where=str(at),
            expected=f"a source of {node.label} with time=",
            found="keep_span",
            next_move="keep a number of rows: hr.keep_rows(100)",
        )


def settle_evictor(evict: Evictor | None, node: Node, at: Site) -> Evictor | None:
    """An evictor that names a column, by the name that the rows' field has."""
    if not isinstance(evict, KeepDelta) or evict.column is None:
        return evict
    column = known_column(node.codec, evict.column, str(at))
    found, _ = column_annotation(node.codec, column)
    if found not in (int, float, Decimal, Duration, Timestamp, Any):
        raise ProgramError(
            "keep_delta compares numbers",
            where=str(at),
            expected="a field of int, float, Decimal, Timestamp or Duration, or a function of a row and the last one",
            found=f"{column}, which is {type_name(found)}",
        )
    return replace(evict, column=column)


def check_own_trigger(fire: Trigger, decls: Sequence[StateDecl], assigner: Assigner, at: Site) -> None:
    """A trigger of the user's own, with what its class declares."""
    cls = type(fire)
    for decl in decls:
        if decl.kind not in _SCOPED or decl.ttl is not None:
            raise ProgramError(
                f"triggers cannot declare {_declared(decl)}",
                where=str(at),
                expected="states without a ttl; times are set with ctx.set_timer and ctx.set_wall_timer",
                found=f"{cls.__name__}.{decl.name}",
                next_move=f"remove {decl.name}"
                if decl.ttl is None
                else "leave ttl= out: the state goes with its window",
            )
    if not isinstance(assigner, Session):
        return
    if cls.on_merge is Trigger.on_merge:
        raise ProgramError(
            f"{cls.__name__} needs on_merge: sessions merge",
            where=str(at),
            expected="def on_merge(self, ctx): sets the timers of ctx.window",
            found="a class without it",
            next_move="write on_merge; if it has no timers, let it do nothing",
        )
    check_mergeable(cls, decls, at)


def check_scoped(cls: type, decls: Sequence[StateDecl], assigner: Assigner, at: Site) -> None:
    """What the class of a window function declares."""
    for decl in decls:
        if decl.kind in ("timer", "wall_timer", "timers", "broadcast"):
            raise ProgramError(
                f"window functions cannot declare {_declared(decl)}",
                where=str(at),
                expected="states, side outputs and counters; fire= says when the function is called",
                found=f"{cls.__name__}.{decl.name}",
                next_move=f"remove {decl.name}, and write window(…, fire=…)",
            )
        if decl.scope == "window" and decl.ttl is not None:
            raise ProgramError(
                f"{cls.__name__}.{decl.name} cannot have a ttl: it goes with its window",
                where=str(at),
                next_move="leave ttl= out, or keep it by key",
            )
    if isinstance(assigner, Session):
        check_mergeable(cls, [decl for decl in decls if decl.scope == "window"], at)


def check_mergeable(cls: type, decls: Sequence[StateDecl], at: Site) -> None:
    """States of windows that become one."""
    for decl in decls:
        lacks_merge = decl.kind == "aggregating" and not hasattr(decl.aggregator, "merge")
        if decl.kind == "value" or lacks_merge:
            raise ProgramError(
                f"{cls.__name__}.{decl.name} cannot be merged when sessions merge",
                where=str(at),
                expected="a ReducingState, AggregatingState, ListState or MapState",
                found="a ValueState" if decl.kind == "value" else "an aggregator without merge",
                next_move=f"write {decl.name}: hr.ReducingState[…] = hr.state(reduce=…)",
            )


def _declared(decl: StateDecl) -> str:
    """What a class declares, in words."""
    kind = decl.kind.replace("_", " ")
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}" + (" with a ttl" if decl.ttl is not None else "")


def _named(assigner: Assigner) -> str:
    if not assigner.timed:
        return "windows of rows" if isinstance(assigner, RowCount) else "an unbounded window"
    return f"{type(assigner).__name__.lower()} windows by the {assigner.clock} clock"
