"""GROUPING SETS, ROLLUP and CUBE: every row once for each set, with null for the keys that the set leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, Final

from headrace.dataflow.projection import column_annotation
from headrace.model.record import row_type
from headrace.model.rows import codec_of
from headrace.model.shapes import spark_type
from headrace.sql.expr import quote_name
from headrace.tables.scope import QueryPlace

GROUPING_ID: Final = "grouping_set"
"""The column that keeps the groups of one set apart from those of the others: a bit for each key that is left out."""
MAX_SETS: Final = 64


@dataclass(frozen=True)
class Sets:
    """Which keys each set has, by their position."""

    keys: tuple[frozenset[int], ...]
    width: int

    def id_of(self, members: frozenset[int]) -> int:
        """Spark's GROUPING_ID: the first key is the highest bit."""
        return sum(1 << (self.width - 1 - i) for i in range(self.width) if i not in members)

    def grouping_sql(self, asked: Sequence[str], keys: Sequence[str], tree: Any, place: QueryPlace) -> str:
        """GROUPING(a), or GROUPING_ID(a, b): which of these keys the set of a group leaves out."""
        bits = []
        for position, text in enumerate(reversed(asked)):
            if text not in keys:
                raise place.error(tree, "GROUPING takes expressions of GROUP BY")
            shift = 1 << (self.width - 1 - keys.index(text))
            bits.append(f"(({GROUPING_ID} DIV {shift}) % 2) * {1 << position}")
        return f"({' + '.join(bits)})"


def grouping_sets(group: Any, place: QueryPlace) -> tuple[list[Any], Sets | None]:
    """The expressions of GROUP BY, each once, and the sets of them where there are several."""
    from sqlglot import exp

    elements: list[list[list[Any]]] = []
    behind = _behind(group)
    for each in group.expressions if behind is None else [behind]:
        match each:
            case exp.GroupingSets():
                elements.append([part for inner in each.expressions for part in _sets_of(inner)])
            case exp.Rollup() | exp.Cube():
                elements.append(_sets_of(each))
            case _:
                elements.append([[each]])
    for key in ("grouping_sets", "rollup", "cube"):
        elements += [_sets_of(each) for each in group.args.get(key) or [] if behind is None]
    if all(len(sets) == 1 for sets in elements):
        return [tree for sets in elements for tree in sets[0]], None
    chosen = [[tree for part in parts for tree in part] for parts in product(*elements)]
    if len(chosen) > MAX_SETS:
        raise place.error(group, f"these are {len(chosen)} grouping sets", expected=f"at most {MAX_SETS}")
    trees: list[Any] = []
    texts: list[str] = []
    members = []
    for each in chosen:
        mine = []
        for tree in each:
            text = tree.sql()
            if text not in texts:
                texts.append(text)
                trees.append(tree)
            mine.append(texts.index(text))
        members.append(frozenset(mine))
    return trees, Sets(tuple(members), len(trees))


def _behind(group: Any) -> Any:
    """GROUP BY a, b WITH ROLLUP, or WITH CUBE, as ROLLUP (a, b)."""
    for each in (*(group.args.get("rollup") or ()), *(group.args.get("cube") or ())):
        if not each.expressions:
            return type(each)(expressions=[tree.copy() for tree in group.expressions])
    return None


def _sets_of(tree: Any) -> list[list[Any]]:
    from sqlglot import exp

    match tree:
        case exp.Rollup():
            parts = [_members(each) for each in tree.expressions]
            return [[key for part in parts[:n] for key in part] for n in range(len(parts), -1, -1)]
        case exp.Cube():
            parts = [_members(each) for each in tree.expressions]
            sizes = range(len(parts), -1, -1)
            return [[key for part in some for key in part] for n in sizes for some in combinations(parts, n)]
        case exp.GroupingSets():
            return [part for inner in tree.expressions for part in _sets_of(inner)]
    return [_members(tree)]


def _members(tree: Any) -> list[Any]:
    from sqlglot import exp

    if isinstance(tree, exp.Tuple):
        return list(tree.expressions)
    return [tree.this] if isinstance(tree, exp.Paren) else [tree]


def expanded(stream: Any, keys: dict[str, str], sets: Sets, fields: Sequence[str]) -> Any:
    """The rows once for each set. ``keys``: the text of each key by its column; ``fields``: the column of each key."""
    codec = stream.node.codec
    types: dict[str, Any] = dict(codec.annotations)
    for name, text in keys.items():
        types[name] = column_annotation(codec, text, "") | None
    into = row_type("Row", {**types, GROUPING_ID: int})
    whole = codec_of(into).schema
    parts = []
    for members in sets.keys:
        here = {fields[i] for i in members}
        texts = {name: quote_name(name) for name in codec.names}
        for name, text in keys.items():
            # The bounds of windows stand outside of the sets.
            texts[name] = text if name in here else f"CAST(NULL AS {spark_type(whole.field(name).type)})"
        parts.append(stream.select(into, **texts, **{GROUPING_ID: str(sets.id_of(members))}))
    return parts[0].union(*parts[1:])
