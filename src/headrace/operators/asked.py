"""Columns that are asked for: of rows by their names, of pairs with the side in front, ``left.card``.

`None` stands for all columns there are, by whatever name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.aggregates.declare import Agg, Declared
from headrace.model.pairs import LEFT, RIGHT, PairCodec, side_path
from headrace.model.rows import RowCodec
from headrace.sql.expr import parse, resolve
from headrace.sql.parse import column_path

Columns = frozenset[str] | None
NO_COLUMNS: frozenset[str] = frozenset()


def with_columns(columns: Columns, more: Iterable[str]) -> Columns:
    """These columns and some more.

    >>> with_columns(None, ["a"]) is None, sorted(with_columns(frozenset({"b"}), ["a"]))
    (True, ['a', 'b'])
    """
    return None if columns is None else columns.union(more)


def columns_of(texts: Iterable[str], codec: RowCodec) -> frozenset[str]:
    """The columns that expressions over such rows read; of a pair a whole side, where one does."""
    if not isinstance(codec, PairCodec):
        return frozenset(name for text in texts for name in resolve(text, codec.schema).columns)
    return frozenset(name for text in texts for name in _pair_columns(text, codec))


def _pair_columns(text: str, codec: PairCodec) -> Iterable[str]:
    from sqlglot import exp

    names = {LEFT: codec.left.names, RIGHT: codec.right.names}
    tree: Any = parse(text).tree
    for node in tree.find_all(exp.Column):
        side, *path = (part.lower() for part in column_path(node))
        name = next((each for each in names[side] if path and each.lower() == path[0]), None)
        yield side if name is None else side_path(side, name)


def columns_of_aggregates(aggs: Mapping[str, Agg[Any]], codec: RowCodec) -> Columns:
    """The columns that aggregates read; those of one's own are given whole rows."""
    texts: list[str] = []
    for agg in aggs.values():
        if not isinstance(agg, Declared):
            return None
        texts += (text for text in (agg.column, agg.where, agg.by) if text is not None)
    return columns_of(texts, codec)


def columns_of_sides(columns: Columns, on: str | None, left: RowCodec, right: RowCodec) -> tuple[Columns, Columns]:
    """The columns of either side among those of pairs, and those that a condition over both reads."""
    asked = columns if on is None else with_columns(columns, columns_of([on], PairCodec(left, right)))
    if asked is None:
        return None, None
    return _of_side(LEFT, asked), _of_side(RIGHT, asked)


def _of_side(side: str, asked: frozenset[str]) -> Columns:
    if side in asked:
        return None
    return frozenset(name.removeprefix(f"{side}.") for name in asked if name.startswith(f"{side}."))
