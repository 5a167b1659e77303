"""Whether two texts are the same expression: by their trees, so that neither spaces nor parentheses matter."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from headrace.errors import ExpressionError
from headrace.sql.parse import column_path, parse_tree


def is_same_expression(one: str | None, other: str | None, renamed: Mapping[str, str] | None = None) -> bool:
    """
    ``renamed``: columns of ``one`` that have another name in ``other``.

    >>> is_same_expression("n*2", "(n * 2)"), is_same_expression("n", "n * 2")
    (True, False)
    >>> is_same_expression("n * 2", "amount * 2", {"n": "amount"})
    True
    """
    if one is None or other is None or (one == other and not renamed):
        return one == other
    try:
        return bool(_with_names(_bare(parse_tree(one)), renamed or {}) == _bare(parse_tree(other)))
    except ExpressionError:
        # The older text was written for another version of the grammar.
        return False


@lru_cache(maxsize=4096)
def expression_identity(text: str) -> str:
    """What all texts of one expression have in common, and others have not.

    >>> expression_identity("(n*2)") == expression_identity("n * 2") != expression_identity("n * '2'")
    True
    """
    return repr(_bare(parse_tree(text)))


def _with_names(tree: Any, renamed: Mapping[str, str]) -> Any:
    """The tree with other names of columns. Fields inside of columns keep theirs: they are not the row's."""
    for node in tree.walk() if renamed else ():
        if type(node).__name__ != "Column":
            continue
        first = next(part for name in ("catalog", "db", "table", "this") if (part := node.args.get(name)))
        if (name := renamed.get(column_path(node)[0])) is not None:
            first.set("this", name)
    return tree


def _bare(tree: Any) -> Any:
    """The tree without parentheses and quotes around names, which it does not need: it has its levels."""

    def bare(node: Any) -> Any:
        kind = type(node).__name__
        if kind == "Paren":
            return _bare(node.this)
        if kind == "Identifier" and node.args.get("quoted"):
            node.set("quoted", False)
        return node

    return tree.copy().transform(bare)
