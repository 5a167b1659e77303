"""SIGKILL at every named point: what an interrupted and resumed run wrote equals what an uninterrupted one wrote.

One run is killed at each point in turn, each time some epochs further on, and resumed with the next point planned: so
every recovery also starts from a store that was recovered before.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from headrace.model.crash import POINTS
from tests.crash.files import written
from tests.crash.processes import start_program, wait_for_orphans

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PER_EPOCH = 600
EPOCHS = len(POINTS) + 12
ROWS = EPOCHS * PER_EPOCH
TIMEOUT_S = 240

LATE = ("base_written", "sweeping", "final_published")
"""Points that come when they come, or only at the end."""


def run_to_the_end(folder: Path) -> None:
    process = start_program(folder, ROWS, PER_EPOCH)
    output, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, output


def run_until_struck(folder: Path, point: str, epoch: int, kill: str) -> None:
    struck = folder / f"struck-{point}-{kill}"
    process = start_program(
        folder, ROWS, PER_EPOCH, {"point": point, "epoch": epoch, "kill": kill, "once": str(struck)}
    )
    output, _ = process.communicate(timeout=TIMEOUT_S)
    assert struck.exists(), f"{point} was never reached:\n{output}"
    assert process.returncode == (-signal.SIGKILL if kill == "driver" else 0), f"{point}:\n{output}"
    wait_for_orphans(process.pid)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("whole")
    run_to_the_end(folder)
    result = written(folder)
    assert all(result.values()), "every output must have rows, or nothing is proved"
    return result


@pytest.mark.timeout(1500)
def test_a_run_killed_at_every_point_in_turn_loses_and_doubles_nothing(
    tmp_path: Path, expected: dict[str, list[str]]
) -> None:
    early = [point for point in POINTS if point not in LATE]
    for number, point in enumerate([*early, *LATE]):
        run_until_struck(tmp_path, point, -1 if point in LATE else number + 1, "driver")
    run_to_the_end(tmp_path)
    assert written(tmp_path) == expected


@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", ["state_opening", "in_function", "outputs_staged"])
def test_a_killed_worker_costs_a_retry_and_nothing_else(
    point: str, tmp_path: Path, expected: dict[str, list[str]]
) -> None:
    run_until_struck(tmp_path, point, 2, "self")
    assert written(tmp_path) == expected
