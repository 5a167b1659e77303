"""Stopping in pdb where the user's own code begins, for one row of a replay."""

from __future__ import annotations

import pdb
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import headrace

_OURS = str(Path(headrace.__file__).parent)
_PYTHON = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class UserDebugger(pdb.Pdb):
    """A debugger that passes over everything until the first line of the user's program."""

    stopped = False
    """Whether it has come there."""

    def stop_here(self, frame: FrameType) -> bool:
        if not self.stopped and not is_users(frame.f_code.co_filename):
            return False
        self.stopped = True
        return bool(super().stop_here(frame))


def is_users(file: str) -> bool:
    """Whether code lies in a file of the user's: none of ours, of Python's or of an installed package."""
    return not file.startswith((_OURS, "<", *_PYTHON))


def stop_at(row: int, missed: Callable[[], None]) -> Callable[[Callable[[], None], int], None]:
    """Calls each row, the one with this number in the debugger. ``missed``: no code of the user ran for it."""

    def call(work: Callable[[], None], number: int) -> None:
        if number != row:
            work()
            return
        debugger = UserDebugger()
        try:
            debugger.runcall(work)
        except Exception:
            # To quit is to raise something in the user's code, which is no mistake of it.
            if debugger.quitting:
                raise KeyboardInterrupt from None
            raise
        if not debugger.stopped:
            missed()

    return call
