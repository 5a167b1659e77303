"""How accumulators become results, said in words that a manifest can hold: for readers without the program."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from headrace.operators.aggregates import Agg, Declared, column_annotation

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec


def describe_results(aggs: Mapping[str, Agg[Any]], taken: RowCodec) -> dict[str, list[Any]]:
    """Result → its kind, and behind it what else `headrace.query.finishing` needs; part of the stored format."""
    return {name: _describe(agg, taken) for name, agg in aggs.items()}


def _describe(agg: Agg[Any], taken: RowCodec) -> list[Any]:
    if not isinstance(agg, Declared):
        return [agg.kind]
    if agg.kind == "sum":
        kind, _ = column_annotation(taken, agg.column or "")
        # What a sum of nothing is: a Decimal is stored as text.
        return ["sum", "0" if kind is Decimal else 0.0 if kind is float else 0]
    if agg.kind in ("min", "max") and agg.by is not None:
        return [agg.kind, "by"]
    if agg.kind == "quantile":
        return ["quantile", agg.q]
    return [agg.kind]
