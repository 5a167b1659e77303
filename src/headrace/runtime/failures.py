"""Failures of tasks: what a task reports, and the error or the row of a stream of errors that is made of it."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

import headrace.errors as errors
from headrace.connectors.source_contract import LeftToSpark
from headrace.errors import BadRow, FunctionFailed, HeadraceError, StoreError
from headrace.model.batch import Rows
from headrace.model.record import Failed
from headrace.model.report import LEFT_TO_SPARK, Failure
from headrace.model.rows import codec_of
from headrace.operators.contract import COMBINING, Operator
from headrace.operators.failures import next_move, user_place

if TYPE_CHECKING:
    from headrace.plan.physical import Program, SourcePlan


class SenderGone(Exception):
    """Whoever sends the task its input has gone: not an error of the store, so it is not reported as one."""


def read_input(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches that somebody sends a task."""
    source = iter(batches)
    while True:
        try:
            batch = next(source)
        except StopIteration:
            return
        except OSError as error:
            raise SenderGone(str(error)) from error
        yield batch


def rejected_rows(source: SourcePlan, texts: list[str]) -> Rows:
    """Undecodable rows of a source, for those who read its ``errors``."""
    failed = []
    for text in texts:
        bad = source.source.explain_bad(source.codec, text)
        error = f"{bad.where}: {bad.reason}" if bad.where else bad.reason
        failed.append(Failed(step=source.name, error=error, row=bad.text.encode(), trace=""))
    return Rows.of_objects(codec_of(Failed), failed)


def error_failure(error: BaseException) -> Failure:
    """What a task reports instead of raising: Spark would only try again, and tell the user in its own words."""
    if isinstance(error, FunctionFailed) and error.failure is not None:
        failure: Failure = error.failure
        return failure
    if isinstance(error, SystemExit):
        error = _process_exit(error)
    if isinstance(error, OSError):
        error = StoreError(
            "a task could not read or write its files",
            where=error.filename or "the store",
            found=f"{type(error).__name__}: {error.strerror or error}",
            next_move="make room or mend the disk, and start again: nothing of this epoch was published",
        )
    step = _step_of(error)
    if not isinstance(error, HeadraceError):
        error = _unforeseen_failure(error)
    if step and not error.where:
        error.where = f"step {step}"
    parts = {name: getattr(error, name) for name in ("what", "where", "expected", "found", "next_move")}
    return Failure(kind="error", step=step, error=error.what, parts={"class": type(error).__name__, **parts})


def _unforeseen_failure(error: BaseException) -> FunctionFailed:
    """An exception that nobody foresaw."""
    frames = traceback.extract_tb(error.__traceback__)
    return FunctionFailed(
        f"a task stopped: {type(error).__name__}: {error}",
        found=f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "",
        next_move="report it with the step and its rows: nothing of this epoch was published",
    )


def _step_of(error: BaseException) -> str:
    """The step whose operator was at work, the innermost one."""
    step, trace = "", error.__traceback__
    while trace is not None:
        operator = trace.tb_frame.f_locals.get("self")
        step, trace = operator.step if isinstance(operator, Operator) else step, trace.tb_next
    return step.removeprefix(COMBINING)


def _process_exit(error: SystemExit) -> FunctionFailed:
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
        expected=failure.parts.get("expected", ""),
        found=", ".join(
            part
            for part in (
                failure.parts.get("found"),
                failure.key and f"key {failure.key}",
                failure.row and f"row {failure.row}",
            )
            if part
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
