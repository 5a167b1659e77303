"""SIGKILL of a driver on real Spark, in the epoch that has an edit by hand in it: the edit is made once."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import HeadraceError
from tests.crash.processes import start_program, wait_for_end, wait_for_orphans

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TIMEOUT_S = 120


def wait_for_epoch(store: Path, epoch: int) -> None:
    ends = time.monotonic() + TIMEOUT_S
    while time.monotonic() < ends:
        try:
            if hr.Store(store).epoch >= epoch:
                return
        except HeadraceError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"epoch {epoch} did not come")


def test_an_edit_whose_driver_is_killed_over_it_is_made_once_and_the_job_goes_on(tmp_path: Path) -> None:
    """The driver dies before the epoch is true; who asked finds nobody at work any more, and makes the edit himself."""
    store, rows = tmp_path / "store", 2
    crash = {"point": "manifest_written", "epoch": rows, "kill": "driver", "once": str(tmp_path / "once")}
    process = start_program(tmp_path, rows, 1, crash, until="stopped", program="edited_program")
    wait_for_epoch(store, rows - 1)
    with hr.Editor(str(store), why="while it runs") as edit:
        edit.patch("totals", "a", {"n": 100})
    output = wait_for_end(process, TIMEOUT_S)
    assert process.returncode == -signal.SIGKILL, output
    wait_for_orphans(process.pid)
    assert (edit.epoch, hr.Store(store).state("totals")["a"]["n"]) == (rows, 100)
    process = start_program(tmp_path, rows + 1, 1, until="caught_up", program="edited_program")
    output = wait_for_end(process, TIMEOUT_S)
    assert process.returncode == 0, output
    assert hr.Store(store).state("totals")["a"]["n"] == 101
