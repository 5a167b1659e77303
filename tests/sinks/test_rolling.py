"""`sink.files` that rolls: rows of several epochs in one file, seen whole, once, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace import sink
from headrace.connectors.files import rolls
from headrace.connectors.sink_contract import Sink
from headrace.errors import ProgramError, SinkUnavailable
from headrace.model.part_names import HIDDEN
from headrace.model.record import Record
from headrace.model.rows import codec_of
from headrace.model.time import Timestamp
from headrace.testing.sinks import SinkTarget, verify_sink
from headrace.testing.staging import stage_rows
from tests.sinks.rolling_sales import SALES, GatheringBy, Sale, Writing, cents, read_cents, until


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_a_sink_that_rolls_keeps_every_promise(tmp_path: Path, format: str) -> None:
    numbers = count()

    def new_target() -> SinkTarget:
        folder = tmp_path / f"out{next(numbers)}"

        def read() -> list[Any]:
            return [SALES[cent] for cent in read_cents(folder, format)]

        settings: Any = {"format": format, "roll_epochs": 1, "partition_by": ("shop",)}
        return SinkTarget(lambda: sink.files(folder, **settings), read)

    verify_sink(new_target, Sale, SALES[:12], staged=("local",))


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_rows_of_several_epochs_appear_together_in_one_file(tmp_path: Path, format: str) -> None:
    out = Writing(tmp_path, format=format, roll_epochs=3)
    for epoch in (0, 1):
        out.release(epoch)
        assert out.visible() == [] and out.hidden()
    out.release(2)
    assert out.visible() == cents(0, 1, 2)
    assert out.names() == [f"part-0-000000000000-000000000002-sales-00000.{format}"]
    assert out.hidden() == []
    out.release(3)
    assert out.visible() == cents(0, 1, 2)
    out.sink.close()
    assert out.visible() == cents(0, 1, 2, 3)


def test_nobody_who_looks_for_data_sees_what_waits(tmp_path: Path) -> None:
    out = Writing(tmp_path, roll_epochs=2)
    out.release(0)
    out.release(1)
    out.release(2)
    assert sorted(pl.read_parquet(out.folder / "**/*.parquet")["cents"].to_list()) == cents(0, 1)
    assert sorted(ds.dataset(out.folder, format="parquet").to_table()["cents"].to_pylist()) == cents(0, 1)
    assert sorted(pq.read_table(out.folder)["cents"].to_pylist()) == cents(0, 1)


def test_files_roll_by_size_and_are_not_larger_than_asked_by_much(tmp_path: Path) -> None:
    out = Writing(tmp_path, format="json", roll_size=1000)
    sizes = []
    for epoch in range(12):
        out.release(epoch)
        sizes = [path.stat().st_size for path in out.folder.glob("part-*")]
    assert len(sizes) >= 2 and all(1000 <= size < 1400 for size in sizes)
    out.sink.close()
    assert out.visible() == cents(*range(12))


def test_files_roll_by_time_when_no_rows_come(tmp_path: Path) -> None:
    out = Writing(tmp_path, roll_every="100ms")
    out.release(0)
    until(lambda: out.visible() == cents(0))
    out.release(1)
    until(lambda: out.visible() == cents(0, 1))
    out.sink.close()


def test_what_waited_when_the_driver_died_rolls_by_time_in_the_next_one(tmp_path: Path) -> None:
    out = Writing(tmp_path, roll_epochs=99)
    out.release(0)
    out.restart(roll_epochs=None, roll_every="50ms")
    until(lambda: out.visible() == cents(0))


def test_buckets_roll_each_for_itself(tmp_path: Path) -> None:
    out = Writing(tmp_path, partition_by=("shop",), roll_epochs=2)
    for epoch in range(5):
        out.release(epoch)
    assert sorted({path.parent.name for path in out.folder.rglob("part-*") if HIDDEN not in path.parts}) == [
        "shop=shop 0", "shop=shop 1", "shop=shop 2",
    ]  # fmt: skip
    assert out.visible() == cents(0, 1, 2, 3)


@pytest.mark.parametrize(
    ("span", "folders"),
    [
        ("month", {"month=1970-01"}),
        ("day", {"day=1970-01-02"}),
        ("hour", {f"day=1970-01-02/hour=0{hour}" for hour in (3, 4, 5)}),
    ],
)
def test_times_name_buckets_by_month_day_or_hour(tmp_path: Path, span: str, folders: set[str]) -> None:
    out = Writing(tmp_path, bucket_by=(Sale.at, span))
    out.release(9)
    assert {str(path.parent.relative_to(out.folder)) for path in out.folder.rglob("*.parquet")} == folders
    assert "at" in pq.read_schema(next(out.folder.rglob("*.parquet"))).names


def test_folders_by_time_stand_around_those_by_value(tmp_path: Path) -> None:
    out = Writing(tmp_path, bucket_by=("at", "day"), partition_by=("shop",))
    out.release(0)
    assert {path.relative_to(out.folder).parts[0] for path in out.folder.rglob("*.parquet")} == {"day=1970-01-01"}
    frame = pl.read_parquet(out.folder / "**/*.parquet", hive_partitioning=True, try_parse_hive_dates=True)
    assert frame["day"].unique().to_list() == [date(1970, 1, 1)] and frame["shop"].n_unique() == 3


# --- beside the epochs


def test_a_large_roll_does_not_hold_up_the_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rolls, "AT_ONCE_BYTES", 0)
    begun, go_on = threading.Event(), threading.Event()
    out = Writing(tmp_path, roll_epochs=2)
    gather = out.sink.form.gather  # type: ignore[attr-defined]

    def slowly(format: str, parts: Any, made: Path) -> None:
        begun.set()
        assert go_on.wait(60)
        gather(format, parts, made)

    out.sink._rolls._aside._form = GatheringBy(slowly)  # type: ignore[attr-defined]
    out.release(0)
    out.release(1)
    assert begun.wait(60)
    # Small ones that come after it are ready at once, and still wait for it: files of a folder appear in order.
    monkeypatch.setattr(rolls, "AT_ONCE_BYTES", 2**20)
    for epoch in range(2, 6):
        out.release(epoch)
    assert out.visible() == []
    go_on.set()
    until(lambda: out.visible() == cents(*range(6)))
    assert len(out.names()) == 3
    out.sink.close()


def test_what_fails_beside_the_epochs_is_told_by_the_next_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolls, "AT_ONCE_BYTES", 0)
    out = Writing(tmp_path, roll_epochs=2)
    failures: Iterator[bool] = iter([True])
    told = threading.Event()
    gather = out.sink.form.gather  # type: ignore[attr-defined]

    def failing(format: str, parts: Any, made: Path) -> None:
        if next(failures, False):
            told.set()
            raise SinkUnavailable("the service is away")
        gather(format, parts, made)

    out.sink._rolls._aside._form = GatheringBy(failing)  # type: ignore[attr-defined]
    out.release(0)
    out.release(1)
    assert told.wait(60)
    until(lambda: out.sink._rolls._failure is not None)  # type: ignore[attr-defined]
    with pytest.raises(SinkUnavailable, match="away"):
        out.release(2)
    out.release(2)
    until(lambda: out.visible() == cents(0, 1))
    out.sink.close()
    assert out.visible() == cents(0, 1, 2)


# --- shapes, ends, refusals


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_parts_of_another_shape_go_into_a_file_of_their_own(tmp_path: Path, format: str) -> None:
    class Wider(Record):
        shop: str
        at: Timestamp
        cents: int
        note: str = ""

    out = Writing(tmp_path, format=format, roll_epochs=3)
    out.release(0)
    wide = sink.files(out.folder, **out.settings).bind(codec_of(Wider), "sales")
    wide.start()
    rows = [Wider("a", Timestamp(0), 3), Wider("b", Timestamp(0), 4)]
    wide.release(stage_rows(wide, codec_of(Wider), out.staging, 1, [rows]), out.staging.release(1, "sales"))
    wide.release(stage_rows(wide, codec_of(Wider), out.staging, 2, [rows[:1]]), out.staging.release(2, "sales"))
    assert len(out.names()) == 2 and out.visible() == sorted([*cents(0), 3, 4, 3])


def test_a_header_with_line_ends_is_written_once(tmp_path: Path) -> None:
    from headrace.connectors.files.gathering import gather

    parts = [pa.py_buffer(b'"a\nb",c\n1,2\n'), pa.py_buffer(b'"a\nb",c\n3,4\n')]
    gather("csv", parts, tmp_path / "made")
    assert (tmp_path / "made").read_bytes() == b'"a\nb",c\n1,2\n3,4\n'


def test_a_program_that_ends_has_shown_everything(tmp_path: Path) -> None:
    app = hr.App("shop")
    sales = app.read("sales", hr.source.items([]), Sale, time=Sale.at)
    sales.write(hr.sink.files(tmp_path / "out", format="parquet", roll_size="1GB", bucket_by=(Sale.at, "day")))
    with hr.testing.Harness(app, sinks=True) as h:
        for epoch in range(4):
            h.push(sales, *SALES[epoch * 3 : epoch * 3 + 3])
            if epoch == 2:
                h.crash("released")
            else:
                h.epoch()
        assert list((tmp_path / "out").rglob("*.parquet")) == []
        h.drain()
    assert sorted(read_cents(tmp_path / "out", "parquet")) == cents(0, 1, 2, 3)


class Clash(Record):
    at: Timestamp
    day: date


@pytest.mark.parametrize(
    ("make", "row_type", "words"),
    [
        (lambda: sink.files("out", roll_size="large"), Sale, "invalid size of a file"),
        (lambda: sink.files("out", roll_epochs=0), Sale, "counts epochs"),
        (lambda: sink.files("out", roll_every="0s"), Sale, "span"),
        (lambda: sink.files("out", bucket_by=("at", "week")), Sale, "a column of times and a span"),  # type: ignore[arg-type]
        (lambda: sink.files("out", bucket_by=("shop", "day")), Sale, "does not tell the day"),
        (lambda: sink.files("out", bucket_by=("att", "day")), Sale, "did you mean at"),
        (lambda: sink.files("out", bucket_by=("at", "day")), Clash, "column day"),
    ],
)
def test_what_cannot_roll_is_refused_while_building(
    make: Callable[[], Sink], row_type: type[Record], words: str
) -> None:
    with pytest.raises(ProgramError, match=words):
        make().bind(codec_of(row_type), "out")
