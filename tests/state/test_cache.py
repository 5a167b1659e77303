"""The caches: bounded, whole or absent, and shared by processes that may die at any moment."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import CorruptFile, MissingFile, SettingsError, StoreError
from headrace.state import layout
from headrace.state.cache import PARTIAL_MAX_AGE_S, FileCache, LruCache
from headrace.state.remote import CACHE_BYTES, RemoteStore, cache_folder, cache_limit_bytes
from headrace.state.run import clear_open_runs, describe_run, encode_run, open_ref

RUN = layout.run("step", 1, 0, "1xab")


def fill(size: int, byte: bytes = b"x") -> Callable[[Path], None]:
    def fetch(local: Path) -> None:
        local.write_bytes(byte * size)

    return fetch


def never(local: Path) -> None:
    pytest.fail("fetched again")


def names(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file() and path.name[0] != "."
    )


def age(path: Path, seconds: float) -> None:
    os.utime(path, (path.stat().st_mtime - seconds,) * 2)


def test_a_file_is_fetched_once(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, limit_bytes=100)
    assert cache.open("x/a", fill(3)).to_pybytes() == b"xxx"
    assert cache.open("x/a", never).to_pybytes() == b"xxx"
    cache.drop("x/a")
    cache.drop("x/a")
    assert cache.open("x/a", fill(3, b"y")).to_pybytes() == b"yyy"


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, limit_bytes=25)
    for seconds, name in ((20, "a"), (10, "b")):
        cache.put(name, fill(10))
        age(cache.path(name), seconds)
    cache.open("a", never)
    cache.put("c", fill(10))
    assert names(tmp_path) == ["a", "c"]


def test_a_file_in_use_stays_and_goes_when_it_is_let_go(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, limit_bytes=25)
    held = cache.open("a", fill(10))
    again = cache.open("a", never)
    age(cache.path("a"), 1000)
    for name in ("b", "c"):
        cache.put(name, fill(10))
        age(cache.path(name), 100)
    assert names(tmp_path) == ["a", "c"], "the oldest, but mapped: deleting it would free nothing"
    del held
    cache.put("d", fill(10))
    assert names(tmp_path) == ["a", "d"]
    assert again.to_pybytes() == b"x" * 10
    del again
    cache.put("e", fill(10))
    assert names(tmp_path) == ["d", "e"]


def test_more_in_use_than_the_limit_is_kept_all_the_same(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, limit_bytes=5)
    held = [cache.open(name, fill(10, name.encode())) for name in "abc"]
    assert [buffer.to_pybytes()[:1] for buffer in held] == [b"a", b"b", b"c"]
    assert names(tmp_path) == ["a", "b", "c"]


def test_two_caches_of_one_process_know_of_each_other(tmp_path: Path) -> None:
    one, two = FileCache(tmp_path, limit_bytes=15), FileCache(tmp_path, limit_bytes=15)
    held = one.open("a", fill(10))
    two.put("b", fill(10))
    two.put("c", fill(10))
    assert "a" in names(tmp_path)
    assert held.size == 10


def open_files_of(folder: Path) -> list[str]:
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(each))
    return [name for name in found if name.startswith(f"{folder}/")]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system does not tell what is open")
def test_what_a_cache_holds_open_is_closed_when_neither_it_nor_a_mapped_file_is_left(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    cache = FileCache(one, limit_bytes=15)
    held = cache.open("a", fill(10))
    del cache
    FileCache(two, limit_bytes=15).open("x", fill(1))
    assert f"{one}/.in-use" in open_files_of(one), "a file of it is still mapped"
    FileCache(one, limit_bytes=15).put("b", fill(10))
    assert names(one) == ["a", "b"], "and is not evicted"
    del held
    FileCache(tmp_path / "three", limit_bytes=15).open("x", fill(1))
    assert open_files_of(one) == open_files_of(two) == []
    again = FileCache(one, limit_bytes=15).open("a", never)
    assert again.to_pybytes() == b"x" * 10


HOLDS = """
import sys
from pathlib import Path
from headrace.state.cache import FileCache

cache = FileCache(Path(sys.argv[1]), limit_bytes=25)
held = cache.open("a", lambda local: None)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_file_that_another_process_uses_stays_until_that_process_dies(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, limit_bytes=25)
    cache.put("a", fill(10))
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )  # fmt: skip
    try:
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline() == b"held\n"
        age(cache.path("a"), 1000)
        for name in ("b", "c"):
            cache.put(name, fill(10))
            age(cache.path(name), 100)
        assert names(tmp_path) == ["a", "c"]
    finally:
        other.kill()
        other.wait()
        other.stdin.close()
        other.stdout.close()
    cache.put("d", fill(10))
    assert names(tmp_path) == ["c", "d"]


FETCHES = """
import random, sys
from pathlib import Path
from headrace.state.cache import FileCache

folder, seed = Path(sys.argv[1]), int(sys.argv[2])
cache, rng = FileCache(folder, limit_bytes=3000), random.Random(seed)
for _ in range(300):
    name = f"runs/{rng.randrange(10)}"
    data = cache.open(name, lambda local: local.write_bytes(name.encode() * 100) and None)
    assert data.to_pybytes() == name.encode() * 100, name
    if rng.random() < 0.1:
        cache.drop(f"runs/{rng.randrange(10)}")
"""


def test_processes_that_fetch_evict_and_drop_at_once_read_what_they_asked_for(tmp_path: Path) -> None:
    running = [subprocess.Popen([sys.executable, "-c", FETCHES, str(tmp_path), str(seed)]) for seed in range(3)]
    assert [process.wait(120) for process in running] == [0, 0, 0]
    total = sum(path.stat().st_size for path in (tmp_path / "runs").iterdir())
    assert total <= 3000 + 3 * (3000 // 16 + 600)


def test_a_failed_fetch_leaves_no_file(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, limit_bytes=100)

    def fails(local: Path) -> None:
        local.write_bytes(b"half")
        raise MissingFile("gone")

    with pytest.raises(MissingFile):
        cache.open("x/a", fails)
    assert names(tmp_path) == []


def test_what_a_killed_process_left_half_fetched_goes_after_a_day(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, limit_bytes=16)
    for name, seconds in (("old.00.partial", PARTIAL_MAX_AGE_S + 60), ("new.00.partial", 60.0)):
        (tmp_path / name).write_bytes(b"half")
        age(tmp_path / name, seconds)
    cache.put("a", fill(2))
    assert names(tmp_path) == ["a", "new.00.partial"]


def test_a_full_disk_is_made_room_on_by_what_is_not_in_use(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, limit_bytes=100)
    held = cache.open("held", fill(10))
    cache.put("idle", fill(10))

    def fetch(local: Path) -> None:
        if cache.path("idle").exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        local.write_bytes(b"fits")

    assert cache.open("new", fetch).to_pybytes() == b"fits"
    assert names(tmp_path) == ["held", "new"]
    assert held.size == 10


def test_a_disk_that_stays_full_is_told_with_the_folder_and_a_way_out(tmp_path: Path) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    class Full(MemoryFileSystem):  # type: ignore[misc]
        cachable = False

        def get_file(self, path: str, local: str, **options: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    store = RemoteStore("full://x", cache_dir=tmp_path / "cache", fs=Full(), root=f"/{tmp_path.name}")
    store.write("a", b"1")
    with pytest.raises(StoreError, match="cache") as caught:
        store.open_buffer("a")
    assert str(tmp_path / "cache") in caught.value.where
    assert "No space left" in caught.value.found
    assert "HEADRACE_CACHE_DIR" in caught.value.next_move


def test_a_copy_that_came_damaged_is_fetched_again_before_anybody_sees_it(tmp_path: Path) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    class Garbles(MemoryFileSystem):  # type: ignore[misc]
        cachable = False
        left = 1

        def get_file(self, path: str, local: str, **options: object) -> None:
            super().get_file(path, local, **options)
            if self.left:
                self.left -= 1
                damaged = bytearray(Path(local).read_bytes())
                damaged[len(damaged) // 2] ^= 1
                Path(local).write_bytes(damaged)

    clear_open_runs()
    fs, root = Garbles(), f"/{tmp_path.name}"
    data = encode_run([], lo=0, hi=8, groups=8)
    RemoteStore("garbles://x", cache_dir=tmp_path / "writer", fs=fs, root=root).write(RUN, data)
    store = RemoteStore("garbles://x", cache_dir=tmp_path / "reader", fs=fs, root=root)
    ref = describe_run(data, epoch=1, file=RUN)
    assert open_ref(store, ref).rows == 0
    clear_open_runs()
    store.forget(RUN)
    fs.left = 10
    with pytest.raises(CorruptFile, match="damaged") as caught:
        open_ref(store, ref)
    assert RUN in caught.value.where
    assert caught.value.next_move
    assert names(tmp_path / "reader") == []
    fs.left = 0
    assert open_ref(store, ref).rows == 0


# --- where it is, and how large


def test_the_folder_is_one_per_store_and_its_user_s_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    one, two = cache_folder("s3://a/b", {}), cache_folder("s3://a/c", {})
    assert one != two
    assert one.parent.parent == tmp_path
    assert one.parent.stat().st_mode & 0o077 == 0
    named = cache_folder("s3://a/b", {"HEADRACE_CACHE_DIR": str(tmp_path / "named")})
    assert named.parent == tmp_path / "named"


def test_a_folder_that_somebody_else_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = cache_folder("s3://a/b", {})
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    (tmp_path / f"headrace-cache-{os.getuid()}").mkdir()
    with pytest.raises(StoreError, match="cannot be used") as caught:
        cache_folder("s3://a/b", {})
    assert "HEADRACE_CACHE_DIR" in caught.value.next_move


def test_the_limit_is_half_of_a_small_disk_or_what_is_said(tmp_path: Path) -> None:
    assert cache_limit_bytes(tmp_path, {}) == min(CACHE_BYTES, shutil.disk_usage(tmp_path).total // 2)
    assert cache_limit_bytes(tmp_path, {"HEADRACE_CACHE_GB": "0.5"}) == 500_000_000
    for wrong in ("much", "-1"):
        with pytest.raises(SettingsError, match="wrong form"):
            cache_limit_bytes(tmp_path, {"HEADRACE_CACHE_GB": wrong})


# --- open things of a process


def test_open_things_are_bounded_and_the_least_recent_goes() -> None:
    cache: LruCache[str] = LruCache(2)
    assert [cache.get(name, lambda name=name: name) for name in ("a", "b", "a", "c")] == ["a", "b", "a", "c"]  # type: ignore[misc]
    assert cache.get("a", pytest.fail) == "a"
    assert cache.get("b", lambda: "again") == "again"
    assert len(cache) == 2
    cache.drop("b")
    cache.clear()
    assert len(cache) == 0
