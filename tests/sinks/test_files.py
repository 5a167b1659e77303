"""`sink.files`: whole files of published epochs, each row once."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any

import cloudpickle
import fsspec
import polars as pl
import pyarrow.parquet as pq
import pytest

from headrace import durable, sink
from headrace.connectors.files.local_folder import LocalFolder
from headrace.connectors.files.partitions import NULL_FOLDER
from headrace.connectors.sink_contract import Sink
from headrace.connectors.staged import PartWriter, encode_arrow
from headrace.errors import ProgramError, SinkFailed
from headrace.model.batch import Rows
from headrace.model.record import Record
from headrace.model.rows import codec_of
from headrace.model.time import Timestamp
from headrace.testing.sinks import SinkTarget, verify_sink
from headrace.testing.staging import Staging, stage_rows


class Sale(Record):
    shop: str
    day: date
    at: Timestamp
    cents: int
    note: str | None = None


SALES = [Sale(f"shop {i % 3}", date(2024, 1, 1 + i % 2), Timestamp(i * 1_000_001), i) for i in range(12)]
CODEC = codec_of(Sale)


def bound(path: Path | str, **settings: Any) -> Sink:
    return sink.files(path, **settings).bind(CODEC, "sales")


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def read_json(folder: Path) -> list[Sale]:
    return [CODEC.from_json(line) for path in folder.glob("part-*") for line in path.read_bytes().splitlines()]


def read_csv(folder: Path) -> list[Sale]:
    frames = [pl.read_csv(path, try_parse_dates=True) for path in folder.glob("part-*")]
    return [row for frame in frames for row in CODEC.to_objects(_cast(frame))]


def _cast(frame: pl.DataFrame) -> list[Any]:
    table = frame.with_columns(at=pl.col("at").cast(pl.Datetime("us", "UTC"))).to_arrow().cast(CODEC.schema)
    return [column.combine_chunks() for column in table.columns]


def read_parquet(folder: Path) -> list[Sale]:
    tables = [pq.read_table(path, partitioning=None) for path in folder.glob("part-*")]
    return [row for t in tables for row in CODEC.to_objects([c.combine_chunks() for c in t.columns])]


def targets(tmp_path: Path, format: str, read: Callable[[Path], list[Any]]) -> Callable[[], SinkTarget]:
    numbers = count()

    def new_target() -> SinkTarget:
        folder = tmp_path / f"out{next(numbers)}"
        return SinkTarget(lambda: sink.files(folder, format=format), lambda: read(folder))

    return new_target


@pytest.mark.parametrize(("format", "read"), [("json", read_json), ("csv", read_csv), ("parquet", read_parquet)])
def test_keeps_every_promise_of_a_sink(tmp_path: Path, format: str, read: Callable[[Path], list[Any]]) -> None:
    verify_sink(targets(tmp_path, format, read), Sale, SALES)


def test_keeps_every_promise_in_folders_by_value(tmp_path: Path) -> None:
    numbers = count()

    def new_target() -> SinkTarget:
        folder = tmp_path / f"out{next(numbers)}"

        def read() -> list[Any]:
            if not list(folder.rglob("*.parquet")):
                return []
            frame = pl.read_parquet(folder / "**/*.parquet", hive_partitioning=True, try_parse_hive_dates=True)
            return CODEC.to_objects(_cast(frame.select(CODEC.names)))

        return SinkTarget(lambda: sink.files(folder, format="parquet", partition_by=(Sale.shop, "day")), read)

    verify_sink(new_target, Sale, SALES)


def test_keeps_every_promise_on_a_remote_file_system() -> None:
    numbers = count()
    memory = fsspec.filesystem("memory")

    def new_target() -> SinkTarget:
        url = f"memory://verify/out{next(numbers)}"

        def read() -> list[Any]:
            return [CODEC.from_json(line) for name in memory.glob(f"{url}/part-*") for line in memory.cat(name).split()]

        return SinkTarget(lambda: sink.files(url), read)

    bare = [Sale(f"s{i}", date(2024, 1, 1), Timestamp(i), i) for i in range(9)]
    verify_sink(new_target, Sale, bare)


def test_names_follow_from_timeline_epoch_output_and_place(tmp_path: Path) -> None:
    out, staging = bound(tmp_path / "out"), Staging(_folder(tmp_path))
    parts = stage_rows(out, CODEC, staging, 41, [SALES[:2], SALES[2:4]])
    out.release(parts, staging.release(41, "sales", timeline="3"))
    assert names_in(tmp_path / "out") == [
        "part-3-000000000041-sales-00000.json",
        "part-3-000000000041-sales-00001.json",
    ]


def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "staging"
    folder.mkdir()
    return folder


def test_a_staged_file_is_linked_not_copied(tmp_path: Path) -> None:
    out, staging = bound(tmp_path / "out"), Staging(_folder(tmp_path), inline_limit_bytes=0)
    (part,) = stage_rows(out, CODEC, staging, 0, [SALES])
    out.release([part], staging.release(0, "sales"))
    (name,) = names_in(tmp_path / "out")
    assert os.path.samefile(tmp_path / "out" / name, staging.folder / part.file)


def test_where_links_cannot_be_made_the_bytes_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    out, staging = bound(tmp_path / "out"), Staging(_folder(tmp_path), inline_limit_bytes=0)
    parts = stage_rows(out, CODEC, staging, 0, [SALES])
    monkeypatch.setattr(os, "link", refuse)
    for _ in range(2):
        out.release(parts, staging.release(0, "sales"))
    assert sorted(read_json(tmp_path / "out"), key=lambda s: s.at) == SALES


def test_a_copy_that_died_half_way_is_never_seen_and_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, staging = bound(tmp_path / "out"), Staging(_folder(tmp_path))
    parts = stage_rows(out, CODEC, staging, 0, [SALES])
    (tmp_path / "out").mkdir()
    half = tmp_path / "out" / ".part-0-000000000000-sales-00000.json.tmp"
    half.write_bytes(b'{"shop":')
    assert read_json(tmp_path / "out") == []
    out.release(parts, staging.release(0, "sales"))
    assert names_in(tmp_path / "out") == ["part-0-000000000000-sales-00000.json"]


def test_two_outputs_may_share_a_folder(tmp_path: Path) -> None:
    staging = Staging(_folder(tmp_path))
    for name, rows in (("one", SALES[:5]), ("two", SALES[5:])):
        out = sink.files(tmp_path / "out").bind(CODEC, name)
        out.release(stage_rows(out, CODEC, staging, 0, [rows]), staging.release(0, name))
    assert len(read_json(tmp_path / "out")) == len(SALES)


@pytest.mark.parametrize("inline_limit_bytes", [0, 2**20])
def test_a_name_taken_by_other_rows_is_refused_not_overwritten(tmp_path: Path, inline_limit_bytes: int) -> None:
    staging = Staging(_folder(tmp_path), inline_limit_bytes=inline_limit_bytes)
    out = bound(tmp_path / "out")
    out.release(stage_rows(out, CODEC, staging, 0, [SALES[:3]]), staging.release(0, "sales"))
    other = stage_rows(out, CODEC, staging, 0, [SALES[3:6]])
    with pytest.raises(SinkFailed, match="other content"):
        out.release(other, staging.release(0, "sales"))
    assert len(read_json(tmp_path / "out")) == 3


def test_values_become_folders_and_leave_the_files(tmp_path: Path) -> None:
    out, staging = bound(tmp_path / "out", partition_by=("shop",)), Staging(_folder(tmp_path))
    odd = [Sale("a/b=c", date(2024, 1, 1), Timestamp(0), 1), Sale("", date(2024, 1, 1), Timestamp(0), 2)]
    out.release(stage_rows(out, CODEC, staging, 0, [odd]), staging.release(0, "sales"))
    folders = {Path(name).parent.name for name in names_in(tmp_path / "out")}
    assert folders == {"shop=a%2Fb%3Dc", f"shop={NULL_FOLDER}"}
    assert all(b'"shop"' not in path.read_bytes() for path in (tmp_path / "out").rglob("part-*"))


def test_times_and_nulls_can_name_folders(tmp_path: Path) -> None:
    out, staging = bound(tmp_path / "out", partition_by=("at", "note")), Staging(_folder(tmp_path))
    out.release(stage_rows(out, CODEC, staging, 0, [SALES[:1]]), staging.release(0, "sales"))
    assert Path(names_in(tmp_path / "out")[0]).parent == Path("at=1970-01-01T00%3A00%3A00Z", f"note={NULL_FOLDER}")


def test_rows_of_a_folder_keep_their_order(tmp_path: Path) -> None:
    out, staging = bound(tmp_path / "out", partition_by=("shop",)), Staging(_folder(tmp_path))
    out.release(stage_rows(out, CODEC, staging, 0, [SALES]), staging.release(0, "sales"))
    frame = pl.read_ndjson(next((tmp_path / "out" / "shop=shop 1").iterdir()))
    assert frame["cents"].to_list() == [1, 4, 7, 10]


def test_a_writer_holds_a_bounded_amount_of_rows(tmp_path: Path) -> None:
    staging = Staging(_folder(tmp_path), inline_limit_bytes=0)
    writer = PartWriter(staging.task(0), encode_arrow, "arrow", held_bytes=10_000)
    for _ in range(100):
        writer.write(Rows.of_objects(CODEC, SALES))
        assert sum(writer._sizes.values()) < 10_000
    parts = writer.finish()
    assert len(parts) > 3 and sum(part.rows for part in parts) == 100 * len(SALES)


def test_small_parts_travel_inside_the_report(tmp_path: Path) -> None:
    out = bound(tmp_path / "out")
    (part,) = stage_rows(out, CODEC, Staging(_folder(tmp_path)), 0, [SALES])
    assert part.inline and not part.file and part.size_bytes == len(part.inline)


def test_a_sink_travels_without_the_drivers_part(tmp_path: Path) -> None:
    out = bound(tmp_path / "out")
    out.start()
    travelled = cloudpickle.loads(cloudpickle.dumps(out))
    assert travelled.codec is None and "_folder" not in vars(travelled)
    assert len(cloudpickle.dumps(out)) < 1000


def test_a_path_that_is_a_file_is_said_at_start(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    for path in (tmp_path / "out", tmp_path / "out" / "below"):
        with pytest.raises(SinkFailed, match="is a file: choose a folder"):
            bound(path).start()


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    bound(tmp_path / "a" / "b").start()
    assert (tmp_path / "a" / "b").is_dir()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_the_right_to_write_is_said_at_start(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(SinkFailed, match="right to write"):
        bound(tmp_path).start()


def test_a_full_disk_is_said_and_leaves_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    out, staging = bound(tmp_path / "out"), Staging(_folder(tmp_path))
    parts = stage_rows(out, CODEC, staging, 0, [SALES])
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SinkFailed, match="disk is full.*stay staged"):
        out.release(parts, staging.release(0, "sales"))
    assert names_in(tmp_path / "out") == []


def test_new_folders_are_made_durable_up_to_the_one_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(durable, "sync_path", synced.append)
    folder = LocalFolder(str(tmp_path / "out"))
    folder.prepare()
    assert folder.create("a=1/b=2/one", b"1")
    assert {tmp_path, tmp_path / "out", tmp_path / "out" / "a=1"} <= set(synced)


def test_names_that_are_made_or_replaced_are_durable_when_the_release_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    folder = LocalFolder(str(tmp_path))
    folder.create("claims/one", b"1")
    folder.replace("claims/one", b"2")
    folder.replace("two", b"2")
    monkeypatch.setattr("headrace.connectors.files.local_folder.sync_path", synced.append)
    folder.settle()
    assert set(synced) == {tmp_path, tmp_path / "claims"}


class Nested(Record):
    name: str
    tags: list[str]


@pytest.mark.parametrize(
    ("make", "row_type", "words"),
    [
        (lambda: sink.files("out", format="avro"), Sale, "cannot write 'avro'"),  # type: ignore[arg-type]
        (lambda: sink.files("out", format="csv"), Nested, "CSV cannot hold tags"),
        (lambda: sink.files("out", partition_by=("tags",)), Nested, "cannot partition by tags"),
        (lambda: sink.files("out", partition_by=("shp",)), Sale, "did you mean shop"),
        (lambda: sink.files("out", partition_by=("name", "tags")), Nested, "cannot partition by tags"),
        (lambda: sink.files("out", partition_by=(3,)), Sale, "partition_by takes columns"),
    ],
)
def test_what_cannot_be_written_is_refused_while_building(
    make: Callable[[], Sink], row_type: type[Record], words: str
) -> None:
    with pytest.raises(ProgramError, match=words):
        make().bind(codec_of(row_type), "out")
