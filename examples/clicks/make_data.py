"""Sample clicks: users who come, look at some pages, and go away for a while.

python examples/clicks/make_data.py                     # writes ./.headrace/clicks-data/clicks/*.json
"""

from __future__ import annotations

import argparse
import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zlib import crc32

START = datetime(2024, 1, 1, 8, tzinfo=UTC)
PAGES = ("/", "/news", "/sports", "/weather", "/about")


def make_clicks(users: int, visits: int, seed: int = 1) -> list[dict[str, str]]:
    """Clicks in time order: each user comes `visits` times, an hour or more apart."""
    rng = random.Random(seed)
    rows = []
    for user in range(users):
        at = START + timedelta(seconds=rng.randrange(3600))
        for _ in range(visits):
            for _ in range(rng.randint(1, 8)):
                page = rng.choices(PAGES, weights=(8, 5, 4, 2, 1))[0]
                rows.append({"user": f"user-{user}", "page": page, "at": at.isoformat().replace("+00:00", "Z")})
                at += timedelta(seconds=rng.randint(1, 300))
            at += timedelta(seconds=3600 + rng.randrange(7200))
    return sorted(rows, key=lambda row: row["at"])


def write_files(rows: list[dict[str, str]], folder: Path, files: int = 4) -> None:
    """JSON lines, each file put in place complete.

    All clicks of a user are in one file: rows of a key keep the order of their file, and files are read side by side.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        lines = [json.dumps(row) for row in rows if crc32(row["user"].encode()) % files == number]
        part = folder / f".part-{number}.json"
        part.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        part.rename(folder / f"clicks-{number}.json")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Sample clicks for the clicks example.")
    parser.add_argument("--users", type=int, default=100)
    parser.add_argument("--visits", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--to", type=Path, default=Path("./.headrace/clicks-data"))
    given = parser.parse_args()
    write_files(make_clicks(given.users, given.visits, given.seed), given.to / "clicks")
    print(f"wrote {given.to / 'clicks'}")
