"""Functions that Flink has and Spark has not, as what says the same to Spark.

A call is known by its name and the number of its arguments. What cannot be said stays as it is, and is then refused as
any function that Spark does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

_SPECIAL: Final = frozenset(".$|?*+()[{")
"""Characters that mean something in a pattern, and stand for themselves in a class of characters."""
_TIME_UNITS: Final = {"0": "timestamp_seconds", "3": "timestamp_millis", "6": "timestamp_micros"}


def in_words_of_spark(tree: Any) -> Any:
    """The tree, with Flink's own functions put into Spark's. It is changed in place."""
    from sqlglot import exp

    # Inner calls first: an outer one takes them along.
    for call in reversed(list(tree.find_all(exp.Anonymous))):
        rewrite = _REWRITES.get((str(call.this).lower(), len(call.expressions)))
        made = None if rewrite is None else rewrite(*call.expressions)
        if made is None:
            continue
        made.meta.update(call.meta)
        if call is tree:
            tree = made
        else:
            call.replace(made)
    return tree


def _split_index(text: Any, separator: Any, number: Any) -> Any:
    """From 0; NULL where there is no such part."""
    from sqlglot import exp

    if not isinstance(separator, exp.Literal) or not separator.is_string or {"\\", "^"} & set(separator.this):
        return None
    pattern = "".join(f"[{char}]" if char in _SPECIAL else char for char in separator.this)
    parts = exp.Anonymous(this="split", expressions=[text.copy(), exp.Literal.string(pattern)])
    return exp.Anonymous(this="get", expressions=[parts, number.copy()])


def _to_timestamp_ltz(number: Any, places: Any) -> Any:
    from sqlglot import exp

    name = _TIME_UNITS.get(str(places.this))
    return None if name is None else exp.Anonymous(this=name, expressions=[number.copy()])


_REWRITES: Final[dict[tuple[str, int], Callable[..., Any]]] = {
    ("split_index", 3): _split_index,
    ("to_timestamp_ltz", 2): _to_timestamp_ltz,
}
