"""The meaning of declared aggregates as plain data: what manifests keep of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from headrace.aggregates.declare import Agg, Declared, column_annotation
from headrace.model.fields import former_names
from headrace.model.meaning import AggregateMeaning
from headrace.model.shapes import split_optional, union_members
from headrace.model.values import type_name
from headrace.sql.parse import parse_tree, root_columns

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec


_OF_NOTHING: Final = ("count", "sum", "count_distinct", "sum_distinct", "collect", "top")
"""Aggregates that are something where nothing was counted."""


def describe_meanings(
    aggs: Mapping[str, Agg[Any]], taken: RowCodec, given: RowCodec | None = None
) -> dict[str, AggregateMeaning]:
    """Result → what it is of. ``given``: the type of the results, if it is theirs."""
    formers = {} if given is None else former_names(given.type)
    return {
        name: replace(
            _describe(agg, taken, given is not None and _is_required(name, given)), formers=formers.get(name, ())
        )
        for name, agg in aggs.items()
    }


def _is_required(name: str, given: RowCodec) -> bool:
    """Whether a field of a row has to have a value."""
    types = {field.name: field.type for field in getattr(given, "fields", ())}
    return name in types and not split_optional(types[name])[1]


def _describe(agg: Agg[Any], taken: RowCodec, required: bool) -> AggregateMeaning:
    if not isinstance(agg, Declared):
        return AggregateMeaning("own", name=type(agg).__name__, required=required)
    kind = "" if agg.column is None else type_name(column_annotation(taken, agg.column)[0])
    texts = [text for text in (agg.column, agg.where, agg.by) if text is not None]
    return AggregateMeaning(
        agg.kind, agg.column, agg.where, agg.by, agg.n, agg.q, agg.over_us, type=kind,
        required=required and agg.kind not in _OF_NOTHING, was=_former_columns(taken, texts),
    )  # fmt: skip


def _former_columns(taken: RowCodec, texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The former names of columns, where an expression has one of their names in it."""
    records = union_members(taken.type) or (taken.type,)
    said = {name: was for each in records for name, was in former_names(each).items()}
    if not said:
        return {}
    names = {name for text in texts for name in root_columns(parse_tree(text))}
    return {name: was for name, was in said.items() if names & {name, *was}}
