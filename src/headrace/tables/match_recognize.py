"""MATCH_RECOGNIZE: the clause is read and made a step of row patterns (`headrace.patterns.recognizer`).

Rows follow each other at once, from each row the preferred match counts, and looking goes on behind the last row of a
match unless AFTER MATCH SKIP says otherwise. What a match is becomes known with the first row that does not belong to
it any more, or when the time of WITHIN is over.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.dataflow.recognizing import measured, recognize
from headrace.dataflow.stream import Stream
from headrace.errors import HeadraceError
from headrace.patterns.checks import MATCH
from headrace.patterns.define import EVERY_ROW, PREV, bind_definitions, split_row_text
from headrace.patterns.measures import Measure
from headrace.patterns.recognize import RowPatternPlan, previous_name
from headrace.patterns.recognizer import PAST_LAST, TO_FIRST, TO_LAST, TO_NEXT, RecognizerRules
from headrace.patterns.row_pattern import RowProgram, compile_row_pattern, parse_row_pattern
from headrace.sql.expr import quote_name
from headrace.tables.context import QueryContext, free_name
from headrace.tables.dialect import SUBSET, WITHIN, render
from headrace.tables.scope import AtTree, Relation, bare_field, relation_of
from headrace.tables.window_tables import interval_us

_SKIP: Final = re.compile(
    r"AFTER\s+MATCH\s+SKIP\s+(?:(?P<past>PAST\s+LAST\s+ROW)|(?P<next>TO\s+NEXT\s+ROW)"
    r"|TO\s+(?:(?P<first>FIRST)\s+|LAST\s+)?(?P<variable>\w+))\s*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class MeasuredColumn:
    """A column of the result."""

    name: str
    sql: str


class MatchClause:
    """One MATCH_RECOGNIZE of a query."""

    def __init__(self, ctx: QueryContext, clause: Any, relation: Relation) -> None:
        self.ctx = ctx
        self.clause = clause
        self.relation = _plain(relation)
        self.every_row = "ALL ROWS" in str(clause.args.get("rows") or "").upper()
        if "UNMATCHED" in str(clause.args.get("rows") or "").upper():
            raise ctx.place.error(
                clause, "rows that match nothing are not part of the matches",
                expected="ALL ROWS PER MATCH, or ONE ROW PER MATCH",
                next_move="leave WITH UNMATCHED ROWS out, and select such rows from the table itself",
            )  # fmt: skip
        self.measures: dict[str, Measure] = {}
        self.previous: dict[tuple[str, int], None] = {}
        """Rows before those of a variable that the measures ask for."""
        with AtTree(ctx.place, clause):
            self.program: RowProgram = compile_row_pattern(parse_row_pattern(str(clause.args["pattern"])))
        self.definitions = {each.alias: each.this for each in clause.args.get("define") or ()}
        self.subsets = self._subsets()

    def lower(self) -> Relation:
        """The matches, as a relation."""
        clause, relation = self.clause, self.relation
        keys = [self._field(each, "PARTITION BY") for each in clause.args.get("partition_by") or ()]
        carried = list(relation.fields) if self.every_row else keys
        columns = [MeasuredColumn(name, self._carried(name)) for name in carried]
        columns += [self._measure(each) for each in clause.args.get("measures") or ()]
        site = self.ctx.place.site
        with AtTree(self.ctx.place, clause):
            plan = self._plan()
            matches = recognize(relation.stream, keys, plan, self._order(), site)
            self.ctx.steps.add(matches, "match", clause, ", ".join(keys))
            rows = measured(matches, self.measures, plan, site)
            if not columns:
                raise self.ctx.place.error(
                    clause, "the matches have no columns", expected="MEASURES … or PARTITION BY …"
                )
            stream: Stream[Any] = rows.select(**{column.name: column.sql for column in columns})
        alias = clause.args.get("alias")
        return relation_of(stream, alias.name if alias is not None else "")

    # --- columns

    def _field(self, tree: Any, what: str) -> str:
        found = bare_field(self.relation, tree, self.ctx.place)
        if found is None:
            raise self.ctx.place.error(tree, f"{what} takes columns", expected=f"{what} symbol")
        return found

    def _carried(self, field: str) -> str:
        return self._column_of(Measure("last", EVERY_ROW, quote_name(field)), field)

    def _column_of(self, measure: Measure, stem: str) -> str:
        name = next((name for name, other in self.measures.items() if other == measure), None)
        if name is None:
            name = free_name(stem, self.measures)
            self.measures[name] = measure
        return quote_name(name)

    def _measure(self, tree: Any) -> MeasuredColumn:
        place, alias = self.ctx.place, tree.this
        if str(tree.args.get("window_frame") or "").upper() == "FINAL" and self.every_row:
            raise place.error(
                tree, "FINAL cannot be had with ALL ROWS PER MATCH: a row tells what had matched by then",
                expected="the measure without FINAL, or ONE ROW PER MATCH",
            )  # fmt: skip
        text = render(alias.this)
        with AtTree(place, alias):
            split = split_row_text(text, (*self.program.variables, *self.subsets), None, str(place.site))
            sql = split.sql
            for name, measure in split.measures.items():
                if measure.kind == PREV:
                    self.previous[measure.stage, measure.offset] = None
                    measure = Measure("last", previous_name(measure.stage, measure.offset), measure.text)
                if measure.stage != MATCH:
                    measure.check(self.relation.stream.node.codec, str(place.site))
                sql = sql.replace(f"`{name}`", self._column_of(measure, name))
        return MeasuredColumn(alias.alias, sql)

    # --- the step

    def _order(self) -> Sequence[str]:
        place, order = self.ctx.place, self.clause.args.get("order")
        parts = order.expressions if order is not None else []
        fields = [self._field(each.this, "ORDER BY") for each in parts]
        falls = next((each for each in parts if each.args.get("desc")), None)
        if not fields or quote_name(fields[0]) != self.relation.time or falls is not None:
            raise place.error(
                falls or (parts[0] if parts else self.clause),
                "rows are matched in the order of their event time, and it rises",
                expected=f"ORDER BY {self.relation.time or 'the event time: app.read(…, time=…)'}",
            )
        return fields[1:]

    def _plan(self) -> RowPatternPlan:
        place = self.ctx.place
        trees = {name: tree for name, tree in self.definitions.items() if not name.startswith(SUBSET)}
        within = trees.pop(WITHIN, None)
        texts = {name.upper(): render(tree) for name, tree in trees.items()}
        unknown = next((name for name in trees if name.upper() not in self.program.variables), None)
        if unknown is not None:
            raise place.error(
                trees[unknown], f"PATTERN has no variable {unknown}",
                expected=f"one of {', '.join(self.program.variables)}",
            )  # fmt: skip
        codec = self.relation.stream.node.codec
        try:
            definitions = bind_definitions(self.program.variables, texts, codec, str(place.site), self.subsets)
        except HeadraceError as error:
            tree = next((tree for tree in trees.values() if repr(render(tree)) == error.found), self.clause)
            raise place.moved(error, tree) from None
        skip, variables = self._skip()
        numbered = any(each.text == "number" and each.stage == MATCH for each in self.measures.values())
        within_us = None if within is None else interval_us(within, place)
        history = max([definitions.history, *(offset for _, offset in self.previous)])
        rules = RecognizerRules(skip, variables, within_us, history)
        text = f"{self.clause.args['pattern']}"
        return RowPatternPlan(
            text, self.program, definitions, rules, codec, self.every_row, numbered, self.subsets, tuple(self.previous)
        )

    def _subsets(self) -> dict[str, tuple[str, ...]]:
        """Names of SUBSET, and the variables that they put together."""
        place, variables = self.ctx.place, self.program.variables
        subsets: dict[str, tuple[str, ...]] = {}
        for name, tree in self.definitions.items():
            if not name.startswith(SUBSET):
                continue
            own = name.removeprefix(SUBSET).upper()
            parts = tree.expressions if type(tree).__name__ == "Tuple" else [tree.unnest()]
            members = tuple(each.name.upper() for each in parts)
            unknown = next((part for part, each in zip(parts, members) if each not in variables), None)
            if unknown is not None or own in variables:
                what = f"PATTERN has no variable {unknown.name}" if unknown is not None else f"{own} is a variable"
                raise place.error(
                    tree, f"{what}, so it cannot be {'in a' if unknown is not None else 'the name of a'} SUBSET",
                    expected=f"SUBSET U = ({', '.join(variables[:2])}): a new name for some of {', '.join(variables)}",
                )  # fmt: skip
            subsets[own] = members
        return subsets

    def _skip(self) -> tuple[str, tuple[int, ...]]:
        text = str(self.clause.args.get("after") or "").strip()
        if not text:
            return PAST_LAST, ()
        match = _SKIP.fullmatch(text)
        names = (*self.program.variables, *self.subsets)
        if match is None or (match["variable"] and match["variable"].upper() not in names):
            raise self.ctx.place.error(
                self.clause, f"this is no way to go on after a match: {text}",
                expected="AFTER MATCH SKIP PAST LAST ROW, TO NEXT ROW, TO FIRST A or TO LAST A",
                next_move=f"variables are {', '.join(names)}",
            )  # fmt: skip
        if match["past"]:
            return PAST_LAST, ()
        if match["next"]:
            return TO_NEXT, ()
        name = match["variable"].upper()
        numbers = tuple(self.program.variables.index(each) for each in self.subsets.get(name, (name,)))
        return (TO_FIRST if match["first"] else TO_LAST), numbers


def recognized(ctx: QueryContext, clause: Any, relation: Relation) -> Relation:
    """The rows of a table, matched."""
    return MatchClause(ctx, clause, relation).lower()


def _plain(relation: Relation) -> Relation:
    """The same rows, with the columns that the query names as fields of the stream."""
    texts = {column.name: column.text for column in relation.columns if column.text}
    if all(text == quote_name(name) for name, text in texts.items()):
        return relation
    time = next((name for name, text in texts.items() if text == relation.time), None)
    return relation_of(relation.stream.select(**texts), relation.columns[0].table, time)


def without_match(select: Any) -> Any:
    """A SELECT whose MATCH_RECOGNIZE has become its table."""
    if select.args.get("match") is None:
        return select
    plain = select.copy()
    plain.set("match", None)
    return plain
