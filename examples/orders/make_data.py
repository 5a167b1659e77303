"""Sample orders and payments: most orders are paid within minutes, some late, some in part, some never.

python examples/orders/make_data.py                     # writes orders and payments to ./.headrace/orders-data
python examples/orders/make_data.py --rows 100000 --to /tmp/orders
"""

from __future__ import annotations

import argparse
import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

START = datetime(2024, 1, 1, 12, tzinfo=UTC)
Rows = list[dict[str, object]]


def make_rows(orders: int, seed: int = 1) -> tuple[Rows, Rows]:
    """Orders, one every two seconds, and their payments, each in the order of time.

    Of ten orders seven are paid in full, one in part, one half an hour late, and one never.
    """
    rng = random.Random(seed)
    asked: Rows = []
    paid: Rows = []
    for i in range(orders):
        at = START + timedelta(seconds=2 * i)
        cents = rng.randint(500, 20_000)
        asked.append({"id": f"order-{i}", "customer": f"customer-{rng.randrange(100)}", "at": text(at), "cents": cents})
        late = timedelta(minutes=30) if i % 10 == 8 else timedelta(seconds=rng.randint(5, 500))
        if i % 10 != 9:
            part = cents // 2 if i % 10 == 7 else cents
            paid.append({"order": f"order-{i}", "at": text(at + late), "cents": part})
    return asked, sorted(paid, key=lambda row: str(row["at"]))


def text(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def write_file(rows: Rows, folder: Path) -> None:
    """JSON lines in one file, put in place complete."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / ".part.json"
    part.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    part.rename(folder / "rows.json")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Sample orders and payments.")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--to", type=Path, default=Path("./.headrace/orders-data"))
    given = parser.parse_args()
    made = make_rows(given.rows, given.seed)
    for name, rows in zip(("orders", "payments"), made, strict=True):
        write_file(rows, given.to / name)
        print(f"wrote {given.to / name}")
