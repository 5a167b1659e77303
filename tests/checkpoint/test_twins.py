"""A folder that was copied by hand has the id of its original: never do two jobs run under it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headrace.checkpoint.fence import take_fence
from headrace.checkpoint.twins import find_twin
from headrace.errors import StoreInUse
from headrace.state.copying import copy_savepoint
from headrace.state.record import read_record
from headrace.state.savepoints import create_savepoint
from headrace.state.store import LocalStore, open_store
from headrace.testing import Harness
from tests.checkpoint.test_rewind import Program, counting, played
from tests.objects import ObjectServer


@pytest.fixture
def original(tmp_path: Path) -> Path:
    program = counting()
    with Harness(program.app, store=tmp_path / "original") as h:
        played(h, program, 3)
    return tmp_path / "original"


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "copy")
    return tmp_path / "copy"


def started(path: Path) -> tuple[Harness, Program]:
    program = counting()
    return Harness(program.app, store=path), program


def test_a_copy_is_refused_while_its_original_is_driven(original: Path, copy: Path) -> None:
    h, program = started(original)
    with h:
        before = sorted(LocalStore(copy).list("fences"))
        with pytest.raises(StoreInUse, match="under the same id") as error:
            started(copy)
        assert str(original) in error.value.found
        assert sorted(LocalStore(copy).list("fences")) == before, "it was left as it is"
        played(h, program, 1)


def test_the_original_is_refused_while_a_copy_is_driven(original: Path, copy: Path) -> None:
    h, program = started(copy)
    with h:
        with pytest.raises(StoreInUse, match="under the same id"):
            started(original)
        played(h, program, 1)
    with started(original)[0], pytest.raises(StoreInUse, match="under the same id"):
        started(copy)


def test_a_store_that_was_moved_goes_on(original: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.move(original, moved)
    h, program = started(moved)
    with h:
        played(h, program, 1)
    original.mkdir()
    with started(moved)[0] as h:
        assert h.published == 3


def test_two_names_of_one_folder_are_one_store(original: Path, tmp_path: Path) -> None:
    other = tmp_path / "link"
    other.symlink_to(original)
    with started(other)[0] as h:
        assert h.published == 2
    with started(original)[0] as h:
        assert h.published == 2
    assert LocalStore(original).list("probes") == []


def test_a_fork_and_a_copy_that_says_so_have_no_twin(original: Path, tmp_path: Path) -> None:
    files, copy = LocalStore(original), LocalStore(tmp_path / "saved")
    copy_savepoint(files, create_savepoint(files, name="before"), copy)
    with started(original)[0]:
        with started(copy.root)[0] as h:
            assert h.published == 2
        with Harness(counting().app, store=tmp_path / "fork", start_from=f"{original}@before") as h:
            assert h.published == 2


def test_taking_over_ends_the_job_of_the_other_store(original: Path, copy: Path) -> None:
    fence = take_fence(LocalStore(original))
    newer = take_fence(LocalStore(copy), takeover=True)
    newer.drop()
    with pytest.raises(Exception, match="another driver has taken over"):
        fence.check()
    fence.drop()


def test_an_object_store_has_twins_too(original: Path, object_server: ObjectServer, bucket: str) -> None:
    files, remote = LocalStore(original), open_store(f"s3://{bucket}/job")
    for path in files.list():
        remote.write(path, files.read(path))
    twin = find_twin(remote, files.url)
    assert twin is not None and twin.url == files.url
    assert find_twin(remote, str(original.parent / "nowhere")) is None
    assert find_twin(remote, remote.url) is None
    assert read_record(remote) == read_record(files)
