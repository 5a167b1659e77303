"""Copies of savepoints: whole or no store at all, and never a mixture of two."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from headrace.errors import CorruptFile, StoreError
from headrace.model import crash
from headrace.read.store import Store
from headrace.state import layout
from headrace.state.checking import verify_state
from headrace.state.copying import CopyReport, copy_savepoint
from headrace.state.manifest import encode_manifest, read_state
from headrace.state.record import Branch, read_record
from headrace.state.savepoints import Savepoint, check_files, create_savepoint, delete_savepoint, list_savepoints
from headrace.state.spark_offsets import entries_read
from headrace.state.store import LocalStore, open_store
from tests.state.saved import CONTENT, SavedJob, looped, run

if TYPE_CHECKING:
    from tests.objects import ObjectServer


@pytest.fixture
def job(tmp_path: Path) -> SavedJob:
    job = SavedJob(tmp_path / "store")
    job.publish(6)
    return job


@pytest.fixture
def savepoint(job: SavedJob) -> Savepoint:
    return create_savepoint(job.store, name="before-v2")


@pytest.fixture
def target(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "copy", durable=False)


def test_a_copy_needs_nothing_of_the_original(
    job: SavedJob, savepoint: Savepoint, target: LocalStore, tmp_path: Path
) -> None:
    report = copy_savepoint(job.store, savepoint, target, clock=lambda: 7.5)
    assert report == CopyReport(str(target.root), 3, 3 * len(CONTENT), 3)
    shutil.rmtree(tmp_path / "store")
    moved = LocalStore(shutil.move(target.root, tmp_path / "moved"), durable=False)
    assert job.state is not None
    state = read_state(moved, 0, 5)
    assert (state.runs, state.manifest.loops) == (job.state.runs, job.state.manifest.loops)
    assert state.manifest.full and not state.manifest.outputs
    assert list_savepoints(moved) == [savepoint]
    assert verify_state(moved, check_files(moved, savepoint)).damages == ()
    assert moved.list(layout.RUNS) == [run(4), run(5)]
    assert moved.list(layout.STAGED) == [looped(5)]
    assert Store(moved.root).epochs() == [5]


def test_a_copy_keeps_the_id_and_says_where_it_is_from(job: SavedJob, savepoint: Savepoint, target: LocalStore) -> None:
    copy_savepoint(job.store, savepoint, target, clock=lambda: 7.5)
    before, record = read_record(job.store), read_record(target)
    assert before is not None and record is not None and record.copied_from is not None
    assert (record.query, record.app, record.timeline) == (before.query, before.app, 0)
    origin = record.copied_from
    assert (origin.url, origin.savepoint, origin.epoch, origin.nonce) == (job.store.url, "before-v2", 5, "n5")
    assert origin.copied_us == 7_500_000


def test_a_copy_knows_of_those_rewinds_that_led_to_it(job: SavedJob, savepoint: Savepoint, target: LocalStore) -> None:
    record = read_record(job.store)
    assert record is not None
    made = {"from_epoch": 3, "end_epoch": 5, "shown_epoch": 5, "asked": "3", "at_us": 0}
    earlier = Branch(timeline=0, from_timeline=-1, end_timeline=-1, shown_timeline=-1, mark="a", **made)
    later = Branch(timeline=1, from_timeline=0, end_timeline=0, shown_timeline=0, mark="b", **made)
    changed = msgspec.structs.replace(record, timeline=1, branches=(earlier, later))
    job.store.write(layout.STORE_RECORD, msgspec.json.encode(changed))
    copy_savepoint(job.store, savepoint, target)
    copied = read_record(target)
    assert copied is not None
    assert (copied.timeline, copied.branches) == (0, (earlier,))


def test_an_older_epoch_is_copied_while_the_job_goes_on(job: SavedJob, target: LocalStore) -> None:
    savepoint = create_savepoint(job.store, place=layout.ManifestName(0, 3))
    job.publish(2)
    copy_savepoint(job.store, savepoint, target)
    assert Store(target.root).epochs() == [3]
    assert target.list(layout.RUNS) == [run(2), run(3)]
    again = create_savepoint(target)
    assert again.previous_offsets == savepoint.previous_offsets == "v1\n{}\n2"


def test_a_copy_of_a_copy_is_one_of_the_first(job: SavedJob, savepoint: Savepoint, tmp_path: Path) -> None:
    first, second = (LocalStore(tmp_path / name, durable=False) for name in ("first", "second"))
    copy_savepoint(job.store, savepoint, first)
    copy_savepoint(first, savepoint, second)
    assert read_state(second, 0, 5) == read_state(first, 0, 5)


def test_a_copy_that_is_whole_is_left_as_it_is(job: SavedJob, savepoint: Savepoint, target: LocalStore) -> None:
    copy_savepoint(job.store, savepoint, target)
    before = {path: target.read(path) for path in target.list()}
    assert copy_savepoint(job.store, savepoint, target).copied == 0
    assert {path: target.read(path) for path in target.list()} == before


@pytest.mark.parametrize("point", ["copying", "copy_written"])
@pytest.mark.parametrize("strike", [1, 2, 3])
def test_a_copy_that_died_anywhere_is_no_store_and_goes_on_where_it_was(
    point: str, strike: int, job: SavedJob, savepoint: Savepoint, target: LocalStore
) -> None:
    left = strike if point == "copying" else 1

    def die(reached: str, epoch: int) -> None:
        nonlocal left
        left -= reached == point
        if left == 0:
            raise crash.Crash

    with crash.planned(die), pytest.raises(crash.Crash):
        copy_savepoint(job.store, savepoint, target)
    assert read_record(target) is None
    with pytest.raises(StoreError, match="there is no store here"):
        Store(target.root)
    there = len(target.list(layout.RUNS) + target.list(layout.STAGED))
    assert copy_savepoint(job.store, savepoint, target).copied == 3 - there
    check_files(target, savepoint)
    assert not target.exists(layout.COPYING)


def test_dying_behind_the_record_leaves_a_whole_copy(job: SavedJob, savepoint: Savepoint, target: LocalStore) -> None:
    copy_savepoint(job.store, savepoint, target)
    target.write(layout.COPYING, b"left behind")
    assert copy_savepoint(job.store, savepoint, target).copied == 0
    assert not target.exists(layout.COPYING)


def test_a_damaged_file_is_noticed_on_its_way_and_never_copied(
    job: SavedJob, savepoint: Savepoint, target: LocalStore
) -> None:
    job.store.write(run(4), CONTENT.replace(b"s", b"S"))
    with pytest.raises(CorruptFile, match=run(4).replace(".", r"\.")):
        copy_savepoint(job.store, savepoint, target)
    assert not target.exists(run(4))
    job.store.write(run(4), CONTENT)
    copy_savepoint(job.store, savepoint, target)
    check_files(target, savepoint)


def test_on_one_file_system_files_of_state_get_a_second_name_and_either_store_may_go(
    job: SavedJob, savepoint: Savepoint, tmp_path: Path
) -> None:
    copy_savepoint(job.store, savepoint, LocalStore(tmp_path / "copy"))
    runs = LocalStore(tmp_path / "copy").list("runs")
    assert runs and all(os.path.samefile(tmp_path / "copy" / path, tmp_path / "store" / path) for path in runs)
    manifest = layout.manifest(*savepoint.place)
    assert not os.path.samefile(tmp_path / "copy" / manifest, tmp_path / "store" / manifest)
    shutil.rmtree(tmp_path / "store")
    copied = LocalStore(tmp_path / "copy")
    check_files(copied, list_savepoints(copied)[0])


def test_where_links_cannot_be_made_files_are_copied(
    job: SavedJob, savepoint: Savepoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "link", lambda self, path, source: False)
    copied = LocalStore(tmp_path / "copy")
    copy_savepoint(job.store, savepoint, copied)
    runs = copied.list("runs")
    assert runs and not any(os.path.samefile(tmp_path / "copy" / path, tmp_path / "store" / path) for path in runs)
    check_files(copied, list_savepoints(copied)[0])


def test_two_copies_never_mix(job: SavedJob, savepoint: Savepoint, target: LocalStore) -> None:
    other = create_savepoint(job.store, name="other", place=layout.ManifestName(0, 2))

    def die(point: str, epoch: int) -> None:
        if point == "copy_written":
            raise crash.Crash

    with crash.planned(die), pytest.raises(crash.Crash):
        copy_savepoint(job.store, savepoint, target)
    for expected in ("an unfinished copy of", "a copy of"):
        with pytest.raises(StoreError, match="there is something else where the copy is to go") as caught:
            copy_savepoint(job.store, other, target)
        assert caught.value.found == f"{expected} {job.store.url}@before-v2"
        copy_savepoint(job.store, savepoint, target)


def test_a_folder_with_something_in_it_is_left_alone(job: SavedJob, savepoint: Savepoint, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"")
    with pytest.raises(StoreError, match="something else") as caught:
        copy_savepoint(job.store, savepoint, LocalStore(tmp_path / "photos", durable=False))
    assert "a.jpg" in caught.value.found
    with pytest.raises(StoreError, match="something else") as caught:
        copy_savepoint(job.store, savepoint, SavedJob(tmp_path / "another").store)
    assert caught.value.found == "the store of app 'a'"


def test_what_a_start_needs_is_copied_and_what_was_listed_later_is_not(job: SavedJob, target: LocalStore) -> None:
    for name in ("files/0", "files/1", "files/2", "kafka/0"):
        job.store.write(layout.input_entry(name), b"v1")
    kept = f"{layout.kept_by_source('users')}/part.parquet"
    job.store.write(kept, b"rows")
    job.store.write(layout.fence(1), msgspec.json.encode({"host": "h", "pid": 7, "fence": 1}))
    state = job.publish()
    path = layout.manifest(0, state.epoch)
    offsets = 'v1\n{}\nfiles:{"logOffset":1}\nkafka:{"topic":{"0":5}}'
    job.store.write(path, encode_manifest(msgspec.structs.replace(state.manifest, offsets=offsets)))
    savepoint = create_savepoint(job.store)
    copy_savepoint(job.store, savepoint, target)
    assert target.list(layout.INPUTS) == [layout.input_entry(name) for name in ("files/0", "files/1", "kafka/0")]
    assert target.read(kept) == b"rows"
    # A new driver takes a higher fence, and does not wait for the one of the original.
    assert msgspec.json.decode(target.read(layout.fence(1))) == {"host": "h", "pid": 7, "fence": 1, "ended": True}


@pytest.mark.parametrize(
    ("entries", "belong"),
    [
        (["0", "1", "2"], ["0", "1"]),
        (["9.compact", "10", "11"], ["9.compact", "10", "11"]),
        (["0.compact", "1", "5"], ["0.compact", "1"]),
    ],
)
def test_entries_of_a_log_belong_to_what_has_read_them(entries: list[str], belong: list[str]) -> None:
    paths = [layout.input_entry(f"files/{name}") for name in entries]
    chosen = entries_read(paths, 'v1\n{}\nfiles:{"logOffset":1}')
    assert chosen == [layout.input_entry(f"files/{name}") for name in belong]


def test_verifying_names_every_file_that_is_missing_or_damaged(job: SavedJob, savepoint: Savepoint) -> None:
    state = check_files(job.store, savepoint)
    told: list[tuple[int, int]] = []
    whole = verify_state(job.store, state, lambda done, total: told.append((done, total)))
    assert (whole.files, whole.size_bytes, whole.damages) == (3, 3 * len(CONTENT), ())
    assert told[0] == (0, 3 * len(CONTENT)) and told[-1] == (3 * len(CONTENT), 3 * len(CONTENT))
    job.store.write(run(5), b"")
    job.store.delete(looped(5))
    assert {damage.path for damage in verify_state(job.store, state).damages} == {run(5), looped(5)}


def test_a_copy_outlives_its_savepoint_in_an_object_store(
    job: SavedJob, savepoint: Savepoint, object_server: ObjectServer, bucket: str, tmp_path: Path
) -> None:
    remote = open_store(f"s3://{bucket}/backup", cache_dir=tmp_path / "cache")
    copy_savepoint(job.store, savepoint, remote)
    delete_savepoint(job.store, "before-v2")
    elsewhere = open_store(f"s3://{bucket}/backup", cache_dir=tmp_path / "elsewhere")
    state = check_files(elsewhere, savepoint)
    assert verify_state(elsewhere, state).damages == ()
    elsewhere.write(run(5), CONTENT.replace(b"s", b"S"))
    # What a machine has fetched before is not taken for what lies there.
    assert [damage.path for damage in verify_state(elsewhere, state).damages] == [run(5)]
    back = LocalStore(tmp_path / "back", durable=False)
    with pytest.raises(CorruptFile):
        copy_savepoint(elsewhere, savepoint, back)
