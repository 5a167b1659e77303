"""Parquet decoded in the worker: each row of the pieces once; what Spark may read otherwise is left to it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import source
from headrace.connectors.files import parquet_rows
from headrace.connectors.files.parquet_rows import PIECE_ROWS, ParquetRows
from headrace.connectors.source_contract import BadRows, LeftToSpark
from headrace.model.record import Record
from headrace.model.rows import codec_of
from headrace.model.time import Timestamp

SECOND = 1_000_000


class View(Record):
    tweet: str
    at: Timestamp
    n: int = 1
    note: str | None = None


class Number(Record):
    i: int


AT = pa.array([SECOND, 2 * SECOND], pa.timestamp("us", "UTC"))


def pieces(*named: tuple[Path, int]) -> pa.RecordBatch:
    """What Spark hands out."""
    files = [f"file://{path}" for path, _ in named]
    return pa.RecordBatch.from_pydict({"file": files, "row": pa.array([row for _, row in named], pa.int64())})


def read(row_type: Any, handed: pa.RecordBatch) -> tuple[list[Any], list[str]]:
    codec = codec_of(row_type)
    rows: list[Any] = []
    bad: list[str] = []
    for found in ParquetRows(codec).read(handed):
        if isinstance(found, BadRows):
            told = [source.files("f", format="parquet").explain_bad(codec, text) for text in found.texts]
            bad += [f"{Path(each.where).name}: {each.reason}: {each.text}" for each in told]
        else:
            assert found.schema == codec.schema
            rows += codec.to_objects(found.columns)
    return rows, bad


def written(path: Path, table: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(table), path, **options)
    return path


@given(data=st.data())
def test_pieces_hold_every_row_once_whatever_row_groups_and_splits_there_are(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows, group = data.draw(st.integers(0, 60)), data.draw(st.integers(1, 70))
    path = written(tmp_path_factory.mktemp("pieces") / "a.parquet", {"i": np.arange(rows)}, row_group_size=group)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_rows, "PIECE_ROWS", data.draw(st.integers(1, 20)))
        starts = list(range(0, rows, parquet_rows.PIECE_ROWS))
        cuts = sorted({0, len(starts), *data.draw(st.lists(st.integers(0, len(starts)), max_size=4))})
        found = []
        for low, high in pairwise(cuts):
            found += read(Number, pieces(*[(path, start) for start in starts[low:high]]))[0]
        assert [row.i for row in found] == list(range(rows))
        one_by_one = [read(Number, pieces((path, start)))[0] for start in reversed(starts)]
        assert sorted(row.i for part in one_by_one for row in part) == list(range(rows))


def test_a_long_file_comes_in_batches_of_a_piece_and_files_one_after_the_other(tmp_path: Path) -> None:
    count = 2 * PIECE_ROWS + 10
    long = written(tmp_path / "long.parquet", {"i": np.arange(count)})
    short = written(tmp_path / "short.parquet", {"i": [-1]})
    handed = pieces((long, 0), (long, PIECE_ROWS), (long, 2 * PIECE_ROWS), (short, 0))
    found = list(ParquetRows(codec_of(Number)).read(handed))
    assert max(len(batch) for batch in found) <= PIECE_ROWS
    values = np.concatenate([batch.column("i").to_numpy() for batch in found])
    assert np.array_equal(values, [*range(count), -1])


def test_what_is_absent_takes_its_default_and_a_row_without_what_must_be_there_is_bad(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", {"tweet": ["a", None], "at": AT, "other": [1, 2]})
    rows, bad = read(View, pieces((path, 0)))
    assert rows == [View("a", Timestamp(SECOND))]
    assert bad == ['a.parquet: tweet is missing: {"at":"1970-01-01 00:00:02.000000Z"}']


def test_a_bad_row_is_told_whatever_its_time_is(tmp_path: Path) -> None:
    far = pa.array(np.array(["20000-01-01"], "datetime64[us]")).cast(pa.timestamp("us", "UTC"))
    path = written(tmp_path / "a.parquet", {"tweet": pa.nulls(1, pa.string()), "at": far})
    _, bad = read(View, pieces((path, 0)))
    assert bad == ['a.parquet: tweet is missing: {"at":568971820800000000}']


def test_a_file_without_any_of_the_fields_has_only_bad_rows(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", {"other": np.zeros(PIECE_ROWS + 2)})
    rows, bad = read(View, pieces((path, PIECE_ROWS)))
    assert (rows, len(bad)) == ([], 2)
    assert bad[0].startswith("a.parquet: tweet is missing")


def test_names_are_found_whatever_the_case_of_their_letters(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", {"Tweet": ["a", "b"], "AT": AT, "N": [5, None]})
    rows, _ = read(View, pieces((path, 0)))
    assert rows == [View("a", Timestamp(SECOND), 5), View("b", Timestamp(2 * SECOND), 1)]


def test_a_packed_field_and_its_default_come_as_they_are_written(tmp_path: Path) -> None:
    class Loose(Record):
        i: int
        what: int | str = 7

    packed = codec_of(Loose).to_arrays([Loose(1, "text")])[1]
    path = written(tmp_path / "a.parquet", {"i": [1, 2], "what": pa.array([packed[0].as_py(), None], pa.binary())})
    assert read(Loose, pieces((path, 0)))[0] == [Loose(1, "text"), Loose(2, 7)]


class Typed(Record):
    text: str | None = None
    whole: int | None = None
    real: float | None = None
    at: Timestamp | None = None
    price: Decimal | None = None
    day: date | None = None
    yes: bool | None = None


LEFT: dict[str, tuple[str, pa.Array]] = {
    "bytes for a text": ("text", pa.array([b"a"])),
    "a number for a text": ("text", pa.array([1])),
    "nothing at all for a text": ("text", pa.array([None], pa.null())),
    "a real for a whole number": ("whole", pa.array([1.0])),
    "a whole number beyond 64 bits": ("whole", pa.array([1], pa.uint64())),
    "a span for a whole number": ("whole", pa.array([1], pa.duration("us"))),
    "a time of day for a whole number": ("whole", pa.array([1], pa.time64("us"))),
    "a large number for a real": ("real", pa.array([1])),
    "nanoseconds": ("at", pa.array([1], pa.timestamp("ns", "UTC"))),
    "a day for a time": ("at", pa.array([date(2020, 1, 1)])),
    "a price without room for cents": ("price", pa.array([Decimal(1)], pa.decimal128(38, 2))),
    "a time for a day": ("day", pa.array([1], pa.timestamp("us"))),
    "a number for a truth": ("yes", pa.array([1])),
}


@pytest.mark.parametrize("case", LEFT)
def test_a_type_that_spark_may_read_otherwise_is_left_to_it(case: str, tmp_path: Path) -> None:
    name, values = LEFT[case]
    path = written(tmp_path / "a.parquet", {name: values}, version="2.6")
    with pytest.raises(LeftToSpark, match=f"^.*a.parquet: {name} is ") as left:
        read(Typed, pieces((path, 0)))
    assert left.value.where == str(path)


def wide_time(path: Path) -> Path:
    return written(path, {"at": AT}, use_deprecated_int96_timestamps=True)


def old_spark(path: Path) -> Path:
    table = pa.table({"at": AT}).replace_schema_metadata({"org.apache.spark.version": "2.4.8"})
    return _with_footer(path, table)


def old_calendar(path: Path) -> Path:
    said = {"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyDateTime": ""}
    return _with_footer(path, pa.table({"at": AT}).replace_schema_metadata(said))


def _with_footer(path: Path, table: pa.Table) -> Path:
    pq.write_table(table, path)
    return path


def two_of_a_name(path: Path) -> Path:
    return written(path, {"at": AT, "At": AT})


def named_folder(path: Path) -> Path:
    folder = path.parent / "Day=2024-01-01"
    folder.mkdir()
    return written(folder / path.name, {"at": AT})


def no_parquet(path: Path) -> Path:
    path.write_text("i,am,csv\n")
    return path


def cut_off(path: Path) -> Path:
    """The footer is whole, and what it speaks of is not."""
    content = bytearray(written(path, {"text": [str(i) for i in range(5000)]}).read_bytes())
    content[4:2000] = b"\0" * 1996
    path.write_bytes(content)
    return path


def page_of_another_kind(path: Path) -> Path:
    """Arrow takes no notice of such a page, and has no rows then."""
    texts = [f"{i:04}" for i in range(100)]
    written(path, {"text": texts}, compression="none", use_dictionary=False, store_schema=False)
    content = bytearray(path.read_bytes())
    content[pq.read_metadata(path).row_group(0).column(0).data_page_offset + 1] = 1
    path.write_bytes(content)
    return path


def no_text(path: Path) -> Path:
    return written(path, {"text": pa.array([b"ok", b"\xff\xfe"]).view(pa.string())})


def no_name(path: Path) -> Path:
    written(path, {"text": ["a"], "pres": [1]}, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"pres", b"pr\xe9s"))
    return path


def vanished(path: Path) -> Path:
    return path


STRANGE: dict[str, Callable[[Path], Path]] = {
    "at is a time of 96 bits": wide_time,
    "an old Spark wrote it": old_spark,
    "whose calendar was another": old_calendar,
    "it has several columns at": two_of_a_name,
    "day is told by the name of a folder": named_folder,
    "Parquet magic bytes not found": no_parquet,
    "Arrow cannot read it: ": cut_off,
    "it has 0 rows instead of 100": page_of_another_kind,
    "Invalid UTF8": no_text,
    "codec can't decode byte 0xe9": no_name,
    "No such file or directory": vanished,
}


@pytest.mark.parametrize("reason", STRANGE)
def test_a_file_that_is_not_plainly_readable_is_left_to_spark(reason: str, tmp_path: Path) -> None:
    path = STRANGE[reason](tmp_path / "a.parquet")
    with pytest.raises(LeftToSpark, match=reason):
        read(Typed, pieces((path, 0)))


def test_a_file_that_is_not_on_this_machine_is_left_to_spark() -> None:
    handed = pa.RecordBatch.from_pydict({"file": ["hdfs://names/a.parquet"], "row": [0]})
    with pytest.raises(LeftToSpark, match="not on a disk"):
        read(Typed, handed)


def test_only_flat_parquet_without_a_scheme_has_a_decoder(tmp_path: Path) -> None:
    class Nested(Record):
        tags: list[str]

    flat = codec_of(View)
    assert source.files(tmp_path, format="parquet").decoder(flat) is not None
    assert source.files(tmp_path, format="parquet").decoder(codec_of(Nested)) is None
    assert source.files(tmp_path, format="json").decoder(flat) is None
    assert source.files("s3a://bucket/views", format="parquet").decoder(flat) is None


class Precise(Record):
    price: Decimal = Decimal("0.1234567890123456789")


class Loud(Record):
    limit: float = 10**18 + 1


class Fresh(Record):
    id: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex)


@pytest.mark.parametrize("row_type", [Precise, Loud, Fresh])
def test_defaults_that_sql_casts_or_that_are_made_are_spark_s(row_type: Any, tmp_path: Path) -> None:
    assert source.files(tmp_path, format="parquet").decoder(codec_of(row_type)) is None


def asked(path: Path, *columns: str) -> tuple[dict[str, list[Any]], list[str]]:
    """The columns that are asked for, and the bad rows."""
    rows: dict[str, list[Any]] = {name: [] for name in columns}
    bad: list[str] = []
    for found in ParquetRows(codec_of(View)).only(columns).read(pieces((path, 0))):
        if isinstance(found, BadRows):
            bad += found.texts
        else:
            assert found.schema.names == list(columns)
            for name in columns:
                rows[name] += found.column(name).to_pylist()
    return rows, bad


def test_columns_that_nobody_asks_for_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.parquet", {"tweet": ["a", "b"], "at": AT, "n": [5, None]})
    given: list[list[str]] = []
    rows_of = parquet_rows._rows
    monkeypatch.setattr(
        parquet_rows, "_rows", lambda file, names, *at: given.append(names) or rows_of(file, names, *at)
    )
    assert asked(path, "n") == ({"n": [5, 1]}, [])
    assert given == [["n"]]


@pytest.mark.parametrize("options", [{}, {"write_statistics": False}])
def test_a_row_is_bad_also_where_nobody_asks_for_what_it_lacks(tmp_path: Path, options: dict[str, Any]) -> None:
    path = written(tmp_path / "a.parquet", {"tweet": ["a", None], "at": AT, "n": [5, 6]}, **options)
    rows, bad = asked(path, "n")
    assert rows == {"n": [5]}
    assert bad == _bad_texts(path) and "tweet is missing" in bad[0]
    absent = written(tmp_path / "b.parquet", {"at": AT, "n": [5, 6]}, **options)
    assert (asked(absent, "n")[0], len(asked(absent, "n")[1])) == ({"n": []}, 2)


def _bad_texts(path: Path) -> list[str]:
    found = ParquetRows(codec_of(View)).read(pieces((path, 0)))
    return [text for each in found if isinstance(each, BadRows) for text in each.texts]


def test_whether_spark_reads_a_file_does_not_depend_on_the_columns_that_are_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", {"tweet": [1.5, 2.5], "at": AT, "n": [5, 6]})
    with pytest.raises(LeftToSpark, match="tweet is double there"):
        asked(path, "n")
