"""Hints: ``SELECT /*+ STATE_TTL('o' = '1d', 'p' = '1d'), EARLY('1s') */ …``, options of the one SELECT they stand in.

``STATE_TTL`` says for how long a regular join keeps the rows of its sides, by the name or alias of a table: it counts
more than ``SET 'state.ttl'``. ``EARLY`` makes windows give results before they are over, and ``ALLOW_LATE`` further
ones for rows that come late: as ``SET 'emit.early'`` and ``SET 'emit.allow-late'`` do for all queries.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, NamedTuple

from headrace.errors import HeadraceError
from headrace.tables.context import QueryContext
from headrace.tables.options import read_span
from headrace.tables.scope import QueryPlace

STATE_TTL: Final = "state_ttl"
EARLY: Final = "early"
ALLOW_LATE: Final = "allow_late"
_FORMS: Final = {
    STATE_TTL: "STATE_TTL('table' = '1d')",
    EARLY: "EARLY('1s')",
    ALLOW_LATE: "ALLOW_LATE('1h')",
}


class SideTtl(NamedTuple):
    """How long rows of one side of a join are kept."""

    span: str
    tree: Any


def with_hints(ctx: QueryContext, select: Any) -> QueryContext:
    """The context of a SELECT, with what its hints say; those of the query around it are not its own."""
    ctx = replace(ctx, ttls={}, emits=ctx.catalog.emits)
    hint = select.args.get("hint")
    for call in hint.expressions if hint is not None else ():
        name = str(call.this).lower() if type(call).__name__ == "Anonymous" else ""
        if name not in _FORMS:
            raise ctx.place.error(
                call if name else hint, "there is no such hint", expected=", ".join(_FORMS.values()),
                next_move="options of a table stand in WITH (…) of CREATE TABLE",
            )  # fmt: skip
        if name == STATE_TTL:
            ctx = replace(ctx, ttls={**ctx.ttls, **dict(_side(each, ctx.place) for each in call.expressions)})
        elif len(call.expressions) != 1:
            raise ctx.place.error(call, f"{name.upper()} takes one span of time", expected=_FORMS[name])
        else:
            ctx = replace(ctx, emits={**ctx.emits, name: _span(call.expressions[0], ctx.place, _FORMS[name])})
    return ctx


def check_emits(ctx: QueryContext, select: Any, *, windowed: bool) -> None:
    """Refuses a hint about results of windows where there are none whose results could come again."""
    if windowed or ctx.emits is ctx.catalog.emits:
        return
    raise ctx.place.error(
        select.args["hint"], "this SELECT gives no results of windows that could come early or again",
        expected="GROUP BY window_start, window_end of TUMBLE, HOP or CUMULATE, over rows that stay",
        next_move="put the hint behind the SELECT that groups",
    )  # fmt: skip


def check_names(ctx: QueryContext, known: set[str]) -> None:
    """Refuses a hint about a table that no join of its SELECT reads."""
    for name, side in ctx.ttls.items():
        if name not in known:
            raise ctx.place.error(
                side.tree, f"no join here has a table {name!r}", expected=f"one of {', '.join(sorted(known))}"
                if known else "a SELECT with a regular join",
                next_move="SET 'state.ttl' is for all joins; groups are kept until their rows go",
            )  # fmt: skip


def join_ttl(ctx: QueryContext, names: set[str]) -> SideTtl | None:
    """What hints say of a join whose sides have tables of these names."""
    said = [side for name, side in ctx.ttls.items() if name in names]
    for each in said[1:]:
        if each.span != said[0].span:
            raise ctx.place.error(
                each.tree, "both sides of a join keep their rows for one span of time", expected=said[0].span,
                next_move="say the longer one for both",
            )  # fmt: skip
    return said[0] if said else None


def _side(tree: Any, place: QueryPlace) -> tuple[str, SideTtl]:
    from sqlglot import exp

    if not isinstance(tree, exp.EQ):
        raise place.error(tree, "this hint says for which table, and how long", expected=_FORMS[STATE_TTL])
    name = tree.this.name if isinstance(tree.this, exp.Literal | exp.Column) else ""
    return name.lower(), SideTtl(_span(tree.expression, place, _FORMS[STATE_TTL]), tree)


def _span(tree: Any, place: QueryPlace, form: str) -> str:
    try:
        return read_span(str(tree.this))
    except HeadraceError:
        raise place.error(tree, "this is no span of time", expected=form) from None
