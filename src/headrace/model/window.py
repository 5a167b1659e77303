"""A window of time, as results, functions and queries name it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from headrace.model.time import Timestamp

WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"
PANE: Final = "pane"
"""Columns of a result that say its window, and whether it comes before, at or after the end of it."""


class Window(NamedTuple):
    """A stretch of time, ``[start, end)``: what ``ctx.window`` is."""

    start: Timestamp
    end: Timestamp
