"""What a chain gets of the rows of a source where no JVM says it: time, splits, the cut of a backfill, expressions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from polars.exceptions import PanicException

import headrace as hr
from headrace.connectors.source_contract import BadRows, LeftToSpark, WorkerRows
from headrace.errors import ExpressionError
from headrace.model.batch import Rows
from headrace.model.rows import codec_of
from headrace.model.wire import ROW_BAD, ROW_MARK, ROW_SPLIT, ROW_TIME
from headrace.plan.compile import compile_app
from headrace.plan.physical import SourcePlan
from headrace.plan.rules.decoding import worker_evaluates
from headrace.plan.sides import Side, one_side
from headrace.runtime.marking import LargestTimes
from headrace.runtime.source_rows import SourceRows

SECOND = 1_000_000


class Line(hr.Record):
    host: str
    at: hr.Timestamp
    n: int = 0


def line(host: str, second: int, n: int = 0) -> Line:
    return Line(host, hr.Timestamp(second * SECOND), n)


LINES = [line("a", 1, 1), line("b", 2, 2), line("", 3, 3)]


def plan_of(source: hr.Source, behind: Any = None, *, side: Side | None = None, **read: Any) -> SourcePlan:
    app = hr.App("lines")
    lines = app.read("lines", source, Line, **read)
    (lines if behind is None else behind(lines)).map(str).write(hr.sink.discard())
    program = compile_app(app, parallelism=2, key_groups=16)
    return (program if side is None else one_side(program, side)).sources[0]


def given(plan: SourcePlan, lines: list[Line], marking: LargestTimes | None = None) -> dict[str, list[Any]]:
    made = SourceRows(plan, marking).good(Rows.of_objects(plan.codec, lines).record_batch)
    found: dict[str, list[Any]] = made.to_pydict()
    return found


def files(**options: Any) -> hr.Source:
    return hr.source.files("lines/", format="parquet", **options)


def test_time_is_a_field_an_expression_or_nothing() -> None:
    seconds = [SECOND, 2 * SECOND, 3 * SECOND]
    assert list(given(plan_of(files(), time=Line.at), LINES)) == ["host", "at", "n"]
    later = plan_of(files(), time="at + INTERVAL 1 SECOND")
    assert given(later, LINES)[ROW_TIME] == [us + SECOND for us in seconds]
    untimed = given(plan_of(files()), LINES)
    assert list(untimed) == ["host", "at", "n"] and untimed["host"] == ["a", "b", ""]


def test_a_producer_is_told_by_a_field() -> None:
    plan = plan_of(files(split=Line.host), time=Line.at)
    assert worker_evaluates(plan)
    assert given(plan, LINES)[ROW_SPLIT] == ["a", "b", "(none)"]


def test_what_only_spark_can_say_of_rows_is_not_evaluated() -> None:
    assert worker_evaluates(plan_of(files(), time=Line.at))
    assert not worker_evaluates(plan_of(files(split="_metadata.file_name || host"), time=Line.at))
    assert not worker_evaluates(plan_of(files(), time="to_timestamp(soundex(host))"))
    assert not worker_evaluates(plan_of(files(split="n % 3"), time=Line.at)), "Spark asks before n has its default"
    assert not worker_evaluates(
        plan_of(files(), lambda lines: lines.with_columns(n="n + 1").where("soundex(host) = 'x'"))
    )


def test_rows_tell_how_far_time_is() -> None:
    plan = plan_of(files(), time=Line.at, watermark=hr.watermarks.punctuated("CASE WHEN n = 2 THEN at END"))
    assert given(plan, LINES)[ROW_MARK] == [None, 2 * SECOND, None]


@pytest.mark.parametrize(
    ("side", "hosts", "splits"), [("history", ["a"], ["(history) a"]), ("live", ["b", ""], ["b", "(none)"])]
)
def test_a_cut_leaves_each_side_its_rows(side: Side, hosts: list[str], splits: list[str]) -> None:
    both = hr.source.backfill(files(split=Line.host), files(split=Line.host), until=hr.Timestamp(2 * SECOND))
    found = given(plan_of(both, side=side, time=Line.at), LINES)
    assert (found["host"], found[ROW_SPLIT]) == (hosts, splits)


def test_history_without_splits_or_without_a_cut_is_whole() -> None:
    found = given(plan_of(hr.source.backfill(files(), files()), side="history", time=Line.at), LINES)
    assert (found["n"], found[ROW_SPLIT]) == ([1, 2, 3], [None] * 3)


def test_steps_follow_each_other_and_what_a_filter_hides_is_noted() -> None:
    plan = plan_of(
        files(),
        lambda lines: lines.with_columns(twice="n * 2").where("twice < 4").select(host="upper(host)", n="twice + n"),
        time=Line.at,
    )
    assert worker_evaluates(plan)
    marking = LargestTimes()
    found = given(plan, LINES, marking)
    assert found == {"host": ["A"], "n": [3], ROW_TIME: [SECOND]}
    assert marking.marks == {"": 3 * SECOND}
    assert given(plan, [], marking)["n"] == []


FAR = hr.Timestamp(2**63 - 1)


@pytest.mark.parametrize(
    "behind", [lambda lines: lines.where("year(at) > 2000"), lambda lines: lines.select(at="at + INTERVAL 1 DAY")]
)
def test_times_that_libraries_count_in_many_ways_are_left_to_spark_where_something_is_computed(behind: Any) -> None:
    assert decoded(plan_of(files(), time=Line.at), [Line("a", FAR)])["at"]
    with pytest.raises(LeftToSpark, match="at lies beyond the years 1 to 9999"):
        decoded(plan_of(files(), behind), [Line("a", FAR)])


def test_what_an_expression_cannot_digest_is_an_error_of_ours_or_left_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(files(), lambda lines: lines.where("1 div n > 0"))
    with pytest.raises(ExpressionError):
        decoded(plan, [line("a", 1, 0)])

    def panics(self: SourceRows, *batch: object) -> None:
        raise PanicException("out of range")

    monkeypatch.setattr(SourceRows, "good", panics)
    with pytest.raises(LeftToSpark, match="out of range"):
        decoded(plan, [line("a", 1, 1)])


class Given(WorkerRows):
    """A file that holds these lines."""

    def __init__(self, lines: list[Line]) -> None:
        self.lines = lines

    def read(self, pieces: pa.RecordBatch) -> Iterator[pa.RecordBatch | BadRows]:
        yield Rows.of_objects(codec_of(Line), self.lines).record_batch


def decoded(plan: SourcePlan, lines: list[Line]) -> dict[str, list[Any]]:
    (batch,) = SourceRows(plan).decode(Given(lines), [pa.record_batch({"piece": [0]})])
    found: dict[str, list[Any]] = {
        name: batch.column(name).to_numpy(zero_copy_only=False).tolist() for name in batch.schema.names
    }
    return found


def test_a_row_that_could_not_be_decoded_has_its_text_and_nothing_else() -> None:
    batch = SourceRows(plan_of(files(), time=Line.at)).bad(["{"])
    assert batch.to_pylist() == [{"host": None, "at": None, "n": None, ROW_BAD: "{"}]
    assert batch.schema.field("at").type == pa.timestamp("us", "UTC")
