"""A pattern as plain data: what its JSON form and its text form both come to, and back.

A form says what the verbs of a pattern were given, so it is made a pattern by these verbs, and what they refuse is
refused here with the same words. Conditions are SQL text; a Python function has no form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Literal

import msgspec

from headrace.errors import ProgramError
from headrace.model.nearest import did_you_mean
from headrace.model.time import format_span
from headrace.model.user_line import user_line
from headrace.patterns.declare import SKIPS, Condition, EventPattern, Stage, pattern

StageLink = Literal["next", "then", "then_any", "not_next", "not_then"]
Path = tuple[int, ...]
"""Where a stage stands: its position, then its position in the group, and so on."""
Place = Callable[[Path | None], str]
"""Says of a stage, or of the whole pattern, where it stands in what was written."""
_INNER: Final = {"consecutive": "next", "combinations": "then_any"}


class StageForm(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """One stage. The first one of a pattern, or of a group, has no use for ``link``."""

    link: StageLink = "then"
    stage: str = ""
    group: list[StageForm] = []
    where: str | list[str] = []
    """What its rows must fit; of several texts all."""
    or_where: list[str | list[str]] = []
    """Or they fit one of these instead."""
    times: int | tuple[int, int | None] = 1
    """How many rows, or from how many to how many; null: as many as come."""
    optional: bool = False
    greedy: bool = False
    consecutive: bool = False
    combinations: bool = False
    until: str = ""
    within: str = ""
    """How long behind the row before its first row comes."""
    step_within: str = ""
    """How long behind the one before each further row comes."""


class PatternForm(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """A whole pattern."""

    stages: list[StageForm]
    within: str = ""
    step_within: str = ""
    after_match: str = "none"
    stage: str = ""
    """Of ``after_match``: to which stage."""
    needed: bool = False


# --- to a pattern


def parse_json(text: str, place: Place) -> EventPattern:
    """The pattern of a JSON form."""
    try:
        form = msgspec.json.decode(text, type=PatternForm)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        raise ProgramError(
            f"this is no pattern: {message[:1].lower()}{message[1:]}",
            where=place(None),
            expected='{"stages": [{"stage": "small", "where": "cents < 100"}, {"link": "then", …}], "within": "1m"}',
            found=f"at {path.strip('`.')}" if path.strip("`.") else "the whole text",
            next_move="EventPattern.to_json() of a pattern in Python shows how it is written",
        ) from None
    except msgspec.DecodeError as error:
        raise ProgramError(
            "this is no JSON",
            where=place(None),
            expected='{"stages": [{"stage": "small", "where": "cents < 100"}, …]}',
            found=f"{error}: {text[:60]!r}",
        ) from None
    return pattern_of(form, place)


def json_place(source: str) -> Place:
    """Places in a JSON form."""

    def place(path: Path | None) -> str:
        if path is None:
            return source
        return f"{source}, stages[{path[0]}]" + "".join(f".group[{i}]" for i in path[1:])

    return place


def pattern_of(form: PatternForm, place: Place) -> EventPattern:
    """The pattern that a form says; ``place`` is where errors point to."""
    made = _sequence(form.stages, (), place)
    with _Pointing(place(None)):
        if form.within:
            made = made.within(form.within)
        if form.step_within:
            made = made.within(form.step_within, of="step")
        if form.after_match not in SKIPS:
            raise ProgramError(
                f"there is no way to go on after a match that is called {form.after_match!r}",
                expected=f"one of {', '.join(SKIPS)}",
                next_move=did_you_mean(form.after_match, SKIPS, ""),
            )
        if form.after_match != "none" or form.stage or form.needed:
            skip: Any = form.after_match
            made = made.after_match(skip, form.stage, needed=form.needed)
    return made


class _Pointing:
    """Errors of verbs are about what was written, and not about the line of a program."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, ProgramError) and not getattr(error, "pointed", False):
            error.where = self.where
            error.pointed = True  # type: ignore[attr-defined]


def _sequence(stages: list[StageForm], above: Path, place: Place) -> EventPattern:
    made: EventPattern | None = None
    for number, form in enumerate(stages):
        path = (*above, number)
        with _Pointing(where := place(path)):
            made = _with_stage(made, form, path, place)
            made = replace(made, stages=(*made.stages[:-1], replace(made.stages[-1], at=where)))
    if made is None:
        raise ProgramError("a pattern needs a stage", where=place(above or None), expected="one stage at least")
    return made


def _with_stage(before: EventPattern | None, form: StageForm, path: Path, place: Place) -> EventPattern:
    if bool(form.stage) == bool(form.group):
        raise ProgramError(
            "a stage has a name, or is a group", expected="either of the two",
            found="both" if form.stage else "neither",
        )  # fmt: skip
    forbidden = form.link in ("not_next", "not_then")
    first: Any = _sequence(form.group, path, place) if form.group else form.stage
    conditions = _texts(form.where)
    more = [_texts(each) for each in form.or_where]
    if not all(more) or any(not text.strip() for texts in (conditions, *more) for text in texts):
        raise ProgramError("a condition is empty", expected='SQL text such as "cents < 100", or none', found='""')
    condition = conditions[0] if conditions else None
    if forbidden:
        made = _forbidding(before, form, first, condition)
    elif before is None:
        made = pattern(first, condition)
        if form.within:
            raise ProgramError(
                "the first stage has no row before it", expected="within of the whole pattern, or of a later stage",
                found=f"within {form.within} at {form.stage or 'a group'}",
            )  # fmt: skip
    else:
        made = getattr(before, form.link)(first, condition, within=form.within or None)
    for text in conditions[1:]:
        made = made.where(text)
    for texts in more:
        made = made.or_where(texts[0])
        last = made.stages[-1]
        alternatives = (*last.alternatives[:-1], tuple(texts))
        made = replace(made, stages=(*made.stages[:-1], replace(last, alternatives=alternatives)))
    return _quantified(made, form)


def _forbidding(before: EventPattern | None, form: StageForm, name: Any, condition: str | None) -> EventPattern:
    words = form.link.replace("_", " ")
    if before is None or form.group or condition is None or form.within:
        raise ProgramError(
            f"{words} is about rows behind others: it has a name and a condition, and nothing else",
            expected=f"a stage before it, and {words} pin [kind = 'pin']",
            found="it is the first stage" if before is None else f"{words} {form.stage or 'a group'} "
            + ("with a time of its own" if form.within else "without a condition"),
        )  # fmt: skip
    made: EventPattern = getattr(before, form.link)(name, condition)
    return made


def _quantified(made: EventPattern, form: StageForm) -> EventPattern:
    low, high = form.times if isinstance(form.times, tuple) else (form.times, form.times)
    step_within = form.step_within or None
    if (low, high) != (1, 1):
        if high is None:
            made = made.at_least(low, within=step_within)
        else:
            made = made.times(low, high, within=step_within)
    elif step_within:
        raise ProgramError(
            "only a loop has steps", expected="times: [1, null] or more than one row",
            found=f"steps within {form.step_within} of a stage that takes one row",
        )  # fmt: skip
    for verb, wanted in (("optional", form.optional), ("consecutive", form.consecutive),
                         ("allow_combinations", form.combinations)):  # fmt: skip
        if wanted:
            made = getattr(made, verb)()
    if form.until:
        made = made.until(form.until)
    return made.greedy() if form.greedy else made


def _texts(conditions: str | list[str]) -> list[str]:
    return ([conditions] if conditions else []) if isinstance(conditions, str) else conditions


# --- from a pattern


def form_json(whole: EventPattern) -> str:
    """The JSON form of a pattern."""
    return msgspec.json.encode(form_of(whole)).decode()


def form_of(whole: EventPattern) -> PatternForm:
    """The form of a pattern; Python functions as conditions are refused."""
    return PatternForm(
        stages=[_stage_form(stage) for stage in whole.stages],
        within=_span(whole.within_us),
        step_within=_span(whole.step_within_us),
        after_match=whole.skip,
        stage=whole.skip_stage,
        needed=whole.skip_needs_stage,
    )


def _stage_form(stage: Stage) -> StageForm:
    first, *more = [[_text(each, stage) for each in texts] for texts in stage.alternatives]
    link: Any = f"not_{stage.link}" if stage.absent else stage.link
    times = stage.low if stage.low == stage.high else (stage.low, stage.high)
    return StageForm(
        link=link,
        stage=stage.name,
        group=[] if stage.group is None else [_stage_form(each) for each in stage.group.stages],
        where=first[0] if len(first) == 1 else first,
        or_where=[texts[0] if len(texts) == 1 else texts for texts in more],
        times=times,
        optional=stage.skippable,
        greedy=stage.is_greedy,
        until="" if stage.ends_on is None else _text(stage.ends_on, stage),
        within=_span(stage.gap_us),
        step_within=_span(stage.inner_gap_us if stage.is_loop else None),
        **{name: stage.inner == inner for name, inner in _INNER.items()},
    )


def _text(condition: Condition, stage: Stage) -> str:
    if isinstance(condition, str):
        return condition
    name = getattr(condition, "__qualname__", repr(condition))
    raise ProgramError(
        "a Python function cannot be written into a rule",
        where=stage.at or user_line(),
        expected="conditions as SQL text",
        found=f"the function {name} at the stage {stage.name!r}",
        next_move="say it in SQL; or compute what it needs as a column before match",
    )


def _span(us: int | None) -> str:
    return "" if us is None else format_span(us)
