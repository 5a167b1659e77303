"""The watermark of a source as a program declares it, checked: ``watermark=``, ``out_of_order=``, ``align=`` of a read.

`headrace.watermarks` is the public door to the functions here; `headrace.runtime.marking` applies the result to rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from headrace.dataflow.outputs import describe_function
from headrace.dataflow.projection import columns_sql
from headrace.dataflow.site import Site
from headrace.errors import ProgramError
from headrace.model.generators import GeneratorPlan, WatermarkGenerator, plan_generator
from headrace.model.ids import MIN_TIME
from headrace.model.rows import RowCodec
from headrace.model.shapes import quoted
from headrace.model.time import Span, Timestamp, span_us
from headrace.model.user_line import user_frame
from headrace.sql.expr import check as check_expression
from headrace.sql.expr import infer

_WAYS: Final = "hr.watermarks.bounded(…), monotonous(), punctuated(…), or an instance of your hr.WatermarkGenerator"


@dataclass(frozen=True)
class Watermark:
    """A way to tell how far event time has come; made by the functions of ``hr.watermarks``."""

    out_of_order: Span = "0s"
    said: Any = None
    """What rows say: a field, a column's name, SQL, or a function of a row."""


def bounded(out_of_order: Span, /) -> Watermark:
    """Rows may be up to so much older than the newest one seen: the watermark waits that long for them.

    >>> import headrace as hr
    >>> hr.watermarks.bounded("5s")
    Watermark(out_of_order='5s', said=None)
    """
    return Watermark(out_of_order)


def monotonous() -> Watermark:
    """Rows of a split come in the order of their times, so that each row closes everything before it."""
    return Watermark()


def punctuated(said: Any, /) -> Watermark:
    """Only some rows say how far time has come: no row before that time comes any more.

    ``said`` is a condition, and the rows for which it holds say so by their own event time (``"kind = 'flush'"``); or a
    field, column or SQL that gives the time, null where a row says nothing (``View.safe_until``); or a function of a
    row that returns it, or None.
    """
    return Watermark(said=said)


@dataclass(frozen=True)
class Marking:
    """What a source's rows tell about time, checked."""

    out_of_order_us: int = 0
    mark: str | None = None
    """SQL text of the time that a row says, over the columns as read; null where it says nothing."""
    generator: GeneratorPlan | None = None
    said_by: str = ""
    """In words, for people."""


def plan_marking(watermark: Any, out_of_order: Span | None, time: str | None, codec: RowCodec, at: Site) -> Marking:
    """Checks ``watermark=`` and ``out_of_order=`` of a read. Raises ProgramError."""
    where = str(at)
    if watermark is None:
        return Marking(span_us("0s" if out_of_order is None else out_of_order, what="out_of_order", where=where))
    if out_of_order is not None:
        raise ProgramError(
            "watermark= and out_of_order= say the same thing",
            where=where,
            expected="one of them",
            found="both",
            next_move="leave out_of_order= out, or write watermark=hr.watermarks.bounded(…)",
        )
    if time is None:
        raise ProgramError(
            "a watermark is about event time, and this source has none",
            where=where,
            expected="time= beside it",
            found="no time=",
            next_move=f"say which column tells the time: time={codec.names[0]!r}",
        )
    if isinstance(watermark, WatermarkGenerator):
        plan = plan_generator(watermark, type(watermark).__name__, where, user_frame())
        return Marking(generator=plan, said_by=plan.name)
    if not isinstance(watermark, Watermark):
        shown = f"the class {watermark.__name__}" if isinstance(watermark, type) else repr(watermark)
        raise ProgramError(
            "watermark= takes a watermark or a WatermarkGenerator",
            where=where,
            expected=_WAYS,
            found=shown,
            next_move="add the parentheses"
            if isinstance(watermark, type)
            else 'write watermark=hr.watermarks.bounded("5s")',
        )
    if watermark.said is None:
        return Marking(span_us(watermark.out_of_order, what="out_of_order", where=where))
    if callable(watermark.said):
        name = describe_function(watermark.said)
        plan = plan_generator(_FunctionMarks(watermark.said), name, where, None, function=watermark.said)
        return Marking(generator=plan, said_by=name)
    return _sql_marking(watermark.said, time, codec, where)


def _sql_marking(said: Any, time: str, codec: RowCodec, where: str) -> Marking:
    text = columns_sql({"": said}, where)[""]
    check_expression(text, codec.schema, where)
    found = infer(text, codec.schema)
    shown = f"{text!r}"
    if found is not None and pa.types.is_timestamp(found):
        return Marking(mark=text, said_by=shown)
    if found is not None and pa.types.is_boolean(found):
        event_time = quoted(time) if time in codec.names else f"({time})"
        return Marking(mark=f"CASE WHEN ({text}) THEN {event_time} END", said_by=f"a row with {shown}")
    raise ProgramError(
        "punctuated() needs a condition or a timestamp",
        where=where,
        expected="a condition such as kind = 'flush', or a timestamp: a column or SQL that gives one",
        found=f"punctuated({shown})" + ("" if found is None else f", which is {found}"),
        next_move="compare it with something, or write CAST(… AS TIMESTAMP)",
    )


class _FunctionMarks(WatermarkGenerator[Any]):
    """Rows say it themselves, through a user's function."""

    said: int = MIN_TIME

    def __init__(self, function: Callable[[Any], Timestamp | None]) -> None:
        self.function = function

    def on_row(self, row: Any, at: Any) -> None:
        said: Any = self.function(row)
        if said is not None and said > self.said:
            self.said = said

    def on_epoch(self) -> Any:
        return None if self.said <= MIN_TIME else self.said


@dataclass(frozen=True)
class Alignment:
    """The group of sources that a source does not run ahead of."""

    group: str = ""
    max_drift_us: int = 0


def plan_alignment(align: str | None, max_drift: Span | None, time: str | None, python: bool, at: Site) -> Alignment:
    """Checks ``align=`` and ``max_drift=`` of a read. Raises ProgramError."""
    where = str(at)
    if align is None and max_drift is None:
        return Alignment()
    if align is None or max_drift is None or not isinstance(align, str) or not align:
        raise ProgramError(
            "align= and max_drift= must be given together",
            where=where,
            expected='both: align="orders", max_drift="1m"',
            found=f"align={align!r}, max_drift={max_drift!r}",
            next_move="name the group, and say how far ahead of its slowest source this one may be",
        )
    if time is None:
        raise ProgramError(
            "align is about event time, and this source has none",
            where=where,
            expected="time= beside it",
            found="no time=",
        )
    if not python:
        raise ProgramError(
            "align= is not supported by sources that Spark reads",
            where=where,
            expected="a source that Headrace reads itself, such as generator, items or one of your own",
            found=f"align={align!r}",
            next_move="leave align= out, and bound what Spark reads per epoch in the source's own options",
        )
    drift = span_us(max_drift, what="max_drift", where=where)
    if drift <= 0:
        raise ProgramError(
            "max_drift must be greater than zero",
            where=where,
            expected='a span such as max_drift="1m"',
            found=f"max_drift={max_drift!r}",
            next_move="leave align= and max_drift= out, and the source waits for no other",
        )
    return Alignment(align, drift)
