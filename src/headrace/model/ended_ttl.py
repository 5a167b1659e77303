"""What had expired before a program took the TTL of its state away stays gone, whether a fold has removed it or not.

An expired entry lies in a run until a fold leaves it out; without a TTL nobody would judge its expiry any more. So
manifests keep the time at which each such state lost its TTL, by the clock that the TTL had: entries that had expired
by then are hidden and folded away, and all others last, whatever expiry is stored beside them.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.model.ids import MIN_TIME
from headrace.model.job import DeclaredState, States

Ended = Mapping[str, Mapping[str, int]]
"""Step → state → the time at which its TTL was taken away."""


def derive_ended(
    ended: Ended, before: States, now: States, was: Mapping[str, str], clocks: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, int]]:
    """The same for a program that goes on. ``ended`` and ``before``: of the parent manifest.

    ``clocks``: ``wall`` and ``event`` → step → its time there. ``was``: step → its former name.
    """
    found: dict[str, dict[str, int]] = {}
    for step, states in now.items():
        former = step if step in before else was.get(step, step)
        known = before.get(former, {})
        for name, state in states.items():
            if state.clock or (mate := next((each for each in (name, *state.was) if each in known), None)) is None:
                continue
            at_us = _ended_at(known[mate], clocks, former) or ended.get(former, {}).get(mate)
            if at_us is not None:
                found.setdefault(step, {})[name] = at_us
    return found


def _ended_at(state: DeclaredState, clocks: Mapping[str, Mapping[str, int]], step: str) -> int | None:
    """When a TTL that a function declared ends with this change; None: it has none, or no time is known."""
    at_us = clocks[state.clock].get(step, MIN_TIME) if state.clock and state.ttl_us else MIN_TIME
    return None if at_us == MIN_TIME else at_us
