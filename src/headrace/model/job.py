"""What the store's side knows of a program: names and numbers, no code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from headrace.model.archive import Archive
from headrace.model.time_shape import TimeShape
from headrace.model.watermarks import TimedSource

VALUE_TABLE: Final = "value"
"""The table of a step that keeps one thing, whose address is that of the step."""
ROW: Final = "row"
"""Kind of the state of a step that keeps one row per key, where something is said of it."""


class DeclaredState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A state as the program declares it; kept in manifests, so that a store can be read without the program."""

    kind: str
    clock: str = ""
    """``wall`` or ``event`` where entries expire."""
    was: tuple[str, ...] = ()
    """The names it had before, the newest first: runs written then hold it under those."""
    results: dict[str, list[Any]] = {}
    """Of aggregates: result → its kind and what else finishes its accumulator (`headrace.read.finishing`)."""
    key: tuple[str, ...] = ()
    """With results: names of the columns that hold the key, part by part."""
    archive: Archive | None = None
    """Of windows: where they go when they are closed."""
    pane: bool = False
    """Of windows: whether results say if they come before, at or after the end of theirs."""
    windows: str = ""
    """Of windows: how they are cut, in words; a program that cuts them in another way may have to be refused."""
    times: TimeShape | None = None
    """Where the times of a value are: of a map or list of all of it, of windows and aggregates of a row of results."""
    key_times: TimeShape | None = None
    """The same of keys."""


@dataclass(frozen=True)
class JobFacts:
    """One compiled program, as coordinator, recovery and maintenance see it."""

    app: str
    program: str
    """Fingerprint."""
    parallelism: int
    key_groups: int
    levels: int
    timed: tuple[TimedSource, ...]
    step_sources: Mapping[str, tuple[str, ...]]
    ttl: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Step → state that expires → its clock, ``wall`` or ``event``."""
    states: Mapping[str, Mapping[str, DeclaredState]] = field(default_factory=dict)
    """Step → state → what the program declares."""
    tables: Mapping[str, str] = field(default_factory=dict)
    """Step → what it stores, in words, where that depends on the operator the planner chose."""
    sources: tuple[str, ...] = ()
    """All sources, by name."""
    loops: tuple[str, ...] = ()
    """All loops, by name."""
    was: Mapping[str, str] = field(default_factory=dict)
    """Step → its former name."""


States = Mapping[str, Mapping[str, DeclaredState]]
"""Step → state → what the program declares."""


def derive_states(declared: States, before: States, was: Mapping[str, str]) -> dict[str, dict[str, DeclaredState]]:
    """What a program declares, with all the names its states ever had.

    ``before``: the same of the last published epoch; ``was`` maps a renamed step to its former name. A state is found
    under an old name long after the program has stopped to mention it: keys that nobody touched still lie there.
    """
    states = {step: dict(known) for step, known in before.items()}
    for step, mine in declared.items():
        known = before.get(step) or before.get(was.get(step, ""), {})
        states[step] = {name: _with_history(name, state, known) for name, state in mine.items()}
    return states


def _with_history(name: str, state: DeclaredState, known: Mapping[str, DeclaredState]) -> DeclaredState:
    names = list(state.was)
    for former in [*state.was, name]:
        if former in known:
            names += known[former].was
    return msgspec.structs.replace(state, was=tuple(each for each in dict.fromkeys(names) if each != name))
