"""The meaning of declared aggregates as plain data: what manifests keep of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.aggregates.declare import Agg, Declared, column_annotation
from headrace.model.meaning import AggregateMeaning
from headrace.model.values import type_name

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec


def describe_meanings(aggs: Mapping[str, Agg[Any]], taken: RowCodec) -> dict[str, AggregateMeaning]:
    """Result → what it is of."""
    return {name: _describe(agg, taken) for name, agg in aggs.items()}


def _describe(agg: Agg[Any], taken: RowCodec) -> AggregateMeaning:
    if not isinstance(agg, Declared):
        return AggregateMeaning("own", name=type(agg).__name__)
    kind = "" if agg.column is None else type_name(column_annotation(taken, agg.column)[0])
    return AggregateMeaning(
        agg.kind, agg.column, agg.where, agg.by, agg.n, agg.q, agg.over_us, type=kind,
    )  # fmt: skip
