"""Two sides of a difference whose aggregates are not the same ones: what both of them tell is compared.

An aggregate that a program added, or took out, would make every key differ. So results that one side alone has are left
out, and named; one that had another name on the other side (`was=`) is held against itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.model.job import DeclaredState
from headrace.model.meaning import former_name
from headrace.model.window import Window


@dataclass(frozen=True)
class CommonResults:
    """What becomes of rows of results before they are compared."""

    renamed: Mapping[str, str]
    """Name on the first side → name on the second."""
    first_only: frozenset[str]
    second_only: frozenset[str]

    @property
    def note(self) -> str:
        """What is to be said of results that are not compared; empty where all are."""
        sides = (("first", self.first_only), ("second", self.second_only))
        said = [f"{', '.join(sorted(names))} on the {side} side only" for side, names in sides if names]
        return f"not compared: {'; '.join(said)}" if said else ""

    def first(self, value: Any) -> Any:
        """What the first side has of a key."""
        return _each_row(
            value, lambda row: {self.renamed.get(k, k): v for k, v in row.items() if k not in self.first_only}
        )

    def second(self, value: Any) -> Any:
        return _each_row(value, lambda row: {k: v for k, v in row.items() if k not in self.second_only})


def derive_common_results(first: DeclaredState | None, second: DeclaredState | None) -> CommonResults | None:
    """None where both sides have the same aggregates, or one of them has none."""
    if first is None or second is None or not first.results or not second.results:
        return None
    if set(first.results) == set(second.results):
        return None
    renamed = _renamed(first, second) or {old: new for new, old in _renamed(second, first).items()}
    return CommonResults(
        renamed,
        frozenset(first.results) - set(second.results) - set(renamed),
        frozenset(second.results) - set(first.results) - set(renamed.values()),
    )


def _renamed(older: DeclaredState, newer: DeclaredState) -> dict[str, str]:
    """Name in the older one → name in the newer one, of aggregates that were renamed."""
    names = (
        (name, former_name(name, meaning, older.results, newer.results)) for name, meaning in newer.meanings.items()
    )
    return {was: name for name, was in names if was is not None and was != name}


def _each_row(value: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """A row of results, or those of each window of a key."""
    if not isinstance(value, dict):
        return value
    if any(isinstance(each, Window) for each in value):
        return {window: change(row) for window, row in value.items()}
    return change(value)
