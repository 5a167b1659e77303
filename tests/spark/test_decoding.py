"""Files that the worker decodes, on real Spark: the rows that Spark's own reader gives, each of them once."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.connectors.files.parquet_rows import PIECE_ROWS
from headrace.errors import BadRow
from headrace.model.rows import codec_of
from headrace.plan.compile import compile_app
from headrace.plan.rules import RULES
from headrace.plan.rules.decoding import decode_in_workers
from headrace.spark import job

pytestmark = pytest.mark.spark

SECOND = 1_000_000


class Typed(hr.Record):
    text: str | None = None
    large: str | None = None
    listed: str | None = None
    short: int | None = None
    small: int | None = None
    plain: int | None = None
    unsigned: int | None = None
    real: float | None = None
    counted: float | None = None
    at: hr.Timestamp | None = None
    millis: hr.Timestamp | None = None
    there: hr.Timestamp | None = None
    naive: hr.Timestamp | None = None
    price: Decimal | None = None
    coarse: Decimal | None = None
    day: date | None = None
    yes: bool | None = None
    blob: bytes | None = None
    letters: bytes | None = None


TIMES = [0, 1_700_000_000_123_456, -60_000_000_000_000_001]
PRICES = [Decimal("1.25"), Decimal("-99999999.99"), Decimal(0)]
EVERY_TYPE = {
    "text": pa.array(["a", "", "ü"]),
    "large": pa.array(["a", "b", "c"], pa.large_string()),
    "listed": pa.array(["x", "y", "x"]).dictionary_encode(),
    "short": pa.array([-(2**7), 2**7 - 1, 0], pa.int8()),
    "small": pa.array([-(2**31), 2**31 - 1, 0], pa.int32()),
    "plain": pa.array([-(2**63), 2**63 - 1, 0]),
    "unsigned": pa.array([0, 2**32 - 1, 1], pa.uint32()),
    "real": pa.array([1.5, 0.1, -0.0], pa.float32()),
    "counted": pa.array([-(2**31), 7, 0], pa.int32()),
    "at": pa.array(TIMES, pa.timestamp("us", "UTC")),
    "millis": pa.array([us // 1000 for us in TIMES], pa.timestamp("ms", "UTC")),
    "there": pa.array(TIMES, pa.timestamp("us", "Asia/Kathmandu")),
    "naive": pa.array(TIMES, pa.timestamp("us")),
    "price": pa.array(PRICES, pa.decimal128(10, 2)),
    "coarse": pa.array([10**19, -1, 0], pa.decimal128(20, 0)),
    "day": pa.array([date(2024, 2, 29), date(1400, 1, 1), date(1970, 1, 1)]),
    "yes": pa.array([True, False, True]),
    "blob": pa.array([b"a", b"", b"\xff"], pa.large_binary()),
    "letters": pa.array(["a", "", "ü"]),
}


def test_every_type_that_the_worker_decodes_is_what_spark_reads(spark: Any, tmp_path: Path) -> None:
    assert set(EVERY_TYPE) == set(codec_of(Typed).schema.names)
    # A row of each value, and a row of nothing.
    table = pa.table({name: pa.concat_arrays([array, array[:0], nothing(array)]) for name, array in EVERY_TYPE.items()})
    pq.write_table(table, tmp_path / "a.parquet", store_schema=True)
    source = hr.source.files(tmp_path, format="parquet")
    assert decoded(spark, source, Typed) == read_by_spark(spark, source, Typed)


def nothing(array: pa.Array) -> pa.Array:
    return pa.nulls(1, array.type) if not pa.types.is_dictionary(array.type) else pa.array([None], array.type)


def decoded(spark: Any, source: Any, row_type: Any) -> list[Any]:
    codec = codec_of(row_type)
    rows = source.decoder(codec)
    read = source.spark(codec)
    frame = spark.read.format(read.format).schema(read.schema_ddl).load(read.load_path)
    (handed,) = frame.selectExpr(*rows.pieces).where(rows.keep).toArrow().combine_chunks().to_batches()
    return [row for batch in rows.read(handed) for row in codec.to_objects(batch.columns)]


def read_by_spark(spark: Any, source: Any, row_type: Any) -> list[Any]:
    codec = codec_of(row_type)
    read = source.spark(codec)
    frame = spark.read.format(read.format).schema(read.schema_ddl).load(read.load_path)
    table = frame.selectExpr(*[f"{sql} AS {name}" for name, sql in read.columns.items()]).toArrow()
    return codec.to_objects([column.combine_chunks() for column in table.columns])


class Event(hr.Record):
    key: str
    at: hr.Timestamp
    value: int = 0


def write_file(folder: Path, number: int, first: int, count: int, **options: Any) -> None:
    """Rows ``first`` …, one for each second, over three keys. Spark reads older files first."""
    folder.mkdir(exist_ok=True)
    ids = np.arange(first, first + count)
    at = pa.array(ids * SECOND, pa.timestamp("us", "UTC"))
    table = pa.table({"key": [f"k{i % 3}" for i in ids], "at": at, "value": ids})
    pq.write_table(table, folder / f"{number}.parquet", **options)
    os.utime(folder / f"{number}.parquet", (1_700_000_000 + number,) * 2)


def counting(source: hr.Source, sink: Any, *, where: str = "") -> hr.App:
    app = hr.App("counting")
    events = app.read("events", source, Event, time=Event.at)
    kept = events.where(where) if where else events
    windows = kept.key_by(Event.key).window(hr.tumbling("1m")).aggregate(n=hr.count(), total=hr.sum(Event.value))
    windows.named("per_minute").write(sink)
    return app


def is_decoded(app: hr.App) -> bool:
    return compile_app(app, parallelism=2, key_groups=128).sources[0].decoded


def expected(count: int, keep: Any = lambda i: True) -> dict[tuple[str, int], tuple[int, int]]:
    windows: dict[tuple[str, int], tuple[int, int]] = {}
    for i in filter(keep, range(count)):
        n, total = windows.get(key := (f"k{i % 3}", i // 60), (0, 0))
        windows[key] = (n + 1, total + i)
    return windows


def results(sink: Any) -> dict[tuple[str, int], tuple[int, int]]:
    rows = {(row.key, row.window_start // (60 * SECOND)): (row.n, row.total) for row in sink.rows}
    assert len(rows) == len(sink.rows), "a window came twice"
    return rows


def test_a_large_file_is_shared_by_tasks_and_every_row_counts_once(
    spark: Any, store_path: Path, tmp_path: Path, part_bytes: int
) -> None:
    count = 3 * PIECE_ROWS + 100
    write_file(tmp_path / "in", 0, 0, count, row_group_size=20_000)
    assert (tmp_path / "in" / "0.parquet").stat().st_size > 2 * part_bytes
    sink = hr.sink.collect()
    app = counting(hr.source.files(tmp_path / "in", format="parquet"), sink)
    assert is_decoded(app)
    run = app.start(until="drained", store=str(store_path), spark=spark, parallelism=2)
    run.wait()
    assert results(sink) == expected(count)
    chains = [task for task in manifest(run, 0).tasks if task.level == 0 and task.rows_read]
    assert len(chains) >= 2
    assert sum(task.rows_read for task in chains) == count


def manifest(run: Any, epoch: int) -> Any:
    from headrace.state.manifest import read_manifest
    from headrace.state.store import open_store

    return read_manifest(open_store(run.store.url), 0, epoch)


@pytest.fixture
def part_bytes(spark: Any) -> Iterator[int]:
    """What a task of Spark's reads of a file."""
    wanted = {"spark.sql.files.maxPartitionBytes": "200000", "spark.sql.files.openCostInBytes": "0"}
    before = {name: spark.conf.get(name) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    yield 200_000
    for name, value in before.items():
        spark.conf.set(name, value)


def test_a_file_that_the_worker_does_not_decode_is_read_by_spark_and_nothing_is_lost(
    spark: Any, store_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_file(tmp_path / "in", 0, 0, 100)
    write_file(tmp_path / "in", 1, 100, 100, use_deprecated_int96_timestamps=True)
    write_file(tmp_path / "in", 2, 200, 100)
    sink = hr.sink.collect()
    app = counting(hr.source.files(tmp_path / "in", format="parquet", max_files_per_epoch=1), sink)
    with caplog.at_level(logging.INFO, "headrace.runner"):
        # It is no failure that would count: with no restart left the run goes on.
        app.start(until="drained", store=str(store_path), spark=spark, restarts=0).wait()
    assert results(sink) == expected(300)
    (said,) = [record.getMessage() for record in caplog.records if "Spark decodes its files" in record.getMessage()]
    assert "1.parquet" in said and "at is a time of 96 bits" in said


def test_spark_reads_by_itself_where_it_was_told_to_read_in_another_way(
    spark: Any, store_path: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    at = pa.array([SECOND, SECOND], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"key": ["k", "k"], "at": at, "VALUE": [5, 5], "value": [1, 2]}), folder / "a.parquet")
    sink = hr.sink.collect()
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        app = counting(hr.source.files(folder, format="parquet"), sink)
        app.start(until="drained", store=str(store_path), spark=spark).wait()
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    assert results(sink) == {("k", 0): (2, 3)}


def test_rows_that_a_filter_hides_move_time_in_the_same_epoch(spark: Any, store_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in put %20 #1?ü"
    write_file(folder, 0, 0, 200)
    sink = hr.sink.collect()
    app = counting(hr.source.files(folder, format="parquet"), sink, where="value < 60")
    assert is_decoded(app)
    app.start(until="caught_up", store=str(store_path), spark=spark).wait()
    assert results(sink) == expected(200, lambda i: i < 60), "the window ended"


def test_bad_rows_go_to_errors_or_stop_the_job_with_their_file(spark: Any, store_path: Path, tmp_path: Path) -> None:
    write_file(tmp_path / "in", 0, 0, 10)
    at = pa.array([SECOND, 2 * SECOND], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"key": ["k0", None], "at": at}), tmp_path / "in" / "bad.parquet")
    sink, failed = hr.sink.collect(), hr.sink.collect()
    app = hr.App("counting")
    events = app.read("events", hr.source.files(tmp_path / "in", format="parquet"), Event, time=Event.at)
    events.key_by(Event.key).window(hr.tumbling("1m")).aggregate(n=hr.count()).named("per_minute").write(sink)
    with pytest.raises(BadRow, match="key is missing") as caught:
        app.start(until="drained", store=str(store_path), spark=spark).wait()
    assert caught.value.where == str(tmp_path / "in" / "bad.parquet")
    events.errors.write(failed)
    app.start(until="drained", store=str(store_path), spark=spark).wait()
    assert sorted((row.key, row.n) for row in sink.rows) == [("k0", 5), ("k1", 3), ("k2", 3)]
    assert [row.error for row in failed.rows] == [f"{tmp_path / 'in' / 'bad.parquet'}: key is missing"]


def as_text(row: Any) -> str:
    return f"{row.key} {row.value}"


PLACES = {
    "nothing behind it": (lambda events: events, True),
    "expressions that both know": (lambda events: events.where("key <> 'k1'").with_columns(value="value * 2"), True),
    "two projections": (lambda events: events.with_columns(a="value + 1").select(key="key", value="a * 2"), True),
    "an expression of Spark's alone": (lambda events: events.where("soundex(key) <> 'x'"), False),
}


@pytest.mark.parametrize("place", PLACES)
def test_expressions_behind_a_decoded_source_say_what_they_say_in_the_jvm(
    place: str, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind, can = PLACES[place]
    write_file(tmp_path / "in", 0, 0, 90)

    def run(store: str) -> list[Any]:
        sink = hr.sink.collect()
        app = hr.App("placed")
        events = app.read("events", hr.source.files(tmp_path / "in", format="parquet"), Event)
        behind(events).map(as_text).write(sink)
        assert is_decoded(app) is can
        app.start(until="drained", store=str(tmp_path / store), spark=spark).wait()
        return sorted(sink.rows)

    mine = run("mine")
    assert mine
    rules = tuple(rule for rule in RULES if rule is not decode_in_workers)
    monkeypatch.setattr(job, "compile_app", partial(compile_app, rules=rules))
    assert mine == run("spark")


def test_a_history_of_files_ends_at_the_cut(spark: Any, store_path: Path, tmp_path: Path) -> None:
    write_file(tmp_path / "history", 0, 0, 80)
    write_file(tmp_path / "live", 0, 40, 60)
    sink = hr.sink.collect()
    files = [hr.source.files(tmp_path / name, format="parquet") for name in ("history", "live")]
    cut = hr.Timestamp(65 * SECOND)
    app = counting(hr.source.backfill(*files, until=cut), sink)
    app.start(until="drained", store=str(store_path), spark=spark).wait()
    assert results(sink) == expected(100)
