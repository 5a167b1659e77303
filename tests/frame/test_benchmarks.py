"""Programs that benchmarks measure can be built: a run of them takes too long for a test."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

import headrace as hr

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"


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
