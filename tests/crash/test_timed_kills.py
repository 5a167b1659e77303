"""SIGKILL while windows are open, rows wait for partners, rules change, rows go round and requests are in flight; and
while a folder is read: files that workers decode, and one that Spark does.

Fewer points than `test_kills`, which proves the engine: here it is the operators of event time that have to find
everything again, in the end on another number of shards.
"""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.crash.files import written_lines
from tests.crash.processes import start_program, wait_for_end, wait_for_orphans
from tests.crash.timed_program import ANSWERS, FROM_FILES, ODD_FILE, OUTPUTS, PARALLELISM, REQUESTS, write_input

pytestmark = [pytest.mark.spark, pytest.mark.slow]

POINTS = (("outputs_staged", ODD_FILE - 1), ("outputs_staged", ODD_FILE), ("published", ODD_FILE + 1))
"""An epoch that is run again, before the file that Spark reads and with it, and one behind it that is only released
again."""
PER_EPOCH = 400
ROWS = PER_EPOCH * 7
TIMEOUT_S = 240


def run(folder: Path, crash: dict[str, Any] | None = None) -> int:
    process = start_program(folder, ROWS, PER_EPOCH, crash, program="timed_program")
    output = wait_for_end(process, TIMEOUT_S)
    assert process.returncode == (0 if crash is None else -signal.SIGKILL), output
    if crash is not None:
        wait_for_orphans(process.pid)
    return process.returncode


def requests(folder: Path) -> list[str]:
    """Every request that was made and answered late, as often as it was made."""
    return (folder / REQUESTS).read_text().splitlines()


@pytest.mark.timeout(1200)
def test_a_program_of_event_time_killed_again_and_again_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    for each in (whole, folder):
        write_input(each, ROWS, PER_EPOCH)
    (whole / ANSWERS).touch()
    run(whole)
    expected = written_lines(whole, (*OUTPUTS, *FROM_FILES))
    assert all(expected.values()), "every output must have rows, or nothing is proved"
    assert len(expected["odd_of_files"]) == sum(i % 11 % 2 for i in range(ROWS))
    assert len(expected["per_page_of_files"]) == 7 * -(-ROWS // 300)
    for point, epoch in POINTS:
        once = tmp_path / f"{point}-{epoch}"
        run(folder, {"point": point, "epoch": epoch, "kill": "driver", "once": str(once)})
        assert once.exists(), f"{point} was never reached"
    assert written_lines(folder, ["held"]) == {"held": []}, "requests must be in flight when it is killed"
    killed_with = set(requests(folder))
    (folder / ANSWERS).touch()
    monkeypatch.setenv(PARALLELISM, "3")
    run(folder)
    assert written_lines(folder, expected) == expected
    made = Counter(requests(folder))
    assert set(made) == set(requests(whole))
    assert killed_with, "some must have been in flight"
    assert all(made[each] > 1 for each in killed_with), "what was in flight is asked for again"
