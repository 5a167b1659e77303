"""What tasks report when rows or functions fail, as errors for people, and as rows for a stream of errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import headrace.errors as errors
from headrace.errors import BadRow, FunctionFailed, HeadraceError, StoreError
from headrace.model.batch import Rows
from headrace.model.record import Failed
from headrace.model.report import LEFT_TO_SPARK, Failure
from headrace.model.rows import codec_of
from headrace.operators.failures import next_move, user_place
from headrace.sources.contract import LeftToSpark

if TYPE_CHECKING:
    from headrace.plan.physical import Program, SourcePlan


def rejected_rows(source: SourcePlan, texts: list[str]) -> Rows:
    """Undecodable rows of a source, for those who read its ``errors``."""
    failed = []
    for text in texts:
        bad = source.source.explain_bad(source.codec, text)
        error = f"{bad.where}: {bad.reason}" if bad.where else bad.reason
        failed.append(Failed(step=source.name, error=error, row=bad.text.encode(), trace=""))
    return Rows.of_objects(codec_of(Failed), failed)


def error_failure(error: HeadraceError | OSError | SystemExit) -> Failure:
    """What a task reports instead of raising: Spark would only try again, and tell the user in its own words."""
    if isinstance(error, FunctionFailed) and error.failure is not None:
        failure: Failure = error.failure
        return failure
    if isinstance(error, SystemExit):
        error = _ended(error)
    if isinstance(error, OSError):
        error = StoreError(
            "a task could not read or write its files",
            where=error.filename or "the store",
            found=f"{type(error).__name__}: {error.strerror or error}",
            next_move="make room or mend the disk, and start again: nothing of this epoch was published",
        )
    parts = {name: getattr(error, name) for name in ("what", "where", "expected", "found", "next_move")}
    return Failure(kind="error", step="", error=error.what, parts={"class": type(error).__name__, **parts})


def _ended(error: SystemExit) -> FunctionFailed:
    """A function, or a library that it calls, would have ended the process that works for all keys of a shard."""
    file, line = user_place(error)
    return FunctionFailed(
        f"a function ended its process: sys.exit({error.code!r})",
        where=f"{file}:{line}" if file else "",
        expected="functions that return, or raise an error",
        next_move="raise an error instead, or leave the row out; nothing of this epoch was published",
    )


def failure_error(program: Program, failure: Failure) -> HeadraceError:
    """The error for a failure that a task reported."""
    if failure.kind == LEFT_TO_SPARK:
        left = LeftToSpark(failure.error, where=failure.file)
        left.source = failure.step
        return left
    return _bad_row(program, failure) if failure.kind == "row" else reported_error(failure)


def reported_error(failure: Failure) -> HeadraceError:
    """The error for a failure of a function, or of our own family."""
    if failure.kind == "error":
        parts = dict(failure.parts)
        kind = getattr(errors, parts.pop("class"), HeadraceError)
        again: HeadraceError = kind(**parts)
        return again
    error = FunctionFailed(
        # Without the name of a function the error is a sentence of ours, about what a function did.
        f"{failure.function} raised {failure.error}" if failure.function else failure.error,
        where=f"step {failure.step}" + (f", {failure.file}:{failure.line}" if failure.file else ""),
        found=", ".join(
            part for part in (failure.key and f"key {failure.key}", failure.row and f"row {failure.row}") if part
        ),
        next_move=next_move(failure.way_out),
    )
    error.failure = failure
    return error


def _bad_row(program: Program, failure: Failure) -> HeadraceError:
    source = next(source for source in program.sources if source.name == failure.step)
    bad = source.source.explain_bad(source.codec, failure.row)
    return BadRow(
        bad.reason,
        where=bad.where or f"source {source.name}",
        expected=f"a row of {getattr(source.codec.type, '__name__', source.codec.type)}",
        found=bad.text[:500],
        next_move="mend the row and start again, or write the stream's .errors somewhere, and such rows go there",
    )
