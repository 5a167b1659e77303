"""End to end: Kafka → state, timers, windows → Kafka, Postgres and files, killed everywhere, while servers go away.

One run is killed at named points (`strikes`) in turn and at a random moment, each time some epochs further on, so that
every recovery also starts from a store that was recovered before. After some of the kills the store loses what Spark
wrote into it. One of its drivers sees workers die, broker and database die and come back, and is killed while they are
away again. What a reader of committed messages, of the tables and of the folder sees must be what it sees after a run
that nobody touched, and that cut its input into a few long epochs. Longer, and at random only: ``python -m
tests.connector_soak``.
"""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.crash.connectors import Outside, fill, published
from tests.crash.processes import end_orphans, start_program, wait_for_end, wait_for_orphans
from tests.crash.program import WORKER_STRIKES
from tests.crash.strikes import LATE, STRIKES, Strike

if TYPE_CHECKING:
    import subprocess

    from tests.services.kafka import Broker
    from tests.services.postgres import Postgres

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PER_EPOCH = 700
EPOCHS = len(STRIKES) + 20
"""As many as there are strikes, and those that pass by while workers and servers die, and until a fold and a sweep."""
ROWS = EPOCHS * PER_EPOCH
WORKER_POINTS = ("state_opening", "in_function", "outputs_staged")
TIMEOUT_S = 240


def start(
    outside: Outside, crash: dict[str, Any] | None = None, *, per_epoch: int = PER_EPOCH
) -> subprocess.Popen[str]:
    return start_program(outside.folder, ROWS, per_epoch, crash, program="connector_program")


def run_to_the_end(outside: Outside, *, per_epoch: int = PER_EPOCH) -> None:
    process = start(outside, per_epoch=per_epoch)
    output = wait_for_end(process, TIMEOUT_S)
    assert process.returncode == 0, output


def run_until_struck(outside: Outside, strike: Strike, epoch: int) -> None:
    struck = outside.folder / f"struck-{strike}"
    process = start(outside, {"point": strike.point, "epoch": epoch, "kill": "driver", "once": str(struck)})
    output = wait_for_end(process, TIMEOUT_S)
    assert struck.exists(), f"{strike} was never reached:\n{output}"
    assert process.returncode == -signal.SIGKILL, f"{strike}:\n{output}"
    # By turns the driver alone is killed, and what it started ends by itself, and everything at once.
    (end_orphans if epoch % 2 else wait_for_orphans)(process.pid)
    if strike.lose is not None:
        strike.lose(outside.folder / "store")


def wait_for_epochs(outside: Outside, process: subprocess.Popen[str], more: int) -> None:
    """Until so many more epochs are published; the program must be alive by then."""
    wanted, until = published(outside.folder) + more, time.monotonic() + TIMEOUT_S
    while published(outside.folder) < wanted:
        assert process.poll() is None, process.communicate()[0]
        if time.monotonic() > until:
            raise AssertionError(f"epoch {wanted} does not come:\n{end(process)}")
        time.sleep(0.02)


def start_with_dying_workers(outside: Outside, patch: pytest.MonkeyPatch) -> subprocess.Popen[str]:
    """A worker is killed at each of the points, in one epoch after the other, which costs a retry and nothing else."""
    after = published(outside.folder) + 2
    patch.setenv(WORKER_STRIKES, json.dumps({point: after + nth for nth, point in enumerate(WORKER_POINTS)}))
    process = start(outside)
    patch.delenv(WORKER_STRIKES)
    wait_for_epochs(outside, process, 2 + len(WORKER_POINTS))
    for point in WORKER_POINTS:
        assert (outside.folder / f"struck-{point}-self").exists(), f"no worker came to {point}:\n{end(process)}"
    return process


def live_through_an_outage(outside: Outside, process: subprocess.Popen[str]) -> None:
    outside.go_away()
    outside.come_back()
    # The epoch in which the servers were away, and one that knows nothing of it any more.
    wait_for_epochs(outside, process, 2)


def kill_while_servers_are_away(outside: Outside, process: subprocess.Popen[str], rng: random.Random) -> None:
    time.sleep(rng.uniform(0, 0.3))  # a moment that nobody chose
    outside.go_away()
    time.sleep(rng.uniform(0, 1.0))
    end(process)
    outside.come_back()


def end(process: subprocess.Popen[str]) -> str:
    """What it said until now."""
    process.kill()
    output, _ = process.communicate()
    wait_for_orphans(process.pid)
    return output


@pytest.mark.timeout(1500)
def test_readers_of_kafka_postgres_and_files_see_each_row_once_whatever_is_killed(
    kafka: Broker, postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    clicks = fill(kafka, ROWS)
    whole = Outside.make(kafka, postgres, tmp_path / "whole", clicks)
    run_to_the_end(whole, per_epoch=ROWS // 3)
    expected = whole.seen()
    assert all(expected.values()), "every output must have rows, or nothing is proved"
    killed = Outside.make(kafka, postgres, tmp_path / "killed", clicks)
    for number, strike in enumerate(STRIKES):
        run_until_struck(killed, strike, number + 1)
    driver = start_with_dying_workers(killed, monkeypatch)
    live_through_an_outage(killed, driver)
    kill_while_servers_are_away(killed, driver, random.Random(seed))
    for point in LATE:
        run_until_struck(killed, Strike(point), -1)
    run_to_the_end(killed)
    assert killed.seen() == expected
