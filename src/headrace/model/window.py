"""A window of time, as results, functions and queries name it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headrace.model.time import Timestamp


class Window(NamedTuple):
    """A stretch of time, ``[start, end)``: what ``ctx.window`` is."""

    start: Timestamp
    end: Timestamp
