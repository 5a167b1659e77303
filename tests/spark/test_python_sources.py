"""Sources written in Python, as Spark reads them: bad rows, and what their readers raise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
import pytest

import headrace as hr
from headrace.connectors.source_contract import BadRows, Offset, Source, Split, SplitReader
from headrace.errors import BadRow, EpochFailed, InputLost
from headrace.model.rows import RowCodec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LINES = ["a 1", "b 2", "c three", "a 4", "oops", "b 6"]


class Scored(hr.Record):
    who: str
    n: int


def same(row: Scored) -> Scored:
    return row


class LineReader(SplitReader):
    """Lines of a name and a number. Planning fails at a line: at the first for ever, later once."""

    def __init__(self, schema: pa.Schema, failed: Path, fails_at: int, lost: bool) -> None:
        self.schema = schema
        self.failed = failed
        self.fails_at = fails_at
        self.lost = lost

    def initial(self) -> Offset:
        return {"line": 0}

    def latest(self, start: Offset, limit: int | None) -> Offset:
        if self.fails_at == start["line"] and not self.failed.exists():
            if start["line"]:
                self.failed.touch()
            raise EpochFailed("the log's server does not answer", where="log", next_move="look whether it runs")
        return {"line": min(len(LINES), start["line"] + 2)}

    def splits(self, start: Offset, end: Offset) -> list[Split]:
        return [] if start == end else [Split("log", start, end)]

    def read(self, split: Split) -> Iterator[pa.RecordBatch | BadRows]:
        for number in range(split.start["line"], split.end["line"]):
            if self.lost and number == 3:
                raise InputLost("line 4 is gone", where="log", expected="line 4", next_move="mend the log")
            who, _, n = LINES[number].partition(" ")
            if n.isdigit():
                columns = [pa.array([who], pa.string()), pa.array([int(n)], pa.int64())]
                yield pa.RecordBatch.from_arrays(columns, schema=self.schema)
            else:
                yield BadRows([BadRows.text(f"log:{number + 1}", LINES[number], "this is no number")])


class Lines(Source):
    kind: ClassVar[str] = "lines"
    python: ClassVar[bool] = True

    def __init__(self, *, failed: Path = Path("failed"), fails_at: int = -1, lost: bool = False) -> None:
        self.failed = failed
        self.fails_at = fails_at
        self.lost = lost

    @property
    def bounded(self) -> bool:
        return True

    @property
    def has_splits(self) -> bool:
        return True

    def reader(self, codec: RowCodec) -> LineReader:
        return LineReader(codec.schema, self.failed, self.fails_at, self.lost)


def test_bad_rows_reach_the_errors_and_a_plan_that_failed_is_made_again(
    spark: SparkSession, store_path: Path, tmp_path: Path
) -> None:
    app = hr.App("scores")
    lines = app.read("lines", Lines(failed=tmp_path / "failed", fails_at=2), Scored)
    totals = lines.where("n > 0").key_by(Scored.who).reduce(lambda a, b: a.replace(n=a.n + b.n)).named("totals")
    bad, seen = hr.sink.collect(), hr.sink.collect()
    lines.errors.write(bad, name="bad")
    totals.write(seen, name="seen")
    app.run(store=store_path, until="drained", spark=spark)
    assert (tmp_path / "failed").exists(), "the plan of the second epoch failed once"
    newest = {each.who: each.n for each in seen.rows}
    assert newest == {"a": 5, "b": 8}
    assert sorted((each.step, each.error, each.row) for each in bad.rows) == [
        ("lines", "log:3: this is no number", b"c three"),
        ("lines", "log:5: this is no number", b"oops"),
    ]


def test_a_bad_row_that_nobody_reads_stops_the_job_in_the_words_of_its_source(
    spark: SparkSession, store_path: Path
) -> None:
    app = hr.App("scores")
    lines = app.read("lines", Lines(), Scored)
    # Nothing but columns before the exchange: the JVM itself writes the wire, and the bad row travels as a control row.
    lines.key_by(Scored.who).reduce(lambda a, b: a).named("first").write(hr.sink.collect(), name="seen")
    with pytest.raises(BadRow) as caught:
        app.run(store=store_path, until="drained", spark=spark)
    assert (caught.value.where, caught.value.what) == ("log:3", "this is no number")
    assert caught.value.found == "c three"


def test_input_that_is_gone_ends_the_job_in_the_words_of_its_reader(spark: SparkSession, store_path: Path) -> None:
    app = hr.App("scores")
    lines = app.read("lines", Lines(lost=True), Scored)
    lines.errors.write(hr.sink.collect(), name="bad")
    lines.map(same).write(hr.sink.collect(), name="seen")
    with pytest.raises(InputLost) as caught:
        app.run(store=store_path, until="drained", spark=spark)
    assert (caught.value.what, caught.value.where) == ("line 4 is gone", "log")
    assert caught.value.next_move == "mend the log"
    assert "Traceback" not in str(caught.value)


def test_a_plan_that_fails_too_often_ends_the_job_in_the_words_of_its_reader(
    spark: SparkSession, store_path: Path
) -> None:
    app = hr.App("scores")
    app.read("lines", Lines(fails_at=0), Scored).map(same).write(hr.sink.collect(), name="seen")
    with pytest.raises(EpochFailed) as caught:
        app.run(store=store_path, until="drained", spark=spark, restarts=0)
    assert (caught.value.what, caught.value.where) == ("the log's server does not answer", "log")
    assert "Traceback" not in str(caught.value)
