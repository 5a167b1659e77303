"""A user's function raised: what to tell, and where the row goes.

What people need is the step, their function, the line of their own code where it happened, the key and the row; frames
of Headrace and of libraries are left out of the trace. A failure either stops the task (`function_failed`) or becomes a
row of the step's ``errors`` (`failed_row`). Advice is given where it is true: who stops a task says which way out the
step has (`READ_ERRORS` and its like), and says nothing where there is none.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from types import CodeType
from typing import Any, Final

import msgspec

from headrace.errors import FunctionFailed, HeadraceError
from headrace.model.keys import key_text
from headrace.model.record import Failed
from headrace.model.report import Failure
from headrace.model.rows import codec_of

_OURS: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES: Final = tuple(
    {path + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_path(name))}
)
_ROW_CHARS: Final = 2_000
_TRACE_FRAMES: Final = 12

NO_KEY: Final[Any] = object()
"""Stands where a step has no key to tell."""

READ_ERRORS: Final = "or write the step's .errors somewhere, and such rows go there instead"
GUARD_SQL: Final = (
    "or guard the expression (try_divide, nullif, CASE WHEN); or compute it with map, whose .errors take such rows"
)
GUARD_KEY: Final = (
    "or leave such rows out with filter before key_by; or compute the key with map before it, whose .errors take them"
)


def function_failed(
    error: BaseException, *, step: str, function: Any, row: Any = None, key: Any = NO_KEY, way_out: str = ""
) -> FunctionFailed:
    """The error that stops a task, with the `Failure` it reports as ``failure``.

    ``way_out``: what else its reader can do; only where it is true of this step and this function.
    """
    failure = describe_failure(error, step=step, function=function, row=row, key=key, way_out=way_out)
    found = [failure.parts["found"]] if failure.parts.get("found") else []
    if failure.file or not found:
        found.insert(0, f"{failure.file}:{failure.line}" if failure.file else "no line of its own code")
    found += [f"{what} {text}" for what, text in (("key", failure.key), ("row", failure.row)) if text]
    failed = FunctionFailed(
        f"{failure.function or 'a function'} raised {failure.error}",
        where=f"step {step}",
        expected=failure.parts.get("expected", ""),
        found="; ".join(found),
        next_move=next_move(way_out),
    )
    failed.failure = failure
    return failed


def next_move(way_out: str) -> str:
    """What to do about a function that failed."""
    mend = "mend the function and start again: nothing of this epoch was published"
    return f"{mend}; {way_out}" if way_out else mend


def describe_failure(
    error: BaseException, *, step: str, function: Any, row: Any = None, key: Any = NO_KEY, way_out: str = ""
) -> Failure:
    """Everything a person needs to find the mistake."""
    file, line, trace = _user_trace(error, _home_of(function))
    ours = error if isinstance(error, HeadraceError) else None
    return Failure(
        kind="function",
        step=step,
        # What an error of ours expected and found are parts of the error that is made of it, and said once.
        error=_error_text(error) if ours is None else f"{type(ours).__name__}: {ours.what}",
        parts={} if ours is None else {"expected": ours.expected, "found": ours.found},
        function=function_name(function),
        file=file,
        line=line,
        key="" if key is NO_KEY else _shorten(key_text(key)),
        row="" if row is None else _shorten(row_json(row).decode(errors="replace")),
        trace=trace,
        way_out=way_out,
    )


def failed_row(
    error: BaseException, *, step: str, function: Any, row: Any, key: Any = NO_KEY, timer: str = ""
) -> Failed:
    """The row of the step's ``errors`` for a row, or a timer, whose function raised."""
    failure = describe_failure(error, step=step, function=function, key=key)
    return Failed(
        step=step,
        error=_error_text(error),
        row=b"" if row is None else row_json(row),
        trace=failure.trace,
        key=failure.key,
        timer=timer,
    )


def function_name(function: Any) -> str:
    """A function as its author knows it: ``Fraud.on_event``; SQL text is itself."""
    if isinstance(function, str):
        return function
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name).split("<locals>.")[-1]


def row_json(row: Any) -> bytes:
    """A row as JSON, times as text; its ``repr`` where it has no JSON form."""
    try:
        return next(iter(codec_of(type(row)).to_json([row])))
    except (HeadraceError, msgspec.MsgspecError, TypeError, ValueError):
        return repr(row).encode(errors="replace")


def _error_text(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()


def _user_trace(error: BaseException, home: str) -> tuple[str, int, str]:
    """File and line of the innermost frame of the user's code, and the frames of it as text."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if not _is_foreign(frame.filename, home)]
    if not users:
        return "", 0, _error_text(error)
    text = "".join(traceback.format_list(users[-_TRACE_FRAMES:])) + _error_text(error)
    return users[-1].filename, users[-1].lineno or 0, text


def user_place(error: BaseException) -> tuple[str, int]:
    """File and line of the user's code where an error came from, as far as the frames tell."""
    return _user_trace(error, "")[:2]


def _is_foreign(filename: str, home: str) -> bool:
    """Whether this is Headrace, Python itself or an installed package, and not what the user wrote."""
    if filename.startswith("<"):
        # Code without a file: generated by a library, or typed by a user at a prompt or in a notebook.
        return filename.startswith("<frozen") or filename == "<string>"
    path = os.path.abspath(filename)
    if home and path.startswith(home):
        return False
    return path.startswith((_OURS, *_LIBRARIES))


def _home_of(function: Any) -> str:
    """The folder of the package that the function itself comes from: it is the user's even where it is installed."""
    code: CodeType | None = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None:
        return ""
    path = os.path.abspath(code.co_filename)
    # The innermost folder of libraries counts: site-packages lies inside that of Python itself.
    roots = [root for root in _LIBRARIES if path.startswith(root)]
    if not roots or path.startswith(_OURS):
        return ""
    root = max(roots, key=len)
    return root + path[len(root) :].split(os.sep)[0]


def _shorten(text: str) -> str:
    return text if len(text) <= _ROW_CHARS else text[: _ROW_CHARS - 1] + "…"
