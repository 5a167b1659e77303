"""Numbers, dates and timestamps as Spark writes them in text, and reads them from it."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

_DATE = re.compile(r"(\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_TIMESTAMP = re.compile(
    r"(\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?)?)?)?)?\s*(\D.*)?",
    re.DOTALL,
)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)


def double_text(value: float) -> str:
    """A double as Java prints it: 1.0, 1.0E10, 1.0E-5, NaN, Infinity."""
    return _java(repr(value), value)


def float_text(value: float) -> str:
    return _java(str(np.float32(value)), value)


def _java(shortest: str, value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    sign, digits, exponent = _digits(shortest)
    if not digits:
        return sign + "0.0"
    # The decimal point stands after the first digit of scientific notation.
    point = exponent + len(digits) - 1
    if not -3 <= point < 7:
        return f"{sign}{digits[0]}.{digits[1:] or '0'}E{point}"
    if point < 0:
        return f"{sign}0.{'0' * (-point - 1)}{digits}"
    whole = digits[: point + 1].ljust(point + 1, "0")
    return f"{sign}{whole}.{digits[point + 1 :] or '0'}"


def _digits(shortest: str) -> tuple[str, str, int]:
    """Sign, digits without zeros around them, and the power of ten of the last digit."""
    sign = "-" if shortest.startswith("-") else ""
    mantissa, _, power = shortest.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = whole + fraction
    exponent = int(power or 0) - len(fraction)
    kept = digits.rstrip("0")
    return sign, kept.lstrip("0"), exponent + len(digits) - len(kept)


def parse_date(text: str) -> int | None:
    """Days since 1970 of ``yyyy[-m[-d]]``; a time behind it is ignored."""
    found = _DATE.fullmatch(text)
    if found is None:
        return None
    try:
        return date(int(found[1]), int(found[2] or 1), int(found[3] or 1)).toordinal() - _EPOCH.toordinal()
    except ValueError:
        return None


def parse_timestamp(text: str) -> int | None:
    """Microseconds since 1970 of ``yyyy[-m[-d[ h:m[:s[.fraction]][zone]]]]``; UTC where no zone is given."""
    found = _TIMESTAMP.fullmatch(text)
    if found is None or (found[4] is not None and found[5] is None):
        return None
    zone = parse_zone(found[8].strip()) if found[8] else UTC
    if zone is None or (found[8] and found[4] is None):
        return None
    micros = int((found[7] or "")[:6].ljust(6, "0"))
    try:
        parts = [int(part) if part else low for part, low in zip(found.groups()[:6], (1, 1, 1, 0, 0, 0), strict=True)]
        return (datetime(*parts, micros, tzinfo=zone) - _EPOCH) // _US  # type: ignore[arg-type,misc]
    except ValueError:
        return None


def parse_zone(text: str) -> tzinfo | None:
    if text in ("Z", "UTC", "GMT", "UT"):
        return UTC
    offset = _OFFSET.fullmatch(text)
    if offset is None:
        try:
            return ZoneInfo(text)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            return None
    span = timedelta(hours=int(offset[2]), minutes=int(offset[3] or 0), seconds=int(offset[4] or 0))
    return timezone(span if offset[1] == "+" else -span) if span <= timedelta(hours=18) else None
