"""Which step of a program goes on with the state of which step of the store: by name, and by ``was=``.

The same rule holds for the states of a step. What the store has and nobody claims is *unread*; a ``was=`` that names
nothing is *vain*, unless what says it is there already under its present name: it was renamed at an earlier start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.model.job import INNER, DeclaredState, JobFacts
from headrace.state import layout
from headrace.state.manifest import JobState
from headrace.upgrade.types import fits_state

Declared = Mapping[str, DeclaredState]
NO_STATE = ("side", "counter")
"""Kinds of declarations that keep nothing."""


@dataclass(frozen=True)
class Matches:
    """Present name → name in the store, None where there is nothing."""

    former: Mapping[str, str | None]
    unread: tuple[str, ...]
    vain: Mapping[str, str]
    """What says a ``was=`` that names nothing → that name."""


def match_steps(before: JobState, job: JobFacts) -> Matches:
    return _match(stored_steps(before), {step: job.was.get(step, "") for step in job.states})


def match_states(before: Declared, now: Declared) -> Matches:
    """Only what a person declared, or can ask for; tables that a step keeps beside are its own business."""
    former = {name: state.was[0] if state.was else "" for name, state in now.items() if is_named(name, state)}
    return _match([name for name, state in before.items() if is_named(name, state)], former)


def is_named(name: str, state: DeclaredState) -> bool:
    return state.kind not in (*NO_STATE, INNER) and not name.startswith("!")


def stored_steps(before: JobState) -> list[str]:
    """The steps that a store knows: those that were declared, and those that have written."""
    written = {layout.step_of(name) for name, refs in before.runs.items() if refs}
    return sorted({*before.manifest.states, *written})


def has_runs(before: JobState, step: str) -> bool:
    """Whether a step has written anything."""
    return bool(before.runs_of(step))


def _match(stored: Iterable[str], present: Mapping[str, str]) -> Matches:
    known = set(stored)
    former: dict[str, str | None] = {}
    vain: dict[str, str] = {}
    for name, was in present.items():
        if name in known:
            former[name] = name
        elif was in known:
            former[name] = was
        else:
            former[name] = None
            if was:
                vain[name] = was
    claimed = {name for name in former.values() if name is not None}
    return Matches(former, tuple(sorted(known - claimed)), vain)


def fits(before: Declared, now: Declared) -> bool:
    """Whether a step that keeps ``now`` could go on with all of ``before``, or says that it does with some of it."""
    old = {name: state for name, state in before.items() if is_named(name, state)}
    matches = match_states(before, now)
    mates = {former: name for name, former in matches.former.items() if former is not None}
    said = any(former != name for former, name in mates.items())
    every = said or len(mates) == len(old)
    return bool(mates) and every and all(fits_state(old[former], now[name]) for former, name in mates.items())
