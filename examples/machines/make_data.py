"""Sample readings as CSV: ten machines that hum along, and heaters that fail for a while.

python examples/machines/make_data.py                   # writes ./.headrace/machines-data/readings/*.csv
"""

from __future__ import annotations

import argparse
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

START = datetime(2024, 1, 1, tzinfo=UTC)
MACHINES = 10
FALL, RISE = 6, 4


def make_lines(minutes: int, seed: int = 1) -> list[str]:
    """CSV lines without header: machine, at, celsius; a reading each minute, and a failure of a machine every hour."""
    rng = random.Random(seed)
    lines = []
    for minute in range(minutes):
        for machine in range(MACHINES):
            at = START + timedelta(minutes=minute, seconds=machine)
            lines.append(
                f"machine-{machine},{at.isoformat().replace('+00:00', 'Z')},{celsius(machine, minute, rng):.2f}"
            )
    return lines


def celsius(machine: int, minute: int, rng: random.Random) -> float:
    """70 degrees and some noise; every hour one machine cools down by 4 degrees a minute and recovers."""
    noise = rng.uniform(-0.5, 0.5)
    since = minute % 60 - 20
    if minute // 60 % MACHINES != machine or not 0 <= since < FALL + RISE:
        return 70 + noise
    depth = 4 * (since + 1) if since < FALL else 4 * FALL - 6 * (since - FALL + 1)
    return 70 - depth + noise


def write_files(lines: list[str], folder: Path, files: int = 3) -> None:
    """CSV files with a header, each put in place complete."""
    folder.mkdir(parents=True, exist_ok=True)
    size = -(-len(lines) // files)
    for number in range(files):
        content = "\n".join(["machine,at,celsius", *lines[number * size : (number + 1) * size]]) + "\n"
        part = folder / f".part-{number}.csv"
        part.write_text(content, encoding="utf-8")
        part.rename(folder / f"readings-{number}.csv")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Sample readings for the machines example.")
    parser.add_argument("--minutes", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--to", type=Path, default=Path("./.headrace/machines-data"))
    given = parser.parse_args()
    write_files(make_lines(given.minutes, given.seed), given.to / "readings")
    print(f"wrote {given.to / 'readings'}")
