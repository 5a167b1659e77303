"""Sample readings as CSV: mostly fine, some hot, some impossible, and some that are no numbers at all.

python examples/sensors/make_data.py                    # writes ./.headrace/sensors-data/readings/*.csv
"""

from __future__ import annotations

import argparse
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

START = datetime(2024, 1, 1, tzinfo=UTC)
SITES = ("mill", "weir", "sluice")


def make_lines(rows: int, seed: int = 1) -> list[str]:
    """CSV lines without header: sensor, at, celsius."""
    rng = random.Random(seed)
    lines = []
    for i in range(rows):
        sensor = f"{rng.choice(SITES)}-{rng.randrange(10)}"
        at = (START + timedelta(seconds=i)).isoformat().replace("+00:00", "Z")
        if i % 97 == 13:
            value = "warm"  # cannot be decoded
        elif i % 89 == 7:
            value = "999.0"  # can be decoded, and is nonsense
        else:
            value = f"{rng.gauss(60, 12):.2f}"
        lines.append(f"{sensor},{at},{value}")
    return lines


def write_files(lines: list[str], folder: Path, files: int = 3) -> None:
    """CSV files with a header, each put in place complete."""
    folder.mkdir(parents=True, exist_ok=True)
    size = -(-len(lines) // files)
    for number in range(files):
        text = "\n".join(["sensor,at,celsius", *lines[number * size : (number + 1) * size]]) + "\n"
        part = folder / f".part-{number}.csv"
        part.write_text(text, encoding="utf-8")
        part.rename(folder / f"readings-{number}.csv")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Sample readings for the sensors example.")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--to", type=Path, default=Path("./.headrace/sensors-data"))
    given = parser.parse_args()
    write_files(make_lines(given.rows, given.seed), given.to / "readings")
    print(f"wrote {given.to / 'readings'}")
