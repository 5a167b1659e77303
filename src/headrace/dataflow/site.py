"""Where in the user's program something was said: file and line for error messages, and the cell of a notebook.

The user's line is the innermost frame that is not part of Headrace. The test kit and examples count as users.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Final, NamedTuple

from headrace.errors import HeadraceError
from headrace.model.user_line import short_path, user_frame

TRACE: Final = "HEADRACE_TRACE"
"""Set in the environment: tracebacks are shown whole."""
_statements = count(1)


class Site(NamedTuple):
    """A line of the user's program."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{short_path(self.file)}:{self.line}"


_placed: ContextVar[Site | None] = ContextVar("_placed", default=None)


@contextmanager
def placed_at(site: Site) -> Iterator[None]:
    """What is said inside stands at this line: that of a text that the program only hands on."""
    token = _placed.set(site)
    try:
        yield
    finally:
        _placed.reset(token)


def call_site() -> Site:
    """The line of the user's program that is being executed."""
    if (placed := _placed.get()) is not None:
        return placed
    frame = user_frame()
    return Site(frame.f_code.co_filename, frame.f_lineno) if frame is not None else Site("<unknown>", 0)


def without_our_frames(error: HeadraceError) -> HeadraceError:
    """An error of a run, to be raised again at the line that started it.

    What it says is whole without the twenty frames that lead there, and without Spark's stack behind it. They are kept
    where ``HEADRACE_TRACE`` is set.
    """
    if os.environ.get(TRACE):
        return error
    if type(error.__cause__).__module__.partition(".")[0] in ("py4j", "pyspark"):
        error.__cause__ = None
    if error.__cause__ is None:
        error.__suppress_context__ = True
    return error.with_traceback(None)


def current_cell() -> int | None:
    """A number for the notebook cell, or for the statement of an interactive session, that is running; else None.

    What a later cell says under a name replaces what an earlier one said; in a program that runs from a file, saying a
    name twice is a mistake.
    """
    shell = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None and hasattr(shell, "get_ipython") else None
    if running is not None:
        return int(running.execution_count)
    return next(_statements) if hasattr(sys, "ps1") else None
