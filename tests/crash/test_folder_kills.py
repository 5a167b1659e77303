"""SIGKILL while a folder is read: files that workers decode, and one that Spark does, once after each start."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.crash.files import written_lines
from tests.crash.folder_program import ODD_FILE, OUTPUTS, write_input
from tests.crash.processes import start_program, wait_for_end, wait_for_orphans

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PER_FILE = 400
ROWS = PER_FILE * 7
POINTS = (("outputs_staged", ODD_FILE - 1), ("outputs_staged", ODD_FILE), ("published", ODD_FILE + 1))
"""Before the file that Spark reads, while it does, and after it."""


def run(folder: Path, crash: dict[str, Any] | None = None) -> None:
    process = start_program(folder, ROWS, PER_FILE, crash, program="folder_program")
    output = wait_for_end(process, 240)
    assert process.returncode == (0 if crash is None else -signal.SIGKILL), output
    if crash is not None:
        wait_for_orphans(process.pid)


@pytest.mark.timeout(900)
def test_a_folder_is_read_once_whatever_is_killed_and_whoever_decodes(tmp_path: Path) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    for each in (whole, folder):
        write_input(each / "in", ROWS, PER_FILE)
    run(whole)
    expected = written_lines(whole, OUTPUTS)
    assert len(expected["odd"]) == sum(i % 11 % 2 for i in range(ROWS))
    assert len(expected["windows"]) == 7 * -(-ROWS // 300)
    for number, (point, epoch) in enumerate(POINTS):
        once = tmp_path / f"{number}"
        run(folder, {"point": point, "epoch": epoch, "kill": "driver", "once": str(once)})
        assert once.exists(), f"{point} was never reached"
    run(folder)
    assert written_lines(folder, OUTPUTS) == expected
