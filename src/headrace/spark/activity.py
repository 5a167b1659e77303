"""The present activity of a run, for a person who waits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headrace.model.amounts import span_text

if TYPE_CHECKING:
    from headrace.spark.driver import EpochDriver


class Activity:
    """The phase of a run until its query has started; from then on its driver tells."""

    def __init__(self) -> None:
        self.beginning: list[str] = []
        """What takes long before a first epoch, a line each."""
        self.enter("opening the store")

    def enter(self, phase: str) -> None:
        """``phase``: in words, empty when the query runs."""
        self._phase, self._began = phase, time.monotonic()

    def tell(self, driver: EpochDriver | None, published: int) -> str:
        """Empty where it waits for input."""
        if self._phase:
            return f"{self._phase}, {span_text(time.monotonic() - self._began)}"
        if driver is None or driver.idle.is_set():
            return "waiting for input" if published < 0 else ""
        return driver.activity()
