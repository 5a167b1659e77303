"""What rules give that come as rows: matches of all of them, each saying which rule it is of.

Which stages a match has depends on its rule, so names of stages in SQL are looked up in each match: one that a rule
does not have has no rows. ``rows`` stands for all rows of a match, whatever the stages are called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from headrace.dataflow.matched import PatternMatches
from headrace.dataflow.site import Site, call_site
from headrace.dataflow.stream import Stream
from headrace.errors import ProgramError
from headrace.model.record import Failed
from headrace.patterns.checks import MATCH
from headrace.patterns.measures import MATCH_FIELDS, Measure, SplitText, split_measures, stages_in
from headrace.patterns.rules.rows import RULE_FIELDS, RULE_ROWS
from headrace.patterns.rules.rule import RULES

if TYPE_CHECKING:
    from headrace.state.handles import StateDecl

T = TypeVar("T")


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
