"""SIGKILL at named points (`strikes`): a run that was killed and resumed writes what an untouched one writes.

One run is killed at each point in turn, each time some epochs further on, and resumed with the next point planned: so
every recovery also starts from a store that was recovered before. After some of the kills the store loses what Spark
wrote into it. Workers are killed in one run, one point after the other.

All of this is for machines without a broker and a database: where these are, `test_connector_kills` strikes the same
points, of drivers and of workers, under a program that does more, and a dozen starts of Spark are saved.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.crash.files import written
from tests.crash.processes import start_program, wait_for_end, wait_for_orphans
from tests.crash.program import WORKER_STRIKES
from tests.crash.strikes import LATE, STRIKES, Strike
from tests.services import at_hand

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(
        at_hand(), reason="tests/crash/test_connector_kills.py strikes the same points, and more is written"
    ),
]

CHAIN = (*STRIKES, *map(Strike, LATE))
PER_EPOCH = 600
EPOCHS = len(CHAIN) + 9
ROWS = EPOCHS * PER_EPOCH
TIMEOUT_S = 240


def run_to_the_end(folder: Path) -> None:
    process = start_program(folder, ROWS, PER_EPOCH)
    output = wait_for_end(process, TIMEOUT_S)
    assert process.returncode == 0, output


def run_until_struck(folder: Path, strike: Strike, epoch: int) -> None:
    struck = folder / f"struck-{strike}"
    process = start_program(
        folder, ROWS, PER_EPOCH, {"point": strike.point, "epoch": epoch, "kill": "driver", "once": str(struck)}
    )
    output = wait_for_end(process, TIMEOUT_S)
    assert struck.exists(), f"{strike} was never reached:\n{output}"
    assert process.returncode == -signal.SIGKILL, f"{strike}:\n{output}"
    wait_for_orphans(process.pid)
    if strike.lose is not None:
        strike.lose(folder / "store")


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
    for number, strike in enumerate(CHAIN):
        run_until_struck(tmp_path, strike, -1 if strike.point in LATE else number + 1)
    run_to_the_end(tmp_path)
    assert written(tmp_path) == expected


def test_a_killed_worker_costs_a_retry_and_nothing_else(
    tmp_path: Path, expected: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    strikes = {"state_opening": 2, "in_function": 4, "outputs_staged": 6}
    monkeypatch.setenv(WORKER_STRIKES, json.dumps(strikes))
    run_to_the_end(tmp_path)
    for point in strikes:
        assert (tmp_path / f"struck-{point}-self").exists(), f"{point} was never reached"
    assert written(tmp_path) == expected
