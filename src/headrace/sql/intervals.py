"""Interval literals: microseconds for days to seconds, months for years and months; never both in one."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from headrace.sql import types as t
from headrace.sql.nodes import Node, Unsupported, literal

_DAY_US = 86_400_000_000
_UNITS_US = {
    "WEEK": 7 * _DAY_US, "DAY": _DAY_US, "HOUR": 3_600_000_000, "MINUTE": 60_000_000, "SECOND": 1_000_000,
    "MILLISECOND": 1_000, "MICROSECOND": 1,
}  # fmt: skip
_UNITS_MONTHS = {"YEAR": 12, "MONTH": 1}
_NUMBER = r"[+-]?\d+(?:\.\d*)?"
_PAIR = re.compile(rf"\s*({_NUMBER})\s*([A-Za-z]+)")
_CLOCK = r"(?P<{}>\d+)"
_ORDER = ("DAY", "HOUR", "MINUTE", "SECOND")


def interval(tree: Any, text: str) -> Node:
    """The value of one INTERVAL literal."""
    amount = getattr(tree.this, "this", None)
    if type(tree.this).__name__ != "Literal" or not isinstance(amount, str):
        raise Unsupported(f"{text} is not a literal; write n * INTERVAL 1 SECOND")
    unit = tree.args.get("unit")
    if unit is None:
        return _sum(_PAIR.findall(amount), _PAIR.sub("", amount), text)
    if type(unit).__name__ == "IntervalSpan":
        return _span(amount.strip(), unit.this.name.upper(), unit.expression.name.upper(), text)
    return _sum([(amount.strip(), unit.name)], "", text)


def _sum(pairs: list[tuple[str, str]], left_over: str, text: str) -> Node:
    units = [unit.upper().removesuffix("S") for _, unit in pairs]
    if not pairs or left_over.strip().lower() not in ("", "interval"):
        raise Unsupported(f"{text} is not an interval the worker can read")
    if all(unit in _UNITS_MONTHS for unit in units):
        months = sum(_whole(amount, text) * _UNITS_MONTHS[unit] for (amount, _), unit in zip(pairs, units, strict=True))
        return literal(months, t.MONTHS, text)
    if not all(unit in _UNITS_US for unit in units):
        raise Unsupported(f"{text} mixes months with days, or has a unit the worker does not know")
    micros = 0
    for (amount, _), unit in zip(pairs, units, strict=True):
        exact = _exact(amount, text) if unit == "SECOND" else Decimal(_whole(amount, text))
        micros += int(exact * _UNITS_US[unit])
    return literal(micros, t.DAYS if set(units) <= {"DAY", "WEEK"} else t.INTERVAL, text)


def _exact(amount: str, text: str) -> Decimal:
    if not re.fullmatch(_NUMBER, amount):
        raise Unsupported(f"{text} is not an interval the worker can read")
    return Decimal(amount)


def _whole(amount: str, text: str) -> int:
    exact = _exact(amount, text)
    if exact != exact.to_integral_value():
        raise Unsupported(f"{text} has a fraction of something other than seconds")
    return int(exact)


def _span(amount: str, first: str, last: str, text: str) -> Node:
    """``'1 02:03:04' DAY TO SECOND`` and ``'1-2' YEAR TO MONTH``."""
    if (first, last) == ("YEAR", "MONTH"):
        years = re.fullmatch(r"([+-]?)(\d+)-(\d+)", amount)
        if years is None:
            raise Unsupported(f"{text} is not an interval the worker can read")
        months = int(years[2]) * 12 + int(years[3])
        return literal(-months if years[1] == "-" else months, t.MONTHS, text)
    units = _ORDER[_ORDER.index(first) : _ORDER.index(last) + 1] if {first, last} <= set(_ORDER) else ()
    if len(units) < 2:
        raise Unsupported(f"{text} is not an interval the worker can read")
    pieces = [_CLOCK.format(unit) if unit != "SECOND" else r"(?P<SECOND>\d+(?:\.\d{1,9})?)" for unit in units]
    pattern = ":".join(pieces) if units[0] != "DAY" else pieces[0] + r"\s+" + ":".join(pieces[1:])
    found = re.fullmatch(r"(?P<sign>[+-]?)" + pattern, amount)
    if found is None:
        raise Unsupported(f"{text} is not an interval the worker can read")
    micros = sum(int(Decimal(found[unit]) * _UNITS_US[unit]) for unit in units)
    return literal(-micros if found["sign"] == "-" else micros, t.INTERVAL, text)
