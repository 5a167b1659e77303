"""Folders that files roll into: whose they are, what is remembered of them, and those of an object store."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest

from headrace import sink
from headrace.connectors.files import rolls
from headrace.errors import SinkFailed, SinkUnavailable
from headrace.model.part_names import HIDDEN
from headrace.testing.sinks import SinkTarget, verify_sink
from headrace.testing.staging import Staging, stage_rows
from tests.sinks.rolling_sales import CODEC, SALES, Sale, Writing, cents


def test_a_sink_that_rolls_keeps_every_promise_on_a_remote_file_system() -> None:
    numbers = count()
    memory = fsspec.filesystem("memory")

    def new_target() -> SinkTarget:
        url = f"memory://rolling/out{next(numbers)}"

        def read() -> list[Any]:
            names = memory.glob(f"{url}/part-*")
            return [CODEC.from_json(line) for name in names for line in memory.cat(name).splitlines()]

        return SinkTarget(lambda: sink.files(url, roll_epochs=1), read)

    verify_sink(new_target, Sale, SALES[:12], staged=("remote",))


@pytest.mark.parametrize("settings", [{"roll_epochs": 2}, {"roll_epochs": None}], ids=["rolls", "does not"])
def test_a_folder_is_one_stores_for_each_output(tmp_path: Path, settings: dict[str, Any]) -> None:
    out = Writing(tmp_path, roll_epochs=2)
    for epoch in range(4):
        out.release(epoch, job="one")
    out.restart(**settings)
    for epoch in range(2):
        with pytest.raises(SinkFailed, match="output sales of another store") as caught:
            out.release(epoch, job="two")
        assert "files of store one; this one is two" in str(caught.value)
        assert f"{HIDDEN}/sales.claim away" in str(caught.value)
    assert out.visible() == cents(*range(4)) and out.hidden() == []
    other = sink.files(out.folder, **out.settings).bind(CODEC, "others")
    other.start()
    ctx = out.staging.release(0, "others")
    ctx.job = "two"
    other.release(stage_rows(other, CODEC, out.staging, 0, [SALES[30:33]]), ctx)
    other.close()
    assert out.visible() == [*cents(*range(4)), 30, 31, 32], "another output is nobody's business"
    # What the error says helps.
    for path in [*out.folder.glob("part-*-sales-*"), out.folder / HIDDEN / "sales.claim"]:
        path.unlink()
    out.release(0, job="two")
    out.sink.close()
    assert out.visible() == [*cents(0), 30, 31, 32]


def test_a_store_that_is_refused_leaves_the_other_alone(tmp_path: Path) -> None:
    out = Writing(tmp_path, roll_epochs=3)
    one = out.sink
    out.release(0, by=one, job="one")
    out.release(1, by=one, job="one")
    two = out.restart()
    with pytest.raises(SinkFailed, match="another store"):
        out.release(0, by=two, job="two")
    two.close()
    assert out.visible() == [] and len(out.hidden()) == 4
    out.release(2, by=one, job="one")
    assert out.visible() == cents(0, 1, 2) and len(out.names()) == 1


def test_a_store_that_was_started_over_goes_on_in_its_folder(tmp_path: Path) -> None:
    out = Writing(tmp_path, roll_epochs=2)
    for timeline in ("0", "1"):
        out.restart()
        for epoch in range(2):
            out.release(epoch, timeline, job="one")
    assert out.visible() == sorted(2 * cents(0, 1))


@pytest.mark.parametrize("settings", [{"roll_epochs": 2}, {"roll_epochs": None}], ids=["rolls", "does not"])
def test_a_folder_of_an_earlier_version_is_taken_by_a_store_that_may_have_written_it(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    out = Writing(tmp_path, roll_epochs=2)
    claim = out.folder / HIDDEN / "sales.claim"
    for epoch in range(4):
        out.release(epoch, job="one")
    claim.unlink()
    out.restart(**settings)
    with pytest.raises(SinkFailed, match="epoch 3 of timeline 0; this store has come to epoch 1 of timeline 0"):
        out.release(1, job="two")
    assert not claim.exists()
    # The last epoch may come again, and says so.
    out.release(3, job="one")
    assert out.visible() == cents(*range(4)) and claim.exists()
    out.restart()
    with pytest.raises(SinkFailed, match="files of store one"):
        out.release(4, job="two")


def test_folders_in_which_nothing_waits_are_not_remembered_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolls, "RESTING", 2)
    out = Writing(tmp_path, format="json", bucket_by=(Sale.at, "hour"), roll_epochs=1)
    held: Any = out.sink._rolls  # type: ignore[attr-defined]
    for epoch in range(10):
        out.release(epoch)
        assert not held._buckets and len(held._resting) <= 2
    for epoch in range(10):
        out.release(epoch)
    assert out.visible() == cents(*range(10)), "what is visible is looked up again"


# --- object stores


def test_an_object_store_gets_whole_files_and_nothing_that_waits(bucket: str, tmp_path: Path) -> None:
    from s3fs import S3FileSystem  # type: ignore[import-untyped]

    url = f"s3://{bucket}/out"
    staging = Staging(tmp_path, inline_limit_bytes=0)
    out = sink.files(url, format="parquet", roll_epochs=2, bucket_by=("at", "day")).bind(CODEC, "sales")
    out.start()
    for epoch in range(3):
        rows = SALES[epoch * 3 : epoch * 3 + 3]
        out.release(stage_rows(out, CODEC, staging, epoch, [rows[:1], rows[1:]]), staging.release(epoch, "sales"))
    seen = S3FileSystem(use_listings_cache=False).find(f"{bucket}/out")
    names = [name.removeprefix(f"{bucket}/out/") for name in seen if HIDDEN not in name]
    assert names == ["day=1970-01-01/part-0-000000000000-000000000001-sales-00000.parquet"]
    again = sink.files(url, format="parquet", roll_epochs=2, bucket_by=("at", "day")).bind(CODEC, "sales")
    again.start()
    again.close()
    fs = S3FileSystem(use_listings_cache=False)
    found = fs.find(f"{bucket}/out")
    files = [pq.read_table(fs.open(name)) for name in found if name.endswith(".parquet")]
    assert sorted(cent for file in files for cent in file["cents"].to_pylist()) == cents(0, 1, 2)
    assert not [name for name in found if name.endswith((".part", ".roll"))]


def test_an_object_store_that_does_not_answer_is_worth_another_try(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from s3fs import S3FileSystem

    for settings in ({}, {"roll_epochs": 2}):
        out = sink.files(f"s3://{bucket}/away", **settings).bind(CODEC, "sales")  # type: ignore[arg-type]
        out.start()
        staging = Staging(tmp_path)
        parts = stage_rows(out, CODEC, staging, 0, [SALES[:3]])
        with monkeypatch.context() as away:
            away.setattr(S3FileSystem, "_call_s3", _refused)
            with pytest.raises(SinkUnavailable, match="does not answer"):
                out.release(parts, staging.release(0, "sales"))
        out.release(parts, staging.release(0, "sales"))
        out.close()


async def _refused(*_: Any, **__: Any) -> None:
    raise ConnectionRefusedError(111, "Connection refused")
