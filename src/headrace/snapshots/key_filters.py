"""Which keys a pushed-down filter can be true of: read off the expression that DuckDB hands to a scan.

DuckDB gives the filters of a scan as an expression of polars. Where it says that every part of the key is equal to one
of some values, only those keys have to be looked up. The filter is applied to the rows all the same: what is found here
may be too many keys, and never too few.

Nothing here fails: an expression that is not understood restricts nothing.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl
import pyarrow as pa

if TYPE_CHECKING:
    from headrace.snapshots.table import StateTable

MOST_KEYS: Final = 10_000
"""More are found faster by reading the whole table."""


def keys_of(predicate: pl.Expr | None, table: StateTable) -> list[bytes] | None:
    """The only keys that rows can have of which a filter is true, each once; None: any."""
    if predicate is None or not table.looks_up or not table.key_types:
        return None
    wanted = equal_values(predicate, table.key_names)
    if len(wanted) < len(table.key_names):
        return None
    choices = [wanted[name] for name in table.key_names]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > MOST_KEYS:
        return None
    keys = [table.key_bytes(parts) for parts in product(*choices)]
    known = [key for key in dict.fromkeys(keys) if key is not None]
    return known if len(known) == len(set(keys)) else None


def equal_values(predicate: pl.Expr, names: Sequence[str]) -> dict[str, list[Any]]:
    """Column → the only values that it can have where the filter is true; columns that may have any are not there."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = msgspec.json.decode(predicate.meta.serialize(format="json"))
        found: dict[str, list[Any]] = {}
        for name, values in _facts(tree):
            if name in names:
                found[name] = values if name not in found else [each for each in found[name] if each in values]
    except Exception:
        # The form of expressions is polars' own and may change: then a scan is slower, and as right.
        return {}
    return found


def _facts(node: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """(column, values) that must hold where the expression is true."""
    if binary := node.get("BinaryExpr"):
        if binary["op"] in ("And", "LogicalAnd"):
            yield from _facts(binary["left"])
            yield from _facts(binary["right"])
        elif binary["op"] == "Eq":
            for one, other in ((binary["left"], binary["right"]), (binary["right"], binary["left"])):
                if "Column" in one and "Literal" in other:
                    yield one["Column"], _values_of(other["Literal"])
        elif binary["op"] in ("Or", "LogicalOr"):
            yield from _either(dict(_facts(binary["left"])), dict(_facts(binary["right"])))
    elif ternary := node.get("Ternary"):
        if _is_null(ternary["truthy"]):
            yield from _facts(ternary["falsy"])
    elif function := node.get("Function"):
        kind, inputs = function["function"], function["input"]
        if "IsIn" in kind.get("Boolean", {}) and "Column" in inputs[0] and "Literal" in inputs[1]:
            yield inputs[0]["Column"], _values_of(inputs[1]["Literal"])


def _either(one: Mapping[str, list[Any]], other: Mapping[str, list[Any]]) -> Iterator[tuple[str, list[Any]]]:
    for name in one.keys() & other.keys():
        yield name, [*one[name], *(each for each in other[name] if each not in one[name])]


def _is_null(node: Any) -> bool:
    return isinstance(node, dict) and "Null" in node.get("Literal", {}).get("Scalar", {})


def _values_of(literal: Mapping[str, Any]) -> list[Any]:
    if "Series" in literal:
        return _series(literal["Series"])
    scalar = literal["Scalar"]
    [(kind, value)] = scalar.items()
    if kind == "List":
        return _series(value)
    if kind == "Binary":
        return [bytes(value)]
    if kind in ("String", "StringOwned", "Boolean") or kind.startswith(("Int", "UInt", "Float")):
        return [value]
    if kind.startswith("Datetime"):
        return [_time_us(value)]
    raise ValueError(f"a literal of kind {kind}")


def _time_us(value: Sequence[Any]) -> int:
    number, unit, *_ = value
    return int(number) * {"Milliseconds": 1000, "Microseconds": 1}[unit]


def _series(content: Sequence[int]) -> list[Any]:
    """A literal of many values is a stream of Arrow."""
    with pa.ipc.open_stream(io.BytesIO(bytes(content))) as stream:
        column = stream.read_all().column(0)
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        column = column.combine_chunks().flatten()
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values
