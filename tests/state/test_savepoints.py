"""Savepoints: a pin of a published epoch that is either whole or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import AlreadyExists, CorruptFile, MissingFile, StoreError
from headrace.model import crash
from headrace.state import layout
from headrace.state.condemned import write_condemned
from headrace.state.savepoints import (
    check_files,
    check_name,
    create_savepoint,
    delete_savepoint,
    list_savepoints,
    read_saved_state,
    read_savepoint,
)
from tests.state.saved import EPOCH_US, SavedJob, run


@pytest.fixture
def job(tmp_path: Path) -> SavedJob:
    job = SavedJob(tmp_path)
    job.publish(6)
    return job


def test_a_savepoint_pins_the_newest_epoch_and_is_read_back(job: SavedJob) -> None:
    made = create_savepoint(job.store, name="before-v2", note="the upgrade", clock=lambda: 7.5)
    assert (made.epoch, made.timeline, made.nonce, made.clock_us) == (5, 0, "n5", 5 * EPOCH_US)
    assert (made.taken_us, made.note, made.app, made.program) == (7_500_000, "the upgrade", "a", "p")
    assert made.previous_offsets == "v1\n{}\n4"
    assert read_savepoint(job.store, "before-v2") == made
    assert read_saved_state(job.store, made) == job.state


def test_nothing_of_the_state_is_copied(job: SavedJob) -> None:
    before = set(job.store.list())
    create_savepoint(job.store)
    assert set(job.store.list()) - before == {layout.savepoint("epoch-5")}


def test_any_kept_epoch_can_be_pinned(job: SavedJob) -> None:
    assert create_savepoint(job.store, place=layout.ManifestName(0, 2)).name == "epoch-2"
    with pytest.raises(MissingFile, match="the manifest of epoch 9 is not in the store"):
        create_savepoint(job.store, place=layout.ManifestName(0, 9))


def test_savepoints_are_listed_by_their_epochs(job: SavedJob) -> None:
    create_savepoint(job.store, name="zebra", place=layout.ManifestName(0, 1))
    create_savepoint(job.store, name="antelope")
    assert [each.name for each in list_savepoints(job.store)] == ["zebra", "antelope"]
    assert delete_savepoint(job.store, "zebra").epoch == 1
    assert [each.name for each in list_savepoints(job.store)] == ["antelope"]


def test_taking_the_same_savepoint_again_answers_with_the_first(job: SavedJob) -> None:
    first = create_savepoint(job.store, name="a", note="why")
    assert create_savepoint(job.store, name="a") == first
    assert create_savepoint(job.store, name="a", note="why") == first


def test_a_name_is_taken_once(job: SavedJob) -> None:
    create_savepoint(job.store, name="a", note="first")
    job.publish()
    with pytest.raises(AlreadyExists, match="there is a savepoint 'a' already") as caught:
        create_savepoint(job.store, name="a")
    assert "a savepoint of epoch 5" in caught.value.found
    assert read_savepoint(job.store, "a").epoch == 5


def test_an_unknown_name_is_answered_with_those_that_are_there(job: SavedJob) -> None:
    with pytest.raises(StoreError, match="there is no savepoint 'b'") as caught:
        read_savepoint(job.store, "b")
    assert caught.value.expected == "a savepoint; the store has none"
    create_savepoint(job.store, name="a")
    with pytest.raises(StoreError) as caught:
        delete_savepoint(job.store, "b")
    assert caught.value.expected == "a"


@pytest.mark.parametrize("name", ["", "41", "2024-05-01", "../a", ".a", "a b", "a@b", "é", "a" * 101])
def test_names_that_could_be_taken_for_something_else_are_refused(name: str) -> None:
    with pytest.raises(StoreError, match="a savepoint cannot have this name"):
        check_name(name)


def test_a_store_without_epochs_has_nothing_to_keep(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no epoch has been published yet"):
        create_savepoint(SavedJob(tmp_path).store)


def test_an_epoch_whose_files_are_gone_is_unpinned_again(job: SavedJob) -> None:
    job.store.delete(run(4))
    with pytest.raises(MissingFile, match="files of epoch 5 are not in the store") as caught:
        create_savepoint(job.store)
    assert run(4) in caught.value.found
    assert list_savepoints(job.store) == []


def test_an_epoch_that_a_sweep_has_condemned_is_refused(job: SavedJob) -> None:
    write_condemned(job.store, 1, frozenset({layout.ManifestName(0, 2)}))
    with pytest.raises(StoreError, match="epoch 2 is about to be swept") as caught:
        create_savepoint(job.store, place=layout.ManifestName(0, 2))
    assert caught.value.expected == "one of 3–5"
    assert list_savepoints(job.store) == []


def test_a_failed_repetition_leaves_the_savepoint_that_was_there(job: SavedJob) -> None:
    create_savepoint(job.store, name="a")
    job.store.delete(run(4))
    with pytest.raises(MissingFile):
        create_savepoint(job.store, name="a")
    assert [each.name for each in list_savepoints(job.store)] == ["a"]


def test_a_changed_byte_of_a_record_is_noticed(job: SavedJob) -> None:
    create_savepoint(job.store, name="a")
    path = layout.savepoint("a")
    job.store.write(path, job.store.read(path).replace(b'"epoch":5', b'"epoch":4'))
    with pytest.raises(CorruptFile, match="does not fit its checksum"):
        list_savepoints(job.store)


def test_a_savepoint_of_another_store_is_noticed(job: SavedJob, tmp_path: Path) -> None:
    create_savepoint(job.store, name="a")
    other = SavedJob(tmp_path / "other")
    other.publish(6)
    record = job.store.read(layout.savepoint("a")).replace(b'"n5"', b'"n7"')
    text = record.rpartition(b',"crc":')[0] + b"}"
    from zlib import crc32

    other.store.create(layout.savepoint("a"), text[:-1] + b',"crc":%d}' % crc32(text))
    with pytest.raises(CorruptFile, match="is of another epoch 5 than the store's"):
        check_files(other.store, read_savepoint(other.store, "a"))


def test_dying_behind_the_pin_leaves_a_savepoint_that_is_whole_when_its_epoch_is(job: SavedJob) -> None:
    def die(point: str, epoch: int) -> None:
        assert (point, epoch) == ("savepoint_pinned", 5)
        raise crash.Crash

    with crash.planned(die), pytest.raises(crash.Crash):
        create_savepoint(job.store, name="a")
    left = read_savepoint(job.store, "a")
    assert check_files(job.store, left) == job.state
    assert create_savepoint(job.store, name="a") == left
