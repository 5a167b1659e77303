"""DEFINE and MEASURES of SQL: what they say of rows and variables, taken out of their texts.

In DEFINE the variable itself stands for the row at hand, ``LAST(V.x)`` and aggregates over it include that row, and
``PREV`` is about the rows of the key as they came, matched or not. Other variables are their rows so far. In MEASURES
a column alone is of the last row of the match.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ExpressionError
from headrace.patterns.checks import MATCH
from headrace.patterns.conditions import (
    Conditions,
    MatchTextReader,
    TextOverMatch,
    check_condition,
    check_over_match,
    conjuncts,
)
from headrace.patterns.matcher import Link, links_of, newest_rows
from headrace.patterns.measures import AGGREGATES, NAVIGATION, Measure, MeasureReader, SplitText, TextSplitter
from headrace.sql.parse import column_path, parse_tree

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.patterns.recognizer import KeyRows

EVERY_ROW: Final = "all_rows"
"""Stands for the rows of all variables."""
PREV: Final = "prev"
_ABOUT_MATCH: Final = {"classifier": "classifier", "match_number": "number", "match_rowtime": "end"}
_COUNT_ALL: Final = re.compile(r"\bcount\s*\(\s*(?:(\w+)\s*\.\s*)?\*\s*\)", re.IGNORECASE)


def split_row_text(text: str, variables: Collection[str], own: str | None, where: str) -> SplitText:
    """Takes what is about rows and variables out of a text. ``own``: the variable it defines; None: a measure."""
    plain = _count_rows(text)
    try:
        tree = parse_tree(plain, aggregates=True)
    except ExpressionError as error:
        error.where = where
        raise
    return _RowSplitter(plain, variables, where, own).split(tree)


def _count_rows(text: str) -> str:
    """COUNT(*) and COUNT(A.*) as calls that expressions have words for."""
    return _COUNT_ALL.sub(lambda match: f"count({match[1] or '1'})", text)


class _RowSplitter(TextSplitter):
    def __init__(self, text: str, variables: Collection[str], where: str, own: str | None) -> None:
        # In a measure every column is a term; in a condition columns alone are of the row at hand.
        super().__init__(text, variables, where, ())
        self.own = own

    def replace(self, node: Any) -> Any:
        kind = type(node).__name__
        name = str(node.this).lower() if kind == "Anonymous" else ""
        if name in (*AGGREGATES, *NAVIGATION, PREV):
            return self._navigate(name, node)
        if name == "next":
            raise self.error(
                "NEXT asks for rows that have not come yet", "PREV, or a variable for the row behind",
                "give the row behind a variable of its own, and take its column",
            )  # fmt: skip
        if name in _ABOUT_MATCH and self.own is None:
            return self.column(Measure("last", MATCH, _ABOUT_MATCH[name]))
        if kind == "Column":
            variable = self._variable(node)
            if variable == self.own and self.own is not None:
                return self._bare(node)
            if variable:
                return self.column(Measure("last", variable, self.inner(node)))
            if self.own is None:
                return self.column(Measure("last", EVERY_ROW, node.sql(dialect="spark")))
        return node

    def check_columns(self, rest: Any) -> None:
        """Columns alone are resolved where the text is bound."""

    def _variable(self, column: Any) -> str:
        path = column_path(column)
        return path[0].upper() if len(path) > 1 and path[0].upper() in self.stages else ""

    def _bare(self, column: Any) -> Any:
        from sqlglot import parse_one

        self.rewritten = True
        return parse_one(self.inner(column), dialect="spark")

    def _navigate(self, kind: str, node: Any) -> Any:
        arguments = list(node.expressions)
        columns = [each for argument in arguments for each in argument.walk() if type(each).__name__ == "Column"]
        whole = len(columns) == 1 and columns[0] is arguments[0] and column_path(columns[0])[0].upper() in self.stages
        if whole and len(column_path(columns[0])) == 1 and kind == "count":
            return self.column(Measure(kind, column_path(columns[0])[0].upper(), None))
        variables = {self._variable(each) for each in columns}
        if len(variables) > 1:
            raise self.error(f"{kind.upper()} is over the rows of one variable", f"{kind.upper()}(A.price)", "")
        variable = variables.pop() if variables else ""
        offset = 1 if kind == PREV else 0
        if kind in (*NAVIGATION, PREV) and len(arguments) == 2 and str(arguments[1]).isdecimal():
            offset = int(str(arguments.pop()))
        if len(arguments) != 1:
            raise self.error(f"{kind.upper()} takes one column", f"{kind.upper()}(A.price)", "")
        if kind == PREV:
            stage = EVERY_ROW if variable in ("", self.own) else variable
            return self.column(Measure(kind, stage, self._text(arguments[0], variable), offset))
        text = None if kind == "count" and not columns else self._text(arguments[0], variable)
        return self.column(Measure(kind, variable or EVERY_ROW, text, offset))

    def _text(self, tree: Any, variable: str) -> str:
        return self.inner(tree) if variable else str(tree.sql(dialect="spark"))


@dataclass
class Definitions:
    """DEFINE, bound to the type of the rows: masks of conditions for each variable."""

    conditions: Conditions
    masks: list[int] = field(default_factory=list)
    """Variable by number → the bits that must hold."""
    texts: list[TextOverMatch] = field(default_factory=list)
    owners: list[tuple[int, int]] = field(default_factory=list)
    """Text by position → its bit, and the variable that it defines."""
    history: int = 0
    """How many rows back PREV asks."""
    by_row: bool = True
    """Whether nothing asks what matched before."""


def bind_definitions(
    variables: Sequence[str], texts: dict[str, str], codec: RowCodec, where: str, subsets: Collection[str] = ()
) -> Definitions:
    """What rows each variable may have. A variable without a condition may have any. ``subsets``: names for several."""
    made = Definitions(Conditions(codec, ()))
    for number, variable in enumerate(variables):
        mask = 0
        for part in conjuncts(_count_rows(texts[variable])) if variable in texts else ():
            split = split_row_text(part, (*variables, *subsets), variable, where)
            if not split.measures:
                plain = split.sql
                check_condition(plain, codec.schema, where)
                mask |= 1 << made.conditions.bit(made.conditions.columns, plain.strip(), where)
                continue
            over = TextOverMatch(part, split.sql, tuple(split.measures.items()))
            check_over_match(over, codec, where)
            bit = made.conditions.bit(made.conditions.texts, _DefiningText(variable, over), where)
            made.texts.append(over)
            made.owners.append((bit, number))
            mask |= 1 << bit
            for measure in split.measures.values():
                made.history = max(made.history, _offset(measure))
                made.by_row &= measure.kind == PREV and measure.stage == EVERY_ROW
        made.masks.append(mask)
    return made


@dataclass(frozen=True)
class _DefiningText:
    """The same text defines two variables by other rows."""

    variable: str
    over: TextOverMatch


def _offset(measure: Measure) -> int:
    return measure.offset if measure.kind == PREV else 0


class RowTextReader:
    """A text of DEFINE at work: for a row among those kept, and what matched before it."""

    def __init__(
        self, over: TextOverMatch, variable: int, variables: Sequence[str], codec: RowCodec,
        subsets: Mapping[str, Sequence[str]],
    ) -> None:  # fmt: skip
        self._reader = MatchTextReader(over, codec)
        self._variable = variable
        self._numbers = {EVERY_ROW: frozenset(range(len(variables)))}
        """Name → the variables it stands for."""
        self._numbers |= {name: frozenset([number]) for number, name in enumerate(variables)}
        self._numbers |= {name: frozenset(map(variables.index, members)) for name, members in subsets.items()}
        self._previous = {
            name: (measure, MeasureReader(Measure("last", measure.stage, measure.text), codec))
            for name, measure in over.measures
            if measure.kind == PREV
        }

    def holds(self, place: int, link: Link | None, key: KeyRows) -> bool:
        row = key.rows[place].row

        def rows_of(measure: Measure) -> list[Any]:
            numbers, most = self._numbers[measure.stage], measure.most_rows
            if self._variable not in numbers:
                return newest_rows(link, numbers, most)
            return [*newest_rows(link, numbers, None if most is None else most - 1), row]

        values = {name: self._value(name, place, link, key) for name in self._previous}
        return self._reader.holds(row, rows_of, values)

    def _value(self, name: str, place: int, link: Link | None, key: KeyRows) -> Any:
        measure, reader = self._previous[name]
        if measure.stage != EVERY_ROW:
            numbers = self._numbers[measure.stage]
            each = next((each for each in links_of(link) if each.stage in numbers), None)
            if each is None:
                return None
            place = key.place(each.number)
        at = place - measure.offset
        return reader.of_one([key.rows[at].row]) if at >= 0 else None
