"""Values that a target can never take are found in the task: the epoch is not published, and the program can change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.connectors.files.partitions import room_at
from headrace.connectors.kafka.rows import MESSAGES
from headrace.connectors.sink_contract import Sink
from headrace.connectors.staged import read_batches
from headrace.errors import SinkFailed
from headrace.model.report import StagedPart
from headrace.model.rows import codec_of
from headrace.testing import Harness
from headrace.testing.staging import Staging, stage_rows


class Sale(hr.Record):
    shop: str
    n: int = 0
    to: str | None = None
    part: int | None = None


def epoch(store: Path, sink: Sink, *rows: Sale) -> None:
    app = hr.App("shop")
    sales = app.read("sales", hr.source.items([]), Sale)
    sales.write(sink, name="out")
    with Harness(app, store=store, sinks=True) as h:
        h.push(sales, *rows)
        h.epoch()


def stage(folder: Path, sink: Sink, *rows: Sale) -> list[StagedPart]:
    codec = codec_of(Sale)
    return stage_rows(sink.bind(codec, "out"), codec, Staging(folder), 0, [rows])


def files(folder: Path) -> Iterator[str]:
    return (path.parent.name for path in folder.rglob("part-*"))


# --- folders


@pytest.mark.parametrize("make", [hr.sink.files, hr.sink.delta], ids=["files", "delta"])
def test_a_value_too_long_for_a_folder_leaves_the_program_free_to_change(
    store_path: Path, tmp_path: Path, make: Callable[..., Sink]
) -> None:
    with pytest.raises(SinkFailed, match="a row's shop is too long for a folder") as failed:
        epoch(store_path, make(str(tmp_path / "a"), partition_by=("shop",)), Sale("b"), Sale("店" * 90))
    assert failed.value.expected == "at most 255 bytes of shop=…"
    assert "bytes: shop=" in failed.value.found and "nothing of this epoch was written" in failed.value.next_move
    assert list(files(tmp_path / "a")) == []
    epoch(store_path, make(str(tmp_path / "b"), partition_by=("n",)), Sale("店" * 90))
    assert list(files(tmp_path / "b")) == ["n=0"]


@pytest.mark.parametrize(
    ("make", "longest", "folder"),
    [
        (hr.sink.files, "店" * 83, "shop=" + "店" * 83),  # 5 + 83 · 3 = 254 bytes
        (hr.sink.files, "=" * 83, "shop=" + "%3D" * 83),
        (hr.sink.delta, "店" * 27, "shop=" + "%E5%BA%97" * 27),  # 5 + 27 · 9 = 248 bytes
        (hr.sink.delta, "a b=~." * 25, "shop=" + "a%20b%3D~." * 25),
    ],
)
def test_a_value_that_just_fits_is_written(
    store_path: Path, tmp_path: Path, make: Callable[..., Sink], longest: str, folder: str
) -> None:
    epoch(store_path, make(str(tmp_path / "a"), partition_by=("shop",)), Sale(longest))
    assert list(files(tmp_path / "a")) == [folder]
    with pytest.raises(SinkFailed, match="too long for a folder"):
        epoch(store_path, make(str(tmp_path / "a"), partition_by=("shop",)), Sale(longest + longest[:1] * 6))


def test_all_folders_of_a_row_have_to_fit_into_a_path(tmp_path: Path) -> None:
    sink = hr.sink.files("s3://bucket/lake/sales", partition_by=("shop", "to"))
    stage(tmp_path, sink, Sale("a" * 600, to="b" * 200), Sale("a" * 200, to="b" * 600))
    with pytest.raises(SinkFailed, match="a row's shop and to is too long") as failed:
        stage(tmp_path, sink, Sale("a" * 600, to="b" * 300))
    assert failed.value.expected.endswith("bytes of shop=…/to=…")


def test_a_disk_limits_names_and_an_object_store_limits_paths() -> None:
    disk, lake = room_at("/data/sales", "out", ""), room_at("s3://bucket/lake/sales", "out", "")
    assert disk.name == 255 and 3_900 < disk.path < 4_000
    assert room_at("file:///data/sales", "out", "") == disk
    assert lake.name == 1024 and lake.path == disk.path - 4095 + 1024 + len("/data/sales") - len("lake/sales")


# --- messages


@pytest.mark.parametrize("name", ["not a topic!", "x" * 250, ".", "..", "städte", "a\n", "a/b"])
def test_no_message_is_staged_for_a_topic_that_cannot_be(tmp_path: Path, name: str) -> None:
    sink = hr.sink.kafka("sales", brokers="localhost:1", topic_field="to")
    with pytest.raises(SinkFailed, match="a row's to is no name of a topic") as failed:
        stage(tmp_path, sink, Sale("a", to="fine"), Sale("b", to=name))
    assert repr(name[:80]) in failed.value.found and "nothing of this epoch" in failed.value.next_move


@pytest.mark.parametrize("number", [-7, -2, 2**31, 2**40])
def test_no_message_is_staged_for_a_partition_that_cannot_be(tmp_path: Path, number: int) -> None:
    sink = hr.sink.kafka("sales", brokers="localhost:1", partition="part")
    with pytest.raises(SinkFailed, match="a row's part is no number of a partition") as failed:
        stage(tmp_path, sink, Sale("a", part=0), Sale("b", part=number), Sale("c"))
    assert failed.value.found == f"part={number}"


def test_names_and_numbers_that_kafka_takes_are_staged_as_they_are(tmp_path: Path) -> None:
    sink = hr.sink.kafka("sales", brokers="localhost:1", topic_field="to", partition="part")
    told: list[tuple[Any, Any]] = [("x" * 249, 0), ("A.b_c-9", -1), ("", 2**31 - 1), (None, None), ("...", 7)]
    parts = stage(tmp_path, sink, *(Sale("a", to=to, part=part) for to, part in told))
    assert {part.format for part in parts} == {MESSAGES}
    staged = pa.Table.from_batches(read_batches(parts, Staging(tmp_path).release(0)))
    assert staged.column("topic").to_pylist() == [to for to, _ in told]
    assert staged.column("partition").to_pylist() == [-1 if part is None else part for _, part in told]
