"""`sink.files` takes back what an abandoned timeline showed, also inside of files of several epochs."""

from __future__ import annotations

import threading
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import sink
from headrace.connectors.files import rolls
from headrace.connectors.files.archive import ArchiveSink
from headrace.connectors.files.gathering import _ROW_GROUP_BYTES, Gathering, gather, spans_of
from headrace.errors import Fenced, HeadraceError, SinkFailed
from headrace.model.crash import Crash, planned
from headrace.model.part_names import HIDDEN, claim_name
from headrace.model.record import Record
from headrace.model.rows import codec_of
from headrace.model.time import Timestamp
from headrace.testing.sinks import SinkTarget, verify_sink
from headrace.testing.staging import Staging, stage_rows
from tests.sinks.rolling_sales import CODEC, SALES, GatheringBy, Sale, Writing, cents, until

FORMATS = ["json", "csv", "parquet"]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("settings", [{}, {"partition_by": "shop"}, {"roll_epochs": 4, "bucket_by": ("at", "day")}])
def test_rows_behind_the_savepoint_go_and_the_others_stay(
    tmp_path: Path, format: str, settings: dict[str, Any]
) -> None:
    out = Writing(tmp_path, format=format, **settings)
    for epoch in range(10):
        out.release(epoch)
    out.sink.close()
    assert out.visible() == cents(*range(10))
    out.restart()
    out.forget(5, 9)
    out.sink.close()
    assert out.visible() == cents(*range(6))
    out.restart()
    out.release(6, timeline="1")
    out.sink.close()
    assert out.visible() == cents(*range(7)) and out.hidden() == []


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("back_to", range(-1, 4))
def test_a_file_of_several_epochs_is_cut_between_them(tmp_path: Path, format: str, back_to: int) -> None:
    out = Writing(tmp_path, format=format, roll_epochs=4)
    for epoch in range(4):
        out.release(epoch)
    before = out.names()
    out.forget(back_to, 3)
    assert out.visible() == cents(*range(back_to + 1))
    assert out.names() == (before if back_to >= 0 else []), "a file that was cut keeps its name"
    spans = [path for path in (out.folder / HIDDEN).rglob("*.spans") if path.is_file()]
    assert len(spans) == len(out.names())
    out.forget(back_to, 3)
    assert out.visible() == cents(*range(back_to + 1))
    out.forget(-1, 3)
    assert out.visible() == [] and out.names() == []


def test_parts_that_wait_are_forgotten_before_anybody_saw_them(tmp_path: Path) -> None:
    out = Writing(tmp_path, roll_epochs=100)
    for epoch in range(3):
        out.release(epoch)
    out.restart()
    out.forget(0, 2)
    assert out.visible() == []
    out.sink.close()
    assert out.visible() == cents(0)


def test_a_roll_that_was_noted_and_not_carried_out_loses_its_later_epochs(tmp_path: Path) -> None:
    def fail(format: str, parts: Any, made: Path) -> None:
        raise Crash("after the note")

    out = Writing(tmp_path, roll_epochs=3)
    out.sink._rolls._hands._form = GatheringBy(fail)  # type: ignore[attr-defined]
    out.release(0)
    out.release(1)
    with suppress(Crash):
        out.release(2)
    assert out.visible() == [] and any(path.suffix == ".roll" for path in out.hidden())
    fresh = sink.files(out.folder, **out.settings).bind(CODEC, "sales")
    out.forget(1, 2, by=fresh)
    fresh.close()
    assert out.visible() == cents(0, 1) and out.hidden() == []


def test_folders_that_only_the_abandoned_timeline_made_go_too(tmp_path: Path) -> None:
    out = Writing(tmp_path, bucket_by=("at", "day"))
    for epoch in range(20):
        out.release(epoch)
    days = {path.name for path in out.folder.glob("day=*")}
    out.forget(3, 19)
    assert {path.name for path in out.folder.glob("day=*")} == {"day=1970-01-01"} != days


def test_a_job_may_go_back_twice(tmp_path: Path) -> None:
    """Behind the beginning of a timeline, the older one ends earlier, too."""
    out = Writing(tmp_path, roll_epochs=2)
    for epoch in range(6):
        out.release(epoch)
    out.restart()
    out.forget(3, 5)
    for epoch in range(4, 8):
        out.release(epoch, timeline="1")
    out.restart()
    out.forget(-1, 7, timeline="1")
    out.forget(1, 5, timeline="0")
    assert out.visible() == cents(0, 1)
    for epoch in range(2, 4):
        out.release(epoch, timeline="2")
    out.sink.close()
    assert out.visible() == cents(*range(4))


# --- drivers that are thought dead


def test_a_roll_that_an_abandoned_driver_carries_out_late_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolls, "AT_ONCE_BYTES", 0)
    asleep, wake = threading.Event(), threading.Event()
    out = Writing(tmp_path, roll_epochs=3)
    old = out.sink

    def sleeping(format: str, parts: Any, made: Path) -> None:
        asleep.set()
        assert wake.wait(60)
        gather(format, parts, made)

    old._rolls._aside._form = GatheringBy(sleeping)  # type: ignore[attr-defined]
    for epoch in range(3):
        out.release(epoch)
    assert asleep.wait(60)
    new = sink.files(out.folder, **out.settings).bind(CODEC, "sales")
    out.forget(0, 2, by=new)
    wake.set()
    with suppress(HeadraceError):
        old.close()
    new.close()
    until(lambda: out.visible() == cents(0))
    out.restart()
    out.sink.close()
    assert out.visible() == cents(0)


def test_an_abandoned_driver_is_told(tmp_path: Path) -> None:
    out = Writing(tmp_path)
    old = out.sink
    out.release(0)
    out.restart()
    out.forget(0, 1)
    with pytest.raises(Fenced, match="this timeline was abandoned") as caught:
        out.release(1, by=old)
    assert "no epoch after 0 of timeline 0" in str(caught.value)
    out.release(0, by=old)
    assert out.visible() == cents(0)


def test_what_an_abandoned_driver_left_when_it_died_goes_at_the_next_start(tmp_path: Path) -> None:
    out = Writing(tmp_path)
    old = out.sink
    out.release(0)
    out.restart()
    out.forget(0, 1)
    monkey = pytest.MonkeyPatch()
    monkey.setattr(old, "_check_timeline", lambda ctx: None)
    out.release(1, by=old)
    monkey.undo()
    assert out.visible() == cents(0, 1)
    out.restart()
    assert out.visible() == cents(0)


# --- refusals


def test_another_stores_folder_is_left_alone(tmp_path: Path) -> None:
    out = Writing(tmp_path, roll_epochs=2)
    for epoch in range(4):
        out.release(epoch, job="one")
    out.restart()
    with pytest.raises(SinkFailed, match="another store"):
        out.forget(0, 3)
    assert out.visible() == cents(*range(4))
    plain = Writing(tmp_path / "plain")
    for epoch in range(4):
        plain.release(epoch, job="one")
    with pytest.raises(SinkFailed, match="epoch 3 of timeline 0; this store has come to epoch 2"):
        plain.forget(0, 2)
    assert plain.visible() == cents(*range(4))


def test_files_of_an_earlier_version_are_not_cut_by_guessing(tmp_path: Path) -> None:
    out = Writing(tmp_path, format="csv", roll_epochs=4)
    for epoch in range(4):
        out.release(epoch)
    for spans in (out.folder / HIDDEN).rglob("*.csv.spans"):
        spans.unlink()
    with pytest.raises(SinkFailed, match="cannot be cut between its epochs") as caught:
        out.forget(1, 3)
    assert "go back to before epoch 0 or to epoch 3" in str(caught.value)
    assert "--hold sales" in str(caught.value)
    assert out.visible() == cents(*range(4))
    out.forget(-1, 3)
    assert out.visible() == []


# --- the whole contract, elsewhere


def test_a_remote_folder_keeps_every_promise_of_rewinds() -> None:
    numbers = count()
    memory = fsspec.filesystem("memory")

    def new_target() -> SinkTarget:
        url = f"memory://forgetting/out{next(numbers)}"

        def read() -> list[Any]:
            names = memory.glob(f"{url}/part-*")
            return [CODEC.from_json(line) for name in names for line in memory.cat(name).splitlines()]

        return SinkTarget(lambda: sink.files(url, roll_epochs=1), read)

    verify_sink(new_target, Sale, SALES[:12], staged=("remote",))


class Closed(Record):
    page: str
    clicks: int
    window_start: Timestamp
    window_end: Timestamp


CLOSED = [Closed(f"page {i}", i, Timestamp(i * 3_600_000_000), Timestamp((i + 1) * 3_600_000_000)) for i in range(12)]


def _windows(path: Path, codec: Any) -> list[tuple[str, Any]]:
    table = pq.read_table(path, partitioning=None).select(codec.names)
    timeline = path.name.removeprefix("part-").partition("-")[0]
    return [(timeline, row) for row in codec.to_objects([c.combine_chunks() for c in table.columns])]


def test_an_archive_keeps_every_promise(tmp_path: Path) -> None:
    numbers = count()
    codec = codec_of(Closed)

    def new_target() -> SinkTarget:
        folder = tmp_path / f"archive{next(numbers)}"

        def read() -> list[Any]:
            found = [*folder.rglob("part-*.parquet"), *(folder / HIDDEN).rglob("*.part")]
            # A window that is found twice counts once.
            tables = {t for path in found for t in _windows(path, codec)}
            return [row for _, row in tables]

        return SinkTarget(lambda: ArchiveSink(str(folder), ("page",)), read)

    verify_sink(new_target, Closed, CLOSED, staged=("local",))


def test_an_archive_is_cut_by_the_epoch_of_its_rows(tmp_path: Path) -> None:
    codec = codec_of(Closed)
    (tmp_path / "staged").mkdir()
    staging = Staging(tmp_path / "staged", inline_limit_bytes=0)
    archive = ArchiveSink(str(tmp_path / "archive"), ("page",)).bind(codec, "archive")
    archive.start()
    for epoch in range(4):
        rows = CLOSED[epoch * 3 : epoch * 3 + 3]
        archive.release(stage_rows(archive, codec, staging, epoch, [rows]), staging.release(epoch, "archive"))
    archive.close()
    [file] = (tmp_path / "archive").rglob("part-*.parquet")
    archive.start()
    ctx = staging.forget(1, 3, output="archive")
    archive.check_forget(ctx)
    archive.forget(ctx)
    assert sorted(pq.read_table(file, partitioning=None)["clicks"].to_pylist()) == list(range(6))
    assert not (tmp_path / "archive" / claim_name("archive")).exists(), "an archive is claimed by its marker"


# --- cutting


def test_parquet_is_cut_inside_of_a_row_group_and_behind_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.connectors.files.gathering._ROW_GROUP_BYTES", 64)
    assert _ROW_GROUP_BYTES > 64
    parts = []
    for epoch in range(5):
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.table({"n": pa.array(range(epoch * 10, epoch * 10 + 10))}), buffer)
        parts.append((epoch, buffer.getvalue()))
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    gather("parquet", [part for _, part in parts], whole)
    assert pq.ParquetFile(whole).num_row_groups == 5
    spans = spans_of("parquet", parts)
    for epoch in range(4):
        assert Gathering().cut("parquet", pa.py_buffer(whole.read_bytes()), epoch, spans, cut)
        assert pq.read_table(cut)["n"].to_pylist() == list(range(epoch * 10 + 10))
    assert Gathering().cut("parquet", pa.py_buffer(whole.read_bytes()), 4, spans, cut) is None
    assert Gathering().cut("parquet", pa.py_buffer(whole.read_bytes()), -1, spans, cut) is False


def test_a_death_at_every_point_of_a_rewind_is_made_good_by_the_start_alone(tmp_path: Path) -> None:
    for at in count():
        out = Writing(tmp_path / str(at), format="csv", roll_epochs=3, partition_by="shop")
        for epoch in range(8):
            out.release(epoch)
        points = count()

        def die(point: str, epoch: int, at: int = at, points: Any = points) -> None:
            if point == "forgetting" and next(points) == at:
                raise Crash(f"at point {at}")

        try:
            with planned(die):
                out.forget(3, 7)
        except Crash:
            out.restart()
            out.sink.close()
            assert out.visible() == cents(*range(4)), f"died at point {at}"
            continue
        out.sink.close()
        assert out.visible() == cents(*range(4))
        assert at > 5
        return
