"""A long run that is killed again and again: ``python -m tests.soak --seconds 600 --seed 1``.

One run goes through without being touched; a second one over the same input is killed at random moments: the whole
driver, or only one of its Python workers. At the end the two must have written the same rows. The last line says it:
``kills N, epochs N, rows N, lost N, doubled N``.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from headrace.state.manifest import list_epochs
from headrace.state.store import open_store
from tests.crash.files import written
from tests.crash.processes import members, start_program, wait_for_orphans

ROWS_PER_SECOND = 400
"""How much input a second of soaking gets; most of the time goes into starting again."""
PER_EPOCH = 400
ENOUGH_KILLS = 20
"""So many without a worker among them do not happen by chance: three in ten are meant for one."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("SOAK_SECONDS", "300")))
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.randrange(10**6)
    rows = max(2000, int(given.seconds * ROWS_PER_SECOND) // PER_EPOCH * PER_EPOCH)
    say(f"soaking for about {given.seconds:.0f} s with {rows} rows; --seed {seed} repeats it")
    with tempfile.TemporaryDirectory(prefix="headrace-soak-") as folder:
        return soak(Path(folder), rows, random.Random(seed))


def soak(folder: Path, rows: int, rng: random.Random) -> int:
    say("the run that nobody touches …")
    whole = folder / "whole"
    run_whole(whole, rows)
    say("the run that is killed …")
    killed = folder / "killed"
    kills, deaths = run_killed(killed, rows, rng)
    expected, found = rows_of(whole), rows_of(killed)
    lost = sum((expected - found).values())
    doubled = sum((found - expected).values())
    epochs = list_epochs(open_store(killed / "store"), 0)[-1] + 1
    say(f"drivers killed {deaths}, workers killed {kills - deaths}")
    say(f"kills {kills}, epochs {epochs}, rows {sum(expected.values())}, lost {lost}, doubled {doubled}")
    if kills >= ENOUGH_KILLS and kills == deaths:
        say("no worker was ever found to be killed: kill_worker() looks for the wrong processes")
        return 1
    return 1 if lost or doubled else 0


def run_whole(folder: Path, rows: int) -> None:
    process = start_program(folder, rows, PER_EPOCH)
    output, _ = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"the run that nobody touched failed:\n{output}")


def run_killed(folder: Path, rows: int, rng: random.Random) -> tuple[int, int]:
    kills = deaths = 0
    while True:
        process = start_program(folder, rows, PER_EPOCH, stdout=subprocess.DEVNULL)
        # A run needs some seconds until its first epoch; most strikes should hit epochs, some should hit the start.
        strike_at = time.monotonic() + rng.uniform(4, 25)
        while process.poll() is None:
            if time.monotonic() < strike_at:
                time.sleep(0.05)
                continue
            if rng.random() < 0.3 and kill_worker(process.pid, rng):
                kills += 1
                say(f"  {kills}: killed a worker")
                strike_at = time.monotonic() + rng.uniform(2, 10)
                continue
            process.send_signal(signal.SIGKILL)
            kills += 1
            deaths += 1
            say(f"  {kills}: killed the driver")
            break
        process.wait()
        wait_for_orphans(process.pid)
        if process.returncode == 0:
            return kills, deaths
        if process.returncode != -signal.SIGKILL:
            raise SystemExit(f"the run ended by itself with {process.returncode}")


def kill_worker(session: int, rng: random.Random) -> bool:
    """Kills one forked Python worker of a run, if it has any."""
    workers = [pid for pid, command in members(session) if "headrace.spark.daemon" in command]
    if len(workers) < 2:
        return False
    # The oldest is the daemon that forks the others.
    os.kill(rng.choice(sorted(workers)[1:]), signal.SIGKILL)
    return True


def rows_of(folder: Path) -> Counter[str]:
    return Counter(f"{name} {row}" for name, rows in written(folder).items() for row in rows)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
