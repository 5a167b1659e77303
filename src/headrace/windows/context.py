"""What a window function may ask about the window at hand."""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import TypeVar

from headrace.state.handles import Context
from headrace.windows.kinds import Window

K = TypeVar("K", default=Any)

Pane = Literal["early", "on_time", "late"]
"""Whether a result came before the end of its window, with it, or after it."""


class WindowContext(Context[K]):
    """The context of ``on_window``. One object, moved on: do not keep it."""

    __slots__ = ("pane", "window")

    window: Window
    """Start and end; a window without bounds reaches from the beginning to the end of time."""
    pane: Pane
    """``early``: more may come; ``on_time``: the window's end has just come; ``late``: it had come before."""
