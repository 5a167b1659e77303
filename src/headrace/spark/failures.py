"""Spark's exceptions, as errors of our family: without its stacks, and with a next move."""

from __future__ import annotations

import base64
import logging
import re
from typing import Final

import msgspec
from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    ParseException,
)

from headrace.errors import EnvironmentMissing, EpochFailed, ExpressionError, HeadraceError, ProgramError
from headrace.model.report import Failure
from headrace.model.wire import ROW_BAD
from headrace.runtime.failures import error_failure, reported_error

# PySpark logs the whole JVM stack of a failed query from Python, whatever Spark's own log level is.
logging.getLogger("SQLQueryContextLogger").disabled = True


_VALUES = (ArithmeticException, ArrayIndexOutOfBoundsException, DateTimeException, NumberFormatException)
"""What Spark raises for a row that an expression cannot digest: running it again does not help."""


_LINES: Final = 6
_LINE_CHARS: Final = 400
_TRACEBACK: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t]+.*\n|\n)+(?P<error>\S.*)")
"""From its first line to the one behind the last that is indented: the error."""
_PLACE: Final = re.compile(r'File "([^"]+)", line (\d+)')
_HANDED_OVER: Final = re.compile(r"<headrace:([A-Za-z0-9+/=]+)>")


def hand_over(error: HeadraceError) -> str:
    """An error as text that `spark_error` finds in whatever Spark makes of an exception with it."""
    return f"{error.what} <headrace:{base64.b64encode(msgspec.msgpack.encode(error_failure(error))).decode()}>"


def spark_error(error: BaseException) -> HeadraceError:
    """An exception of Spark itself, without its stack; or the error that a reader of ours raised below it."""
    ours = _HANDED_OVER.search(str(error))
    if ours is not None:
        return reported_error(msgspec.msgpack.decode(base64.b64decode(ours.group(1)), type=Failure))
    text = _first_lines(str(error))
    missing = re.search(r"No module named '([^']+)'", str(error))
    if missing is not None:
        return EnvironmentMissing(
            f"the workers have no module {missing.group(1)!r}",
            where="a Python worker",
            expected="what the driver can import, on every machine of the cluster",
            found=missing.group(0),
            next_move=f"install {missing.group(1)} where the workers run, or ship it (spark.submit.pyFiles)",
        )
    if isinstance(error, _VALUES):
        return ExpressionError(
            "an expression that runs in the JVM has no value for some row",
            where="where, select or with_columns right behind a source",
            found=text,
            next_move="guard it (try_divide, try_cast, CASE), and start again: nothing of this epoch was published",
        )
    if isinstance(error, (AnalysisException, ParseException)):
        return ProgramError(
            "Spark does not understand an expression or a source of this program",
            where="building the streaming plan",
            found=text,
            next_move="look at the SQL text named above",
        )
    return EpochFailed(
        "Spark could not run an epoch",
        where="the streaming query",
        found=text,
        next_move="start again: the epoch is replayed whole; --trace shows Spark's own account",
    )


def _first_lines(text: str) -> str:
    """What people need of a long message: its beginning, and of Python's tracebacks the error and its place."""
    text = re.sub(rf"{ROW_BAD} IS NOT NULL OR \((.*)\)", r"\1", text)
    errors = [_last_line(found) for found in _TRACEBACK.finditer(text)]
    rest = _TRACEBACK.sub(lambda found: f"\n{_last_line(found)}\n", text)
    lines = [line for line in rest.splitlines() if line.strip() and not line.strip().startswith(("at ", "File "))]
    first = lines[:_LINES]
    if errors and errors[-1] not in first:
        # The last is what stopped the work; those before it were its causes.
        first = [*first[:-1], errors[-1]]
    return "\n            ".join(line[:_LINE_CHARS] for line in first)


def _last_line(traceback: re.Match[str]) -> str:
    """Type and text of the error, and the innermost line of code."""
    places = _PLACE.findall(traceback.group(0))
    return traceback.group("error").strip() + (f" ({places[-1][0]}:{places[-1][1]})" if places else "")
