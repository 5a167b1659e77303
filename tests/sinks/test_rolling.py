"""`sink.files` that rolls: rows of several epochs in one file, seen whole, once, or not at all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any

import fsspec
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace import sink
from headrace.errors import ProgramError, SinkFailed, SinkUnavailable
from headrace.model.crash import Crash
from headrace.model.part_names import HIDDEN
from headrace.model.record import Record
from headrace.model.rows import codec_of
from headrace.model.time import Timestamp
from headrace.sinks import rolls
from headrace.sinks.contract import Sink
from headrace.sinks.local_folder import LocalFolder
from headrace.testing.sinks import SinkTarget, verify_sink
from headrace.testing.staging import Staging, stage_rows

HOUR = 3_600_000_000


class Sale(Record):
    shop: str
    day_off: date
    at: Timestamp
    cents: int


CODEC = codec_of(Sale)
SALES = [Sale(f"shop {i % 3}", date(2024, 1, 1 + i % 2), Timestamp(i * HOUR), i) for i in range(60)]


class Writing:
    """A sink of one folder, restarted as often as a test likes; epoch e has the rows e·3 … e·3+2, in two tasks."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        self.folder = tmp_path / "out"
        self.settings = {"format": "parquet", **settings}
        staged = tmp_path / "staged"
        staged.mkdir(parents=True, exist_ok=True)
        self.staging = Staging(staged, inline_limit_bytes=0)
        self.staged: dict[tuple[int, str], list[Any]] = {}
        self.sink = self.restart()

    def restart(self, **settings: Any) -> Sink:
        self.settings |= settings
        self.sink = sink.files(self.folder, **self.settings).bind(CODEC, "sales")
        self.sink.start()
        return self.sink

    def rows(self, epoch: int) -> list[Sale]:
        return SALES[epoch * 3 : epoch * 3 + 3]

    def release(self, epoch: int, timeline: str = "0", by: Sink | None = None, job: str = "staging") -> None:
        writer = by or self.sink
        if (epoch, timeline) not in self.staged:
            rows = self.rows(epoch)
            self.staged[epoch, timeline] = stage_rows(writer, CODEC, self.staging, epoch, [rows[:1], rows[1:]])
        ctx = self.staging.release(epoch, "sales", timeline)
        ctx.job = job
        writer.release(self.staged[epoch, timeline], ctx)

    def visible(self) -> list[int]:
        """Cents of all rows that a reader sees, who knows nothing of us."""
        return sorted(read_cents(self.folder, self.settings["format"]))

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.rglob("part-*") if HIDDEN not in path.parts)

    def hidden(self) -> list[Path]:
        """All that waits. Whose folder it is stays."""
        return [path for path in (self.folder / HIDDEN).rglob("*") if path.is_file() and path.suffix != ".claim"]


def read_cents(folder: Path, format: str) -> list[int]:
    found = []
    for path in folder.rglob(f"*.{format}"):
        if format == "parquet":
            found += pq.read_table(path, partitioning=None)["cents"].to_pylist()
        elif format == "csv":
            found += pl.read_csv(path)["cents"].to_list()
        else:
            found += pl.read_ndjson(path)["cents"].to_list()
    return found


def cents(*epochs: int) -> list[int]:
    return [cent for epoch in epochs for cent in range(epoch * 3, epoch * 3 + 3)]


def until(holds: Callable[[], bool], seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends, "it did not happen in time"
        threading.Event().wait(0.01)


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


# --- dying


class Dying:
    """Ends the world at the n-th thing that is done to a folder, before or after it."""

    METHODS = ("put", "publish", "copy", "create", "remove", "settle", "list", "read")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.at: float = -1
        self.dead = False
        for name in self.METHODS:
            monkeypatch.setattr(LocalFolder, name, self._wrapped(getattr(LocalFolder, name)))

    def _wrapped(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(folder: LocalFolder, *words: Any, **named: Any) -> Any:
            number, self.calls = self.calls, self.calls + 1
            if self.dead or number == self.at:
                self.dead = True
                raise Crash(f"before call {number}")
            if method.__name__ == "remove":
                words = (list(words[0]),)
                for name in words[0]:
                    method(folder, [name])
                    # Between any two files that are taken away, too.
                    number, self.calls = self.calls, self.calls + 1
                    if number == self.at:
                        self.dead = True
                        raise Crash(f"while files were removed, at call {number}")
                return None
            answer = method(folder, *words, **named)
            if number + 0.5 == self.at:
                self.dead = True
                raise Crash(f"after call {number}")
            return answer

        return call

    def live(self, at: float) -> None:
        self.calls, self.at, self.dead = 0, at, False


@pytest.mark.parametrize("settings", [{"roll_epochs": 2, "partition_by": ("shop",)}, {"roll_size": 50}])
def test_a_driver_may_die_anywhere_and_every_row_is_seen_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    world = Dying(monkeypatch)
    # A process dies here, not a machine: what was written stays written.
    monkeypatch.setattr("os.fsync", lambda handle: None)

    def run(name: str, dies_at: float) -> int:
        world.live(-1)
        out = Writing(tmp_path / name, format="json", **settings)
        world.live(dies_at)
        epoch = 0
        while epoch < 3:
            try:
                out.release(epoch)
            except Crash:
                calls = world.calls
                world.live(-1)
                seen = out.visible()
                assert len(seen) == len(set(seen)), f"rows twice after a death at {dies_at}"
                assert set(seen) <= set(cents(*range(epoch + 1)))
                out.restart()
                world.calls = calls
                continue
            epoch += 1
        calls = world.calls
        with suppress(Crash):
            out.sink.close()
        world.live(-1)
        out.restart().close()
        assert out.visible() == cents(*range(3)), f"died at {dies_at}"
        assert [path for path in out.hidden() if "making" not in path.parts] == []
        return calls

    total = run("alive", -1)
    assert total > 30
    for number in range(total):
        run(f"before{number}", number)
        if number % 3 == 0:
            run(f"after{number}", number + 0.5)


def test_half_a_released_epoch_never_becomes_visible(tmp_path: Path) -> None:
    out = Writing(tmp_path, roll_epochs=99)
    out.release(0)
    out.release(1)
    first, second = sorted(path for path in out.hidden() if "-000000000001-" in path.name)
    second.unlink()
    out.restart().close()
    assert out.visible() == cents(0) and first.exists()
    out.restart()
    out.release(1)
    out.sink.close()
    assert out.visible() == cents(0, 1)


# --- several drivers


def test_a_driver_that_wakes_up_in_the_middle_of_a_roll_shows_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolls, "AT_ONCE_BYTES", 0)
    asleep, wake = threading.Event(), threading.Event()
    out = Writing(tmp_path, roll_epochs=2)
    old = out.sink
    gather = old.gather  # type: ignore[attr-defined]

    def sleeping(format: str, parts: Any, made: Path) -> None:
        asleep.set()
        assert wake.wait(60)
        gather(format, parts, made)

    old._rolls._aside._gather = sleeping  # type: ignore[attr-defined]
    out.release(0)
    out.release(1)
    assert asleep.wait(60)
    monkeypatch.setattr(rolls, "AT_ONCE_BYTES", 2**20)
    new = out.restart()
    for epoch in (1, 2, 3, 4):
        out.release(epoch, by=new)
    wake.set()
    with suppress(SinkFailed):
        old.close()
    out.release(5, by=new)
    new.close()
    assert out.visible() == cents(*range(6))


def test_a_driver_that_notes_a_roll_too_late_shows_nothing_twice(tmp_path: Path) -> None:
    out = Writing(tmp_path, roll_epochs=2)
    old = out.sink
    out.release(0, by=old)
    new = out.restart(roll_epochs=4)
    for epoch in range(4):
        out.release(epoch, by=new)
    assert out.names() == ["part-0-000000000000-000000000003-sales-00000.parquet"]
    for epoch in (0, 1):
        out.release(epoch, by=old)
    old.close()
    assert out.visible() == cents(0, 1, 2, 3)
    out.release(4, by=new)
    out.restart().close()
    assert out.visible() == cents(0, 1, 2, 3, 4)


def test_a_new_timeline_shows_what_the_old_one_left_and_rolls_for_itself(tmp_path: Path) -> None:
    out = Writing(tmp_path, roll_epochs=2)
    out.release(0, "9")
    out.release(1, "9")
    out.release(2, "9")
    out.restart()
    out.release(0, "10")
    assert out.visible() == cents(0, 1, 2)
    out.release(1, "10")
    assert sorted(out.visible()) == sorted(cents(0, 1, 2) + cents(0, 1))


def test_a_program_may_begin_to_roll_and_stop_to(tmp_path: Path) -> None:
    out = Writing(tmp_path)
    out.release(0)
    out.restart(roll_epochs=3)
    out.release(0)
    out.release(1)
    assert out.visible() == cents(0)
    out.restart(roll_epochs=None)
    out.release(1)
    assert out.visible() == cents(0, 1)
    out.release(2)
    out.sink.close()
    assert out.visible() == cents(0, 1, 2)


def test_a_roll_that_comes_too_late_takes_away_only_what_is_visible(tmp_path: Path) -> None:
    out = Writing(tmp_path, roll_epochs=99)
    old = out.sink
    for epoch in range(2):
        out.release(epoch, by=old)
    new = out.restart(roll_epochs=2)
    out.release(1, by=new)
    out.restart(roll_epochs=99)
    assert out.visible() == cents(0, 1)
    out.release(2)
    out.release(2, by=old)
    old.close()
    assert out.visible() == cents(0, 1), "it went on with what it remembered, from epoch 0"
    out.sink.close()
    assert out.visible() == cents(0, 1, 2)


# --- several stores


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


# --- beside the epochs


def test_a_large_roll_does_not_hold_up_the_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rolls, "AT_ONCE_BYTES", 0)
    begun, go_on = threading.Event(), threading.Event()
    out = Writing(tmp_path, roll_epochs=2)
    gather = out.sink.gather  # type: ignore[attr-defined]

    def slowly(format: str, parts: Any, made: Path) -> None:
        begun.set()
        assert go_on.wait(60)
        gather(format, parts, made)

    out.sink._rolls._aside._gather = slowly  # type: ignore[attr-defined]
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
    gather = out.sink.gather  # type: ignore[attr-defined]

    def failing(format: str, parts: Any, made: Path) -> None:
        if next(failures, False):
            told.set()
            raise SinkUnavailable("the service is away")
        gather(format, parts, made)

    out.sink._rolls._aside._gather = failing  # type: ignore[attr-defined]
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
    from headrace.sinks.gathering import gather

    parts = [pa.py_buffer(b'"a\nb",c\n1,2\n'), pa.py_buffer(b'"a\nb",c\n3,4\n')]
    gather("csv", parts, tmp_path / "made")
    assert (tmp_path / "made").read_bytes() == b'"a\nb",c\n1,2\n3,4\n'


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
        (lambda: sink.files("out", roll_size="large"), Sale, "no size"),
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
