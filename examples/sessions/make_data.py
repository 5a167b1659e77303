"""Sample clicks: users who come and go, phones whose clicks arrive hours later, and a robot.

python examples/sessions/make_data.py                   # writes ./.headrace/sessions-data/clicks/*.json
python examples/sessions/make_data.py --late            # adds what the phones held back
"""

from __future__ import annotations

import argparse
import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

START = datetime(2024, 1, 1, 8, tzinfo=UTC)
PAGES = ("/", "/news", "/sports", "/weather", "/about")
Rows = list[dict[str, str]]


def make_clicks(users: int, sessions: int, seed: int = 1) -> tuple[Rows, Rows]:
    """Clicks in the order of time, and those that phones held back.

    Users come several times, an hour or more apart. With every fourth it only looks so: between two of the sessions
    there was a click that their phone has not sent yet.
    """
    rng = random.Random(seed)
    sent: Rows = [click("robot", PAGES[i % 5], START + timedelta(milliseconds=400 * i)) for i in range(40)]
    held_back: Rows = []
    for user in range(users):
        name = f"user-{user}"
        at = START + timedelta(seconds=rng.randrange(3600))
        for _ in range(sessions):
            for _ in range(rng.randint(1, 8)):
                sent.append(click(name, rng.choice(PAGES), at))
                at += timedelta(seconds=rng.randint(1, 300))
            if user % 4 == 0:
                held_back.append(click(name, rng.choice(PAGES), at + timedelta(minutes=20)))
                at += timedelta(minutes=45)
            else:
                at += timedelta(seconds=3600 + rng.randrange(7200))
    return sorted(sent, key=lambda row: row["at"]), held_back


def click(user: str, page: str, at: datetime) -> dict[str, str]:
    return {"user": user, "page": page, "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z")}


def write_file(rows: Rows, folder: Path, name: str) -> None:
    """JSON lines in one file, put in place complete."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{name}.json"
    part.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    part.rename(folder / f"{name}.json")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Sample clicks for the sessions example.")
    parser.add_argument("--users", type=int, default=100)
    parser.add_argument("--sessions", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--late", action="store_true", help="what the phones held back, instead of the others")
    parser.add_argument("--to", type=Path, default=Path("./.headrace/sessions-data"))
    given = parser.parse_args()
    in_time, late = make_clicks(given.users, given.sessions, given.seed)
    if given.late:
        write_file(late, given.to / "clicks", "late")
    else:
        write_file(in_time, given.to / "clicks", "clicks")
    print(f"wrote {given.to / 'clicks'}")
