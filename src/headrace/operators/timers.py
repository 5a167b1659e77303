"""Which timers are due at the end of an epoch, and in what order they fire.

Where to look comes from the index by time (of the runs, and of what this epoch has set); whether a timer stands there
is the business of its own state. Timers of one key fire in the order of their times, those of one time in the order in
which they are declared; keys are gone through by their earliest time. A timer that is set while timers fire and is due
already fires in the same pass, so that when an epoch is over no live timer lies at or behind its clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.model.batch import Int64s, UInt64s
from headrace.state.handles import Timer, Timers
from headrace.state.shard import CHUNK_KEYS, EVENT_DUE, distinct_keys

if TYPE_CHECKING:
    from headrace.state.shard import ShardState

MAX_REARMS: Final = 100_000
"""How often timers of one key may fire in one epoch beyond those that were set before: more is taken for endless."""


class Window(NamedTuple):
    """A stretch of one clock: timers with after < time ≤ upto are due."""

    due_table: str
    after_us: int
    upto_us: int


class Endless(RuntimeError):
    """A timer that is due is set again each time it fires."""


class _DueKeys(NamedTuple):
    hashes: UInt64s
    keys: pa.BinaryArray
    event_times: list[list[int]] | None
    """For each key where an index knows of event timers; only where a step has several per key."""


def fire_due(
    state: ShardState,
    timers: Sequence[tuple[Timer | Timers, str]],
    windows: Sequence[Window],
    *,
    bind: Callable[[int], None],
    call: Callable[[Timer | Timers, int], None],
) -> Iterator[int]:
    """Fires everything due; now and then, when no key is at hand, yields how much fired since.

    ``timers``: handles with the due table they are indexed in. ``bind`` moves all handles to a slot, ``call`` calls the
    user's function for a timer that was taken.
    """
    many = [timer for timer, _ in timers if isinstance(timer, Timers)]
    limits = {window.due_table: window.upto_us for window in windows}
    watched = [(timer, limits[due_table]) for timer, due_table in timers if due_table in limits]
    due = _find_due(state, windows, bool(many))
    for start in range(0, len(due.keys), CHUNK_KEYS):
        slots = state.enter(due.hashes[start : start + CHUNK_KEYS], due.keys[start : start + CHUNK_KEYS])
        fired = 0
        for position, slot in enumerate(slots.tolist(), start):
            bind(slot)
            times = due.event_times[position] if due.event_times is not None else []
            for timer in many:
                timer._expect(list(times))
            fired += _fire_key(watched, call, MAX_REARMS + len(times) * len(many))
            for timer in many:
                timer._expect(None)
        yield fired


def _find_due(state: ShardState, windows: Sequence[Window], many: bool) -> _DueKeys:
    found = [state.due(*window) for window in windows]
    is_event = np.concatenate([np.full(len(due.times), window.due_table == EVENT_DUE)
                               for due, window in zip(found, windows)])  # fmt: skip
    times = np.concatenate([due.times for due in found])
    order = np.argsort(times, kind="stable")
    hashes = np.concatenate([due.hashes for due in found])[order]
    keys = pa.concat_arrays([due.keys for due in found]).take(pa.array(order))
    distinct = distinct_keys(hashes, keys)
    if not many:
        return _DueKeys(distinct.hashes, distinct.keys, None)
    wanted = is_event[order]
    by_key = _times_by_key(distinct.codes[wanted], times[order][wanted], len(distinct.keys))
    return _DueKeys(distinct.hashes, distinct.keys, by_key)


def _times_by_key(codes: Int64s, times: Int64s, count: int) -> list[list[int]]:
    by_key: list[list[int]] = [[] for _ in range(count)]
    for code, time in zip(codes.tolist(), times.tolist()):
        by_key[code].append(time)
    return by_key


def _fire_key(
    timers: Sequence[tuple[Timer | Timers, int]], call: Callable[[Timer | Timers, int], None], bound: int
) -> int:
    fired = 0
    while True:
        earliest: int | None = None
        chosen: Timer | Timers | None = None
        for timer, upto_us in timers:
            time_us = timer._peek(upto_us)
            if time_us is not None and (earliest is None or time_us < earliest):
                earliest, chosen = time_us, timer
        if earliest is None or chosen is None:
            return fired
        if fired >= bound:
            raise Endless(
                f"the timer {chosen.name!r} was set again {fired} times in one epoch, each time for a time that has "
                "passed; at the end of drained input every time has passed, and ctx.watermark tells"
            )
        chosen._take(earliest)
        call(chosen, earliest)
        fired += 1
