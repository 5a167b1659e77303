"""Sample events and routes.

python examples/router/make_data.py                                    # events and three routes
python examples/router/make_data.py --seed 2                           # more events, later ones
python examples/router/make_data.py --route loud alerts --min-level 4  # a route, new or changed: name and output
python examples/router/make_data.py --route loud nowhere               # withdrawn
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

START = datetime(2024, 1, 1, tzinfo=UTC)
DEVICES = tuple(f"device-{n}" for n in range(8))
KINDS = ("login", "payment", "heartbeat", "error")
ROUTES: tuple[dict[str, object], ...] = (
    {"name": "all_payments", "to": "audit", "kind": "payment"},
    {"name": "everything", "to": "archive", "min_level": 1},
    {"name": "loud", "to": "alerts", "min_level": 4},
)


def make_events(rows: int, seed: int = 1) -> list[dict[str, object]]:
    """Events in the order of time, one a minute; those of the next seed come after those of this one."""
    rng = random.Random(seed)
    events: list[dict[str, object]] = []
    for i in range(rows):
        at = (START + timedelta(minutes=(seed - 1) * rows + i)).isoformat().replace("+00:00", "Z")
        event = {"device": rng.choice(DEVICES), "kind": rng.choice(KINDS), "level": rng.randrange(6), "at": at}
        events.append({**event, "text": f"event {i}"})
    return events


def write_file(rows: Sequence[Mapping[str, object]], folder: Path, name: str) -> None:
    """JSON lines in one file, put in place complete."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{name}.json"
    part.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    part.rename(folder / f"{name}.json")
    print(f"wrote {folder / name}.json")


def write_routes(routes: Sequence[Mapping[str, object]], folder: Path) -> None:
    """A file of routes with a new number: a file is read once, so a changed one would not be seen."""
    write_file(routes, folder, f"routes-{len(list(folder.glob('routes-*.json')))}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Sample events and routes.")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--route", nargs=2, metavar=("NAME", "OUTPUT"))
    parser.add_argument("--kind", default="")
    parser.add_argument("--device", default="")
    parser.add_argument("--min-level", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(".headrace/router-data"))
    options = parser.parse_args()
    if options.route:
        name, to = options.route
        chosen = {"kind": options.kind, "device": options.device, "min_level": options.min_level}
        write_routes([{"name": name, "to": to, **chosen}], options.out / "routes")
    else:
        write_file(make_events(options.rows, options.seed), options.out / "events", f"events-{options.seed}")
        if options.seed == 1:
            write_routes(ROUTES, options.out / "routes")
