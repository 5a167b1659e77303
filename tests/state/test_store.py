"""The contract of a store, run against every kind; then what only one kind has."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from headrace.errors import AlreadyExists, MissingFile, StoreError
from headrace.model import crash
from headrace.state import layout
from headrace.state.remote import RemoteStore
from headrace.state.run import clear_open_runs, describe_run, encode_run, open_ref
from headrace.state.store import LocalStore, StoreFiles, open_store

RUN = layout.run("step", 1, 0, "1xab")


def _local(folder: Path) -> StoreFiles:
    return LocalStore(folder / "store")


def _memory(folder: Path) -> StoreFiles:
    return RemoteStore(f"memory://{uuid4()}/store", cache_dir=folder / "cache")


def _file(folder: Path) -> StoreFiles:
    root = str(folder / "far")
    return RemoteStore(f"file://{root}", cache_dir=folder / "cache", fs=LocalFileSystem(), root=root)


def _dir(folder: Path) -> StoreFiles:
    (folder / "far").mkdir()
    fs = DirFileSystem(str(folder / "far"), LocalFileSystem())
    return RemoteStore("dir://far", cache_dir=folder / "cache", fs=fs)


def _dir_in_memory(folder: Path) -> StoreFiles:
    fs = DirFileSystem(f"/{uuid4()}", MemoryFileSystem())
    return RemoteStore("dir://memory", cache_dir=folder / "cache", fs=fs)


KINDS: dict[str, Callable[[Path], StoreFiles]] = {
    "local": _local,
    "memory": _memory,
    "file": _file,
    "dir": _dir,
    "dir_in_memory": _dir_in_memory,
}


@pytest.fixture(params=[*KINDS, "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> StoreFiles:
    if request.param == "s3":
        return RemoteStore(f"s3://{request.getfixturevalue('bucket')}/some/store", cache_dir=tmp_path / "cache")
    return KINDS[request.param](tmp_path)


def test_what_is_written_is_read(store: StoreFiles) -> None:
    store.write("a/b.json", b"one")
    store.write("a/b.json", memoryview(b"two"))
    assert store.read("a/b.json") == b"two"
    store.write("empty", b"")
    assert store.read("empty") == b""
    store.write(RUN, pa.py_buffer(b"run"))
    assert store.read(RUN) == b"run"
    assert store.open_buffer(RUN).to_pybytes() == b"run"
    assert store.open_buffer("empty").size == 0


def test_pieces_are_written_as_one_file(store: StoreFiles) -> None:
    store.write(RUN, (pa.py_buffer(b"%d," % number) for number in range(5)))
    assert store.read(RUN) == b"0,1,2,3,4,"
    assert store.open_buffer(RUN).to_pybytes() == b"0,1,2,3,4,"


def test_a_writer_that_fails_in_the_middle_leaves_nothing(store: StoreFiles) -> None:
    def pieces() -> object:
        yield b"half"
        raise ValueError("the fold failed")

    with pytest.raises(ValueError, match="the fold failed"):
        store.write(RUN, pieces())  # type: ignore[arg-type]
    assert not store.exists(RUN)
    assert store.list() == []


def test_only_the_first_create_succeeds(store: StoreFiles) -> None:
    store.create("manifests/0/1.json", b"mine")
    with pytest.raises(AlreadyExists, match=r"manifests/0/1\.json"):
        store.create("manifests/0/1.json", b"theirs")
    assert store.read("manifests/0/1.json") == b"mine"
    assert store.list() == ["manifests/0/1.json"]


def test_of_many_creators_one_wins(store: StoreFiles) -> None:
    store.create("warm", b"")
    won: list[bytes] = []

    def attempt(number: int) -> None:
        try:
            store.create("manifests/0/1.json", b"%d" % number)
            won.append(b"%d" % number)
        except AlreadyExists:
            pass

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [store.read("manifests/0/1.json")]


def test_listing_is_sorted_deep_and_by_folder(store: StoreFiles) -> None:
    for path in ("runs/b/2", "runs/a/1", "run", "runs/b/1"):
        store.write(path, b"")
    assert store.list() == ["run", "runs/a/1", "runs/b/1", "runs/b/2"]
    assert store.list("runs") == ["runs/a/1", "runs/b/1", "runs/b/2"]
    assert store.list("runs/b/") == ["runs/b/1", "runs/b/2"]
    assert store.list("none") == []


def test_deleting_twice_is_fine_and_an_open_buffer_stays(store: StoreFiles) -> None:
    store.write(RUN, b"content")
    mapped = store.open_buffer(RUN)
    store.delete(RUN)
    store.delete(RUN)
    assert not store.exists(RUN)
    assert mapped.to_pybytes() == b"content"
    with pytest.raises(MissingFile):
        store.open_buffer(RUN)


def test_an_absent_file_is_named(store: StoreFiles) -> None:
    for ask in (store.read, store.open_buffer):
        with pytest.raises(MissingFile, match="no/such") as caught:
            ask("no/such")
        assert caught.value.next_move
    assert not store.exists("no/such")


def test_paths_cannot_leave_the_store(store: StoreFiles) -> None:
    for ask in (store.read, store.exists, store.open_buffer, store.delete, store.local_path):
        with pytest.raises(StoreError):
            ask("../secret")
    with pytest.raises(StoreError):
        store.write("/etc/x", b"")
    with pytest.raises(StoreError):
        store.create("a/../../x", b"")


def test_a_run_is_read_through_any_store(store: StoreFiles) -> None:
    clear_open_runs()
    data = encode_run([], lo=0, hi=8, groups=8)
    store.write(RUN, data)
    assert open_ref(store, describe_run(data, epoch=1, file=RUN)).rows == 0


def test_tidying_an_orderly_store_changes_nothing(store: StoreFiles) -> None:
    store.write("a", b"1")
    store.tidy()
    store.forget("a")
    assert store.list() == ["a"]


# --- local


def test_an_address_decides_the_kind_of_store(tmp_path: Path) -> None:
    assert isinstance(open_store(tmp_path), LocalStore)
    assert isinstance(open_store(f"file://{tmp_path}"), LocalStore)
    remote = open_store("memory://some/where/", cache_dir=tmp_path)
    assert isinstance(remote, RemoteStore)
    assert remote.url == "memory://some/where"


def test_a_local_store_says_where_its_files_lie(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.write("a/b", b"1")
    path = store.local_path("a/b")
    assert path == tmp_path / "a" / "b"
    assert path.read_bytes() == b"1"


def test_temporaries_of_dead_writers_go_after_a_day(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    left = tmp_path / layout.TEMPORARY / "half"
    left.write_bytes(b"x")
    assert store.list() == []
    assert store.clean_temporaries() == 0
    assert store.clean_temporaries(now_s=left.stat().st_mtime + 25 * 3600) == 1
    assert not left.exists()


def test_a_writer_survives_the_sweep_of_its_empty_folder(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, durable=False)
    failures: list[Exception] = []

    def churn(name: str) -> None:
        try:
            for _ in range(200):
                store.write(f"staged/1/{name}", b"1")
                store.delete(f"staged/1/{name}")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=churn, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize(("point", "there"), [("manifest_written", False), ("manifest_answer_lost", True)])
def test_a_death_while_publishing_leaves_a_manifest_whole_or_absent(tmp_path: Path, point: str, there: bool) -> None:
    store = LocalStore(tmp_path)

    def hook(reached: str, epoch: int) -> None:
        if (reached, epoch) == (point, 7):
            raise crash.Crash

    with crash.planned(hook), pytest.raises(crash.Crash):
        store.create(layout.manifest(0, 7), b"content")
    assert store.exists(layout.manifest(0, 7)) is there
    assert store.list() == ([layout.manifest(0, 7)] if there else [])


def test_a_file_system_without_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(source: object, target: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(StoreError, match="only if it is absent"):
        LocalStore(tmp_path).create("a", b"1")


def test_a_full_disk_is_told_with_the_file_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = LocalStore(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"a/b\.run.*") as caught:
        store.write("a/b.run", b"1")
    assert "No space left" in caught.value.found
    with pytest.raises(StoreError):
        store.create("a/c.json", b"1")
    assert store.list() == []
    assert list((tmp_path / layout.TEMPORARY).iterdir()) == []


def test_a_repeated_link_over_nfs_is_a_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def link_twice(source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", link_twice)
    store = LocalStore(tmp_path)
    store.create("a", b"1")
    assert store.read("a") == b"1"


# --- remote


class Flaky(MemoryFileSystem):  # type: ignore[misc]
    """A memory file system whose answers get lost."""

    cachable = False
    protocol = "flaky"

    def __init__(self) -> None:
        super().__init__()
        self.before: list[Exception] = []
        self.after: list[Exception] = []
        self.fetched: list[str] = []

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: object) -> None:
        if mode == "create" and self.before:
            raise self.before.pop()
        super().pipe_file(path, value, mode=mode, **options)
        if mode == "create" and self.after:
            raise self.after.pop()

    def get_file(self, path: str, local: str, **options: object) -> None:
        self.fetched.append(path)
        super().get_file(path, local, **options)


@pytest.fixture
def flaky(tmp_path: Path) -> tuple[Flaky, RemoteStore]:
    fs = Flaky()
    store = RemoteStore("flaky://x", cache_dir=tmp_path / "cache", fs=fs, root=f"/{uuid4()}")
    store.create("warm", b"")
    return fs, store


def test_a_lost_answer_to_a_create_is_settled_by_reading_back(flaky: tuple[Flaky, RemoteStore]) -> None:
    fs, store = flaky
    fs.after = [TimeoutError("no answer")]
    store.create("manifests/0/1.json", b"mine, nonce 17")
    fs.after = [TimeoutError("no answer")]
    with pytest.raises(AlreadyExists):
        store.create("manifests/0/1.json", b"theirs, nonce 18")
    assert store.read("manifests/0/1.json") == b"mine, nonce 17"


def test_a_create_that_never_arrived_is_sent_again(flaky: tuple[Flaky, RemoteStore]) -> None:
    fs, store = flaky
    fs.before = [TimeoutError("no answer")]
    store.create("a", b"1")
    assert store.read("a") == b"1"
    fs.before = [TimeoutError("no answer")] * 10
    with pytest.raises(StoreError, match="no answer") as caught:
        store.create("b", b"1")
    assert not isinstance(caught.value, AlreadyExists)
    assert not store.exists("b")


def test_a_clients_own_repetition_of_a_create_is_a_success(flaky: tuple[Flaky, RemoteStore]) -> None:
    fs, store = flaky
    fs.after = [FileExistsError("a")]
    store.create("a", b"mine, nonce 17")
    assert store.read("a") == b"mine, nonce 17"


def test_a_file_system_that_overwrites_is_found_out(tmp_path: Path) -> None:
    class Overwrites(MemoryFileSystem):  # type: ignore[misc]
        cachable = False

        def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: object) -> None:
            super().pipe_file(path, value)

    store = RemoteStore("over://x", cache_dir=tmp_path, fs=Overwrites(), root=f"/{uuid4()}")
    with pytest.raises(StoreError, match="second file under the same name"):
        store.create("a", b"1")
    assert store.list() == []


def test_a_file_system_that_looks_first_and_then_writes_is_refused(tmp_path: Path) -> None:
    class LooksFirst(MemoryFileSystem):  # type: ignore[misc]
        cachable = False
        pipe_file = fsspec.spec.AbstractFileSystem.pipe_file

    store = RemoteStore("look://x", cache_dir=tmp_path, fs=LooksFirst(), root=f"/{uuid4()}")
    with pytest.raises(StoreError, match="looks first") as caught:
        store.create("a", b"1")
    assert caught.value.next_move


def test_runs_are_fetched_once_and_written_ones_not_at_all(flaky: tuple[Flaky, RemoteStore], tmp_path: Path) -> None:
    fs, store = flaky
    store.write(RUN, b"content")
    store.open_buffer(RUN)
    assert fs.fetched == []
    elsewhere = RemoteStore("flaky://x", cache_dir=tmp_path / "other", fs=fs, root=store._root)
    assert elsewhere.open_buffer(RUN).to_pybytes() == b"content"
    assert elsewhere.open_buffer(RUN).to_pybytes() == b"content"
    assert len(fs.fetched) == 1
    elsewhere.forget(RUN)
    elsewhere.open_buffer(RUN)
    assert len(fs.fetched) == 2


def test_a_damaged_copy_is_fetched_again(flaky: tuple[Flaky, RemoteStore], tmp_path: Path) -> None:
    clear_open_runs()
    _, store = flaky
    data = encode_run([], lo=0, hi=8, groups=8)
    store.write(RUN, data)
    (tmp_path / "cache" / "files" / RUN).write_bytes(b"\0" * len(data))
    ref = describe_run(data, epoch=1, file=RUN)
    with pytest.raises(StoreError, match="damaged"):
        open_ref(store, ref)
    assert open_ref(store, ref).rows == 0
