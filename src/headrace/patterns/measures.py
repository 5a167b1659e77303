"""What SQL says of the rows of stages: ``small.cents``, ``first(ups.at)``, ``count(ups)``, ``avg(ups.cents)``.

`split_measures` takes such terms out of a text and puts names in their place; what is left is SQL over columns. A term
is a `Measure`: ``small.cents`` is of the last row that the stage took, aggregates are those of
`headrace.aggregates`. `MeasureReader` computes a measure for many matches at once, or for a partial match.

A stage that took no row gives null, and a count of 0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from headrace.aggregates.accumulate import KeyFold, make_fold
from headrace.aggregates.declare import Declared, column_annotation
from headrace.errors import ExpressionError
from headrace.model.batch import Rows
from headrace.model.nearest import did_you_mean
from headrace.model.time import Timestamp
from headrace.patterns.checks import MATCH
from headrace.sql.expr import check_supported
from headrace.sql.parse import column_path, parse_tree

if TYPE_CHECKING:
    from headrace.aggregates.declare import AggKind
    from headrace.model.rows import RowCodec

AGGREGATES: Final = ("count", "sum", "avg", "min", "max", "count_distinct")
NAVIGATION: Final = ("first", "last")
MATCH_FIELDS: Final = {"start": "when its first row was", "end": "when it was complete, or its time over",
                       "waiting_for": "the stage that did not come"}  # fmt: skip

_ABOUT_MATCH: Final[dict[str, Any]] = {
    "waiting_for": str | None, "classifier": str | None, "number": int | None, "rule": str, "version": int,
}  # fmt: skip


@dataclass(frozen=True)
class Measure:
    """One term over the rows of a stage."""

    kind: str
    stage: str
    text: str | None
    """SQL over the row; None: of whole rows, which are counted."""
    offset: int = 0
    """Of ``first`` and ``last``: how many rows further in."""

    def __str__(self) -> str:
        inner = self.stage if self.text is None else f"{self.stage}.{self.text}"
        return inner if self.kind == "last" and not self.offset else f"{self.kind}({inner})"

    def annotation(self, codec: RowCodec) -> Any:
        """The type of its values."""
        if self.stage == MATCH:
            return _ABOUT_MATCH.get(self.text or "", Timestamp)
        if self.kind in (*NAVIGATION, "prev"):
            assert self.text is not None
            kind, _ = column_annotation(codec, self.text)
            return kind | None
        result = self.declared.result_type(codec)
        return result if self.kind in ("count", "count_distinct") else result | None

    def check(self, codec: RowCodec, where: str, about: Mapping[str, str] = MATCH_FIELDS) -> None:
        """Refuses what the rows have no column for. ``about``: what there is to say of a match, and what it means."""
        if self.stage == MATCH:
            if self.kind != "last" or self.text not in about:
                raise ExpressionError(
                    f"a match has no {self.text!r}", where=where,
                    expected=", ".join(f"match.{name} ({meaning})" for name, meaning in about.items()),
                )  # fmt: skip
        elif self.text is not None:
            check_supported(self.text, codec.schema, where)
            if self.kind not in NAVIGATION:
                self.declared.check(codec, where)

    @property
    def most_rows(self) -> int | None:
        """How many of the newest rows of its stage it is about; None: all."""
        return self.offset + 1 if self.kind == "last" else None

    @property
    def declared(self) -> Declared[Any]:
        return Declared(cast("AggKind", self.kind), self.text, None, None)


@dataclass(frozen=True)
class SplitText:
    """A text without its measures."""

    sql: str
    measures: dict[str, Measure]
    """Column that stands in the text → what it holds."""


def split_measures(text: str, stages: Collection[str], where: str = "", columns: Collection[str] = ()) -> SplitText:
    """Takes the measures out of a text. ``columns``: of the row at hand, none where there is none."""
    try:
        tree = parse_tree(text, aggregates=True)
    except ExpressionError as error:
        error.where = where
        raise
    return TextSplitter(text, stages, where, columns).split(tree)


def stages_in(text: str, where: str = "") -> list[str]:
    """What stands in a text where names of stages stand, for patterns whose stages are not known yet."""
    try:
        tree = parse_tree(text, aggregates=True)
    except ExpressionError as error:
        error.where = where
        raise
    names: dict[str, None] = {}
    for node in tree.walk():
        counted = type(node).__name__ == "Anonymous" and str(node.this).lower() in (*AGGREGATES, *NAVIGATION)
        for column in node.expressions if counted else [node]:
            path = column_path(column) if type(column).__name__ == "Column" else ()
            if path and (counted or len(path) > 1) and path[0] != MATCH:
                names[path[0]] = None
    return list(names)


class TextSplitter:
    def __init__(self, text: str, stages: Collection[str], where: str, columns: Collection[str]) -> None:
        self.text = text
        self.stages = stages
        self.where = where
        self.columns = columns
        self.measures: dict[str, Measure] = {}
        self.rewritten = False
        """Whether something else than measures was put in the place of what was written."""

    def split(self, tree: Any) -> SplitText:
        """The text without its measures."""
        rest = tree.copy().transform(self.replace)
        self.check_columns(rest)
        same = not self.measures and not self.rewritten
        return SplitText(self.text if same else rest.sql(dialect="spark"), self.measures)

    def replace(self, node: Any) -> Any:
        kind = type(node).__name__
        if kind == "Anonymous" and str(node.this).lower() in (*AGGREGATES, *NAVIGATION):
            return self._call(str(node.this).lower(), node)
        if kind == "Column":
            path = column_path(node)
            if len(path) > 1 and path[0] in (*self.stages, MATCH):
                return self.column(Measure("last", path[0], self.inner(node)))
        return node

    def _call(self, kind: str, node: Any) -> Any:
        arguments = list(node.expressions)
        stages = {path[0] for each in arguments for column in _columns(each) if (path := column_path(column))}
        mine = stages & set(self.stages)
        if len(mine) != 1 or len(stages) != 1:
            raise self.error(
                f"{kind} is over the rows of one stage", f"{kind}({next(iter(self.stages), 'stage')}.…)",
                did_you_mean(next(iter(stages), ""), self.stages, "put the name of a stage in front of the column"),
            )  # fmt: skip
        stage = mine.pop()
        offset = 0
        if kind in NAVIGATION and len(arguments) == 2 and str(arguments[1]).isdecimal():
            offset = int(str(arguments.pop()))
        if len(arguments) != 1:
            raise self.error(f"{kind} takes one argument", f"{kind}({stage}.…)", "")
        whole = column_path(arguments[0]) == (stage,) if type(arguments[0]).__name__ == "Column" else False
        if whole and kind != "count":
            raise self.error(f"{kind} needs a column of the rows", f"{kind}({stage}.…)", "")
        return self.column(Measure(kind, stage, None if whole else self.inner(arguments[0]), offset))

    def inner(self, node: Any) -> str:
        """The text over the row: the name of the stage is taken away."""
        plain = node.copy()
        for column in _columns(plain):
            for part in ("catalog", "db", "table"):
                if column.args.get(part) is not None:
                    column.set(part, None)
                    break
        text: str = plain.sql(dialect="spark")
        return text

    def column(self, measure: Measure) -> Any:
        from sqlglot import exp

        stem = "".join(each if each.isalnum() else "_" for each in str(measure)).strip("_")
        name = next((name for name, other in self.measures.items() if other == measure), None)
        if name is None:
            name, number = stem, 2
            while name in self.measures or name in self.columns:
                name, number = f"{stem}_{number}", number + 1
            self.measures[name] = measure
        return exp.column(exp.to_identifier(name, quoted=True))

    def check_columns(self, rest: Any) -> None:
        if self.columns:
            return
        for column in _columns(rest):
            name = column_path(column)[0]
            if name not in self.measures:
                raise self.error(
                    f"{name!r} needs its stage", "columns with a stage in front, such as "
                    f"{next(iter(self.stages), 'stage')}.{name}", did_you_mean(name, self.stages, ""),
                )  # fmt: skip

    def error(self, what: str, expected: str, next_move: str) -> ExpressionError:
        return ExpressionError(what, where=self.where, expected=expected, found=repr(self.text), next_move=next_move)


def _columns(tree: Any) -> list[Any]:
    return [node for node in tree.walk() if type(node).__name__ == "Column"]


class MeasureReader:
    """Computes one measure over rows of one type."""

    def __init__(self, measure: Measure, codec: RowCodec, where: str = "") -> None:
        self.measure = measure
        self.codec = codec
        self.where = where
        plain = measure.text is not None and measure.text.strip("`") in codec.names and hasattr(codec, "fields")
        self.attribute = measure.text.strip("`") if plain and measure.text is not None else None
        """The field, where the text is nothing but its name."""

    @cached_property
    def fold(self) -> KeyFold:
        fold = make_fold(self.measure.declared, self.codec, self.where)
        assert fold is not None, "measures have no aggregators of users"
        return fold

    @cached_property
    def _values(self) -> Callable[[list[Any]], list[Any]]:
        """The values of the text for some rows."""
        if self.attribute is not None:
            name = self.attribute
            return lambda rows: [getattr(row, name) for row in rows]
        from headrace.aggregates.lifting import Values

        assert self.measure.text is not None
        values = Values(self.codec, self.measure.text, self.where)
        return lambda rows: values.python(values.array(Rows.of_objects(self.codec, rows))) if rows else []

    def of_one(self, rows: Sequence[Any]) -> Any:
        """The value for one match, by the rows of its stage, the oldest first."""
        measure = self.measure
        if measure.kind == "count" and measure.text is None:
            return len(rows)
        if measure.kind in NAVIGATION:
            if measure.offset >= len(rows):
                return None
            row = rows[measure.offset] if measure.kind == "first" else rows[-1 - measure.offset]
            return self._values([row])[0]
        return self.of_many([rows])[0]

    def of_many(self, matches: Sequence[Sequence[Any]]) -> list[Any]:
        """The value for each match."""
        measure = self.measure
        if measure.kind == "count" and measure.text is None:
            return [len(rows) for rows in matches]
        if measure.kind in NAVIGATION:
            return self._chosen(matches)
        present = [i for i, rows in enumerate(matches) if rows]
        accs: list[Any] = [None] * len(matches)
        if present:
            lengths = np.array([len(matches[i]) for i in present])
            flat = Rows.of_objects(self.codec, [row for i in present for row in matches[i]])
            partials = self.fold.partials(flat, np.cumsum(lengths) - lengths)
            for group, acc in zip(partials.groups, partials.accs):
                accs[present[group]] = acc
        some = self.fold.results(accs)
        return some if measure.kind == "count" else [None if acc is None else each for acc, each in zip(accs, some)]

    def _chosen(self, matches: Sequence[Sequence[Any]]) -> list[Any]:
        offset, first = self.measure.offset, self.measure.kind == "first"
        rows = [(rows[offset] if first else rows[-1 - offset]) if len(rows) > offset else None for rows in matches]
        there = [row for row in rows if row is not None]
        values = iter(self._values(there) if there else ())
        return [None if row is None else next(values) for row in rows]
