"""Sample readings as CSV: mostly fine, some hot, some impossible, and some that are no numbers at all.

python examples/sensors/make_data.py                    # writes ./.headrace/sensors-data/readings/*.csv
python examples/sensors/make_data.py --late             # adds what one sensor held back for half an hour
"""

from __future__ import annotations

import argparse
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

START = datetime(2024, 1, 1, tzinfo=UTC)
ROOMS = ("hall", "cellar", "loft")


def make_lines(rows: int, seed: int = 1) -> list[str]:
    """CSV lines without header: sensor, at, celsius; one a second, some of them up to ten seconds out of order."""
    rng = random.Random(seed)
    lines = []
    for i in range(rows):
        sensor = f"{rng.choice(ROOMS)}-{rng.randrange(10)}"
        at = text(START + timedelta(seconds=max(i - rng.randrange(11), 0)))
        if i % 97 == 13:
            value = "warm"  # cannot be decoded
        elif i % 89 == 7:
            value = "999.0"  # can be decoded, and is nonsense
        else:
            value = f"{rng.gauss(60, 12):.2f}"
        lines.append(f"{sensor},{at},{value}")
    return lines


def make_late_lines(rows: int, seed: int = 2) -> list[str]:
    """What a sensor in the loft measured every ten seconds of the second half, and could not send."""
    rng = random.Random(seed)
    times = (START + timedelta(seconds=second) for second in range(rows // 2, rows, 10))
    return [f"loft-10,{text(at)},{rng.gauss(60, 12):.2f}" for at in times]


def text(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def write_files(lines: list[str], folder: Path, files: int = 3, name: str = "readings") -> None:
    """CSV files with a header, each put in place complete."""
    folder.mkdir(parents=True, exist_ok=True)
    size = -(-len(lines) // files)
    for number in range(files):
        content = "\n".join(["sensor,at,celsius", *lines[number * size : (number + 1) * size]]) + "\n"
        part = folder / f".part-{number}.csv"
        part.write_text(content, encoding="utf-8")
        part.rename(folder / f"{name}-{number}.csv")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Sample readings for the sensors example.")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--late", action="store_true", help="readings that come late, instead of the others")
    parser.add_argument("--to", type=Path, default=Path("./.headrace/sensors-data"))
    given = parser.parse_args()
    if given.late:
        write_files(make_late_lines(given.rows), given.to / "readings", files=1, name="late")
    else:
        write_files(make_lines(given.rows, given.seed), given.to / "readings")
    print(f"wrote {given.to / 'readings'}")
