"""Steps without state: functions per row, per batch, and expressions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import ExpressionError, FunctionFailed
from headrace.model.batch import Rows
from headrace.model.rows import codec_of
from headrace.operators.contract import Operator, TaskInfo
from headrace.operators.failures import function_failed
from headrace.operators.stateless import BatchOperator, call_operator, expression_operator
from headrace.runtime.failures import reported_error


class Tap(hr.Record):
    user: str
    n: int


class Out(hr.Record):
    text: str


TAPS = codec_of(Tap)


def taps(*numbers: int) -> list[Tap]:
    return [Tap("a", n) for n in numbers]


class Pushed:
    def __init__(self, operator: Operator, outlets: Sequence[str] = ()) -> None:
        self.out: dict[str, list[tuple[Any, int | None]]] = {"main": []}
        self.operator = operator
        operator.outlets = {tag: self._outlet(tag) for tag in ("main", *outlets)}
        operator.open()
        operator.begin(TaskInfo(0, 0, 0), None)

    def _outlet(self, tag: str) -> Any:
        def take(rows: Rows) -> None:
            times = [None] * len(rows) if rows.times is None else rows.times.tolist()
            self.out.setdefault(tag, []).extend(zip(rows.codec.to_objects(rows.columns), times))

        return take

    def push(self, rows: list[Any], timed: bool = True, codec: Any = TAPS) -> list[tuple[Any, int | None]]:
        times = np.arange(100, 100 + len(rows)) if timed else None
        self.operator.process(0, Rows.of_columns(codec, codec.to_arrays(rows), times), None)
        return self.out["main"]


@pytest.mark.parametrize("timed", [True, False])
def test_map_gives_one_row_for_each_with_its_time(timed: bool) -> None:
    pushed = Pushed(call_operator("map", "s", lambda tap: Out(str(tap.n)), codec_of(Out)))
    assert pushed.push(taps(1, 2), timed) == [(Out("1"), 100 if timed else None), (Out("2"), 101 if timed else None)]
    assert (pushed.operator.report.rows_in, pushed.operator.report.rows_out) == (2, 2)


def test_filter_keeps_rows_and_times() -> None:
    pushed = Pushed(call_operator("filter", "s", lambda tap: tap.n % 2, TAPS))
    assert pushed.push(taps(1, 2, 3)) == [(Tap("a", 1), 100), (Tap("a", 3), 102)]


def test_flat_map_gives_any_number_of_rows_with_the_time_of_theirs() -> None:
    def spell(tap: Tap) -> Iterator[Out] | None:
        return None if tap.n < 0 else iter([Out(str(i)) for i in range(tap.n)])

    pushed = Pushed(call_operator("flat_map", "s", spell, codec_of(Out)))
    assert pushed.push(taps(2, 0, -1, 1)) == [(Out("0"), 100), (Out("1"), 100), (Out("0"), 103)]


class Click(hr.Record, tag=True):
    x: int


class Scroll(hr.Record, tag=True):
    y: int


class Leave(hr.Record, tag=True):
    why: str


def test_only_keeps_the_rows_of_a_member() -> None:
    union = codec_of(Click | Scroll | Leave)
    rows: list[Any] = [Click(1), Scroll(2), Leave("z"), Click(4)]
    pushed = Pushed(call_operator("only", "s", Click, codec_of(Click)))
    assert pushed.push(rows, codec=union) == [(Click(1), 100), (Click(4), 103)]
    pushed = Pushed(call_operator("only", "s", Click | Leave, codec_of(Click | Leave)))
    assert [row for row, _ in pushed.push(rows, codec=union)] == [Click(1), Leave("z"), Click(4)]


def picky(tap: Tap) -> Any:
    if tap.n == 13:
        raise ValueError("thirteen")
    if tap.n == 14:
        raise StopIteration
    return True


@pytest.mark.parametrize("op", ["map", "filter", "flat_map"])
@pytest.mark.parametrize(("bad", "error"), [(13, "ValueError: thirteen"), (14, "StopIteration")])
def test_a_failing_row_stops_the_task_and_is_named(op: str, bad: int, error: str) -> None:
    wrap = {"map": lambda tap: picky(tap) and Out("x"), "filter": picky, "flat_map": lambda tap: picky(tap) and []}
    pushed = Pushed(call_operator(op, "s", wrap[op], TAPS if op == "filter" else codec_of(Out)))
    with pytest.raises(FunctionFailed, match=error) as caught:
        pushed.push(taps(1, bad, 2))
    failure = caught.value.failure
    assert str(bad) in failure.row
    if bad == 13:
        assert failure.file == __file__


@pytest.mark.parametrize("op", ["map", "filter", "flat_map"])
def test_where_errors_are_read_only_failing_rows_go_there(op: str) -> None:
    wrap = {
        "map": lambda tap: picky(tap) and tap,
        "filter": picky,
        "flat_map": lambda tap: [tap, tap, tap][: 1 + 2 * (tap.n == 5)] if picky(tap) else None,
    }
    pushed = Pushed(call_operator(op, "s", wrap[op], TAPS), outlets=["errors"])
    kept = pushed.push(taps(13, 1, 14, 13, 5, 14))
    assert kept == [(Tap("a", 1), 101)] + [(Tap("a", 5), 104)] * (3 if op == "flat_map" else 1)
    assert [at for _, at in pushed.out["errors"]] == [100, 102, 103, 105]
    assert next(failed.error.partition(":")[0] for failed, _ in pushed.out["errors"]) == "ValueError"
    assert b'"n":13' in pushed.out["errors"][0][0].row


def test_rows_that_flat_map_gave_before_it_raised_are_taken_back() -> None:
    def half(tap: Tap) -> Iterator[Tap]:
        yield tap
        if tap.n == 13:
            raise ValueError

    pushed = Pushed(call_operator("flat_map", "s", half, TAPS), outlets=["errors"])
    assert pushed.push(taps(1, 13, 2)) == [(Tap("a", 1), 100), (Tap("a", 2), 102)]


# --- batches


def double_arrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    import pyarrow.compute as pc

    return batch.set_column(1, "n", pc.multiply(batch.column(1), 2))


def double_polars(frame: Any) -> Any:
    import polars as pl

    return frame.with_columns(pl.col("n") * 2)


@pytest.mark.parametrize(("form", "function"), [("arrow", double_arrow), ("polars", double_polars)])
def test_map_batches_takes_and_gives_tables(form: Any, function: Any) -> None:
    pushed = Pushed(BatchOperator("s", function, form, TAPS))
    assert pushed.push(taps(1, 2)) == [(Tap("a", 2), 100), (Tap("a", 4), 101)]


def test_map_batches_takes_and_gives_pandas_tables() -> None:
    pytest.importorskip("pandas")
    pushed = Pushed(BatchOperator("s", lambda frame: frame.assign(n=frame.n * 2), "pandas", TAPS))
    assert pushed.push(taps(1, 2)) == [(Tap("a", 2), 100), (Tap("a", 4), 101)]


def test_columns_are_found_by_name_and_cast() -> None:
    def swap(batch: pa.RecordBatch) -> pa.Table:
        return pa.table({"extra": batch.column(0), "n": batch.column(1).cast(pa.int32()), "user": batch.column(0)})

    assert Pushed(BatchOperator("s", swap, "arrow", TAPS)).push(taps(1)) == [(Tap("a", 1), 100)]


def test_fewer_rows_get_the_newest_time_of_the_batch_or_their_own() -> None:
    class Timed(hr.Record):
        n: int
        at: hr.Timestamp

    codec = codec_of(Timed)
    rows = [Timed(1, hr.Timestamp(7)), Timed(2, hr.Timestamp(9))]
    first = lambda batch: batch.slice(0, 1)  # noqa: E731
    assert Pushed(BatchOperator("s", first, "arrow", codec)).push(rows, codec=codec) == [(rows[0], 101)]
    timed = BatchOperator("s", first, "arrow", codec, time_column="at")
    assert Pushed(timed).push(rows, codec=codec) == [(rows[0], 7)]


def test_a_table_without_a_required_column_is_an_error_that_names_it() -> None:
    pushed = Pushed(BatchOperator("s", lambda batch: batch.select(["user"]), "arrow", TAPS))
    with pytest.raises(FunctionFailed, match="no column 'n'"):
        pushed.push(taps(1))


def test_a_failing_batch_goes_to_errors_row_by_row() -> None:
    pushed = Pushed(BatchOperator("s", lambda batch: 1 / 0, "arrow", TAPS), outlets=["errors"])
    assert pushed.push(taps(1, 2)) == []
    assert [failed.error for failed, _ in pushed.out["errors"]] == ["ZeroDivisionError: division by zero"] * 2


# --- expressions


def test_where_keeps_rows_for_which_text_is_true() -> None:
    pushed = Pushed(expression_operator("where", "s", [("", "n > 1")], TAPS, TAPS))
    assert pushed.push(taps(1, 2, 3)) == [(Tap("a", 2), 101), (Tap("a", 3), 102)]


def test_select_computes_columns() -> None:
    pushed = Pushed(expression_operator("select", "s", [("text", "concat(user, '!')")], TAPS, codec_of(Out)))
    assert pushed.push(taps(1)) == [(Out("a!"), 100)]


def test_with_columns_keeps_the_others() -> None:
    pushed = Pushed(expression_operator("with_columns", "s", [("n", "n + 1")], TAPS, TAPS))
    assert pushed.push(taps(1)) == [(Tap("a", 2), 100)]


def test_a_row_without_a_value_fails_alone() -> None:
    exprs = [("n", "CAST(6 div n AS BIGINT)")]
    pushed = Pushed(expression_operator("with_columns", "s", exprs, TAPS, TAPS), outlets=["errors"])
    assert [row.n for row, _ in pushed.push(taps(1, 0, 3))] == [6, 2]
    assert [at for _, at in pushed.out["errors"]] == [101]
    with pytest.raises(FunctionFailed, match="div") as caught:
        Pushed(expression_operator("with_columns", "s", exprs, TAPS, TAPS)).push(taps(1, 0, 3))
    assert "try_divide" in caught.value.next_move


def test_what_an_error_of_ours_expected_and_found_is_said_once() -> None:
    error = ExpressionError("no value for a row", where="step x", expected="a number", found="'abc'")
    failed = function_failed(error, step="prices", function="CAST(a AS INT)", row=None)
    assert failed.what == "CAST(a AS INT) raised ExpressionError: no value for a row"
    assert (failed.where, failed.expected, failed.found) == ("step prices", "a number", "'abc'")
    again = reported_error(failed.failure)
    assert str(again).count("expected:") == str(again).count("found:") == str(failed).count("expected:") == 1
