"""The conditions of a pattern, bound to the type of its rows: each distinct one has a bit.

Text over the row alone is evaluated in columns, once per batch. Text that names stages, and Python functions, are asked
for one row and one partial match, and only where the automaton wants to know. Where such text is a conjunction, the
parts over the row alone are split off, so that most rows are never asked the rest.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import ExpressionError, ProgramError
from headrace.model.shapes import column_of
from headrace.patterns.automaton import Predicate
from headrace.patterns.measures import Measure, MeasureReader, split_measures
from headrace.patterns.predicates import rows_that_fit
from headrace.sql.bind import bind
from headrace.sql.evaluate.expressions import compile_predicate
from headrace.sql.evaluate.scalar import compile_scalar
from headrace.sql.expr import check_supported, resolve
from headrace.sql.parse import parse_tree

if TYPE_CHECKING:
    from headrace.model.batch import Rows
    from headrace.model.rows import RowCodec
    from headrace.patterns.declare import Condition, EventPattern, Stage

Bits = npt.NDArray[np.uint64]
MAX_CONDITIONS = 62
"""Bits of one word that a batch carries."""


@dataclass(frozen=True)
class TextOverMatch:
    """SQL over the row at hand and what matched before."""

    text: str
    sql: str
    measures: tuple[tuple[str, Measure], ...]


@dataclass
class Conditions:
    """All conditions of one pattern, or of several that share them."""

    codec: RowCodec
    stages: tuple[str, ...]
    """Names that stand for rows so far."""
    columns: dict[str, int] = field(default_factory=dict)
    """Text over the row → its bit."""
    texts: dict[Any, int] = field(default_factory=dict)
    functions: dict[Callable[..., Any], int] = field(default_factory=dict)
    """Python → its bit."""

    def __len__(self) -> int:
        return len(self.columns) + len(self.texts) + len(self.functions)

    def predicate(self, stage: Stage) -> Predicate:
        """What rows of a stage must fit, as bits."""
        masks = [self._mask(alternative, stage.at) for alternative in stage.alternatives]
        ends_on = 0 if stage.ends_on is None else self._mask((stage.ends_on,), stage.at)
        return Predicate(tuple(dict.fromkeys(masks)), ends_on)

    def _mask(self, conditions: Sequence[Condition], where: str) -> int:
        mask = 0
        for condition in conditions:
            if isinstance(condition, str):
                mask |= self._mask_of_text(condition, where)
            else:
                mask |= 1 << self.bit(self.functions, condition, where)
        return mask

    def _mask_of_text(self, text: str, where: str) -> int:
        split = split_measures(text, self.stages, where, self.codec.names)
        if not split.measures:
            check_condition(text, self.codec.schema, where)
            return 1 << self.bit(self.columns, text.strip(), where)
        mask = 0
        for part in conjuncts(text):
            split = split_measures(part, self.stages, where, self.codec.names)
            if split.measures:
                over = TextOverMatch(part, split.sql, tuple(split.measures.items()))
                check_over_match(over, self.codec, where)
                mask |= 1 << self.bit(self.texts, over, where)
            else:
                check_condition(part, self.codec.schema, where)
                mask |= 1 << self.bit(self.columns, part, where)
        return mask

    def bit(self, known: dict[Any, int], condition: Any, where: str) -> int:
        if condition not in known:
            if len(self) >= MAX_CONDITIONS:
                raise ProgramError(
                    "a pattern has too many conditions",
                    where=where,
                    expected=f"at most {MAX_CONDITIONS} that differ",
                    found=str(condition),
                    next_move="put several into one text: a OR b; or compute them as columns before",
                )
            known[condition] = len(self)
        return known[condition]

    @property
    def column_mask(self) -> int:
        """The bits that columns tell."""
        return sum(1 << bit for bit in self.columns.values())

    def bits(self, rows: Rows) -> Bits:
        """What columns tell of each row."""
        bits = np.zeros(len(rows), np.uint64)
        for text, bit in self.columns.items() if len(rows) else ():
            bits |= rows_that_fit(rows, text).astype(np.uint64) << np.uint64(bit)
        return bits


class MatchTextReader:
    """A `TextOverMatch` at work, for one row and one partial match after the other."""

    def __init__(self, over: TextOverMatch, codec: RowCodec) -> None:
        self.readers = {name: MeasureReader(measure, codec) for name, measure in over.measures}
        self._schema = schema_over_match(over, codec)
        self._scalar = compile_scalar(bind(resolve(over.sql, self._schema), self._schema))
        self._columns = compile_predicate(over.sql, self._schema) if self._scalar is None else None
        self._codec = codec

    def reading(
        self, row: Any, rows_of: Callable[[Measure], Sequence[Any]], values: Mapping[str, Any] | None = None
    ) -> Callable[[str], Any]:
        """Gives values by name, of measures and of columns of the row."""
        readers = self.readers

        def read(name: str) -> Any:
            if values is not None and name in values:
                return values[name]
            reader = readers.get(name)
            return getattr(row, name) if reader is None else reader.of_one(rows_of(reader.measure))

        return read

    def holds(
        self, row: Any, rows_of: Callable[[Measure], Sequence[Any]], values: Mapping[str, Any] | None = None
    ) -> bool:
        """``rows_of``: the rows that the stage of a measure took so far, as far as the measure is about them.

        ``values``: of measures that somebody else read.
        """
        readers, read = self.readers, self.reading(row, rows_of, values)

        if self._scalar is not None:
            return self._scalar(read) is True
        arrays = dict(zip(self._codec.names, self._codec.to_arrays([row])))
        for name in readers:
            arrays[name] = column_of(_optional(readers[name].measure, self._codec)).encode([read(name)])
        batch = pa.RecordBatch.from_arrays([arrays[each] for each in self._schema.names], schema=self._schema)
        assert self._columns is not None
        return bool(self._columns(batch)[0])


def schema_over_match(over: TextOverMatch, codec: RowCodec) -> pa.Schema:
    """The columns of the row and, beside them, the measures."""
    fields = [column_of(_optional(measure, codec)).field(name) for name, measure in over.measures]
    return pa.schema([*codec.schema, *fields])


def _optional(measure: Measure, codec: RowCodec) -> Any:
    return measure.annotation(codec)


def conjuncts(text: str) -> list[str]:
    """The parts of a conjunction."""
    from sqlglot import exp

    def parts(tree: Any) -> list[Any]:
        while isinstance(tree, exp.Paren):
            tree = tree.this
        return [*parts(tree.this), *parts(tree.expression)] if isinstance(tree, exp.And) else [tree]

    found = parts(parse_tree(text, aggregates=True))
    return [text] if len(found) == 1 else [str(each.sql(dialect="spark")) for each in found]


def check_condition(text: str, schema: pa.Schema, where: str) -> None:
    """Refuses what is no condition that the worker can evaluate."""
    check_supported(text, schema, where)
    compile_predicate(text, schema, where)


def check_over_match(over: TextOverMatch, codec: RowCodec, where: str) -> None:
    """The same for text with measures; an error shows the text as it was written."""
    try:
        check_condition(over.sql, schema_over_match(over, codec), where)
    except ExpressionError as error:
        error.found = repr(over.text)
        for name, measure in over.measures:
            error.what = error.what.replace(f"`{name}`", str(measure)).replace(name, str(measure))
        raise


def takes_match(function: Callable[..., Any], where: str) -> bool:
    """Whether a Python condition also wants what matched before: it then has two parameters."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [
        each for each in parameters
        if each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]  # fmt: skip
    if len(needed) in (1, 2):
        return len(needed) == 2
    raise ProgramError(
        "a condition takes the row, or the row and the match so far",
        where=where,
        expected="lambda row: …, or lambda row, match: …",
        found=f"{getattr(function, '__qualname__', function)} with {len(needed)} parameters",
    )


def bind_conditions(
    pattern: EventPattern, codec: RowCodec, shared: Conditions | None = None
) -> tuple[Conditions, dict[str, Predicate]]:
    """The conditions of a pattern over rows of this type, and the predicate of each stage by its name."""
    from headrace.patterns.declare import all_stages

    stages = [stage for stage in all_stages(pattern) if stage.group is None]
    names = tuple(stage.name for stage in stages if not stage.absent)
    conditions = shared or Conditions(codec, names)
    conditions.stages = names
    predicates = {stage.name: conditions.predicate(stage) for stage in stages}
    for function in conditions.functions:
        takes_match(function, stages[0].at)
    return conditions, predicates
