"""SIGKILL while windows are open, rows wait for partners, rules change, rows go round and requests are in flight.

Fewer points than `test_kills`, which proves the engine: here it is the operators of event time that have to find
everything again.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.crash.files import written_lines
from tests.crash.processes import start_program, wait_for_orphans
from tests.crash.timed_program import OUTPUTS

pytestmark = [pytest.mark.spark, pytest.mark.slow]

POINTS = ("delta_half_written", "published")
"""One of each kind: an epoch that is run again, and one that is only released again."""
PER_EPOCH = 400
ROWS = PER_EPOCH * 11
TIMEOUT_S = 240


def run(folder: Path, crash: dict[str, Any] | None = None) -> int:
    process = start_program(folder, ROWS, PER_EPOCH, crash, program="timed_program")
    output, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == (0 if crash is None else -signal.SIGKILL), output
    if crash is not None:
        wait_for_orphans(process.pid)
    return process.returncode


@pytest.mark.timeout(1200)
def test_a_program_of_event_time_killed_again_and_again_loses_and_doubles_nothing(tmp_path: Path) -> None:
    run(tmp_path / "whole")
    expected = written_lines(tmp_path / "whole", OUTPUTS)
    assert all(expected.values()), "every output must have rows, or nothing is proved"
    folder = tmp_path / "killed"
    for number, point in enumerate(POINTS):
        run(folder, {"point": point, "epoch": 3 + 4 * number, "kill": "driver", "once": str(tmp_path / point)})
        assert (tmp_path / point).exists(), f"{point} was never reached"
    run(folder)
    assert written_lines(folder, OUTPUTS) == expected
