"""Mistakes in the declaration of a pattern, said at the user's line."""

from __future__ import annotations

import re
from typing import Any, Final, NoReturn

import pyarrow as pa

from headrace.errors import ProgramError
from headrace.model.time import Span, span_us
from headrace.model.user_line import user_line

MATCH: Final = "match"
"""Stands for the match itself, as stages stand for their rows."""
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")


def refuse(what: str, expected: str, found: str, next_move: str = "") -> NoReturn:
    """Raises the error at the line of the user that is being executed."""
    raise ProgramError(what, where=user_line(), expected=expected, found=found, next_move=next_move)


def check_name(name: Any, where: str) -> None:
    """The name of a stage stands in SQL, in states and in pictures."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return
    raise ProgramError(
        "this cannot be the name of a stage",
        where=where,
        expected="small letters, digits and underscores, a letter first; or a pattern as a group",
        found=repr(name),
        next_move='write .then("large", "cents > 50000")',
    )


def span_between(span: Span, where: str) -> int:
    """A span that rows of a match may lie apart."""
    us = span_us(span, what="within", where=where)
    if us <= 0:
        raise ProgramError("within needs a span above 0", where=where, expected='within("1m")', found=repr(span))
    return us


def check_whole(pattern: Any, codec: Any) -> None:
    """What can be wrong with a pattern as a whole, said at the lines of its stages."""
    _check_ends(pattern)
    _check_groups(pattern)
    nested = [field.name for field in codec.schema if pa.types.is_struct(field.type)]
    for stage in _stages(pattern):
        if not stage.absent and stage.name in (*nested, MATCH):
            meaning = "the match itself" if stage.name == MATCH else "a column of the rows, with fields of its own"
            raise ProgramError(
                f"a stage cannot be called {stage.name!r}: that is {meaning}",
                where=stage.at,
                expected=f"a name that is none of {', '.join((*nested, MATCH))}",
                found=f"the stage {stage.name!r}",
                next_move="give the stage another name: conditions and results call it by that",
            )


def _check_ends(pattern: Any) -> None:
    last = pattern.stages[-1]
    if last.absent and last.link == "then" and pattern.within_us is None and pattern.step_within_us is None:
        raise ProgramError(
            f"a pattern that ends with rows that must not come needs a time for that: {last.name!r}",
            where=last.at,
            expected='.within("1h") behind it: when that has passed without such a row, the match is complete',
            found=f"not_then({last.name!r}, …) at the end, without within",
        )
    open_end = next((stage for stage in reversed(pattern.stages) if not stage.skippable), last)
    for stage in (last, open_end):
        if stage.is_greedy:
            raise ProgramError(
                f"a greedy loop needs a stage behind it: {stage.name!r}",
                where=stage.at,
                expected="a stage that is not optional behind it; only that tells where the loop ends",
                found=f"{stage.name!r} at the end of the pattern",
                next_move="leave greedy() out, and take after_match to say which of the matches count",
            )
    if all(stage.skippable or stage.absent for stage in pattern.stages):
        raise ProgramError(
            "every stage of the pattern is optional, so it would match without any row",
            where=last.at,
            expected="one stage at least that takes a row",
            found=repr(pattern),
        )


def _check_groups(pattern: Any) -> None:
    for stage in pattern.stages:
        if stage.group is None:
            continue
        if stage.is_loop and all(each.skippable or each.absent for each in stage.group.stages):
            raise ProgramError(
                "a group that may be empty cannot be repeated",
                where=stage.at,
                expected="one stage in it at least that takes a row",
                found=repr(stage.group),
            )
        _check_groups(stage.group)


def _stages(pattern: Any) -> list[Any]:
    return [each for stage in pattern.stages for each in ([stage] if stage.group is None else _stages(stage.group))]
