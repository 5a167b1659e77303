"""`sink.delta` goes back: the version of then is restored, and nothing that others wrote is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

import headrace as hr
from headrace.connectors.delta.rewind import EPOCH_NOTE, RESTORED_NOTE, derive_restore, read_history
from headrace.connectors.delta.transaction import beginning_of, split_number
from headrace.errors import HeadraceError, SinkFailed
from headrace.model.rows import codec_of
from headrace.testing.staging import Staging, stage_rows
from tests.sinks.delta_rows import rows_at, rows_of


class Sale(hr.Record):
    cents: int


CODEC = codec_of(Sale)


class Lake:
    def __init__(self, tmp_path: Path, path: Any = None) -> None:
        self.path = path or tmp_path / "lake"
        (tmp_path / "staged").mkdir()
        self.staging = Staging(tmp_path / "staged")
        self.sink = self.restart()

    def restart(self, **how: Any) -> Any:
        self.sink = hr.sink.delta(self.path, **how).bind(CODEC, "sales")
        self.sink.start()
        return self.sink

    def write(self, *epochs: int, timeline: str = "0", by: Any = None) -> None:
        for epoch in epochs:
            sink = by or self.sink
            parts = stage_rows(sink, CODEC, self.staging, epoch, [[Sale(epoch * 10), Sale(epoch * 10 + 1)]])
            sink.release(parts, self.staging.release(epoch, "sales", timeline))

    def check(self, epoch: int, last: int, timeline: str = "0", following: str | None = None) -> Any:
        ctx = self.staging.forget(epoch, last, output="sales", timeline=timeline)
        ctx.next_timeline = following or ctx.next_timeline
        self.sink.check_forget(ctx)
        return ctx

    def forget(self, epoch: int, last: int, timeline: str = "0", following: str | None = None) -> None:
        self.sink.forget(self.check(epoch, last, timeline, following))

    @property
    def epochs(self) -> list[int]:
        rows = rows_of(deltalake.DeltaTable(self.path))["cents"].to_pylist()
        return sorted(cents // 10 for cents in rows if cents % 10 == 0)

    @property
    def table(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(self.path)


def test_a_job_goes_back_and_forth(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.write(0, 1, 2, 3)
    old = lake.sink
    lake.restart()
    lake.forget(1, 3)
    assert lake.epochs == [0, 1]
    lake.write(2, 3, timeline="1")
    assert lake.epochs == [0, 1, 2, 3]
    lake.forget(1, 3)
    assert lake.epochs == [0, 1, 2, 3], "forgetting again leaves the new timeline"
    with pytest.raises(HeadraceError):
        lake.write(4, timeline="0", by=old)
    # Behind the beginning of its timeline: all of that one, and a part of the older. Both are looked at before.
    lake.check(-1, 3, timeline="1", following="2")
    lake.check(0, 3, timeline="0", following="2")
    lake.forget(-1, 3, timeline="1", following="2")
    lake.forget(0, 3, timeline="0", following="2")
    assert lake.epochs == [0]
    lake.write(1, timeline="2")
    assert lake.epochs == [0, 1]


def test_a_table_is_compacted_meanwhile(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.write(0, 1, 2)
    lake.table.optimize.compact()
    lake.write(3)
    lake.forget(0, 3)
    assert lake.epochs == [0]


def test_what_others_wrote_since_is_not_taken_back(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.write(0, 1)
    deltalake.write_deltalake(lake.path, pa.table({"cents": [770]}), mode="append")
    lake.write(2)
    with pytest.raises(SinkFailed, match="others changed the table since") as caught:
        lake.forget(0, 2)
    assert "(WRITE)" in str(caught.value) and "--hold sales" in str(caught.value)
    lake.forget(1, 2)
    assert lake.epochs == [0, 1, 77]


def test_rows_that_were_vacuumed_cannot_come_back(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.write(0, 1, 2)
    lake.table.optimize.compact()
    lake.table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    lake.write(3)
    with pytest.raises(SinkFailed, match="could not go back to epoch 1") as caught:
        lake.forget(1, 3)
    assert "hold the output" in str(caught.value)
    assert lake.epochs == [0, 1, 2, 3]


def test_a_timeline_of_which_nothing_came_is_shut_out_all_the_same(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.write(0)
    old = lake.sink
    lake.restart()
    lake.forget(0, 5)
    lake.write(1, timeline="0", by=old)
    assert lake.epochs == [0]
    lake.write(1, timeline="1")
    assert lake.epochs == [0, 1]
    # What shut it out holds no rows, and is nobody else's.
    lake.forget(-1, 1, timeline="1", following="2")
    lake.forget(-1, 0, timeline="0", following="2")
    assert lake.epochs == []


def test_a_column_that_was_added_since_is_added_again(tmp_path: Path) -> None:
    class Wider(hr.Record):
        cents: int
        note: str = ""

    lake = Lake(tmp_path)
    lake.write(0)
    codec = codec_of(Wider)
    wide = hr.sink.delta(lake.path, schema_mode="merge").bind(codec, "sales")
    wide.start()
    wide.release(stage_rows(wide, codec, lake.staging, 1, [[Wider(10, "a")]]), lake.staging.release(1, "sales"))
    lake.sink = wide
    # Adding a column is a change of the table's own: it is ours, and still not an epoch.
    with pytest.raises(SinkFailed, match="others changed the table since"):
        lake.forget(-1, 1)
    lake.forget(0, 1)
    assert lake.epochs == [0]
    parts = stage_rows(wide, codec, lake.staging, 1, [[Wider(10, "b")]])
    wide.release(parts, lake.staging.release(1, "sales", "1"))
    assert rows_of(lake.table)["note"].to_pylist().count("b") == 1


def test_the_log_is_read_as_far_back_as_is_needed(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.write(*range(9))
    history = read_history(lake.table)
    assert derive_restore(history, "headrace-staging-sales", 0, 4) == (5, ())
    assert next(history)["version"] == 4, "nothing behind the epoch was looked at"


def test_a_table_in_an_object_store_goes_back(bucket: str, tmp_path: Path) -> None:
    """In a process of its own: deltalake lets no thread run meanwhile, and the server is one of this process."""
    lake = Lake(tmp_path, f"s3://{bucket}/lake")
    lake.write(0, 1, 2)
    script = (
        "import sys; from pathlib import Path; from tests.sinks.test_delta_rewind import Lake\n"
        "Lake(Path(sys.argv[1]), sys.argv[2]).forget(0, 2)"
    )
    (tmp_path / "other").mkdir()
    command = [sys.executable, "-c", script, str(tmp_path / "other"), lake.path]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lake.write(1, timeline="1")
    reading = {"aws_endpoint_url": os.environ["AWS_ENDPOINT_URL"], "aws_allow_http": "true"}
    assert sorted(rows_at(lake.path, storage_options=reading)["cents"].to_pylist()) == [0, 1, 10, 11]


def test_at_least_once_can_only_be_held() -> None:
    assert hr.sink.delta("x").rewinds == {"repeat", "hold"}
    assert hr.sink.delta("x", guarantee="at_least_once").rewinds == {"hold"}


def entry(version: int, epoch: int = -1, operation: str = "WRITE", **more: str) -> dict[str, Any]:
    note = {EPOCH_NOTE: f"w {epoch}"} if epoch >= 0 else {}
    return {"version": version, "operation": operation, **note, **more}


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([entry(3, 2), entry(2, 1), entry(1, 0)], (1, ())),
        ([entry(3, 2), entry(2, 1)], (1, ())),
        ([entry(2, 0), entry(1), entry(0)], (None, ())),
        ([entry(3, 2), entry(2, operation="OPTIMIZE"), entry(1, 1), entry(0, 0)], (0, ())),
        ([entry(3, 2), entry(2), entry(1, 1), entry(0, 0)], (0, ("version 2 (WRITE)",))),
        ([entry(4, -1, "RESTORE", **{RESTORED_NOTE: "1"}), entry(3, 2), entry(2, 1), entry(1, 0)], (None, ())),
    ],
)  # fmt: skip
def test_versions_tell_what_is_to_be_restored(history: list[dict[str, Any]], expected: Any) -> None:
    assert derive_restore(history, "w", 0, 0) == expected
    assert split_number(beginning_of("3")) < (3, 0) and split_number(beginning_of("3")) > (2, 10**9)
