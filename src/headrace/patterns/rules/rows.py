"""Matches of rules as rows: of one type, whatever stages a rule has.

A match says which rule it is of; its stages are a mapping from their names to their rows, and ``rows`` are all of them,
the oldest first. A stage that was left out has no rows, and one that the rule does not have is not in the mapping.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.model.record import row_type
from headrace.patterns.checks import MATCH
from headrace.patterns.matcher import MatchEnd, links_of, rows_by_stage
from headrace.patterns.rows import MatchFacts

if TYPE_CHECKING:
    from headrace.patterns.rules.book import RuleAtWork

RULE_ROWS: Final = "rows"
"""Stands for all rows of a match of a rule, as names of stages stand for theirs."""

RULE_FIELDS: Final = {"rule": "the id of the rule", "version": "the version of the rule"}
"""What ``match`` says of a match of a rule beside what it says of any."""


class RuleEnd(NamedTuple):
    """A match of a rule that goes out, or a partial one whose time is over."""

    rule: RuleAtWork
    match: MatchEnd

    @property
    def end_us(self) -> int:
        return self.match.end_us


def rule_match_type(row: Any) -> Any:
    """The type of the matches of rules over rows of one type."""
    fields = {"rule": str, "version": int, "stages": dict[str, list[row]], RULE_ROWS: list[row], MATCH: MatchFacts}
    return row_type("RuleMatch", fields)


def rule_match_rows(kind: Any, ends: Sequence[RuleEnd], *, over: bool = False) -> list[Any]:
    """``over``: these ran out of time."""
    made = []
    for (rule, plan, _), (run, end_us) in ends:
        automaton = plan.automaton
        stages = dict(zip(automaton.names, rows_by_stage(run.link, len(automaton.names))))
        waiting_for = automaton.places[run.place].waiting_words if over else None
        facts: Any = MatchFacts(run.started_us, end_us, waiting_for)  # type: ignore[arg-type]
        rows = [link.row for link in links_of(run.link)][::-1]
        made.append(kind(rule.id, rule.version, stages, rows, facts))
    return made


def stage_rows(match: Any, stage: str) -> list[Any]:
    """The rows of a stage of such a match, or all, the oldest first."""
    rows: list[Any] = match.rows if stage == RULE_ROWS else match.stages.get(stage, [])
    return rows
