"""Functions on text. Positions and lengths count characters, as Spark's do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import polars as pl

from headrace.sql import types as t
from headrace.sql.evaluate.scope import EvalScope, Value, by_row, spread, to_array
from headrace.sql.nodes import ExprTree

# Patterns of these parts alone mean the same to Java and to polars, so the fast engine may search for them.
_COMMON_PATTERN = re.compile(
    r"""(?: [\w ,:;=@#/<>!~&%'"|^-]          # characters that stand for themselves, alternatives, the beginning
          | \( (?! \?) | \(\?: | \)         # groups, but nothing that looks around
          | [*+?] \?? (?! [*+?])              # quantifiers, greedy or not; possessive ones are Java's own
          | \[ \^? (?! [^]]*(?:&&|--|~~)) [^][\\^]+ \]
        )*""",
    re.ASCII | re.VERBOSE,
)
_PLAIN_SEPARATOR = re.compile(r"[\w ,:;=@#/<>!~&%'\"-]+")
"""No character of it means anything in a pattern."""


def _arg(node: ExprTree, scope: EvalScope, at: int = 0) -> pl.Series:
    return scope.value(node.args[at])  # type: ignore[no-any-return]


def _args(node: ExprTree, scope: EvalScope) -> list[pl.Series]:
    return [scope.value(arg) for arg in node.args]


def _length(node: ExprTree, scope: EvalScope) -> pl.Series:
    value = _arg(node, scope)
    length = value.bin.size() if node.args[0].type == t.BINARY else value.str.len_chars()
    return length.cast(pl.Int32)


def _concat(node: ExprTree, scope: EvalScope) -> pl.Series:
    if not node.args:
        return pl.Series("", [""])
    joined, *rest = _args(node, scope)
    for part in rest:
        joined = joined + part
    return joined


def _concat_ws(node: ExprTree, scope: EvalScope) -> pl.Series:
    separator, *parts = _args(node, scope)
    if not parts:
        return by_row(lambda text: "", t.STRING, separator)
    joined = pl.select(pl.concat_list([part.fill_null("") for part in parts])).to_series()
    absent = pl.select(pl.concat_list([part.is_null() for part in parts])).to_series()

    def one(between: str, row: list[str], gone: list[bool]) -> str:
        return between.join(text for text, lost in zip(row, gone, strict=True) if not lost)

    return by_row(one, t.STRING, separator, joined, absent)


def _substring(node: ExprTree, scope: EvalScope) -> pl.Series:
    text, *numbers = _args(node, scope)
    position = numbers[0].cast(pl.Int64)
    length = text.str.len_chars().cast(pl.Int64)
    zero = pl.Series("", [0], dtype=pl.Int64)
    # Positions count from 1, and from the end when negative; 0 means the first one too.
    start = (position - 1).zip_with(position > 0, (length + position).zip_with(position < 0, zero))
    start = start.zip_with(position.is_not_null() & length.is_not_null(), zero.clear(1))
    end = start + numbers[1].cast(pl.Int64) if len(numbers) > 1 else length
    first = start.clip(0)
    return _slice(text, first, (end - first).clip(0))


def _slice(text: pl.Series, start: pl.Series, length: pl.Series) -> pl.Series:
    rows = max(len(text), len(start), len(length))
    text, start, length = spread(text, rows), spread(start, rows), spread(length, rows)
    known = start.is_not_null() & length.is_not_null()
    return text.str.slice(start, length).zip_with(known, pl.Series("", [None], dtype=pl.String))


def _left(text: str, count: int) -> str:
    return text[:count] if count > 0 else ""


def _right(text: str, count: int) -> str:
    return text[-count:] if count > 0 else ""


def _trim(strip: Callable[[str, str], str], side: str) -> Callable[[ExprTree, EvalScope], pl.Series]:
    def evaluate(node: ExprTree, scope: EvalScope) -> pl.Series:
        values = _args(node, scope)
        if len(values) == 1:
            return getattr(values[0].str, side)(" ")  # type: ignore[no-any-return]
        return by_row(strip, t.STRING, *values)

    return evaluate


def _replace(node: ExprTree, scope: EvalScope) -> pl.Series:
    values = _args(node, scope)
    if len(values[0]) > 1 and all(len(part) == 1 and part[0] for part in values[1:]):
        old, new = values[1][0], values[2][0] if len(values) > 2 else ""
        return values[0].str.replace_all(old, new, literal=True)

    def one(text: str, old: str, new: str = "") -> str:
        return text.replace(old, new) if old else text

    return by_row(one, t.STRING, *values)


def _test(name: str) -> Callable[[ExprTree, EvalScope], pl.Series]:
    def evaluate(node: ExprTree, scope: EvalScope) -> pl.Series:
        text, part = _args(node, scope)
        wanted = part
        if len(part) == 1:
            wanted = part[0]
        elif len(text) == 1:
            text = spread(text, len(part))
        if wanted is None:
            return pl.Series("", [None], dtype=pl.Boolean)
        if name == "contains":
            return text.str.contains(wanted, literal=True)  # type: ignore[arg-type]
        return getattr(text.str, name)(wanted)  # type: ignore[no-any-return]

    return evaluate


def _matches(node: ExprTree, scope: EvalScope) -> pl.Series:
    text = _arg(node, scope)
    how, pattern = node.value
    if how == "full":
        return by_row(lambda subject: pattern.fullmatch(subject) is not None, t.BOOLEAN, text)
    if _COMMON_PATTERN.fullmatch(pattern.pattern):
        return text.str.contains(pattern.pattern)
    return by_row(lambda subject: pattern.search(subject) is not None, t.BOOLEAN, text)


def _regexp_extract(node: ExprTree, scope: EvalScope) -> pl.Series:
    pattern, group = node.value
    if _COMMON_PATTERN.fullmatch(pattern.pattern):
        text = _arg(node, scope)
        # Nothing found is an empty text; no text is null.
        return text.str.extract(pattern.pattern, group).fill_null("").zip_with(text.is_not_null(), text)

    def one(subject: str) -> str:
        found = pattern.search(subject)
        return (found[group] or "") if found else ""

    return by_row(one, t.STRING, _arg(node, scope))


def _regexp_replace(node: ExprTree, scope: EvalScope) -> pl.Series:
    pattern, replacement = node.value
    return by_row(lambda subject: pattern.sub(replacement, subject), t.STRING, _arg(node, scope))


def split_text(text: str, plain: str, pattern: re.Pattern[str], limit: int) -> list[str]:
    """Java's split: a match of no length at the very start cuts nothing; a limit bounds the number of pieces."""
    if not plain and text:
        pieces = list(text)
        return pieces if limit <= 0 or len(pieces) <= limit else [*pieces[: limit - 1], text[limit - 1 :]]
    pieces, at = [], 0
    for found in pattern.finditer(text):
        if limit > 0 and len(pieces) == limit - 1:
            break
        if found.end() == 0:
            continue
        pieces.append(text[at : found.start()])
        at = found.end()
    pieces.append(text[at:])
    return pieces


def _split(node: ExprTree, scope: EvalScope) -> Any:
    plain, pattern, limit = node.value
    texts = _arg(node, scope)
    if limit <= 0 and _PLAIN_SEPARATOR.fullmatch(plain):
        return to_array(texts.str.split(plain).to_arrow(), node.type)
    pieces = [None if text is None else split_text(text, plain, pattern, limit) for text in texts.to_list()]
    return to_array(pl.Series("", pieces, dtype=pl.List(pl.String)).to_arrow(), node.type)


def _split_part(node: ExprTree, scope: EvalScope) -> pl.Series:
    text, separator, number = _args(node, scope)
    none = number.cast(pl.Int64) == 0
    if none.any():
        number = scope.settle(node, number, none & text.is_not_null() & separator.is_not_null(), "part 0")
    if len(text) > 1 and len(separator) == 1 and len(number) == 1 and separator[0] and number[0]:
        at = number[0] - 1 if number[0] > 0 else number[0]
        return (
            text.str.split(separator[0]).list.get(at, null_on_oob=True).fill_null("").zip_with(text.is_not_null(), text)
        )

    def one(whole: str, between: str, place: int) -> str:
        parts = whole.split(between) if between else [whole]
        place = place - 1 if place > 0 else len(parts) + place
        return parts[place] if 0 <= place < len(parts) else ""

    return by_row(one, t.STRING, text, separator, number)


def pad_text(text: str, length: int, fill: str, *, left: bool) -> str:
    missing = max(length, 0) - len(text)
    if missing <= 0:
        return text[: max(length, 0)]
    padding = (fill * (missing // len(fill) + 1))[:missing] if fill else ""
    return padding + text if left else text + padding


def _pad(left: bool) -> Callable[[ExprTree, EvalScope], pl.Series]:
    def one(text: str, length: int, fill: str = " ") -> str:
        return pad_text(text, length, fill, left=left)

    return lambda node, scope: by_row(one, t.STRING, *_args(node, scope))


def _locate(part: str, text: str, start: int = 1) -> int:
    return text.find(part, start - 1) + 1 if start > 0 else 0


def _rows(make: Callable[..., Any]) -> Callable[[ExprTree, EvalScope], pl.Series]:
    return lambda node, scope: by_row(make, node.type, *_args(node, scope))


EVALUATORS: dict[str, Callable[[ExprTree, EvalScope], Value]] = {
    "length": _length,
    "upper": lambda node, scope: _arg(node, scope).str.to_uppercase(),
    "lower": lambda node, scope: _arg(node, scope).str.to_lowercase(),
    "substring": _substring,
    "left": _rows(_left),
    "right": _rows(_right),
    "btrim": _trim(str.strip, "strip_chars"),
    "ltrim": _trim(str.lstrip, "strip_chars_start"),
    "rtrim": _trim(str.rstrip, "strip_chars_end"),
    "concat": _concat,
    "concat_ws": _concat_ws,
    "replace": _replace,
    "startswith": _test("starts_with"),
    "endswith": _test("ends_with"),
    "contains": _test("contains"),
    "matches": _matches,
    "regexp_extract": _regexp_extract,
    "regexp_replace": _regexp_replace,
    "split": _split,
    "split_part": _split_part,
    "lpad": _pad(left=True),
    "rpad": _pad(left=False),
    "instr": _rows(lambda text, part: text.find(part) + 1),
    "locate": _rows(_locate),
    "repeat": _rows(lambda text, count: text * count),
    "reverse": _rows(lambda text: text[::-1]),
}
