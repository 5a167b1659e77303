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
