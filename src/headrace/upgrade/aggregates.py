"""Aggregates that come, go, or mean something else than what is stored under their name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from headrace.model.job import DeclaredState
from headrace.model.meaning import AggregateMeaning, former_name
from headrace.model.time import format_span
from headrace.sql.same import is_same_expression

_WIDENS: Final = {("int", "float")}
"""Types of values whose stored partial results go on as the other; a number that does not fit stops the job."""


class MeaningChanges(NamedTuple):
    """What became of the aggregates of a step."""

    notes: tuple[str, ...] = ()
    refused: tuple[tuple[str, str, str], ...] = ()
    """Of each that means something else: its name, what it was, and what it is."""
    required: tuple[str, ...] = ()
    """New ones that must not be null, as they would be in windows that were open before."""
    added: tuple[str, ...] = ()
    """All new ones."""
    widened: tuple[tuple[str, str], ...] = ()
    """Those whose partial results, in columns, become floats: the name, and the one that it is stored under."""
    misnamed: tuple[str, ...] = ()
    """New ones that are said to have had a name that none had, while others go."""


def compare_aggregates(before: DeclaredState, now: DeclaredState, *, columnar: bool) -> MeaningChanges:
    """``columnar``: partial results lie in columns, whose types are compared here."""
    former = {name: former_name(name, means, before.results, now.results) for name, means in now.meanings.items()}
    gone = [name for name in before.results if name not in {*now.results, *former.values()}]
    notes = [*_come_and_go(before, now, former, gone)]
    refused: list[tuple[str, str, str]] = []
    widened: list[tuple[str, str]] = []
    for name, meaning in now.meanings.items():
        old = before.meanings.get(former[name] or name)
        if old is None:
            refused += _by_kind(name, before, meaning)
            continue
        if not is_same_meaning(old, meaning):
            refused.append((name, old.words, meaning.words))
        elif columnar and old.type != meaning.type and (old.type, meaning.type) not in _WIDENS:
            refused.append((name, f"{old.words} of {old.type}", f"{meaning.words} of {meaning.type}"))
        else:
            notes += _notes_on(name, old, meaning)
            if columnar and old.type != meaning.type:
                widened.append((name, former[name] or name))
    added = [name for name, was in former.items() if before.results and was is None]
    required = tuple(name for name in added if now.kind == "windows" and now.meanings[name].required)
    misnamed = tuple(name for name in added if gone and now.meanings[name].formers)
    return MeaningChanges(tuple(notes), tuple(refused), required, tuple(added), tuple(widened), misnamed)


def is_same_meaning(one: AggregateMeaning, other: AggregateMeaning) -> bool:
    """Whether partial results of the one go on as those of the other.

    The length of a horizon, the number of values that `top` keeps and the share of a quantile may differ.
    """
    if one.kind != other.kind:
        return False
    if (one.over_us is None) != (other.over_us is None):
        return False
    texts = ((one.column, other.column), (one.where, other.where), (one.by, other.by))
    renamed = _renamed_columns(one, other)
    return all(is_same_expression(*pair, renamed) for pair in texts)


def _renamed_columns(one: AggregateMeaning, other: AggregateMeaning) -> dict[str, str]:
    """Column of the one → its name in the other, where rows were given another name for it since."""
    return {was: name for name, formers in other.was.items() for was in formers if was not in one.was.get(name, ())}


def _come_and_go(
    before: DeclaredState, now: DeclaredState, former: Mapping[str, str | None], gone: Sequence[str]
) -> Iterator[str]:
    if not before.results or not now.results:
        return
    for name in now.results:
        was = former.get(name, name)
        if was is None or was not in before.results:
            yield f"aggregate `{name}` added: {_since(before, now, name)}"
        elif was != name:
            yield f"aggregate `{name}` was `{was}`"
    for name in gone:
        yield f"aggregate `{name}` taken out"


def _since(before: DeclaredState, now: DeclaredState, name: str) -> str:
    if now.kind == "windows":
        return "in windows that are open it counts the rows from now on, and is null, or 0, where none came"
    over_us = now.meanings[name].over_us if name in now.meanings else None
    if over_us is None:
        return "counts the rows from now on"
    there = {column for meaning in before.meanings.values() for _, column in meaning.kept_columns()}
    which = "that are kept" if there.issuperset(_columns(now, name)) else "from now on"
    return f"counts the rows {which}; complete {format_span(over_us)} from now"


def _columns(now: DeclaredState, name: str) -> list[str]:
    return [column for _, column in now.meanings[name].kept_columns()]


def _by_kind(name: str, before: DeclaredState, now: AggregateMeaning) -> list[tuple[str, str, str]]:
    """Of a store that knows no more of an aggregate than how it is finished."""
    finish = before.results.get(name)
    if not finish or finish[0] == now.kind or finish[0] == "!row":
        return []
    return [(name, str(finish[0]), now.words)]


def _notes_on(name: str, old: AggregateMeaning, now: AggregateMeaning) -> Iterator[str]:
    if old.name != now.name:
        yield f"aggregator of `{name}` is now {now.name}, was {old.name}: taken for the same"
    if old.type and old.type != now.type:
        yield f"aggregate `{name}` of {now.type}, was {old.type}"
    if old.n != now.n:
        more = ": more come with new rows" if now.n > old.n else ""
        yield f"aggregate `{name}` keeps {now.n} values, had kept {old.n}{more}"
    if old.q != now.q:
        yield f"aggregate `{name}` is the quantile {now.q}, was {old.q}, of all that was counted"
    if old.over_us is not None and now.over_us is not None and old.over_us != now.over_us:
        longer = "; rows from before are kept no longer than they were to be" if now.over_us > old.over_us else ""
        yield f"horizon of `{name}` {format_span(old.over_us)} → {format_span(now.over_us)}{longer}"
