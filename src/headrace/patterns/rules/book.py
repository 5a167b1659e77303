"""The rules in force in one worker, each bound to the rows and ready to be followed.

What a pattern comes to is made once per text and kept while a rule in force has it: rules change rarely, and by the
hundred they share conditions, which are evaluated once per batch (`headrace.patterns.predicates`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import ProgramError
from headrace.patterns.declare import all_stages
from headrace.patterns.matcher import Matcher
from headrace.patterns.plan import PatternPlan, plan_pattern
from headrace.patterns.rules.rows import RULE_ROWS
from headrace.patterns.rules.rule import nested_too_deeply, rule_name, rule_pattern

if TYPE_CHECKING:
    from headrace.model.rows import RowCodec
    from headrace.patterns.declare import EventPattern
    from headrace.patterns.rules.rule import PatternRule
    from headrace.patterns.rules.spec import RuleLimits


MAX_SIZE: Final = 500
"""Elements of the automaton of a rule: rows should not be able to exhaust a worker."""


class RuleAtWork(NamedTuple):
    """A rule in force."""

    rule: PatternRule
    plan: PatternPlan
    matcher: Matcher


class RuleBook:
    """Binds rules to rows of one type."""

    def __init__(self, step: str, codec: RowCodec, limits: RuleLimits) -> None:
        self._step = step
        self._codec = codec
        self._limits = limits
        self._plans: dict[str, tuple[PatternPlan, Matcher]] = {}

    def check(self, rule: PatternRule) -> None:
        """Refuses a rule whose pattern does not fit the rows."""
        self._plan(rule)

    def in_force(self, rules: Iterable[PatternRule]) -> dict[str, RuleAtWork]:
        """These rules at work, by their ids; what no rule has any more is forgotten."""
        made = {rule.id: RuleAtWork(rule, *self._plan(rule)) for rule in rules}
        texts = {each.rule.pattern for each in made.values()}
        self._plans = {text: plan for text, plan in self._plans.items() if text in texts}
        return made

    def _plan(self, rule: PatternRule) -> tuple[PatternPlan, Matcher]:
        known = self._plans.get(rule.pattern)
        if known is None:
            try:
                known = self._plans[rule.pattern] = self._bound(rule)
            except RecursionError:
                raise nested_too_deeply(rule) from None
        return known

    def _bound(self, rule: PatternRule) -> tuple[PatternPlan, Matcher]:
        pattern = rule_pattern(rule)
        for stage in all_stages(pattern):
            if stage.name == RULE_ROWS:
                raise ProgramError(
                    f"a stage of a rule cannot be called {RULE_ROWS!r}: that is all rows of a match",
                    where=stage.at or rule_name(rule), expected="another name", found=f"the stage {RULE_ROWS!r}",
                )  # fmt: skip
        size = _size(pattern)
        if size > MAX_SIZE:
            raise ProgramError(
                "the pattern of a rule is too large: its automaton has a place for every row that is counted",
                where=rule_name(rule), expected=f"at most {MAX_SIZE} of them", found=str(size),
                next_move="take + for {1000}, with a condition over the rows so far: [count(up) < 1000]",
            )  # fmt: skip
        limits = self._limits
        plan = plan_pattern(pattern, self._codec, max_partial=limits.max_partial, drops_oldest=limits.drops_oldest)
        return plan, plan.matcher(self._step)


def _size(pattern: EventPattern) -> int:
    """How many elements the automaton will have."""
    return sum(
        (1 if stage.group is None else _size(stage.group)) * (stage.low if stage.high is None else stage.high)
        for stage in pattern.stages
    )
