"""Windows cut into slices: stretches of time that every window takes whole or not at all.

Partial aggregates are kept per slice, once, however many windows overlap; a window is the merge of its slices. A
tumbling window is one slice. Sliding windows begin every so often and end a fixed time later, so time is cut at both:
one slice per step where the size is a multiple of the step, two otherwise. A cumulating window is cut at its steps.

A slice is named by its start, a window by its end, which says it all: no two windows of a kind end together. Rows that
come when the first windows of their slice are closed for good count for the others alone: their slice is named by its
start and a microsecond for each window that they leave out. Readers do so; what fires is never closed.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np

from headrace.model.batch import Int64s
from headrace.model.ids import MIN_TIME
from headrace.state.panes.lookup import PaneRange
from headrace.windows.kinds import (
    AssignedWindows,
    Cumulating,
    Sliding,
    Tumbling,
    aligned,
    aligned_us,
    has_window,
)

Sliced: TypeAlias = Tumbling | Sliding | Cumulating

_BEYOND: Final = 1 << 62
"""Later than the end of any window, and early enough to compute with."""


class Slices:
    """The slices of one kind of windows."""

    def __init__(self, assigner: Sliced) -> None:
        self.assigner = assigner
        self.clock = assigner.clock
        self.size_us = assigner.size_us
        self._step_us = assigner.size_us if isinstance(assigner, Tumbling) else assigner.every_us
        self._rest_us = assigner.size_us % assigner.every_us if isinstance(assigner, Sliding) else 0
        self._offset_us = assigner.offset_us
        self._phase_us = assigner.offset_us + (assigner.size_us if isinstance(assigner, Sliding) else 0)
        """Windows end at multiples of the step from here."""

    @property
    def one_window(self) -> bool:
        """Whether every slice is a window of its own."""
        return isinstance(self.assigner, Tumbling)

    @property
    def step_us(self) -> int:
        """From the end of a window to that of the next."""
        return self._step_us

    @property
    def windows_each(self) -> int:
        """How many windows a slice may be in at most."""
        return self.assigner.per_row

    @property
    def has_gaps(self) -> bool:
        """Whether there are times that no window holds."""
        return isinstance(self.assigner, Sliding) and self.assigner.every_us > self.assigner.size_us

    def of(self, times: Int64s) -> Int64s:
        """The slice that each time lies in; `MIN_TIME` where a time is none or beyond what windows are computed for."""
        starts = aligned(times, self._step_us, self._offset_us)
        if self._rest_us:
            starts = np.where(times - starts >= self._rest_us, starts + self._rest_us, starts)
        there = has_window(times)
        return starts if bool(there.all()) else np.where(there, starts, MIN_TIME)

    def leave_out(self, slices: Int64s, closed_us: int) -> Int64s:
        """The slices without those of their windows whose last instant is ``closed_us`` or earlier.

        A slice of fewer microseconds than it has windows leaves out as many as it can name.
        """
        closed = (closed_us + 1 - self.first_ends(slices)) // self._step_us + 1
        if int(closed.max(initial=0)) <= 0:
            return slices
        shortest_us = min(self._rest_us, self._step_us - self._rest_us) or self._step_us
        return slices + np.clip(closed, 0, shortest_us - 1)

    def in_window(self, slices: Int64s) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which slices some window holds."""
        return slices - aligned(slices, self._step_us, self._offset_us) < self.size_us

    def last_ends(self, slices: Int64s) -> Int64s:
        """For each slice the end of the last window that holds it."""
        return self.assigner.last_ends(slices)

    def windows(self, slices: Int64s) -> AssignedWindows:
        """Pairs of a slice and a window that holds it."""
        return self.assigner.assign(slices)

    def first_ends(self, slices: Int64s) -> Int64s:
        """The end of the first window that holds it."""
        return aligned(slices, self._step_us, self._phase_us) + self._step_us

    def count_windows(self, slices: Int64s, first_end: int, last_end: int) -> Int64s:
        """In how many windows that end from ``first_end`` to ``last_end`` each slice is; none of them lies in a gap."""
        first = np.maximum(self.first_ends(slices), min(self.end_from(first_end), _BEYOND))
        counts: Int64s = np.maximum((np.minimum(self.last_ends(slices), last_end) - first) // self._step_us + 1, 0)
        return counts

    def end_from(self, time_us: int) -> int:
        """The first time from this on at which a window may end."""
        return _clamp(aligned_us(time_us - 1, self._step_us, self._phase_us) + self._step_us)

    def first_open(self, reached_us: int) -> int:
        """Slices from here on are held by windows that are not over when time has come this far, others by none."""
        step_us = self._step_us if isinstance(self.assigner, Sliding) else self.size_us
        return _clamp(aligned_us(reached_us + 1 - self.size_us, step_us, self._offset_us) + step_us)

    def next_end(self, slice_us: int, reached_us: int) -> int:
        """Of the windows that hold a slice and are not over then, the end of the first; there must be one."""
        return self.end_from(max(slice_us, reached_us + 1) + 1)

    def starts(self, ends: Int64s) -> Int64s:
        """Where the windows that end there begin."""
        if isinstance(self.assigner, Cumulating):
            return aligned(ends - 1, self.size_us, self._offset_us)
        return ends - self.size_us

    def range(self, first_end: int, last_end: int) -> PaneRange:
        """Where the slices lie of windows that end from ``first_end`` to ``last_end``, both included.

        Of tumbling windows there are no others in between; of others there may be.
        """
        end = last_end - self.size_us + 1 if self.one_window else last_end
        return PaneRange(_clamp(first_end - self.size_us), _clamp(end))


def _clamp(time_us: int) -> int:
    return max(min(time_us, 2**63 - 1), -(2**63))
