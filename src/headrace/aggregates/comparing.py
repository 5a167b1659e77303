"""Which types of values can be put in an order, and which can be told apart: asked while a program is built.

``min``, ``max`` and ``top`` compare values with each other, ``count_distinct`` finds equal ones; both are Python's, so
a type that Python cannot compare would stop the job with its first two rows. A plain Enum is a set of names: what comes
first among them nobody has said. One that is also an int or a str has the order of its values.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import FunctionType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from headrace.model.values import type_name

_PLAIN: Final[dict[Any, str]] = {
    int: "a number", float: "a number", bool: "a number", Decimal: "a number", str: "text", bytes: "bytes",
    datetime: "a time", date: "a date", time: "a time of day", timedelta: "a span",
}  # fmt: skip
"""Types with an order of their own; those of one word can be compared with each other."""
_NO_ORDER: Final = (dict, set, frozenset)
"""Sets have a comparison, but it asks whether one holds the other."""
_CHANGEABLE: Final = (list, dict, set)


def why_unordered(kind: Any) -> str:
    """Why values of a type cannot be put in an order; an empty text where they can, or where nobody knows."""
    origin, args = get_origin(kind), get_args(kind)
    kind = _bare(kind)
    if origin is Literal:
        return _all_alike({type(each) for each in args})
    if origin in (Union, UnionType):
        return _all_alike(args)
    if kind in (None, type(None)):
        return "it may be None"
    if kind in (list, tuple):
        return next((why for each in args if each is not ... and (why := why_unordered(each))), "")
    if kind is Any or not isinstance(kind, type) or kind in _PLAIN:
        return ""
    if issubclass(kind, Enum):
        if issubclass(kind, (int, str, float, bytes)):
            return ""
        return f"{kind.__name__} is an Enum whose members have no order; as an IntEnum or StrEnum it has one"
    return "" if _has_order(kind) else f"{type_name(kind)} has no order"


def _has_order(kind: type) -> bool:
    if issubclass(kind, _NO_ORDER):
        return False
    if issubclass(kind, msgspec.Struct):
        # Its class has the method in any case, which says for most that there is no order.
        own = any(isinstance(vars(each).get("__lt__"), FunctionType) for each in kind.__mro__)
        return own or kind.__struct_config__.order
    return any("__lt__" in vars(each) for each in kind.__mro__[:-1])


def why_unhashable(kind: Any) -> str:
    """Why equal values of a type cannot be found; an empty text where they can, or where nobody knows."""
    kind, args = _bare(kind), get_args(kind)
    if kind in _CHANGEABLE:
        return f"{type_name(kind)} can be changed in place"
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        args = tuple(_fields_of(kind))
    return next((why for each in args if isinstance(each, type) or get_args(each) if (why := why_unhashable(each))), "")


def _all_alike(kinds: Iterable[Any]) -> str:
    """Whether values of several types can be compared with each other."""
    words = set()
    for kind in kinds:
        if why := why_unordered(kind):
            return why
        words.add(_PLAIN.get(_bare(kind), type_name(kind)))
    return "" if len(words) <= 1 else f"{' and '.join(sorted(words))} have no order among each other"


def _bare(kind: Any) -> Any:
    """The class behind the parts of a type; of a type that is another one by name, that one."""
    while hasattr(kind, "__supertype__"):
        kind = kind.__supertype__
    return get_origin(kind) or kind


def _fields_of(kind: type[msgspec.Struct]) -> list[Any]:
    try:
        return list(get_type_hints(kind).values())
    except (NameError, TypeError):
        return []
