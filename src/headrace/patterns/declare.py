"""Patterns as a user declares them: ``hr.pattern("small", "cents < 100").then("large", "cents > 50000").within("1m")``.

A pattern is a value: each verb gives a new one. Whatever can be wrong without knowing the rows is refused at the line
where it is written. The meaning of what is declared is in `headrace.patterns.automaton`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, get_args

from headrace.errors import ProgramError
from headrace.model.amounts import count_of
from headrace.model.nearest import did_you_mean
from headrace.model.time import Span, span_us
from headrace.model.user_line import user_line
from headrace.patterns.checks import check_name, refuse, span_between
from headrace.sql.expr import Expr, as_sql

Link = Literal["next", "then", "then_any"]
"""How the first row of a stage follows the row before it: at once, behind rows that do not match, behind any rows."""
Skip = Literal["none", "to_next", "past_last", "to_first", "to_last"]
SKIPS: Final = get_args(Skip)
Condition = str | Callable[..., Any]


@dataclass(frozen=True)
class Stage:
    """One stage of a pattern: rows to be taken, a whole pattern in their place, or rows that must not come."""

    name: str
    alternatives: tuple[tuple[Condition, ...], ...] = ((),)
    """A row fits if all conditions of one of these hold."""
    group: EventPattern | None = None
    link: Link = "then"
    absent: bool = False
    """Rows that must not come: right behind the stage before (``next``), or before the stage behind (``then``)."""
    low: int = 1
    high: int | None = 1
    """None: as many as come."""
    skippable: bool = False
    is_greedy: bool = False
    inner: Link = "then"
    """How rows of a loop follow each other."""
    ends_on: Condition | None = None
    gap_us: int | None = None
    """How long behind the row before, at most, the first row comes."""
    inner_gap_us: int | None = None
    at: str = field(default="", compare=False)
    """Where it was written: the user's line, or the place in a text."""

    @property
    def is_loop(self) -> bool:
        return self.high != 1


@dataclass(frozen=True)
class EventPattern:
    """Stages in the order in which rows are to come. Made by `pattern`; each verb gives a new pattern.

    >>> import headrace as hr
    >>> hr.pattern("small", "cents < 100").then("large", "cents > 50000").within("1m")
    <EventPattern small, then large, within 1m>
    """

    stages: tuple[Stage, ...]
    within_us: int | None = None
    step_within_us: int | None = None
    skip: Skip = "none"
    skip_stage: str = ""
    skip_needs_stage: bool = False

    def __repr__(self) -> str:
        from headrace.patterns.picture import pattern_text

        return f"<EventPattern {pattern_text(self)}>"

    # --- what comes next

    def next(
        self, stage: str | EventPattern, condition: Condition | Expr | None = None, *, within: Span | None = None
    ) -> EventPattern:
        """The very next row of the key must fit."""
        return self._add(stage, condition, "next", within)

    def then(
        self, stage: str | EventPattern, condition: Condition | Expr | None = None, *, within: Span | None = None
    ) -> EventPattern:
        """The next row that fits; rows that do not are passed over. ``within``: how long behind the row before."""
        return self._add(stage, condition, "then", within)

    def then_any(
        self, stage: str | EventPattern, condition: Condition | Expr | None = None, *, within: Span | None = None
    ) -> EventPattern:
        """Every later row that fits: each gives a match of its own."""
        return self._add(stage, condition, "then_any", within)

    def not_next(self, name: str, condition: Condition | Expr) -> EventPattern:
        """The very next row must not fit."""
        return self._forbid(name, condition, "next")

    def not_then(self, name: str, condition: Condition | Expr) -> EventPattern:
        """No row that fits may come before the next stage; at the end of a pattern: before its time has passed."""
        return self._forbid(name, condition, "then")

    # --- of the last stage

    def where(self, condition: Condition | Expr) -> EventPattern:
        """Rows of the last stage must fit this, too."""
        more = _condition(condition)
        return self._change(alternatives=tuple((*each, more) for each in self.stages[-1].alternatives))

    def or_where(self, condition: Condition | Expr) -> EventPattern:
        """Or they fit this instead."""
        return self._change(alternatives=(*self.stages[-1].alternatives, (_condition(condition),)))

    def times(self, low: int, high: int | None = None, *, within: Span | None = None) -> EventPattern:
        """So many rows, or from so many to so many. ``within``: how long each may come behind the one before."""
        self._check_loop("times")
        high = low if high is None else high
        if not (_whole(low) and _whole(high)) or low < 0 or high < max(low, 1):
            refuse("times takes how often a stage comes", "times(3), or times(2, 4)", f"times({low!r}, {high!r})")
        skippable = self.stages[-1].skippable or low == 0
        return self._change(low=max(low, 1), high=high, skippable=skippable, inner_gap_us=_gap(within))

    def at_least(self, low: int, *, within: Span | None = None) -> EventPattern:
        """So many rows or more."""
        self._check_loop("at_least")
        if not _whole(low) or low < 0:
            refuse("at_least takes how often a stage comes", "at_least(2)", f"at_least({low!r})")
        skippable = self.stages[-1].skippable or low == 0
        return self._change(low=max(low, 1), high=None, skippable=skippable, inner_gap_us=_gap(within))

    def one_or_more(self, *, within: Span | None = None) -> EventPattern:
        """One row or more."""
        return self.at_least(1, within=within)

    def optional(self) -> EventPattern:
        """The last stage may also be left out."""
        last = self.stages[-1]
        if last.absent:
            refuse(f"{last.name!r} must not come, so it cannot be optional", "a stage that takes rows", "optional()")
        return self._change(skippable=True)

    def greedy(self) -> EventPattern:
        """A row that fits the loop belongs to it, and neither starts nor passes by the next stage."""
        last = self.stages[-1]
        if last.group is not None or not (last.is_loop or last.skippable):
            found = f"greedy() on {'a group' if last.group is not None else 'a stage that takes one row'}"
            refuse("greedy is for loops", "times(a, b), at_least(n), one_or_more() or optional() before it", found)
        return self._change(is_greedy=True)

    def until(self, condition: Condition | Expr) -> EventPattern:
        """The loop ends before a row that fits this."""
        last = self.stages[-1]
        if last.group is not None or last.high is not None:
            refuse(
                "until ends a loop that has no end of its own", "one_or_more() or at_least(n) before it",
                f"until on {last.name!r}, which takes {_count_words(last)}",
            )  # fmt: skip
        return self._change(ends_on=_condition(condition))

    def consecutive(self) -> EventPattern:
        """Rows of the loop follow each other at once."""
        return self._inner("next", "consecutive")

    def allow_combinations(self) -> EventPattern:
        """Rows of the loop may pass over rows that fit as well."""
        return self._inner("then_any", "allow_combinations")

    # --- of the whole

    def within(self, span: Span, *, of: Literal["whole", "step"] = "whole") -> EventPattern:
        """How much time a match may take: its last row comes less than so long behind its first one.

        ``of="step"``: each row comes less than so long behind the one before. A partial match whose time is over goes
        to ``timed_out``.
        """
        line = user_line()
        us = span_between(span, line)
        if of not in ("whole", "step"):
            refuse("within is of the whole, or of each step", 'of="whole" or of="step"', f"of={of!r}")
        name = "within_us" if of == "whole" else "step_within_us"
        before: int | None = getattr(self, name)
        changes: dict[str, Any] = {name: us if before is None else min(us, before)}
        return replace(self, **changes)

    def after_match(self, skip: Skip, stage: str = "", *, needed: bool = False) -> EventPattern:
        """Which other partial matches go when one is complete: ``none``, ``to_next``, ``past_last``, ``to_first``,
        ``to_last``; the last two with the name of a stage. ``needed``: a match without that stage is an error.
        """
        if skip not in SKIPS:
            refuse(
                "there is no such way to go on after a match", f"one of {', '.join(SKIPS)}", f"after_match({skip!r})"
            )
        if (skip in ("to_first", "to_last")) != bool(stage):
            refuse(
                f"after_match({skip!r}) {'needs a stage' if not stage else 'takes no stage'}",
                'after_match("to_first", "large")' if not stage else f"after_match({skip!r})",
                f"stage={stage!r}",
            )
        names = [each.name for each in all_stages(self) if not each.absent]
        if stage and stage not in names:
            refuse(
                f"the pattern has no stage {stage!r} that takes rows", f"one of {', '.join(names)}",
                f"after_match({skip!r}, {stage!r})", did_you_mean(stage, names, ""),
            )  # fmt: skip
        return replace(self, skip=skip, skip_stage=stage, skip_needs_stage=needed)

    # --- written down

    def to_text(self) -> str:
        """The pattern as text that `parse` reads: for rules, files and people. Conditions have to be SQL.

        >>> import headrace as hr
        >>> hr.pattern("small", "cents < 100").then("large", "cents > 50000").times(2).within("1m").to_text()
        'small [cents < 100], then large [cents > 50000]{2}, within 1m'
        """
        from headrace.patterns.notation import form, text

        return text.to_text(form.form_of(self))

    def to_json(self) -> str:
        """The pattern as JSON that `parse` reads: for programs that make patterns. Conditions have to be SQL."""
        from headrace.patterns.notation.form import form_json

        return form_json(self)

    @staticmethod
    def parse(text: str, *, source: str = "") -> EventPattern:
        """The pattern that `to_text` or `to_json` gave, or a person wrote. ``source``: what errors call the text."""
        from headrace.patterns.notation import parse_pattern

        return parse_pattern(text, source or user_line())

    # --- how patterns are made

    def _add(self, stage: Any, condition: Any, link: Link, within: Span | None) -> EventPattern:
        return self._append(replace(_stage(stage, condition), link=link, gap_us=_gap(within)))

    def _forbid(self, name: Any, condition: Any, link: Link) -> EventPattern:
        made = replace(_stage(name, condition), link=link, absent=True)
        last = self.stages[-1]
        if last.skippable:
            refuse(
                f"{name!r} must not follow an optional stage: nobody could say when it begins to be forbidden",
                "a stage that takes a row before it", f"not_{link}({name!r}, …) behind the optional {last.name!r}",
                "put it before the optional stage, or into a group",
            )  # fmt: skip
        if last.absent:
            refuse(
                "two stages that must not come stand side by side", "a stage that takes rows between them, or OR",
                f"{last.name!r}, then {name!r}", f'say it in one: not_{link}({name!r}, "… OR …")',
            )  # fmt: skip
        return self._append(made)

    def _append(self, stage: Stage) -> EventPattern:
        both = replace(self, stages=(*self.stages, stage))
        names = [each.name for each in all_stages(both) if each.group is None]
        twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
        if twice is not None:
            refuse(f"two stages are called {twice!r}", "a name of its own for each stage", ", ".join(names))
        return both

    def _change(self, **changes: Any) -> EventPattern:
        return replace(self, stages=(*self.stages[:-1], replace(self.stages[-1], **changes)))

    def _check_loop(self, verb: str) -> None:
        last = self.stages[-1]
        if last.absent:
            refuse(f"{last.name!r} must not come, so it cannot come {verb}", "a stage that takes rows", verb)
        if last.is_loop:
            refuse(f"{last.name!r} is a loop already", "one of times, at_least, one_or_more", f"{verb} behind another")

    def _inner(self, inner: Link, verb: str) -> EventPattern:
        last = self.stages[-1]
        if not last.is_loop:
            refuse(
                f"{verb} is for loops", "times, at_least or one_or_more before it",
                f"{verb}() on {last.name!r}, which takes {_count_words(last)}",
            )  # fmt: skip
        return self._change(inner=inner)


def pattern(stage: str | EventPattern, condition: Condition | Expr | None = None) -> EventPattern:
    """A pattern that begins with this stage: a name and what its rows must fit, or a whole pattern as a group.

    Text is SQL over the row, in which names of stages stand for their rows so far (``small.cents * 10 < cents``); a
    callable is Python, called with the row, or with the row and the match so far.
    """
    return EventPattern((_stage(stage, condition),))


def all_stages(whole: EventPattern) -> list[Stage]:
    """Every stage with those of groups, in the order in which they are written."""
    stages: list[Stage] = []
    for stage in whole.stages:
        stages.append(stage)
        if stage.group is not None:
            stages += all_stages(stage.group)
    return stages


def _stage(stage: Any, condition: Any) -> Stage:
    line = user_line()
    if isinstance(stage, EventPattern):
        if condition is not None:
            refuse("a group has no condition of its own", "conditions at its stages", repr(condition))
        for name, value in (("within", stage.within_us), ("within", stage.step_within_us)):
            if value is not None:
                refuse(f"a group has no {name} of its own", f"{name} of the whole pattern", repr(stage))
        if stage.skip != "none":
            refuse("a group says nothing of what comes after a match", "after_match of the whole pattern", repr(stage))
        if stage.stages[0].absent or stage.stages[-1].absent:
            refuse("a group begins and ends with rows that come", "not_next and not_then inside of it", repr(stage))
        return Stage("", group=stage, at=line)
    check_name(stage, line)
    alternatives = ((),) if condition is None else ((_condition(condition),),)
    return Stage(stage, alternatives=alternatives, at=line)


def _condition(condition: Any) -> Condition:
    if not isinstance(condition, str) and callable(condition) and not isinstance(condition, Expr):
        return condition  # type: ignore[no-any-return]
    try:
        return as_sql(condition)
    except ProgramError as error:
        error.where = user_line()
        error.what = "this is no condition"
        error.expected = 'SQL text such as "cents < 100", or a function of the row'
        raise


def _gap(within: Span | None) -> int | None:
    return None if within is None else span_us(within, where=user_line())


def _whole(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _count_words(stage: Stage) -> str:
    if stage.high is None:
        return f"{count_of(stage.low, 'row')} or more" if stage.low > 1 else "one row or more"
    return "one row" if stage.high == 1 else f"at most {count_of(stage.high, 'row')}"
