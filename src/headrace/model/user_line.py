"""The line of the user's program that is being executed: what error messages and steps name as their place.

The user's line is the innermost frame that is not part of Headrace. The test kit and examples count as users.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType

_PACKAGE = str(Path(__file__).parents[1]) + os.sep


def user_frame() -> FrameType | None:
    """The innermost frame outside of Headrace."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame


def user_line() -> str:
    """File and line of that frame, as an error says them."""
    frame = user_frame()
    return "" if frame is None else f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def short_path(file: str) -> str:
    """A path as short as it can be while an editor still finds it from the working directory."""
    if not os.path.isabs(file):
        return file
    try:
        relative = os.path.relpath(file)
    except (OSError, ValueError):
        return file
    return file if relative.startswith("..") else relative
