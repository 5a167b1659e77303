"""Messages of Spark, cut to what people need."""

from __future__ import annotations

import traceback

import pytest
from pyspark.errors import AnalysisException, PythonException

import headrace as hr
from headrace.errors import EpochFailed
from headrace.spark.failures import spark_error


def _fail(depth: int) -> None:
    if depth:
        _fail(depth - 1)
    raise OverflowError("can't serialize ints < -2**63")


@pytest.mark.parametrize("depth", [0, 40])
@pytest.mark.parametrize("chained", [False, True])
def test_the_error_of_a_worker_is_told_however_long_its_traceback(depth: int, chained: bool) -> None:
    try:
        try:
            _fail(depth)
        except OverflowError as cause:
            if chained:
                raise RuntimeError("the task is lost") from cause
            raise
    except Exception:
        trace = traceback.format_exc()
    stack = "\n".join(f"\tat org.apache.spark.Thing{n}.run(Thing.scala:{n})" for n in range(50))
    error = spark_error(
        PythonException(f"An exception was thrown from the Python worker. Please see the stack:\n{trace}\n{stack}")
    )
    assert isinstance(error, EpochFailed)
    expected = "RuntimeError: the task is lost" if chained else "OverflowError: can't serialize ints < -2**63"
    assert expected in error.found
    assert __file__ in error.found
    assert "An exception was thrown from the Python worker" in error.found
    assert "org.apache.spark" not in error.found and "_fail(depth - 1)" not in error.found
    assert len(error.found.splitlines()) <= 6


def test_a_refusal_of_spark_names_the_expressions_that_were_not_checked() -> None:
    class Hit(hr.Record):
        page: str
        n: int = 0

    app = hr.App("hits")
    hits = app.read("hits", hr.source.items([]), Hit)
    hits.where("n > 0").where("soundex(page) > 'A'").write(hr.sink.collect())
    error = spark_error(AnalysisException("no such thing"), app.nodes)
    assert "\"soundex(page) > 'A'\" (where at " in error.next_move
    assert "test_failures.py:" in error.next_move
    assert "n > 0" not in error.next_move
    assert "sources" in spark_error(AnalysisException("no such thing")).next_move
