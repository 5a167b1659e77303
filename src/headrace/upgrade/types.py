"""Types of stored state that a program has changed: which of them are read, and how, and which are refused.

What is read is said by those who read (`headrace.model.type_history`); here it is asked for every version of a step
that its runs still have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from headrace.model.job import COLUMNS, GIVEN, INNER, ROW, DeclaredState, JobFacts
from headrace.model.type_change import SAME, TypeChange, compare_keys
from headrace.model.type_history import derive_change, derive_reading
from headrace.model.type_shape import TypeShape, type_text
from headrace.state.adapters import Adapters

ALIKE: Final = ({"value", "reducing", "aggregating"}, {INNER, COLUMNS})
"""Kinds of state that are stored alike, so that one may become the other."""
BY_KEY: Final = ("value", "reducing", "aggregating", "aggregate", ROW)
"""Kinds of state of which every stored row is a key."""
WORDS: Final = {
    "value": "one value per key",
    "reducing": "one value per key",
    "aggregating": "one accumulator per key",
    "list": "a list per key",
    "map": "a map per key",
    "timer": "a timer on event time",
    "wall_timer": "a timer on the wall clock",
    "timers": "timers on event time",
    "broadcast": "a mapping that all shards share",
    "row": "one row per key",
    GIVEN: "the row that each key gave out last",
    "aggregate": "aggregates per key",
    "windows": "windows",
    COLUMNS: "rows",
    INNER: "rows",
}


class OldTypes:
    """The values of one step, as its runs have them, and how the program reads them."""

    def __init__(self, step: str, states: Mapping[str, DeclaredState], versions: Iterable[int], job: JobFacts) -> None:
        """``states``: of the program, with the types they had before. ``versions``: those that runs have."""
        self.states = states
        self.adapters = Adapters(step, states, job.migrations, job.annotations.get(step))
        self._versions = sorted(versions)
        self._migrations = job.migrations

    def change(self, name: str) -> TypeChange:
        """What becomes of the values of a state: of those whose type is the furthest behind, or that are refused."""
        changes = [derive_reading(self.states[name], version, self._migrations) for version in self._versions]
        refused = (each for each in changes if each.kind == "refused")
        return next(refused, None) or next((each for each in changes if each.kind != "same"), SAME)

    def older(self, name: str) -> list[int]:
        """The versions of runs whose values of a state are of an older type."""
        return [version for version in self._versions if self.states[name].is_older(version)]


def are_alike(before: str, now: str) -> bool:
    """Whether states of these kinds are stored in the same way."""
    return before == now or any(before in kinds and now in kinds for kinds in ALIKE)


def fits_state(before: DeclaredState, now: DeclaredState) -> bool:
    """Whether one state could go on with what another has stored."""
    if not are_alike(before.kind, now.kind) or (before.type is None) != (now.type is None):
        return False
    change = derive_change(now.kind, (before.type, now.type))
    return "refused" not in (change.kind, compare_keys(before.key_type, now.key_type).kind)


def kind_words(kind: str) -> str:
    return WORDS.get(kind, kind)


def text_of(shape: TypeShape | None) -> str:
    return "unknown" if shape is None else type_text(shape)
