"""Files that are written whole: what a reader and a crash see, and what is left when the disk refuses."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from headrace import durable


def test_content_is_synced_before_it_gets_its_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sync, replace = os.fsync, os.replace

    def syncing(handle: int) -> None:
        steps.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        sync(handle)

    def naming(made: Path, target: Path) -> None:
        steps.append("name")
        replace(made, target)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(os, "replace", naming)
    durable.write_whole(tmp_path / "a", [b"one", b"two"])
    assert steps == ["file", "name", "folder"]
    steps.clear()
    durable.write_whole(tmp_path / "b", [b"one"], durable=False)
    assert steps == ["name"]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"onetwo", "b": b"one"}
    steps.clear()
    durable.make_folder(tmp_path / "c" / "d")
    assert steps == ["folder", "folder"]


@pytest.mark.parametrize("unique", [False, True])
def test_a_full_disk_leaves_the_file_as_it_was_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unique: bool
) -> None:
    durable.write_whole(tmp_path / "a", [b"before"], unique=unique)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        durable.write_whole(tmp_path / "a", [b"after"], unique=unique)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"before"}


def test_a_name_is_given_once(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    durable.link(tmp_path / "one", tmp_path / "taken")
    with pytest.raises(FileExistsError):
        durable.link(tmp_path / "two", tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "one"


def test_a_name_is_taken_where_it_is_free_with_links_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(made: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "no links here")

    for name in ("linked", "moved"):
        for made in ("one", "two"):
            (tmp_path / made).write_text(made)
        assert durable.take_name(tmp_path / "one", tmp_path / name)
        assert not durable.take_name(tmp_path / "two", tmp_path / name)
        assert (tmp_path / name).read_text() == "one"
        monkeypatch.setattr(os, "link", refuse)
