"""SIGKILL at every named point: what an interrupted and resumed run wrote equals what an uninterrupted one wrote."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from headrace.model.crash import POINTS
from tests.crash.files import written
from tests.crash.processes import start_program, wait_for_orphans

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS, PER_EPOCH = 1200, 200


def run_through(folder: Path) -> None:
    process = start_program(folder, ROWS, PER_EPOCH)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("whole")
    run_through(folder)
    result = written(folder)
    assert all(result.values()), "every output must have rows, or nothing is proved"
    return result


# Points of the driver die with the driver; points of a task are tried both ways.
CASES = [(point, "driver") for point in POINTS] + [
    (point, "self") for point in ("state_opening", "in_function", "delta_half_written", "outputs_staged")
]


@pytest.mark.parametrize(("point", "kill"), CASES)
def test_a_kill_at_any_point_loses_and_doubles_nothing(
    point: str, kill: str, tmp_path: Path, expected: dict[str, list[str]]
) -> None:
    strikes = tmp_path / "struck"
    epoch = -1 if point in ("final_published", "sweeping", "base_written") else 2
    crash = {"point": point, "epoch": epoch, "kill": kill, "once": str(strikes)}
    process = start_program(tmp_path, ROWS, PER_EPOCH, crash)
    output, _ = process.communicate(timeout=240)
    assert strikes.exists(), f"the point {point} was never reached:\n{output}"
    if kill == "driver":
        assert process.returncode == -signal.SIGKILL, output
        wait_for_orphans(process.pid)
        run_through(tmp_path)
    else:
        assert process.returncode == 0, output
    assert written(tmp_path) == expected
