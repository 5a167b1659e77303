"""Matches as rows: one type per pattern, with a field per stage and one for the match itself.

A stage that takes at most one row gives that row, or None; a stage that may take several gives a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from headrace.model.record import Record, row_type
from headrace.model.time import Timestamp
from headrace.patterns.checks import MATCH
from headrace.patterns.matcher import MatchEnd, rows_by_stage

if TYPE_CHECKING:
    from headrace.patterns.automaton import Automaton


class MatchFacts(Record):
    """What there is to say of a match beside its rows."""

    start: Timestamp
    """Time of its first row."""
    end: Timestamp
    """When it was complete, or when its time was over."""
    waiting_for: str | None = None
    """Of a match that ran out of time: the stage that did not come."""
    classifier: str | None = None
    """In SQL: the variable that the last row is for."""
    number: int | None = None
    """In SQL: which match of its key it is."""


def match_type(names: Iterable[str], loops: Iterable[bool], row: Any) -> Any:
    """The type of the matches of a pattern over rows of one type."""
    fields: dict[str, Any] = {name: list[row] if loop else row | None for name, loop in zip(names, loops, strict=True)}
    return row_type("Match", {**fields, MATCH: MatchFacts})


class MatchRows:
    """Makes rows of matches."""

    def __init__(self, automaton: Automaton, kind: Any) -> None:
        self.automaton = automaton
        self.type = kind
        self._single = [not loop for loop in automaton.loops]

    def rows(self, matches: Sequence[MatchEnd], *, over: bool = False) -> list[Any]:
        """``over``: these ran out of time."""
        made = []
        for run, end_us in matches:
            stages = rows_by_stage(run.link, len(self._single))
            values: list[Any] = [
                (rows[-1] if rows else None) if single else rows for rows, single in zip(stages, self._single)
            ]
            waiting_for = self.automaton.places[run.place].waiting_words if over else None
            facts: Any = MatchFacts(run.started_us, end_us, waiting_for)  # type: ignore[arg-type]
            made.append(self.type(*values, facts))
        return made
