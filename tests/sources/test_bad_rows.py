"""Input that a source written in Python cannot decode: to the stream of errors, or the end of the job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

import headrace as hr
from headrace.connectors.source_contract import BadInput, BadRows, Offset, Source, Split, SplitReader
from headrace.errors import BadRow
from headrace.model.rows import RowCodec, codec_of
from headrace.spark.python_source import ReadOptions, _PythonReader, reader_options
from headrace.testing.sources import verify_source

LINES = ["1", "2", "three", "4", "", "six", "7"]


class Number(hr.Record):
    n: int


class LineReader(SplitReader):
    """Lines that should be numbers; the offset is how many lines have been read."""

    def __init__(self, schema: pa.Schema, lines: list[str]) -> None:
        self.schema = schema
        self.lines = lines

    def initial(self) -> Offset:
        return {"line": 0}

    def latest(self, start: Offset, limit: int | None) -> Offset:
        end = len(self.lines) if limit is None else min(len(self.lines), start["line"] + limit)
        return {"line": max(start["line"], end)}

    def splits(self, start: Offset, end: Offset) -> list[Split]:
        return [] if start == end else [Split("log", start, end)]

    def read(self, split: Split) -> Iterator[pa.RecordBatch | BadRows]:
        for number in range(split.start["line"], split.end["line"]):
            text = self.lines[number]
            if text.isdigit():
                yield pa.RecordBatch.from_arrays([pa.array([int(text)], pa.int64())], schema=self.schema)
            else:
                yield BadRows([BadRows.text(f"log:{number + 1}", text, "this is no number")])


class Lines(Source):
    kind: ClassVar[str] = "lines"
    python: ClassVar[bool] = True

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    @property
    def bounded(self) -> bool:
        return True

    def reader(self, codec: RowCodec) -> LineReader:
        return LineReader(codec.schema, self.lines)


CODEC = codec_of(Number)


def test_bad_rows_are_replayed_and_counted_like_all_others() -> None:
    assert verify_source(lambda: LineReader(CODEC.schema, LINES), CODEC.schema, limit=2) == len(LINES)


def test_bad_rows_that_change_from_reading_to_reading_are_found() -> None:
    class Forgetful(LineReader):
        reads = 0

        def read(self, split: Split) -> Iterator[pa.RecordBatch | BadRows]:
            self.reads += 1
            for each in super().read(split):
                yield BadRows([f"reading {self.reads}"]) if isinstance(each, BadRows) else each

    with pytest.raises(AssertionError, match="other rows"):
        verify_source(lambda: Forgetful(CODEC.schema, LINES), CODEC.schema)


def test_a_reader_that_says_it_has_no_bad_rows_must_have_none() -> None:
    class Boastful(LineReader):
        never_bad: ClassVar[bool] = True

    with pytest.raises(AssertionError, match="never are any"):
        verify_source(lambda: Boastful(CODEC.schema, LINES), CODEC.schema)


def test_spark_gets_bad_rows_as_rows_without_values_and_with_their_text() -> None:
    options = reader_options(LineReader(CODEC.schema, LINES), "n BIGINT", ReadOptions("lines"))
    schema = StructType().add("n", LongType()).add("__split", StringType()).add("__bad", StringType())
    reader = _PythonReader(options["reader"], ReadOptions("lines"), schema)
    [partition] = reader.partitions({"line": 1}, {"line": 4})
    batches = list(reader.read(partition))
    assert len({batch.schema for batch in batches}) == 1, "all batches have one schema"
    rows = [row for batch in batches for row in batch.to_pylist()]
    told = '{"where":"log:3","text":"three","reason":"this is no number"}'
    assert rows == [
        {"n": 2, "__split": "log", "__bad": None},
        {"n": None, "__split": "log", "__bad": told},
        {"n": 4, "__split": "log", "__bad": None},
    ]


def test_a_source_explains_bad_rows_in_the_words_of_its_reader() -> None:
    bad = Lines(LINES).explain_bad(CODEC, BadRows.text("log:3", "three", "this is no number"))
    assert bad == BadInput(where="log:3", text="three", reason="this is no number")
    assert Lines(LINES).explain_bad(CODEC, "no JSON").text == "no JSON", "words of somebody else do no harm"


BAD = BadRows([BadRows.text("log:3", "three", "this is no number"), BadRows.text("log:5", "", "this is no number")])


def test_bad_rows_go_to_the_stream_of_errors_where_that_is_read() -> None:
    app = hr.App("lines")
    numbers = app.read("numbers", Lines(LINES), Number)
    numbers.errors.write(hr.sink.discard())
    positive = numbers.where("n > 1")
    with hr.testing.Harness(app) as h:
        h.push(numbers, Number(1), BAD, Number(2))
        h.epoch()
        assert h.take(positive) == [Number(2)]
        failed = h.take(numbers.errors)
        assert [(each.step, each.error, each.row) for each in failed] == [
            ("numbers", "log:3: this is no number", b"three"),
            ("numbers", "log:5: this is no number", b""),
        ]
        h.push(numbers, BAD)
        h.epoch()
        assert h.take(positive) == []
        assert len(h.take(numbers.errors)) == 2, "an epoch of nothing else is one, too"


def test_bad_rows_stop_the_job_where_nobody_reads_them() -> None:
    app = hr.App("lines")
    numbers = app.read("numbers", Lines(LINES), Number)
    numbers.write(hr.sink.discard())
    with hr.testing.Harness(app) as h:
        h.push(numbers, Number(1), BAD)
        with pytest.raises(BadRow) as caught:
            h.epoch()
    assert caught.value.where == "log:3"
    assert caught.value.what == "this is no number"
    assert caught.value.found == "three"
    assert "Number" in caught.value.expected
    assert ".errors" in caught.value.next_move
