"""What users say about windows: their kinds, when they give results, which of their rows are thrown away.

Each function checks what can be seen from its own arguments, at the user's line; what depends on the stream is checked
by the verb ``window``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import MemberDescriptorType
from typing import Any, Final, Literal, get_args

from headrace.dataflow.site import call_site
from headrace.errors import ProgramError
from headrace.model.time import Span, format_span, span_us
from headrace.sql.expr import Expr, as_sql
from headrace.windows.evictors import Evictor, KeepDelta, KeepRows, KeepSpan
from headrace.windows.kinds import (
    Assigner,
    Clock,
    Cumulating,
    RowCount,
    Session,
    Sliding,
    Tumbling,
    Unbounded,
)
from headrace.windows.triggers import EveryRows, OnDelta, PerEpoch, Periodic, PerRow, Timeout, Trigger

_SPAN_LIKE: Final = re.compile(r"\s*[-+]?\s*[\d.][\w.\s]*|\s*")
"""Text that is meant as a span, rightly written or not: a number, with letters behind it."""

# -- kinds of windows ----------------------------------------------------------------------------------------------


def tumbling(size: Span, *, offset: Span = "0s", clock: Clock = "event") -> Assigner:
    """Windows of one size, side by side: ``tumbling("1h")`` has one for each hour, from 1970 on.

    ``offset`` moves them: ``tumbling("1d", offset="2h")`` are days that begin at two. ``clock="wall"`` puts rows into
    the window of the moment at which they are handled.

    >>> tumbling("1m")
    Tumbling(size_us=60000000, offset_us=0, clock='event')
    """
    length = _positive(size, "the size of a window")
    return Tumbling(length, _offset(offset) % length, _clock(clock))


def sliding(size: Span, *, every: Span, offset: Span = "0s", clock: Clock = "event") -> Assigner:
    """Windows of one size that begin every so often: ``sliding("1h", every="5m")``; a row belongs to all that cover it.

    The size need not be a multiple of ``every``. Where windows begin less often than they are long, rows in between
    belong to none.
    """
    length, step = _positive(size, "the size of a window"), _positive(every, "every")
    return Sliding(length, step, _offset(offset) % step, _clock(clock))


def cumulating(size: Span, *, every: Span, offset: Span = "0s", clock: Clock = "event") -> Assigner:
    """Windows that grow: ``cumulating("1d", every="1h")`` has one from midnight to each hour of the day."""
    length, step = _positive(size, "the size of a window"), _positive(every, "every")
    if length % step:
        raise ProgramError(
            "the size of cumulating windows must be a multiple of every",
            where=str(call_site()),
            expected="a size that is a multiple of every",
            found=f"size {format_span(length)}, every {format_span(step)}",
            next_move=f"for instance size {format_span((length // step + 1) * step)}",
        )
    return Cumulating(length, step, _offset(offset) % length, _clock(clock))


def session(gap: Span | Expr, *, clock: Clock = "event") -> Assigner:
    """Rows of a key that follow each other within a gap: ``session("30m")``.

    The gap may differ from row to row: ``session(Visit.patience)`` or ``session("patience * 2")``, a Duration, or a
    whole number of microseconds. Text that begins with a number and has only numbers and letters is a span; any other
    text is SQL over the columns of the row. Sessions that overlap or touch become one.
    """
    if isinstance(gap, Expr | MemberDescriptorType):
        return Session(None, as_sql(gap), _clock(clock))
    if isinstance(gap, str) and _SPAN_LIKE.fullmatch(gap) is None:
        return Session(None, gap, _clock(clock))
    return Session(_positive(gap, "the gap of a session"), None, _clock(clock))


def unbounded() -> Assigner:
    """All rows of a key in one window that never ends; ``fire=`` says when it gives results. Nothing is late for it."""
    return Unbounded()


def rows(n: int, *, every: int | None = None) -> Assigner:
    """Windows of ``n`` rows of a key, in the order they come; with ``every``, of the last ``n`` after each so many.

    ``rows(100, every=10)`` gives its first result after ten rows. Rows that fill no window give none.
    """
    for given, what in ((n, "n"), (n if every is None else every, "every")):
        if not isinstance(given, int) or isinstance(given, bool) or given < 1:
            raise ProgramError(
                f"{what} of rows must be a whole number, 1 or more",
                where=str(call_site()),
                expected="hr.rows(100), hr.rows(100, every=10)",
                found=repr(given),
            )
    return RowCount(n, n if every is None else every)


# -- when they give results ----------------------------------------------------------------------------------------


def early(every: Span, *, clock: Clock = "wall") -> Trigger:
    """Results before the end of the window as well: at times that are multiples of a span, where something changed.

    With ``clock="event"`` these are times of the watermark. The result at the window's end and those for late rows come
    as ever. ``panes="discard"`` makes each result hold what is new since the last; otherwise it holds everything.

    >>> early("1s")
    Periodic(every_us=1000000, clock='wall')
    """
    return Periodic(_positive(every, "every"), _clock(clock))


def every(span: Span | None = None, *, rows: int | None = None, clock: Clock = "event") -> Trigger:
    """Results at times that are multiples of a span, and at the window's end; or after every so many ``rows`` only.

    ``every("1m")`` fires at round times of event time, or of the wall clock; ``every(rows=100)`` after each 100 rows of
    a window, and not at its end.
    """
    at = str(call_site())
    if (span is None) == (rows is None):
        raise ProgramError(
            "every takes a span, or a number of rows",
            where=at,
            expected='every("1m") or every(rows=100)',
            found="both" if span is not None else "neither",
        )
    if span is not None:
        return Periodic(_positive(span, "a span"), _clock(clock))
    if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
        raise ProgramError("every takes one row at least", where=at, expected="rows above 0", found=repr(rows))
    return EveryRows(rows)


def per_row(*columns: Any) -> Trigger:
    """A result after every row, as Flink's rolling aggregates give them.

    ``per_row("id", Tx.at)``: results of a rolling aggregate have these columns of their row, too, as those of
    ``OVER (PARTITION BY …)`` in SQL.
    """
    return PerRow(columns)


def per_epoch() -> Trigger:
    """A result at the end of each epoch in which something changed."""
    return PerEpoch()


def on_delta(x: object, threshold: float) -> Trigger:
    """A result when a row differs from the one at the last result by more than a threshold.

    ``on_delta(Car.meters, 100)`` compares a column, ``on_delta(lambda older, newer: …, 100)`` any two rows. The first
    row of a window gives none.
    """
    column, fn = _compared(x)
    return OnDelta(_number(threshold), column, fn)


def timeout(span: Span, *, of: Trigger | None = None, since: Literal["first", "newest"] = "first") -> Trigger:
    """Another trigger, and a result when so much time has passed on the wall clock and the other has given none.

    ``timeout("10s", of=hr.every(rows=100))`` gives a result after 100 rows, or ten seconds after the first of them, or
    with ``since="newest"`` after the newest. Without ``of``, the other is the end of the window.
    """
    at = str(call_site())
    if of is not None and not isinstance(of, Trigger):
        raise ProgramError(
            "of= takes another trigger", where=at, expected="hr.every(rows=100) or the like", found=repr(of)
        )
    if isinstance(of, Timeout):
        raise ProgramError("a timeout of a timeout", where=at, next_move="give the shorter one")
    if since not in ("first", "newest"):
        raise ProgramError(
            "since= must be first or newest", where=at, expected='since="first" or "newest"', found=repr(since)
        )
    return Timeout(_positive(span, "a timeout"), of, since == "newest")


# -- which rows are thrown away ------------------------------------------------------------------------------------


def keep_rows(n: int, *, after: bool = False) -> Evictor:
    """When a window fires, only its newest ``n`` rows stay; with ``after``, its function still sees all of them."""
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ProgramError(
            "n of keep_rows must be a whole number, 1 or more",
            where=str(call_site()),
            expected="hr.keep_rows(100)",
            found=repr(n),
            next_move="say how many rows stay in a window",
        )
    return KeepRows(n, after)


def keep_span(span: Span, *, after: bool = False) -> Evictor:
    """When a window fires, only rows stay that are less than a span older than its newest."""
    return KeepSpan(_positive(span, "a span"), after)


def keep_delta(x: object, threshold: float, *, after: bool = False) -> Evictor:
    """When a window fires, only rows stay that differ from the one that came last by less than a threshold.

    ``x`` is a column, or a function of a row and the last one.
    """
    column, fn = _compared(x)
    limit = _number(threshold)
    if limit <= 0:
        raise ProgramError(
            "the threshold must be greater than zero",
            where=str(call_site()),
            expected="a number above 0",
            found=repr(threshold),
            next_move="with a threshold of 0 no row would stay in a window",
        )
    return KeepDelta(limit, column, fn, after)


# -- what they have in common --------------------------------------------------------------------------------------


def _positive(span: Any, what: str) -> int:
    at = str(call_site())
    length = span_us(span, what=what, where=at)
    if length <= 0:
        raise ProgramError(
            f"{what} must be greater than zero",
            where=at,
            expected='a span above zero, such as "1h"',
            found=repr(span),
            next_move="give a longer span",
        )
    return length


def _offset(offset: Any) -> int:
    return span_us(offset, what="an offset", where=str(call_site()))


def _clock(clock: Any) -> Clock:
    if clock not in get_args(Clock):
        raise ProgramError(
            "there is no such clock", where=str(call_site()), expected='"event" or "wall"', found=repr(clock)
        )
    chosen: Clock = clock
    return chosen


def _number(threshold: Any) -> float:
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or threshold != threshold:
        raise ProgramError(
            "the threshold must be a number", where=str(call_site()), expected="a number", found=repr(threshold)
        )
    return float(threshold)


def _compared(x: Any) -> tuple[str | None, Callable[[Any, Any], float] | None]:
    """What rows are compared by: SQL text, or a function of two rows."""
    if callable(x) and not isinstance(x, MemberDescriptorType | Expr):
        return None, x
    try:
        return as_sql(x), None
    except ProgramError as error:
        error.where = str(call_site())
        raise
