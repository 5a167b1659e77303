"""Programs that benchmarks measure can be built: a run of them takes too long for a test."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

import headrace as hr
from benchmarks.__main__ import BENCHMARKS
from benchmarks.lib.page import _SECTIONS

BENCH = Path(__file__).parents[2] / "benchmarks"
PEERS = BENCH / "peers"


@pytest.mark.parametrize("program", ["windows", "windows-early", "sessions", "distinct", "join"])
def test_a_measured_program_over_event_time_can_be_built(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(PEERS))
    import headrace_timed

    assert program in headrace_timed.PROGRAMS
    options = argparse.Namespace(program=program, input=tmp_path, files_per_epoch=2)
    app = headrace_timed.PROGRAMS[program](options, hr.sink.discard())
    assert "write discard" in app.explain()
    del sys.modules["headrace_timed"]


def test_a_load_knows_when_each_row_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PEERS))
    import headrace_paced

    load = headrace_paced.Load(10, 1000, warm_up_s=5, phase_s=2)
    assert [load.rows(at) for at in (0, 5, 7, 8, 9, 10)] == [0, 50, 70, 1070, 2070, 2080]
    assert [load.phase(at) for at in (0, 5, 7, 9)] == [-1, 0, 1, 2]
    for row in (1, 50, 69, 500, 2069, 2075):
        assert load.rows(load.due_s(row)) == pytest.approx(row, abs=1)
    del sys.modules["headrace_paced"]


def test_every_benchmark_is_run_has_a_place_on_the_page_and_stands_in_the_readme() -> None:
    programs = {file.stem for file in BENCH.glob("*.py") if "argparse" in file.read_text()} - {"__main__"}
    assert set(BENCHMARKS) == programs == set(_SECTIONS)
    readme = (BENCH / "README.md").read_text()
    assert [name for name in BENCHMARKS if f"benchmarks/{name}.py" not in readme] == []


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_tells_its_options_without_measuring(name: str) -> None:
    done = subprocess.run([sys.executable, BENCH / f"{name}.py", "--help"], capture_output=True, text=True, check=True)
    assert {"--json", "--quick"} <= set(done.stdout.split()), done.stdout
