"""The meaning of declared aggregates as plain data: what manifests keep of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from headrace.aggregates.declare import Agg, Declared, column_annotation
from headrace.model.meaning import AggregateMeaning
from headrace.model.shapes import split_optional
from headrace.model.values import type_name

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec


_OF_NOTHING: Final = ("count", "sum", "count_distinct", "collect", "top")
"""Aggregates that are something where nothing was counted."""


def describe_meanings(
    aggs: Mapping[str, Agg[Any]], taken: RowCodec, given: RowCodec | None = None
) -> dict[str, AggregateMeaning]:
    """Result → what it is of. ``given``: the type of the results, where one of nothing may have to be given out."""
    return {name: _describe(agg, taken, given is not None and _is_required(name, given)) for name, agg in aggs.items()}


def _is_required(name: str, given: RowCodec) -> bool:
    """Whether a field of a row has to have a value."""
    types = {field.name: field.type for field in getattr(given, "fields", ())}
    return name in types and not split_optional(types[name])[1]


def _describe(agg: Agg[Any], taken: RowCodec, required: bool) -> AggregateMeaning:
    if not isinstance(agg, Declared):
        return AggregateMeaning("own", name=type(agg).__name__, required=required)
    kind = "" if agg.column is None else type_name(column_annotation(taken, agg.column)[0])
    return AggregateMeaning(
        agg.kind, agg.column, agg.where, agg.by, agg.n, agg.q, agg.over_us, type=kind,
        required=required and agg.kind not in _OF_NOTHING,
    )  # fmt: skip
