"""A long run from Kafka to Kafka, Postgres and files, killed again and again while its servers come and go.

    python -m tests.connector_soak --seconds 600 --seed 1

Like `tests.soak`, with the program `tests.crash.connector_program`: the driver is killed at random moments, and so are
the broker and the database, one of them, both, or together with the driver. At the end readers must see what they see
after a run that nobody touched. The last line says it: ``kills N, outages N, epochs N, rows N, lost N, doubled N``.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.crash.connectors import Outside, fill, published
from tests.crash.processes import start_program, wait_for_orphans
from tests.services.kafka import Broker
from tests.services.postgres import Postgres
from tests.soak import say

ROWS_PER_SECOND = 200
PER_EPOCH = 700


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("SOAK_SECONDS", "300")))
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.randrange(10**6)
    rows = max(6000, int(given.seconds * ROWS_PER_SECOND))
    say(f"soaking for about {given.seconds:.0f} s with {rows} rows; --seed {seed} repeats it")
    with tempfile.TemporaryDirectory(prefix="headrace-soak-") as folder:
        broker, postgres = Broker(Path(folder) / "kafka"), Postgres()
        try:
            broker.start()
            postgres.start()
            return soak(broker, postgres, Path(folder), rows, given.seconds, random.Random(seed))
        finally:
            broker.remove()
            postgres.remove()


def soak(broker: Broker, postgres: Postgres, folder: Path, rows: int, seconds: float, rng: random.Random) -> int:
    clicks = fill(broker, rows)
    say("the run that nobody touches …")
    whole = Outside.make(broker, postgres, folder / "whole", clicks)
    run_to_the_end(whole, rows)
    say("the run that is killed …")
    killed = Outside.make(broker, postgres, folder / "killed", clicks)
    kills, outages = run_killed(killed, rows, time.monotonic() + seconds, rng)
    run_to_the_end(killed, rows)
    expected, found = rows_of(whole), rows_of(killed)
    lost, doubled = sum((expected - found).values()), sum((found - expected).values())
    epochs = published(killed.folder) + 1
    total = sum(expected.values())
    say(f"kills {kills}, outages {outages}, epochs {epochs}, rows {total}, lost {lost}, doubled {doubled}")
    return 1 if lost or doubled else 0


def rows_of(outside: Outside) -> Counter[str]:
    return Counter(f"{name}: {line}" for name, lines in outside.seen().items() for line in lines)


def run_to_the_end(outside: Outside, rows: int) -> None:
    process = start_program(outside.folder, rows, PER_EPOCH, program="connector_program")
    output, _ = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"a run that nobody touched failed:\n{output}")


def run_killed(outside: Outside, rows: int, until: float, rng: random.Random) -> tuple[int, int]:
    kills = outages = 0
    log = outside.folder / "log.txt"
    while time.monotonic() < until:
        with log.open("w") as out:
            process = start_program(outside.folder, rows, PER_EPOCH, program="connector_program", stdout=out.fileno())
        if ended(process, rng.uniform(4, 12), log):
            break
        away = rng.sample([outside.broker, outside.postgres], rng.randrange(3))
        for server in away:
            server.stop(hard=rng.random() < 0.7)
        together = rng.random() < 0.5
        if together:
            process.kill()
        for server in away:
            server.start()
        outages += bool(away)
        if not together and ended(process, rng.uniform(0, 6), log):
            break
        process.kill()
        process.wait()
        wait_for_orphans(process.pid)
        kills += 1
        names = " and ".join(type(server).__name__ for server in away) or "no server"
        say(f"  {kills}: killed the driver, {names} was away, epoch {published(outside.folder)}")
    return kills, outages


def ended(process: subprocess.Popen[str], seconds: float, log: Path) -> bool:
    """Lets it run for so long; whether it came to its end by then."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    if process.returncode != 0:
        raise SystemExit(f"the run ended by itself with {process.returncode}:\n{log.read_text()[-5000:]}")
    return True


if __name__ == "__main__":
    sys.exit(main())
