"""Mistakes in a program's file, in words: the same for ``headrace run app.py`` and for ``python app.py``.

What Python and msgspec say of some slips is about our insides; here stands what to write instead. A script has nobody
around it that could say so, so Python's hook for what nobody catches does: it prints an error of ours in its four parts
and without a traceback, unless ``HEADRACE_TRACE`` is set. A hook that somebody else has set stays, and so do all other
errors and the exit code.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import traceback
from pathlib import Path
from types import TracebackType

from headrace.dataflow.site import TRACE
from headrace.errors import HeadraceError, ProgramError
from headrace.state.handles import HANDLE_KINDS


def import_failure(path: Path, error: Exception) -> ProgramError:
    """Why a program could not be imported."""
    next_move = "correct it; --trace shows the whole way there"
    if isinstance(error, SyntaxError):
        where = f"{error.filename or path}:{error.lineno or 0}"
        found = f"{error.msg}: {(error.text or '').strip()}" if error.text else str(error.msg)
        return ProgramError("this is not valid Python", where=where, found=found, next_move=next_move)
    where = place_in(path, error)
    slip = known_slip(error, where)
    if slip is not None:
        return slip
    if isinstance(error, ModuleNotFoundError) and error.name:
        next_move = f"install {error.name.partition('.')[0]} beside headrace, or correct the name"
    return ProgramError("the program could not be imported", where=where, found=_text_of(error), next_move=next_move)


def place_in(path: Path, error: BaseException) -> str:
    """The file with the last of its lines that led to an error."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}:{lines[-1]}" if lines else str(path)


def known_slip(error: BaseException, where: str) -> ProgramError | None:
    """A mistake that Python's own words tell in terms of our insides; None for any other. ``where``: file and line."""
    if not isinstance(error, TypeError):
        return None
    field = re.match(r"Required field '(\w+)' cannot follow optional fields", str(error))
    if field is not None:
        return ProgramError(
            f"the field {field[1]!r} has no default and stands behind a field that has one",
            where=where,
            expected="fields without a default first, or hr.Record with kw_only=True",
            found=_line_at(where),
            next_move=f"move {field[1]!r} up, or give it a default",
        )
    next_move = _advice(str(error))
    if not next_move:
        return None
    what = "Python refuses this line of the program"
    return ProgramError(what, where=where, found=_text_of(error), next_move=next_move)


def _advice(text: str) -> str:
    """What to write instead of what Python says this about; empty where it is not about our insides."""
    if "'member_descriptor'" in text:
        return 'a field names a column and has no value: write SQL text, "n > 0", or hr.col("n") > 0'
    if "as a default value is unsafe" in text:
        return "all rows would share it: write msgspec.field(default_factory=lambda: …); an empty [] or {} may stay"
    called, missing, _ = text.partition(".__init__() missing")
    if missing and called in {base.__name__ for handle in HANDLE_KINDS for base in handle.__mro__}:
        return "declare a state by an annotation, and give it no value: seen: hr.ValueState[int]"
    return ""


def _text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _line_at(where: str) -> str:
    """The line of a program that ``file:line`` names."""
    file, _, line = where.rpartition(":")
    return linecache.getline(file, int(line)).strip() if line.isdecimal() else ""


# --- programs that Python itself runs


def print_mistakes_in_words() -> None:
    """Makes Python print what nobody catches as this module says, if nobody else has said how."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print_uncaught


def _print_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    mistake = None if os.environ.get(TRACE) else _mistake_of(error, trace)
    if mistake is None:
        sys.__excepthook__(kind, error, trace)
    else:
        sys.stderr.write(f"{mistake}\n")


def _mistake_of(error: BaseException, trace: TracebackType | None) -> HeadraceError | None:
    if isinstance(error, HeadraceError):
        return error
    frames = traceback.extract_tb(trace)
    return known_slip(error, f"{frames[-1].filename}:{frames[-1].lineno}") if frames else None
