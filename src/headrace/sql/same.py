"""Whether two texts are the same expression: by their trees, so that neither spaces nor parentheses matter."""

from __future__ import annotations

from typing import Any

from headrace.errors import ExpressionError
from headrace.sql.parse import parse_tree


def is_same_expression(one: str | None, other: str | None) -> bool:
    """
    >>> is_same_expression("n*2", "(n * 2)"), is_same_expression("n", "n * 2")
    (True, False)
    """
    if one is None or other is None or one == other:
        return one == other
    try:
        return bool(_bare(parse_tree(one)) == _bare(parse_tree(other)))
    except ExpressionError:
        # The older text was written for another version of the grammar.
        return False


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
