"""SQL over both sides of a join: ``left.card``, ``right.at``. The names of the sides are words of SQL: quoted here."""

from __future__ import annotations

import re
from typing import Final

from headrace.dataflow.site import Site
from headrace.errors import ExpressionError
from headrace.model.nearest import nearest
from headrace.model.pairs import LEFT, RIGHT, PairCodec, side_path
from headrace.sql.expr import check, parse, supported

_SIDES: Final = (LEFT, RIGHT)
_WORDS: Final = re.compile(
    r"""'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `(?:[^`]|``)*` | (?<![\w.])(?P<side>left|right)(?!\w|\s*\()""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_QUOTED_SIDE: Final = re.compile(r"`(left|right)`")


def sided_sql(text: str, pairs: PairCodec, at: Site, *, what: str = "selected from a join") -> str:
    """The text with the sides' names quoted; refuses what no side has, and what cannot be evaluated over both."""
    quoted = _WORDS.sub(lambda match: f"`{match['side'].lower()}`" if match["side"] else match[0], text)
    unknown = sorted(name for name in parse(quoted, str(at)).columns if name.lower() not in _SIDES)
    if unknown:
        raise _sideless(unknown[0], text, pairs, at)
    try:
        check(quoted, pairs.schema, str(at))
    except ExpressionError as error:
        raise _without_quotes(error) from None
    reason = supported(quoted, pairs.schema)
    if reason is not None:
        raise ExpressionError(
            f"this cannot be {what}: {reason}",
            where=str(at),
            expected=f"columns of either side: {_columns_text(pairs)}",
            found=repr(text),
            next_move="name a column of a side, or use map() with a Python function",
        )
    return quoted


def _sideless(name: str, text: str, pairs: PairCodec, at: Site) -> ExpressionError:
    names = {side: _names(pairs, side) for side in _SIDES}
    near = [side_path(side, name) for side in _SIDES if name in names[side]]
    if not near:
        close = nearest(name, [each for side in _SIDES for each in names[side]])
        near = [side_path(side, each) for side in _SIDES for each in names[side] if each in close]
    return ExpressionError(
        f"{name!r} needs its side, left or right",
        where=str(at),
        expected=f"columns with their side in front: {_columns_text(pairs)}",
        found=repr(text),
        next_move=f"did you mean {' or '.join(near)}?" if near else "",
    )


def _names(pairs: PairCodec, side: str) -> list[str]:
    return (pairs.left if side == LEFT else pairs.right).names


def _columns_text(pairs: PairCodec) -> str:
    return ", ".join(side_path(side, name) for side in _SIDES for name in _names(pairs, side))


def _without_quotes(error: ExpressionError) -> ExpressionError:
    """The error with the sides as they were written, and its mark under the same character."""
    text, newline, mark = error.found.partition("\n")
    quotes = sum(2 for _ in _QUOTED_SIDE.finditer(text, 0, max(len(mark) - len("  found:    "), 0)))
    error.found = _QUOTED_SIDE.sub(r"\1", text) + newline + mark[quotes:]
    error.what = _QUOTED_SIDE.sub(r"\1", error.what)
    error.next_move = _QUOTED_SIDE.sub(r"\1", error.next_move)
    return error
