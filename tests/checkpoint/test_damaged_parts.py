"""Staged rows that a disk damaged before they were let out: no sink sees them, and the file can be put right."""

from __future__ import annotations

import zlib
from pathlib import Path
from random import Random

import pytest

import headrace as hr
from headrace.checkpoint.release import ReleaseContext
from headrace.connectors.sink_contract import Sink
from headrace.errors import CorruptFile, SinkFailed
from headrace.model.report import StagedPart
from headrace.state.manifest import Manifest
from headrace.state.staged_parts import open_part
from headrace.state.store import LocalStore
from headrace.testing import Harness
from tests.checkpoint.test_changed_outputs import forget_release

MANY = 400
"""Rows of a thousand letters by chance, which are too much to travel inside of a manifest."""


class Sale(hr.Record):
    id: int
    text: str


def run(store: Path, sink: Sink, *ids: int) -> None:
    app = hr.App("shop")
    sales = app.read("sales", hr.source.items([]), Sale)
    sales.write(sink, name="out")
    with Harness(app, store=store, sinks=True) as h:
        if ids:
            h.push(sales, *(Sale(id, Random(id).randbytes(500).hex()) for id in ids))
            h.epoch()


def staged_file(store: Path) -> Path:
    """The last file of the output."""
    return max((store / "staged").rglob("out-*"))


def damage(path: Path) -> bytes:
    """Turns one bit in the middle of a file; gives back what it held."""
    before = path.read_bytes()
    place = len(before) // 2
    path.unlink()  # not in place: a sink may have linked it
    path.write_bytes(before[:place] + bytes([before[place] ^ 1]) + before[place + 1 :])
    return before


class Calls:
    """A sink's function that fails at first."""

    def __init__(self) -> None:
        self.down = True
        self.ids: list[int] = []

    def __call__(self, rows: list[Sale], epoch: int) -> None:
        if self.down:
            raise RuntimeError("down")
        self.ids += [row.id for row in rows]


def test_damaged_rows_reach_no_function_and_are_let_out_once_when_the_file_is_restored(store_path: Path) -> None:
    calls = Calls()
    with pytest.raises(SinkFailed, match="down"):
        run(store_path, hr.sink.call(calls), *range(MANY))
    calls.down = False
    file = staged_file(store_path)
    before = damage(file)
    for _ in range(2):
        with pytest.raises(CorruptFile, match="staged rows are damaged") as raised:
            run(store_path, hr.sink.call(calls))
        told = raised.value
        assert told.where == str(file)
        assert f"{zlib.crc32(before):#010x}" in told.expected and told.found.startswith(f"{len(before):,} bytes")
        assert "restore the file from a copy" in told.next_move and 'name="out"' in told.next_move
    assert calls.ids == []
    file.write_bytes(before)
    run(store_path, hr.sink.call(calls), MANY)
    assert sorted(calls.ids) == list(range(MANY + 1))


def test_damaged_rows_may_be_given_up(store_path: Path) -> None:
    calls = Calls()
    with pytest.raises(SinkFailed, match="down"):
        run(store_path, hr.sink.call(calls), *range(MANY))
    calls.down = False
    damage(staged_file(store_path))
    run(store_path, hr.sink.discard())
    run(store_path, hr.sink.call(calls), MANY)
    assert calls.ids == [MANY]


@pytest.mark.parametrize("target", ["json", "parquet"])
def test_a_file_that_is_damaged_is_not_linked_into_a_folder(store_path: Path, tmp_path: Path, target: str) -> None:
    def released() -> list[bytes]:
        return [path.read_bytes() for path in sorted(folder.glob("part-*"))]

    folder = tmp_path / "out"
    run(store_path, hr.sink.files(folder, format=target), *range(MANY))
    meant = released()
    for path in folder.glob("part-*"):
        path.unlink()
    forget_release(store_path)
    before = damage(staged_file(store_path))
    with pytest.raises(CorruptFile, match="staged rows are damaged"):
        run(store_path, hr.sink.files(folder, format=target))
    assert released() == [], "not even what is whole"
    staged_file(store_path).write_bytes(before)
    run(store_path, hr.sink.files(folder, format=target))
    assert released() == meant


@pytest.fixture
def part(tmp_path: Path) -> tuple[LocalStore, StagedPart]:
    store = LocalStore(tmp_path / "parts", durable=False)
    store.write("staged/0/a", b"rows")
    return store, StagedPart(rows=1, size_bytes=4, format="arrow", file="staged/0/a", crc=zlib.crc32(b"rows"))


def context(store: LocalStore, *parts: StagedPart) -> ReleaseContext:
    manifest = Manifest(
        app="shop",
        timeline=0,
        epoch=0,
        nonce="n",
        fence=1,
        program="p",
        parallelism=1,
        key_groups=128,
        clock_us=0,
        outputs={"out": [*parts]},
    )
    return ReleaseContext(store, manifest, "out", "job", None)


def test_whoever_takes_the_file_itself_gets_none_that_is_damaged(part: tuple[LocalStore, StagedPart]) -> None:
    store, staged = part
    path = context(store, staged).local_path(staged)
    assert path is not None and path.read_bytes() == b"rows"
    damage(path)
    with pytest.raises(CorruptFile):
        context(store, staged).local_path(staged)
    with pytest.raises(CorruptFile):
        open_part(store, staged)


def test_what_is_whole_waits_for_what_is_damaged(part: tuple[LocalStore, StagedPart]) -> None:
    store, whole = part
    store.write("staged/0/b", b"row")
    damaged = StagedPart(rows=1, size_bytes=4, format="arrow", file="staged/0/b", crc=whole.crc)
    inline = StagedPart(rows=1, size_bytes=4, format="arrow", inline=b"rows")
    for each in (whole, inline, damaged):
        with pytest.raises(CorruptFile):
            context(store, whole, inline, damaged).read(each)


def test_a_part_is_looked_through_once_per_release(part: tuple[LocalStore, StagedPart]) -> None:
    store, staged = part
    release = context(store, staged)
    assert release.read(staged).to_pybytes() == b"rows"
    path = release.local_path(staged)
    assert path is not None
    # Nobody would notice now: the next look is that of the next release.
    damage(path)
    assert release.local_path(staged) == path
    with pytest.raises(CorruptFile):
        context(store, staged).read(staged)


def test_a_cut_file_is_told_with_its_length(part: tuple[LocalStore, StagedPart]) -> None:
    store, staged = part
    store.write(staged.file, b"ro")
    with pytest.raises(CorruptFile) as raised:
        context(store, staged).read(staged)
    assert raised.value.expected.startswith("4 bytes") and raised.value.found.startswith("2 bytes")
