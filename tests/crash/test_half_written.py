"""A writer that dies in the middle of a run: half of the file is in the store, and no name ever leads to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import CorruptFile
from headrace.model import crash
from headrace.state import layout
from headrace.state.run import open_ref, open_run
from headrace.state.store import TEMPORARY_MAX_AGE_S, LocalStore
from tests.crash.played import EPOCHS, FILES, Played, run_untouched
from tests.crash.processes import ROOT

RUN = layout.run("step", 7, 0, "1xab")
CONTENT = bytes(range(100))

WRITER = """
import sys
from headrace.state.store import LocalStore
LocalStore(sys.argv[1]).write(sys.argv[2], bytes(range(100)))
"""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_untouched(tmp_path_factory.mktemp("whole"))


def unfinished(folder: Path) -> list[bytes]:
    return [file.read_bytes() for file in (folder / layout.TEMPORARY).iterdir()]


def die_half_way(point: str, epoch: int) -> None:
    if (point, epoch) == ("delta_half_written", 7):
        raise crash.Crash


def test_a_writer_killed_half_way_leaves_half_a_file_and_no_name(tmp_path: Path) -> None:
    plan = json.dumps({"point": "delta_half_written", "epoch": 7, "kill": "self"})
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), crash.ENVIRONMENT: plan}
    done = subprocess.run([sys.executable, "-c", WRITER, str(tmp_path), RUN], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert unfinished(tmp_path) == [CONTENT[:50]]
    assert LocalStore(tmp_path).list() == []


@pytest.mark.parametrize(
    "data", [CONTENT, pa.py_buffer(CONTENT), [CONTENT[:10], memoryview(CONTENT)[10:99], CONTENT[99:]]],
    ids=["bytes", "a buffer", "pieces"],
)  # fmt: skip
def test_a_played_death_leaves_what_a_real_one_does(data: Any, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with crash.planned(die_half_way), pytest.raises(crash.Crash):
        store.write(RUN, data)
    assert unfinished(tmp_path) == [CONTENT[:50]]
    assert store.list() == []
    store.write(RUN, data)
    assert store.read(RUN) == CONTENT


def test_a_run_that_replaces_nothing_is_whole_where_a_crash_is_planned_and_does_not_strike(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    other = layout.run("step", 8, 0, "1xab")
    with crash.planned(die_half_way):
        store.write(other, CONTENT)
    assert store.read(other) == CONTENT
    assert unfinished(tmp_path) == []


def test_a_death_before_linking_leaves_the_whole_manifest_in_a_temporary_file(tmp_path: Path) -> None:
    def strike(point: str, epoch: int) -> None:
        if point == "manifest_written":
            raise crash.Crash

    store = LocalStore(tmp_path)
    with crash.planned(strike), pytest.raises(crash.Crash):
        store.create(layout.manifest(0, 7), CONTENT)
    assert unfinished(tmp_path) == [CONTENT]
    assert store.list() == []


@pytest.mark.parametrize("whole", range(4), ids=lambda whole: f"{whole} deltas written before")
def test_half_a_delta_is_never_named_and_the_epoch_is_run_again(
    whole: int, tmp_path: Path, expected: dict[str, Any]
) -> None:
    played = Played(tmp_path, limits=FILES)
    played.run(0, 1)
    before = played.named()
    played.push(2)
    played.die("delta_half_written", after=whole)
    [half] = played.unfinished()
    assert half.stat().st_size > 0
    with pytest.raises(CorruptFile):
        open_run(half)
    assert played.named() == before
    assert len({file for file in played.files() - before if layout.parse_run(file)}) == whole
    played.h.restart()
    played.h.epoch()
    played.run(3, 4)
    check_named_runs(played)
    assert half.name not in "".join(played.store.read(path).decode() for path in played.store.list(layout.MANIFESTS))
    assert played.end() == expected


def test_half_a_folded_run_is_never_named_either(tmp_path: Path, expected: dict[str, Any]) -> None:
    played = Played(tmp_path, limits=FILES)
    played.run(0, 1, 2, 3)
    before = played.files()
    played.die("delta_half_written", work=played.h.maintain)
    [half] = played.unfinished()
    with pytest.raises(CorruptFile):
        open_run(half)
    assert played.files() == before
    played.h.restart()
    played.h.maintain()
    played.run(4)
    assert any(ref.level for refs in played.state().runs.values() for ref in refs)
    check_named_runs(played)
    assert played.end() == expected


def test_a_sweep_removes_the_halves_of_dead_writers_and_leaves_those_of_live_ones(tmp_path: Path) -> None:
    played = Played(tmp_path, limits=FILES)
    played.run(0)
    for _ in range(2):
        played.push(1)
        played.die("delta_half_written")
        played.h.restart()
    dead, live = played.unfinished()
    long_ago = time.time() - TEMPORARY_MAX_AGE_S - 1
    os.utime(dead, (long_ago, long_ago))
    played.h.epoch()
    played.h.maintain()
    assert played.unfinished() == [live]
    played.h.close()


def check_named_runs(played: Played) -> None:
    """Every run that the newest state lists is there, whole."""
    refs = [ref for refs in played.state().runs.values() for ref in refs]
    assert len(refs) >= EPOCHS
    for ref in refs:
        assert played.store.local_path(ref.file).stat().st_size == ref.size_bytes
        open_ref(played.store, ref)
