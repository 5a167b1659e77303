"""Where a task's time goes."""

from __future__ import annotations

from time import perf_counter_ns


class Stopwatch:
    """Where a task's time goes, by name; the time between two laps belongs to the later lap."""

    def __init__(self) -> None:
        self._last = perf_counter_ns()
        self.times_us: dict[str, int] = {}

    def lap(self, name: str) -> None:
        now = perf_counter_ns()
        self.times_us[name] = self.times_us.get(name, 0) + (now - self._last) // 1000
        self._last = now
