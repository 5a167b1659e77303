"""The kinds of what regular joins and `top` give, by the unique keys of what they take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.model.pairs import LEFT, RIGHT, side_path
from headrace.model.row_kind import APPEND, StreamKind

if TYPE_CHECKING:
    from headrace.dataflow.graph import KeyedNode
    from headrace.joins.spec import RegularJoin, UnboundedJoin
    from headrace.model.keyspec import KeySpec
    from headrace.operators.changelogs.top_spec import TopSpec


def first_rows_kind(node: KeyedNode, spec: TopSpec) -> StreamKind:
    """A place of a key has one row."""
    if spec.ties != "broken" or (spec.rank is None and spec.most > 1):
        return StreamKind("changelog", spec.unique, scattered=not _lies_in(node.key, spec.unique))
    if node.key.columns is None:
        return StreamKind("changelog")
    return StreamKind("changelog", (*node.key.columns, *((spec.rank,) if spec.rank else ())))


def newest_pairs_kind(node: KeyedNode, spec: UnboundedJoin) -> StreamKind:
    """A join of the newest rows has one pair for each key; with a row that is always there, it holds the key."""
    side, key = (RIGHT, node.other_keys[0]) if spec.how == "right" else (LEFT, node.key)
    if spec.how == "full" or key is None or key.columns is None:
        return StreamKind("upsert")
    return StreamKind("upsert", tuple(side_path(side, name) for name in key.columns))


def joined_kind(node: KeyedNode, spec: RegularJoin) -> StreamKind:
    """Of a regular join: results have the unique keys of both sides, or of one where the other has one row for it."""
    if spec.appends:
        return APPEND
    left, right = spec.unique
    sided = spec.how not in ("semi", "anti")
    parts = {"left": (left,), "right": (right,), "both": (left, right)}[spec.grouping]
    if any(part is None for part in parts):
        return StreamKind("changelog")
    names = {"left": (LEFT,), "right": (RIGHT,), "both": (LEFT, RIGHT)}[spec.grouping]
    key = tuple(
        side_path(side, name) if sided else name for side, part in zip(names, parts, strict=True) for name in part or ()
    )
    keys = {LEFT: (node.key, left), RIGHT: (node.other_keys[0], right)}
    # A row whose unique key lacks a column of the join's key may move to another key of the join, and so elsewhere.
    always = {"inner": names, "left": (LEFT,), "right": (RIGHT,), "semi": (LEFT,), "anti": (LEFT,), "full": names}
    stays = [_lies_in(*keys[side]) for side in always[spec.how]]
    return StreamKind("changelog", key, scattered=not (any(stays) if spec.how == "inner" else all(stays)))


def _lies_in(key: KeySpec | None, unique: tuple[str, ...] | None) -> bool:
    return key is not None and key.columns is not None and set(key.columns) <= set(unique or ())
