"""Points in time and spans of time: whole microseconds, as plain ints.

A `Timestamp` counts microseconds since 1970-01-01T00:00:00Z and a `Duration` counts microseconds. At run time both are
ints, so that arithmetic, storage and Arrow columns cost what ints cost; a type checker sees two classes and refuses to
add two timestamps or to mix in a bare number. A Duration that a program makes (``hr.seconds(5)``, ``hr.Duration(5)``)
is a `SpanInt`, an int that knows to be one, so that a bare number can be refused where a span is expected: nobody
means 5 microseconds by ``out_of_order=5``. A Duration that is read from a row is a plain int.

There are no time zones here: text and datetimes without one are read as UTC, and text is always written as UTC with a
``Z``.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any, NewType, overload

import numpy as np

from headrace.errors import ProgramError
from headrace.model.user_line import user_line


class SpanInt(int):
    """Microseconds that were said to be a span. Arithmetic among spans gives spans; with a time it gives a time."""

    __slots__ = ()

    def __add__(self, other: Any, /) -> Any:
        return _keep_span(int.__add__(self, other), isinstance(other, SpanInt))

    def __sub__(self, other: Any, /) -> Any:
        return _keep_span(int.__sub__(self, other), isinstance(other, SpanInt))

    def __mul__(self, other: Any, /) -> Any:
        return _keep_span(int.__mul__(self, other), True)

    def __rmul__(self, other: Any, /) -> Any:
        return _keep_span(int.__rmul__(self, other), True)

    def __floordiv__(self, other: Any, /) -> Any:
        return _keep_span(int.__floordiv__(self, other), not isinstance(other, SpanInt))

    def __mod__(self, other: Any, /) -> Any:
        return _keep_span(int.__mod__(self, other), True)

    def __neg__(self) -> Any:
        return SpanInt(int.__neg__(self))

    def __abs__(self) -> Any:
        return SpanInt(int.__abs__(self))


def _keep_span(result: Any, is_span: bool) -> Any:
    return SpanInt(result) if is_span and isinstance(result, int) else result


def encode_span(value: Any) -> int:
    """A hook for msgspec's encoders, which know no subclasses of int."""
    if isinstance(value, SpanInt):
        return int(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


if TYPE_CHECKING:

    class Duration:
        """A span of time in microseconds; an int at run time."""

        def __init__(self, microseconds: int, /) -> None: ...
        def __int__(self) -> int: ...
        def __index__(self) -> int: ...
        def __hash__(self) -> int: ...
        def __bool__(self) -> bool: ...
        def __add__(self, other: Duration, /) -> Duration: ...
        def __sub__(self, other: Duration, /) -> Duration: ...
        def __neg__(self) -> Duration: ...
        def __abs__(self) -> Duration: ...
        def __mul__(self, n: int, /) -> Duration: ...
        def __rmul__(self, n: int, /) -> Duration: ...
        @overload
        def __floordiv__(self, n: Duration, /) -> int: ...
        @overload
        def __floordiv__(self, n: int, /) -> Duration: ...
        def __floordiv__(self, n: Any, /) -> Any: ...
        def __truediv__(self, other: Duration, /) -> float: ...
        def __mod__(self, other: Duration, /) -> Duration: ...
        def __lt__(self, other: Duration, /) -> bool: ...
        def __le__(self, other: Duration, /) -> bool: ...
        def __gt__(self, other: Duration, /) -> bool: ...
        def __ge__(self, other: Duration, /) -> bool: ...

    class Timestamp:
        """A point in time, in microseconds since 1970 (UTC); a plain int at run time."""

        def __init__(self, microseconds: int, /) -> None: ...
        def __int__(self) -> int: ...
        def __index__(self) -> int: ...
        def __hash__(self) -> int: ...
        def __add__(self, span: Duration, /) -> Timestamp: ...
        def __radd__(self, span: Duration, /) -> Timestamp: ...
        @overload
        def __sub__(self, other: Duration, /) -> Timestamp: ...
        @overload
        def __sub__(self, other: Timestamp, /) -> Duration: ...
        def __sub__(self, other: Any, /) -> Any: ...
        def __mod__(self, span: Duration, /) -> Duration: ...
        def __lt__(self, other: Timestamp, /) -> bool: ...
        def __le__(self, other: Timestamp, /) -> bool: ...
        def __gt__(self, other: Timestamp, /) -> bool: ...
        def __ge__(self, other: Timestamp, /) -> bool: ...

    Span = str | timedelta | Duration
else:

    class _DurationType(NewType):
        """For annotations a NewType of int; calling it makes a `SpanInt`."""

        def __call__(self, microseconds: int, /) -> SpanInt:
            return SpanInt(microseconds)

    Duration = _DurationType("Duration", int)
    Timestamp = NewType("Timestamp", int)
    Duration.__doc__ = "A span of time in microseconds; an int at run time."
    Timestamp.__doc__ = "A point in time, in microseconds since 1970 (UTC); a plain int at run time."
    Span = str | timedelta | int

_UNITS_US = {
    "us": 1,
    "µs": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zµ]+)\s*")
_SPAN = re.compile(rf"\s*(?:{_PART.pattern})+")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LONGEST_SPAN_US = 365_000 * 86_400_000_000


def milliseconds(n: float) -> Duration:
    """A span of ``n`` milliseconds.

    >>> milliseconds(1.5)
    1500
    """
    return _duration(n, 1_000, "milliseconds")


def seconds(n: float) -> Duration:
    """A span of ``n`` seconds.

    >>> timestamp("2024-01-01T00:00:00") + seconds(60) == timestamp("2024-01-01T00:01:00")
    True
    """
    return _duration(n, 1_000_000, "seconds")


def minutes(n: float) -> Duration:
    """A span of ``n`` minutes."""
    return _duration(n, 60_000_000, "minutes")


def hours(n: float) -> Duration:
    """A span of ``n`` hours."""
    return _duration(n, 3_600_000_000, "hours")


def days(n: float) -> Duration:
    """A span of ``n`` times 24 hours."""
    return _duration(n, 86_400_000_000, "days")


def _duration(n: float, unit_us: int, unit: str) -> Duration:
    if type(n) is int:
        return Duration(n * unit_us)
    if isinstance(n, bool) or not isinstance(n, Real | Decimal) or not math.isfinite(n):
        raise ProgramError(
            f"hr.{unit} takes a number",
            where=user_line(),
            expected=f"a finite number: hr.{unit}(5)",
            found=f"hr.{unit}({n!r:.100})",
            next_move='a span may also be text with its unit: "5s"'
            if isinstance(n, str)
            else f"give a number of {unit}",
        )
    return Duration(round(n * unit_us))


def timestamp(at: str | datetime) -> Timestamp:
    """The point in time that ISO text or a datetime names; without a zone it is UTC.

    >>> timestamp("2024-01-01T12:00:00.5Z")
    1704110400500000
    >>> timestamp("2024-01-01T13:00:00.5+01:00") == timestamp("2024-01-01T12:00:00.5")
    True
    """
    if isinstance(at, str):
        return Timestamp(parse_time(at))
    if not isinstance(at, datetime):
        number = isinstance(at, int) and not isinstance(at, bool)
        raise ProgramError(
            "hr.timestamp takes ISO text or a datetime",
            where=user_line(),
            expected='hr.timestamp("2024-01-01T12:00:00Z"), or a datetime',
            found=f"{type(at).__name__} {at!r:.100}",
            next_move=f"microseconds since 1970 are hr.Timestamp({at!r})" if number else "give its text: str(…)",
        )
    aware = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return Timestamp((aware - _EPOCH) // _MICROSECOND)


def span_us(span: Span, *, what: str = "a span of time", where: str = "") -> int:
    """A span in microseconds, from text, a timedelta or a Duration.

    >>> span_us("500ms"), span_us("2h30m"), span_us(timedelta(seconds=1)), span_us(seconds(1))
    (500000, 9000000000, 1000000, 1000000)
    """
    if isinstance(span, str):
        return _check_length(_parse_span(span, what, where), span, what, where)
    if isinstance(span, timedelta):
        return _check_length(span // _MICROSECOND, span, what, where)
    if isinstance(span, SpanInt):
        return _check_length(int(span), span, what, where)
    if isinstance(span, int | float) and not isinstance(span, bool):
        microseconds = f"; microseconds are hr.Duration({span!r})" if isinstance(span, int) else ""
        raise ProgramError(
            f"{what} has no unit",
            where=where,
            expected='text like "5s", a timedelta, or hr.seconds(5)',
            found=f"the bare number {span!r}",
            next_move=f'say the unit: "{span:g}s" or hr.seconds({span!r}), "{span:g}ms" or hr.milliseconds({span!r}), '
            f'"{span:g}m", "{span:g}h", "{span:g}d"{microseconds}',
        )
    raise _bad_span(span, what, where)


def _check_length(length_us: int, span: Span, what: str, where: str) -> int:
    """Times and spans are added in 64 bits: a span of this length leaves room for every year that a time may have."""
    if abs(length_us) > _LONGEST_SPAN_US:
        raise ProgramError(
            f"{what} is too long",
            where=where,
            expected="365000 days at the most",
            found=repr(span),
            next_move="give a shorter span",
        )
    return length_us


def _parse_span(text: str, what: str, where: str) -> int:
    if text.strip().startswith("-") and _SPAN.fullmatch(text.strip()[1:]):
        raise ProgramError(
            f"{what} is negative",
            where=where,
            expected="a span without a minus sign",
            found=repr(text),
            next_move=f"write {text.strip()[1:].strip()!r}",
        )
    if _SPAN.fullmatch(text) is None:
        raise _bad_span(text, what, where)
    total = 0.0
    whole = 0
    for number, unit in _PART.findall(text):
        if unit not in _UNITS_US:
            raise _bad_span(text, what, where)
        if "." in number:
            total += float(number) * _UNITS_US[unit]
        else:
            whole += int(number) * _UNITS_US[unit]
    return whole + round(total)


def _bad_span(span: object, what: str, where: str) -> ProgramError:
    return ProgramError(
        f"cannot read {what}",
        where=where,
        expected='text like "500ms", "5s", "1m", "2h30m" or "7d", a timedelta, or hr.seconds(5)',
        found=repr(span),
        next_move="give a number and one of the units ms, s, m, h, d, w",
    )


def format_span(us: int) -> str:
    """A span as short text that `span_us` reads back.

    >>> format_span(500_000), format_span(9_000_000_000), format_span(0)
    ('500ms', '2h30m', '0s')
    """
    if us <= 0:
        return "0s" if us == 0 else "-" + format_span(-us)
    parts = []
    for unit in ("d", "h", "m", "s", "ms", "us"):
        count, us = divmod(us, _UNITS_US[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def format_time(us: int) -> str:
    """ISO text in UTC; fractions of a second only as far as needed.

    >>> format_time(0), format_time(1_704_110_400_500_000)
    ('1970-01-01T00:00:00Z', '2024-01-01T12:00:00.5Z')
    """
    whole, fraction = divmod(us, 1_000_000)
    try:
        text = (_EPOCH + timedelta(seconds=whole)).isoformat()[:19]
    except OverflowError:
        # Years beyond 9999, as in the watermark of drained input; numpy's calendar goes that far.
        text = str(np.datetime64(whole, "s"))
    if not fraction:
        return text + "Z"
    return f"{text}.{fraction:06d}".rstrip("0") + "Z"


def parse_time(text: str) -> int:
    """Microseconds since 1970 of ISO text; text without a zone is UTC.

    >>> parse_time("2024-01-01"), parse_time("2024-01-01T12:00:00.5Z")
    (1704067200000000, 1704110400500000)
    """
    try:
        parsed = datetime.fromisoformat(text.strip())
    except ValueError:
        return _parse_far_time(text)
    aware = parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)
    return (aware - _EPOCH) // _MICROSECOND


_FAR = re.compile(r"(?:[+-]\d{3,6}|\d{4,6})-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?Z?")


def _parse_far_time(text: str) -> int:
    stripped = text.strip()
    if _FAR.fullmatch(stripped):
        try:
            return int(np.datetime64(stripped.removesuffix("Z"), "us").astype(np.int64))
        except ValueError:
            pass
    raise ProgramError(
        "cannot read a point in time",
        expected='ISO text like "2024-01-01T12:00:00Z" or "2024-01-01"',
        found=repr(text),
        next_move="write year-month-dayThour:minute:second; without a zone it is UTC",
    )
