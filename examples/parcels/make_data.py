"""Sample scans: parcels are loaded in the morning; most are delivered, some brought back, some lost.

python examples/parcels/make_data.py                    # writes ./.headrace/parcels-data/scans/*.json
"""

from __future__ import annotations

import argparse
import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

START = datetime(2024, 1, 1, 7, tzinfo=UTC)


def make_scans(parcels: int, seed: int = 1) -> list[dict[str, str]]:
    """Scans in time order; every twentieth parcel is lost."""
    rng = random.Random(seed)
    scans = []
    for i in range(parcels):
        van, loaded = f"van-{rng.randrange(8)}", START + timedelta(minutes=rng.randrange(90))
        scans.append(scan(i, loaded, "loaded", van))
        tour = loaded + timedelta(minutes=rng.randint(20, 420))
        if i % 20 == 7:
            continue
        if i % 6 == 1:
            scans.append(scan(i, tour, "nobody home", van))
            scans.append(scan(i, tour + timedelta(hours=2), "returned", "depot"))
        else:
            scans.append(scan(i, tour, "delivered", f"street {rng.randrange(300)}"))
    # The day after, so that time goes on behind the last tour.
    scans.append(scan(parcels, START + timedelta(days=1), "loaded", "van-0"))
    scans.append(scan(parcels, START + timedelta(days=1, hours=1), "nobody home", "van-0"))
    return sorted(scans, key=lambda row: row["at"])


def scan(parcel: int, at: datetime, what: str, place: str) -> dict[str, str]:
    return {"parcel": f"parcel-{parcel}", "at": at.isoformat().replace("+00:00", "Z"), "what": what, "place": place}


def write_files(scans: list[dict[str, str]], folder: Path, files: int = 2) -> None:
    """JSON lines, each file put in place complete."""
    folder.mkdir(parents=True, exist_ok=True)
    size = -(-len(scans) // files)
    for number in range(files):
        part = folder / f".part-{number}.json"
        lines = [json.dumps(row) for row in scans[number * size : (number + 1) * size]]
        part.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        part.rename(folder / f"scans-{number}.json")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Sample scans for the parcels example.")
    parser.add_argument("--parcels", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--to", type=Path, default=Path("./.headrace/parcels-data"))
    given = parser.parse_args()
    write_files(make_scans(given.parcels, given.seed), given.to / "scans")
    print(f"wrote {given.to / 'scans'}")
