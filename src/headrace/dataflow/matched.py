"""What a pattern gives: matches, to be selected from or mapped, and those that ran out of time.

Text over a match is SQL with the names of stages in front (``small.card``, ``avg(ups.cents)``, ``match.end``); a
function is called with the match, whose fields are the stages. Of rules, whose stages differ, names of stages are
looked up in each match: one that its rule does not have has no rows, and ``rows`` are all rows of the match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from headrace.dataflow.checks import check_same_app
from headrace.dataflow.clocks import has_event_time
from headrace.dataflow.connected import BroadcastStream
from headrace.dataflow.graph import CallNode, ExprNode, KeyedNode, MeasureNode, Node
from headrace.dataflow.matching import Options, pattern_spec, rules_spec
from headrace.dataflow.naming import check_name
from headrace.dataflow.outputs import check_callable, output_type
from headrace.dataflow.projection import Projection, columns_sql, into_row, into_type
from headrace.dataflow.site import Site, call_site
from headrace.dataflow.stream import Column, Stream
from headrace.dataflow.update_kinds import refuse_updates
from headrace.errors import ExpressionError, ProgramError
from headrace.model.record import Failed, Row, row_type
from headrace.model.rows import codec_of
from headrace.model.values import type_name
from headrace.patterns.checks import MATCH
from headrace.patterns.measures import MATCH_FIELDS, Measure, SplitText, split_measures, stages_in
from headrace.patterns.partial import PARTIAL
from headrace.patterns.picture import mermaid
from headrace.patterns.rules.rows import RULE_FIELDS, RULE_ROWS, rule_match_type
from headrace.patterns.rules.rule import RULES
from headrace.patterns.rules.spec import declared_rule_states
from headrace.patterns.spec import declared_states
from headrace.sql.expr import quote_name

if TYPE_CHECKING:
    from headrace.dataflow.app_graph import AppGraph
    from headrace.model.keyspec import KeySpec
    from headrace.patterns.spec import PatternSpec
    from headrace.state.handles import StateDecl

T = TypeVar("T")
U = TypeVar("U")


class MatchedStream(Stream[U]):
    """Rows made of matches. Naming it names the pattern's step, as long as that has no name of its own."""

    def __init__(self, app: AppGraph, node: Node, step: Node) -> None:
        super().__init__(app, node)
        self._step = step

    def named(self, name: str, *, was: str | None = None) -> Self:
        """The same stream; the pattern's step is named, or this one, where that has a name already."""
        at = call_site()
        target = self._step if self._step.name is None else self._node
        self._app._name(target, check_name(name, "a step", str(at)), was, at)
        return self


class PatternMatches(Generic[T]):
    """Matches of a pattern, or partial ones; ``select``, ``map`` or ``process`` makes rows of them.

    >>> import headrace as hr
    >>> class Tx(hr.Record):
    ...     card: str
    ...     at: hr.Timestamp
    ...     cents: int
    >>> tx = hr.App("shop").read("tx", hr.source.items([]), Tx, time=Tx.at)
    >>> pattern = hr.pattern("small", "cents < 100").then("large", "cents > 50000").within("1m")
    >>> matches = tx.key_by(Tx.card).match(pattern).named("fraud")
    >>> jumps = matches.select(card="small.card", jump="large.cents - small.cents")
    >>> with hr.testing.Harness(tx.app, start="2024-01-01") as h:
    ...     h.push(tx, Tx("a", h.at("12:00:00"), 50), Tx("a", h.at("12:00:20"), 60_000))
    ...     h.epoch(watermark="12:01")
    ...     h.take(jumps)
    [Row(card='a', jump=59950)]
    """

    def __init__(self, app: AppGraph, step: KeyedNode, rows: Node) -> None:
        """``rows``: the step itself, or what leaves it beside its matches."""
        self._app = app
        self._node = step
        self._rows = rows

    @property
    def app(self) -> AppGraph:
        """The program this belongs to."""
        return self._app

    @property
    def node(self) -> Node:
        """The step of the graph that matches; for tools and the test kit."""
        return self._node

    def __repr__(self) -> str:
        return f"<Matches of {self._spec.plan.pattern!r}: {self._node.label}>"

    @property
    def partial(self) -> StateDecl:
        """The state with the partial matches of a key: ``h.state(matches, matches.partial, "a")``."""
        return next(decl for decl in self._node.decls if decl.name == PARTIAL)

    @property
    def diagram(self) -> str:
        """The automaton of the pattern, as the text of a mermaid diagram."""
        return mermaid(self._spec.plan.automaton)

    @property
    def _spec(self) -> PatternSpec:
        spec: Any = getattr(self._node, "spec", None)
        return spec  # type: ignore[no-any-return]

    def named(self, name: str, *, was: str | None = None) -> Self:
        """The same matches, their step named: its name is the identity of what it keeps."""
        at = call_site()
        self._app._name(self._node, check_name(name, "a step", str(at)), was, at)
        return self

    # --- rows of matches

    @overload
    def select(self, into: type[U], /, **columns: Column) -> Stream[U]: ...
    @overload
    def select(self, /, **columns: Column) -> Stream[Row]: ...
    def select(self, into: Any = None, /, **columns: Any) -> Stream[Any]:
        """Rows by SQL over the stages: ``select(Out, card="small.card", jump="large.cents - small.cents")``.

        ``small.card`` is of the last row of the stage; ``first(…)``, ``last(…)``, ``count(ups)``, ``sum(…)``,
        ``avg(…)``, ``min(…)`` and ``max(…)`` are over all of them. ``match.start`` and ``match.end`` are times. A stage
        without rows gives null.
        """
        at = call_site()
        texts: dict[str, str] = {}
        measures: dict[str, Measure] = {}
        for name, text in columns_sql(columns, str(at)).items():
            texts[name] = self._split(text, measures, at)
        taken = self._node.inputs[0].codec
        fields = {name: measure.annotation(taken) for name, measure in measures.items()}
        codec = codec_of(row_type("Measures", fields), where=str(at))
        try:
            made = (
                into_row(codec, (), texts, str(at))
                if into is None
                else into_type(codec, into, texts, str(at), "select")
            )
        except ProgramError as error:
            raise _as_written(error, measures) from None
        if into is not None:
            self._check_nulls(made, measures, at)
        between = self._add(MeasureNode, at, codec, measures=tuple(measures.items()), taken=taken, **self._measuring())
        node = self._app._add(ExprNode, at, made.codec, inputs=(between,), op="select", exprs=made.exprs)
        return MatchedStream(self._app, node, self._node)

    @overload
    def map(self, fn: Callable[[Any], U], /, *, output: type[U] | None = None) -> Stream[U]: ...
    @overload
    def map(self, fn: Callable[[Any], Any], /, *, output: UnionType) -> Stream[Any]: ...
    def map(self, fn: Callable[[Any], Any], /, *, output: Any = None) -> Stream[Any]:
        """One row for each match: ``map(lambda m: Fraud(m.small.card, m.large.cents), output=Fraud)``.

        A stage that takes one row is that row, or None where it is left out; one that takes several is a list.
        """
        at = call_site()
        check_callable(fn, "map", at)
        kind = output_type(fn, verb="map", given=output, many=False, at=at)
        node = self._add(CallNode, at, codec_of(kind, where=str(at)), op="map", fn=fn)
        return MatchedStream(self._app, node, self._node)

    def process(self, fn: Callable[[Any], Iterable[U] | None], /, *, output: type[U] | None = None) -> Stream[U]:
        """Any number of rows for each match: a function that yields them."""
        at = call_site()
        check_callable(fn, "process", at)
        kind = output_type(fn, verb="process", given=output, many=True, at=at)
        node = self._add(CallNode, at, codec_of(kind, where=str(at)), op="flat_map", fn=fn)
        return MatchedStream(self._app, node, self._node)

    # --- what did not match

    @property
    def timed_out(self) -> PatternMatches[T]:
        """Partial matches whose time was over, with what they waited for: ``match.waiting_for``."""
        at = call_site()
        pattern = self._spec.plan.pattern
        gaps = [gap for place in self._spec.plan.automaton.places for gap in place.gaps if gap is not None]
        if pattern.within_us is None and not gaps:
            raise ProgramError(
                "no match of this pattern can run out of time",
                where=str(at),
                expected='a pattern with a time: .within("1m"), or then("large", …, within="1m")',
                found=repr(pattern),
            )
        tap = Stream(self._app, self._node)._tap("timed_out", self._node.codec, at)
        return PatternMatches(self._app, self._node, tap.node)

    @property
    def late(self) -> Stream[T]:
        """Rows that came when the watermark had already passed them; unread, they are counted."""
        at = call_site()
        before = self._node.inputs[0]
        if self._spec.order is None or not has_event_time(before):
            raise ProgramError(
                ".late needs event time",
                where=str(at),
                expected="match(pattern), over a source with time=",
                found='match(pattern, clock="wall"): no row is late by the wall clock',
            )
        return Stream(self._app, self._node)._tap("late", before.codec, at)

    # --- SQL over stages

    def _add(self, kind: Any, at: Site, codec: Any, **fields: Any) -> Node:
        return self._app._add(kind, at, codec, inputs=(self._rows,), **fields)

    def _split(self, text: str, measures: dict[str, Measure], at: Site) -> str:
        """The text over measures; those it needs are added to what all texts need."""
        split = self._split_text(text, at)
        sql = split.sql
        for name, measure in split.measures.items():
            known = next((each for each, other in measures.items() if other == measure), None)
            if known is None:
                known, number = name, 2
                while known in measures:
                    known, number = f"{name}_{number}", number + 1
                measures[known] = measure
            if known != name:
                sql = sql.replace(f"`{name}`", quote_name(known))
            self._check_measure(measure, text, at)
        return sql

    def _measuring(self) -> dict[str, Any]:
        """What else the step between has to know."""
        return {}

    def _split_text(self, text: str, at: Site) -> SplitText:
        return split_measures(text, self._spec.plan.automaton.names, str(at))

    def _match_fields(self) -> Mapping[str, str]:
        """What there is to say of a match, and what it means."""
        return MATCH_FIELDS

    def _may_lack(self, measure: Measure) -> bool:
        """Whether there may be no row that a measure is of."""
        plan = self._spec.plan
        missing = plan.optional_stages if self._rows is self._node else frozenset(plan.automaton.names[1:])
        return measure.stage in missing

    def _check_measure(self, measure: Measure, text: str, at: Site) -> None:
        try:
            measure.check(self._node.inputs[0].codec, str(at), self._match_fields())
        except ExpressionError as error:
            error.found = repr(text)
            raise

    def _check_nulls(self, made: Projection, measures: dict[str, Measure], at: Site) -> None:
        """A column of a stage that may have no row cannot fill a field that must have a value."""
        texts = dict(made.exprs)
        for name in made.codec.required:
            measure = measures.get(texts[name].strip("`"))
            counts = measure is not None and measure.kind in ("count", "count_distinct")
            if measure is not None and not counts and self._may_lack(measure):
                raise ProgramError(
                    f"{type_name(made.codec.type)}.{name} must have a value, and {measure.stage!r} may have no row",
                    where=str(at),
                    expected=f"{name}: … | None, or a value where there is no row",
                    found=f"{name}={str(measure)!r}",
                    next_move=f'write {name}="coalesce({measure}, …)", or give the field None',
                )


class RuleMatches(PatternMatches[T]):
    """Matches of the rules in force, or partial ones; ``select``, ``map`` or ``process`` makes rows of them.

    >>> import headrace as hr
    >>> class Tx(hr.Record):
    ...     card: str
    ...     at: hr.Timestamp
    ...     cents: int
    >>> app = hr.App("shop")
    >>> tx = app.read("tx", hr.source.items([]), Tx, time=Tx.at)
    >>> rules = app.read("rules", hr.source.items([]), hr.PatternRule, time=hr.PatternRule.at)
    >>> matches = tx.key_by(Tx.card).match(rules.broadcast()).named("fraud")
    >>> alarms = matches.select(rule="match.rule", card="first(rows.card)", cents="large.cents")
    >>> with hr.testing.Harness(app, start="2024-01-01") as h:
    ...     h.push(rules, hr.PatternRule("r1", "small [cents < 100], then large [cents > 50000], within 1m"))
    ...     h.push(tx, Tx("a", h.at("12:00:00"), 50), Tx("a", h.at("12:00:20"), 60_000))
    ...     h.epoch(watermark="12:01")
    ...     h.take(alarms)
    [Row(rule='r1', card='a', cents=60000)]
    """

    def __repr__(self) -> str:
        return f"<Matches of rules from {self._node.inputs[1].label}: {self._node.label}>"

    @property
    def rules(self) -> StateDecl:
        """The state with the rules in force, by id: ``h.state(matches, matches.rules)``."""
        return next(decl for decl in self._node.decls if decl.name == RULES)

    @property
    def diagram(self) -> str:
        """Of a pattern only: rules come while the program runs."""
        raise ProgramError(
            "rules have no diagram: they come while the program runs",
            where=str(call_site()),
            expected="the diagram of a pattern",
            found=repr(self),
            next_move="hr.EventPattern.parse(rule.pattern) reads the pattern of a rule; match(…).diagram draws it",
        )

    @property
    def timed_out(self) -> RuleMatches[T]:
        """Partial matches whose time was over, with what they waited for: ``match.waiting_for``."""
        at = call_site()
        tap = Stream(self._app, self._node)._tap("timed_out", self._node.codec, at)
        return RuleMatches(self._app, self._node, tap.node)

    @property
    def errors(self) -> Stream[Failed]:
        """Rules that cannot be followed, and why. Unread, such a rule stops the job."""
        return Stream[Any](self._app, self._node).errors

    # --- SQL over stages

    def _measuring(self) -> dict[str, Any]:
        return {"by_rule": True}

    def _split_text(self, text: str, at: Site) -> SplitText:
        return split_measures(text, (*stages_in(text, str(at)), RULE_ROWS), str(at))

    def _match_fields(self) -> dict[str, str]:
        return {**MATCH_FIELDS, **RULE_FIELDS}

    def _may_lack(self, measure: Measure) -> bool:
        return measure.stage not in (MATCH, RULE_ROWS)


def match_rows(stream: Stream[T], key: KeySpec, given: Any, options: Options, at: Site) -> PatternMatches[T]:
    """``match`` of a pattern, or of rules that are broadcast."""
    app, node = stream.app, stream.node
    refuse_updates(node, "match", at)
    by_wall, row = options[0] == "wall", node.codec.type
    if isinstance(given, BroadcastStream):
        check_same_app(stream, [given._stream], at)
        rules = given._stream.node
        step: Any = app._add(
            KeyedNode, at, codec_of(rule_match_type(row), where=str(at)), inputs=(node, rules), op="match", key=key,
            other_keys=(None,), decls=declared_rule_states(row, by_wall=by_wall),
            spec=rules_spec(node, rules, *options, at),
        )  # fmt: skip
        return RuleMatches(app, step, step)
    spec = pattern_spec(node, given, *options, at)
    codec, decls = codec_of(spec.plan.match_type, where=str(at)), declared_states(row, by_wall=by_wall)
    step = app._add(KeyedNode, at, codec, inputs=(node,), op="match", key=key, decls=decls, spec=spec)
    return PatternMatches(app, step, step)


def _as_written(error: ProgramError, measures: dict[str, Measure]) -> ProgramError:
    """The error with measures as they were written."""
    for part in ("what", "expected", "found", "next_move"):
        text: str = getattr(error, part)
        for name, measure in sorted(measures.items(), key=lambda each: -len(each[0])):
            text = text.replace(f"`{name}`", str(measure))
        setattr(error, part, text)
    return error
