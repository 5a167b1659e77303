"""`source.files` without a JVM: what is refused, where a bad row was, and the text that Spark is given."""

from __future__ import annotations

import gzip
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlglot

import headrace as hr
from headrace import source
from headrace.connectors.files.errors import explain_bad_row, find_line, local_file
from headrace.connectors.reading import literal
from headrace.errors import ProgramError
from headrace.model.record import Record
from headrace.model.rows import codec_of
from headrace.model.time import Timestamp


class View(Record):
    tweet: str
    at: Timestamp
    n: int = 1


class Tagged(Record):
    name: str
    tags: list[str]


class Odd(Record):
    name: str
    by_number: dict[int, str]


class Anything(Record):
    name: str
    what: Any


class AllOptional(Record):
    name: str = "x"
    n: int | None = None


CODEC = codec_of(View)


@pytest.mark.parametrize(
    ("format", "row_type", "words"),
    [
        ("csv", Tagged, "field tags cannot be read from csv"),
        ("json", Odd, "field by_number cannot be read from json"),
        ("json", Anything, "field what cannot be read from json"),
        ("csv", Anything, "field what cannot be read from csv"),
    ],
)
def test_a_field_that_the_format_cannot_say_is_refused_while_building(
    format: Any, row_type: type[Record], words: str
) -> None:
    with pytest.raises(ProgramError, match=words):
        source.files("in", format=format).bind(codec_of(row_type))


@pytest.mark.parametrize(("format", "row_type"), [("json", Tagged), ("parquet", Odd), ("parquet", Anything)])
def test_a_field_that_the_format_can_say_is_taken(format: Any, row_type: type[Record]) -> None:
    assert source.files("in", format=format).bind(codec_of(row_type)).kind == "files"


def test_an_unknown_format_points_to_the_general_source() -> None:
    with pytest.raises(ProgramError, match='hr.source.spark\\("avro"'):
        source.files("in", format="avro")  # type: ignore[arg-type]


def test_a_missing_folder_is_said_at_start_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="mkdir -p"):
        source.files(tmp_path / "nowhere").spark(CODEC)


def test_an_empty_folder_is_fine(tmp_path: Path) -> None:
    assert source.files(tmp_path, format="csv").spark(CODEC).schema_ddl == (
        "`tweet` STRING, `at` STRING, `n` STRING, __corrupt STRING"
    )


def test_patterns_and_urls_are_left_to_spark() -> None:
    assert source.files("s3a://bucket/in").spark(CODEC).load_path == "s3a://bucket/in"
    assert source.files("no/such/*").spark(CODEC).load_path == str(Path("no/such/*").absolute())


def test_a_row_type_without_required_fields_has_no_missing_ones_in_parquet(tmp_path: Path) -> None:
    read = source.files(tmp_path, format="parquet").spark(codec_of(AllOptional))
    assert read.bad is None and read.raw is None


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_the_expressions_parse(tmp_path: Path, format: Any) -> None:
    read = source.files(tmp_path, format=format).spark(CODEC)
    for text in (*read.columns.values(), *read.prepare, read.bad, read.raw):
        sqlglot.parse_one(f"SELECT {text}", dialect="spark")
    assert list(read.columns) == CODEC.names


def test_the_header_of_the_first_file_gives_the_order_of_cells(tmp_path: Path) -> None:
    (tmp_path / "_hidden.csv").write_text("x\n")
    (tmp_path / "b.csv").write_text("other\n")
    (tmp_path / "a.csv").write_bytes('\ufeffn,"tweet",at\r\n'.encode())
    ddl = source.files(tmp_path, format="csv").spark(CODEC).schema_ddl
    assert ddl == "`n` STRING, `tweet` STRING, `at` STRING, __corrupt STRING"


@pytest.mark.parametrize(
    ("value", "kind", "sql"),
    [
        (None, pa.int64(), "CAST(NULL AS BIGINT)"),
        (True, pa.bool_(), "true"),
        (-5, pa.int64(), "CAST('-5' AS BIGINT)"),
        ("it's \\ ok", pa.string(), "CAST('it\\'s \\\\ ok' AS STRING)"),
        (Timestamp(5), pa.timestamp("us", "UTC"), "timestamp_micros(5L)"),
        (date(2024, 1, 1), pa.date32(), "CAST('2024-01-01' AS DATE)"),
        (b"\x00", pa.binary(), "unbase64('AA==')"),
        (["a"], pa.list_(pa.string()), "from_json('[\"a\"]', 'ARRAY<STRING>')"),
    ],
)
def test_defaults_are_literals_of_the_fields_type(value: Any, kind: pa.DataType, sql: str) -> None:
    assert literal(value, kind) == sql


def locate_line(path: Path, text: str, fields: tuple[str, ...] = ()) -> int | None:
    line = find_line(path, text, fields)
    return None if line is None else line[0]


def test_a_line_is_located_by_its_text(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes("\ufefffirst\r\nsecond\r\n\r\nlast".encode())
    assert [locate_line(path, text) for text in ("first", "second", "last", "none")] == [1, 2, 4, None]


def test_a_line_is_located_in_a_compressed_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b"one\ntwo\n"))
    assert locate_line(path, "two") == 2


def test_a_line_whose_cells_are_quoted_differently_is_located(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('a,b\n"x","y, z"\nx,"y, z"\n')
    assert locate_line(path, 'x,"y, z"') == 3
    assert locate_line(path, '"x",y z') is None
    assert locate_line(path, 'a,"b"') == 1


def test_an_object_that_says_the_same_is_located(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": 1, "b": "x"}\nno json\n{"b": "x", "extra": 1, "c": [1]}\n')
    assert locate_line(path, '{"b":"x","c":[1.0]}', fields=("a", "b", "c")) == 3
    assert locate_line(path, '{"b":"y"}', fields=("a", "b", "c")) is None


def test_a_file_that_is_gone_has_no_line(tmp_path: Path) -> None:
    assert locate_line(tmp_path / "gone.json", "x") is None


@pytest.mark.parametrize(
    ("uri", "path"), [("file:///a%20b/c%25.json", Path("/a b/c%.json")), ("s3a://b/k", None), ("", None)]
)
def test_spark_names_of_files_become_paths(uri: str, path: Path | None) -> None:
    assert local_file(uri) == path


@pytest.mark.parametrize("raw", ["", "no json", '{"file": 5}', "{}", '{"file": "s3a://b/k", "text": "x"}'])
def test_explaining_never_raises(raw: str) -> None:
    for format in ("json", "csv", "parquet"):
        assert explain_bad_row(CODEC, raw, format).reason


class Logged(Record):
    host: str
    at: Timestamp
    n: int = 0


def test_a_field_or_sql_says_which_producer_a_row_is_of(tmp_path: Path) -> None:
    codec = codec_of(Logged)
    for split in (Logged.host, "host", "upper(host)", "regexp_extract(_metadata.file_name, '^([a-z]+)-', 1)"):
        made = source.files(tmp_path, split=split).bind(codec)
        read = made.spark(codec)
        assert made.has_splits
        assert read.split is not None and "'(none)'" in read.split
        sqlglot.parse_one(f"SELECT {read.split}", dialect="spark")
    assert not source.files(tmp_path).has_splits
    assert source.files(tmp_path, split=Logged.host).describe() == f"files {tmp_path} (json), split by host"


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ("hots", "there is no column 'hots'"),
        ("regexp_extract(metadata.file_name, 'x')", "there is no column 'metadata'"),
        ("host +", "expression"),
        (7, "this is not a column"),
        ("_metadata.file_name", "split= cannot be the whole file name"),
        ("_metadata.file_path", "split= cannot be the whole file name"),
    ],
)
def test_a_split_that_nothing_tells_or_that_would_never_move_is_refused_while_building(split: Any, words: str) -> None:
    with pytest.raises(ProgramError, match=words) as refused:
        source.files("in", split=split).bind(codec_of(Logged))
    assert 'source.files("in")' in str(refused.value)


class Hour:
    """How many rows each hour has, of files that two producers write."""

    def __init__(self, split: Any, **options: Any) -> None:
        self.app = hr.App("logs")
        made = hr.source.files("in", split=split)
        self.logs = self.app.read("logs", made, Logged, time=Logged.at, **options)
        self.hours = self.logs.key_by(Logged.n).window(hr.tumbling("1h")).aggregate(rows=hr.count()).named("hours")
        self.hours.show()

    def play(self, h: hr.testing.Harness, *rows: tuple[str, str], split: str = "", **clock: Any) -> list[int]:
        """Reads rows (host, time) in one epoch; what hours are complete then."""
        h.push(self.logs, *(Logged(host, h.at(at)) for host, at in rows), split=split)
        h.epoch(**clock)
        return [row.rows for row in h.take(self.hours)]


def test_time_is_that_of_the_newest_file_where_nothing_is_said() -> None:
    program = Hour(None)
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        assert program.play(h, ("a", "12:10"), ("b", "12:20")) == []
        assert program.play(h, ("a", "13:10")) == [2]
        assert program.play(h, ("b", "12:50")) == [], "a file that comes behind is late"


@pytest.mark.parametrize("split", [Logged.host, "host", "lower(concat(host, '-', host))"])
def test_time_waits_for_the_slowest_producer_where_rows_say_whose_they_are(split: Any) -> None:
    program = Hour(split)
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        assert program.play(h, ("a", "12:10"), ("b", "12:20")) == []
        assert program.play(h, ("a", "13:10")) == []
        h.restart()
        assert program.play(h, ("b", "12:50")) == []
        assert program.play(h, ("b", "13:00")) == [3]


def test_where_the_name_of_a_file_says_whose_it_is_a_test_says_it_too() -> None:
    program = Hour("regexp_extract(_metadata.file_name, '^([a-z]+)-', 1)")
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        assert program.play(h, ("", "12:10"), split="ann") == []
        assert program.play(h, ("", "12:20"), split="bob") == []
        assert program.play(h, ("", "13:10"), split="ann") == []
        assert program.play(h, ("", "13:10"), split="bob") == [2]


def test_a_producer_that_stopped_writing_holds_time_until_it_is_idle() -> None:
    program = Hour(Logged.host, idle="10m")
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        assert program.play(h, ("a", "12:10"), ("b", "12:20"), clock="12:20") == []
        assert program.play(h, ("a", "13:10"), clock="12:25") == []
        assert program.play(h, ("a", "13:11"), clock="12:30") == [2]


def test_rows_without_a_producer_are_a_split_of_their_own() -> None:
    program = Hour("nullif(host, 'x')")
    with hr.testing.Harness(program.app, start="2024-01-01T12:00") as h:
        assert program.play(h, ("a", "13:10"), ("x", "12:20"), ("", "12:30")) == []
        assert program.play(h, ("x", "13:00")) == [2]
