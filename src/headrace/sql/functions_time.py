"""The functions on dates and timestamps, by name."""

from __future__ import annotations

import re

from headrace.sql import types as t
from headrace.sql.calls import Rule, all_of, as_type, constant, count_args, exactly, fixed, implicit
from headrace.sql.nodes import ExprTree, Unsupported

_TRUNCATIONS = {
    "YEAR": "1y", "YYYY": "1y", "YY": "1y", "QUARTER": "1q", "MONTH": "1mo", "MON": "1mo", "MM": "1mo", "WEEK": "1w",
    "DAY": "1d", "DD": "1d", "HOUR": "1h", "MINUTE": "1m", "SECOND": "1s", "MILLISECOND": "1ms", "MICROSECOND": "1us",
}  # fmt: skip
_FIELDS = {
    "YEAR": "year", "QUARTER": "quarter", "MONTH": "month", "MON": "month", "WEEK": "weekofyear", "DAY": "day",
    "DAYOFWEEK": "dayofweek", "DOW": "dayofweek", "DOY": "dayofyear", "HOUR": "hour", "MINUTE": "minute",
}  # fmt: skip


def _date_trunc(args: list[ExprTree], text: str) -> ExprTree:
    count_args(args, 2, 2, text)
    unit = _TRUNCATIONS.get(str(constant(args[0], text, "unit")).upper())
    if unit is None:
        raise Unsupported(f"{text} has a unit that is none of {', '.join(_TRUNCATIONS)}")
    return ExprTree("date_trunc", t.TIMESTAMP, (implicit(args[1], t.TIMESTAMP, text),), unit)


def _trunc(args: list[ExprTree], text: str) -> ExprTree:
    count_args(args, 2, 2, text)
    unit = _TRUNCATIONS.get(str(constant(args[1], text, "unit")).upper())
    if unit not in ("1y", "1q", "1mo", "1w"):
        raise Unsupported(f"{text} has a unit that is none of YEAR, QUARTER, MONTH and WEEK")
    return ExprTree("trunc", t.DATE, (implicit(args[0], t.DATE, text),), unit)


def extract(name: str, node: ExprTree, text: str) -> ExprTree:
    """``EXTRACT(field FROM time)``."""
    field = name.upper().removesuffix("S") if name.upper() != "DAYS" else "DAY"
    if field == "SECOND":
        return ExprTree("seconds", t.decimal(8, 6), (implicit(node, t.TIMESTAMP, text),))
    if field not in _FIELDS:
        raise Unsupported(f"{text} extracts something that is none of {', '.join(_FIELDS)}, SECOND")
    return TIME_FUNCTIONS[_FIELDS[field]]([node], text)


_FORMATS = {
    "yyyy": "%Y", "yy": "%y", "M": "%-m", "MM": "%m", "MMM": "%b", "MMMM": "%B", "d": "%-d", "dd": "%d",
    "D": "%-j", "DDD": "%j", "E": "%a", "EE": "%a", "EEE": "%a", "EEEE": "%A", "a": "%p", "H": "%-H", "HH": "%H",
    "h": "%-I", "hh": "%I", "m": "%-M", "mm": "%M", "s": "%-S", "ss": "%S", "SSS": "%3f", "SSSSSS": "%6f",
    "SSSSSSSSS": "%9f",
}  # fmt: skip
"""Letters of a Java pattern → the same for polars."""
_PATTERN_PART = re.compile(r"(?P<quoted>'(?:[^']|'')*')|(?P<letters>([A-Za-z])\3*)|(?P<other>[^A-Za-z'#{}\[\]])")


def _date_format(args: list[ExprTree], text: str) -> ExprTree:
    count_args(args, 2, 2, text)
    pattern = str(constant(args[1], text, "pattern"))
    parts, end = [], 0
    for part in _PATTERN_PART.finditer(pattern):
        if part.start() != end or (part["letters"] and part["letters"] not in _FORMATS):
            break
        plain = (part["quoted"] or "")[1:-1].replace("''", "'") or ("'" if part["quoted"] else part["other"] or "")
        parts.append(_FORMATS[part["letters"]] if part["letters"] else plain.replace("%", "%%"))
        end = part.end()
    if end != len(pattern):
        raise Unsupported(f"{text} has a pattern with {pattern[end:]!r}, which only Spark knows")
    return ExprTree("date_format", t.STRING, (implicit(args[0], t.TIMESTAMP, text),), "".join(parts))


def _date_part(args: list[ExprTree], text: str) -> ExprTree:
    count_args(args, 2, 2, text)
    return extract(str(constant(args[0], text, "field")), args[1], text)


def _date_add(sign: int) -> Rule:
    def rule(args: list[ExprTree], text: str) -> ExprTree:
        count_args(args, 2, 2, text)
        if args[1].type == t.BIGINT:
            raise Unsupported(f"{text} is given BIGINT days; Spark wants CAST(… AS INT)")
        days = implicit(args[1], t.INT, text)
        days = days if sign > 0 else ExprTree("neg", t.INT, (days,), None, text)
        return ExprTree("date_add", t.DATE, (implicit(args[0], t.DATE, text), days), None, text)

    return rule


def _timestamp_seconds(args: list[ExprTree], text: str) -> ExprTree:
    count_args(args, 1, 1, text)
    if args[0].type == t.DOUBLE:
        return ExprTree("timestamp_seconds", t.TIMESTAMP, (args[0],), None, text)
    return ExprTree("timestamp_of", t.TIMESTAMP, (exactly(args[0], t.INTEGRALS, text),), 1_000_000, text)


def _timestamp_of(unit_us: int) -> Rule:
    def rule(args: list[ExprTree], text: str) -> ExprTree:
        count_args(args, 1, 1, text)
        return ExprTree("timestamp_of", t.TIMESTAMP, (exactly(args[0], t.INTEGRALS, text),), unit_us, text)

    return rule


def _unix(unit_us: int) -> Rule:
    def rule(args: list[ExprTree], text: str) -> ExprTree:
        count_args(args, 1, 1, text)
        return ExprTree("unix", t.BIGINT, (exactly(args[0], (t.TIMESTAMP,), text),), unit_us)

    return rule


_DATE_FIELDS = ("year", "quarter", "month", "dayofmonth", "dayofweek", "weekday", "dayofyear", "weekofyear")

TIME_FUNCTIONS: dict[str, Rule] = {
    "unix_micros": _unix(1),
    "unix_millis": _unix(1_000),
    "unix_seconds": _unix(1_000_000),
    "timestamp_micros": _timestamp_of(1),
    "timestamp_millis": _timestamp_of(1_000),
    "timestamp_seconds": _timestamp_seconds,
    "date_trunc": _date_trunc,
    "trunc": _trunc,
    **{name: fixed(name, t.INT, t.DATE) for name in _DATE_FIELDS},
    "day": fixed("dayofmonth", t.INT, t.DATE),
    **{name: fixed(name, t.INT, t.TIMESTAMP) for name in ("hour", "minute", "second")},
    "date_part": _date_part,
    "date_format": _date_format,
    "to_date": as_type(t.DATE),
    "to_timestamp": as_type(t.TIMESTAMP),
    **all_of(_date_add(1), "date_add", "dateadd"),
    "date_sub": _date_add(-1),
    **all_of(fixed("datediff", t.INT, t.DATE, t.DATE), "datediff", "date_diff"),
    "add_months": fixed("add_months", t.DATE, t.DATE, t.INT),
    "last_day": fixed("last_day", t.DATE, t.DATE),
    "unix_date": fixed("unix_date", t.INT, t.DATE),
    "date_from_unix_date": fixed("date_from_unix_date", t.DATE, t.INT),
}
