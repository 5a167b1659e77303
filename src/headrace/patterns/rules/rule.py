"""What a rule says, and what becomes of the rules in force when one comes.

A rule is known by its id. Its versions go up: a row of an older version than the one in force is left alone, so that
rules may be read again from the beginning. A row without a version is the next one, where it says something else.
"""

from __future__ import annotations

from typing import Final, NamedTuple, NoReturn

from headrace.errors import BadRow, ProgramError
from headrace.model.record import Record
from headrace.model.time import Timestamp, format_time
from headrace.patterns.declare import EventPattern
from headrace.patterns.notation import parse_pattern

RULES: Final = "rules"
"""The state of a step with the rules in force, by id."""


class PatternRule(Record):
    """A pattern as a row: ``tx.key_by(Tx.card).match(rules.broadcast())`` follows those in force.

    >>> import headrace as hr
    >>> hr.PatternRule("r1", "small [cents < 100], then large [cents > 50000], within 1m").active
    True
    """

    id: str
    pattern: str = ""
    """As text or as JSON: what ``EventPattern.to_text`` and ``to_json`` give."""
    version: int = 0
    """Goes up with every change; 0: numbered as the rows come."""
    at: Timestamp | None = None
    """When it takes effect, in a stream that is read with ``time=hr.PatternRule.at``; None: as its epoch begins."""
    active: bool = True
    """False: the rule is taken out of force."""


class RuleChange(NamedTuple):
    """What a rule comes to beside the one in force."""

    rule: PatternRule | None
    """What is in force from now on; None: nothing any more."""
    replaces: bool
    """Whether partial matches of another pattern have to be looked at."""


UNCHANGED: Final[RuleChange | None] = None
"""Nothing becomes of it."""
_WHAT: Final = (
    "a row with id, pattern and maybe version, at and active, such as "
    'PatternRule("r1", "small [cents < 100], then large [cents > 50000], within 1m")'
)


def rule_name(rule: PatternRule) -> str:
    """The rule, as errors call it."""
    version = f" version {rule.version}" if rule.version else ""
    return f"rule {rule.id!r}{version}"


def rule_pattern(rule: PatternRule) -> EventPattern:
    """The pattern of a rule; errors say where in its text."""
    try:
        return parse_pattern(rule.pattern, rule_name(rule))
    except RecursionError:
        raise nested_too_deeply(rule) from None


def nested_too_deeply(rule: PatternRule) -> ProgramError:
    """The error for what no parser gets to the bottom of."""
    return ProgramError(
        "the pattern is nested too deeply",
        where=rule_name(rule),
        expected="groups and conditions that are a few levels deep",
        found=f"a text of {len(rule.pattern)} characters",
    )


def decide_change(rule: PatternRule, known: PatternRule | None, *, by_time: bool) -> RuleChange | None:
    """What a rule that has come does to the one of its id that is in force. `UNCHANGED`: nothing.

    ``by_time``: whether rules come with their times. What is no rule raises `ProgramError`.
    """
    _check(rule, by_time=by_time)
    if known is not None and rule.version and rule.version < known.version:
        return UNCHANGED
    if not rule.active:
        return UNCHANGED if known is None else RuleChange(None, True)
    if not rule.pattern.strip():
        _refuse("an active rule needs a pattern", rule, _WHAT, "an empty pattern", "active=False takes a rule out")
    if known is None:
        return RuleChange(rule.replace(version=rule.version or 1), False)
    same = rule_pattern(rule) == rule_pattern(known)
    if not rule.version:
        return UNCHANGED if same else RuleChange(rule.replace(version=known.version + 1), True)
    if rule.version == known.version:
        if not same:
            _refuse(
                f"version {rule.version} is in force already, with another pattern", rule,
                f"{known.pattern!r}, as it is; or a version above {known.version}", repr(rule.pattern),
                "give every change a version of its own, or none: then it is numbered",
            )  # fmt: skip
        return UNCHANGED
    return RuleChange(rule, not same)


def _check(rule: PatternRule, *, by_time: bool) -> None:
    if not rule.id:
        _refuse("a rule needs an id", rule, _WHAT, "an empty id")
    if rule.version < 0:
        _refuse("versions of rules go up from 1", rule, "version=1, or none", f"version={rule.version}")
    if rule.at is not None and not by_time:
        _refuse(
            "a rule has a time, and nothing here goes by it", rule,
            "rules read with time=hr.PatternRule.at, and rows followed by event time",
            f"at {format_time(int(rule.at))}",
            'app.read("rules", …, hr.PatternRule, time=hr.PatternRule.at); or leave at out',
        )  # fmt: skip


def _refuse(what: str, rule: PatternRule, expected: str, found: str, next_move: str = "") -> NoReturn:
    raise ProgramError(what, where=rule_name(rule), expected=expected, found=found, next_move=next_move)


def bad_rule(error: ProgramError, step: str) -> BadRow:
    """The error that stops the job for a rule that nobody reads the errors of."""
    return BadRow(
        f"a rule cannot be followed: {error.what}",
        where=f"step {step}, {error.where}",
        expected=error.expected,
        found=error.found,
        next_move="; ".join(
            each for each in (
                error.next_move, "mend the rule where it comes from; or write the step's .errors somewhere, and such "
                "rules go there instead, while those in force go on",
            ) if each
        ),
    )  # fmt: skip
