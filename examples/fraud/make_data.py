"""Sample payments: mostly ordinary, with a few cards that are tried out and then charged.

python examples/fraud/make_data.py                      # writes ./.headrace/fraud-data/payments/*.json
python examples/fraud/make_data.py --rows 100000 --to /tmp/fraud
"""

from __future__ import annotations

import argparse
import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zlib import crc32

START = datetime(2024, 1, 1, 12, tzinfo=UTC)


def make_payments(rows: int, seed: int = 1) -> list[dict[str, object]]:
    """Payments in time order, one every half second; every fiftieth begins a fraud, and another one looks like it."""
    rng = random.Random(seed)
    payments: list[dict[str, object]] = []
    for i in range(rows):
        at = START + timedelta(seconds=i / 2)
        card = f"card-{rng.randrange(200)}"
        if i % 50 == 25:
            payments.append(payment(f"stolen-{i}", rng, at, rng.randint(1, 100)))
            payments.append(payment(f"stolen-{i}", rng, at + timedelta(seconds=rng.randint(1, 50)), 60_000 + i))
        elif i % 50 == 40:
            # A small payment and a large one, with the PIN of the card between.
            for seconds, cents, kind in ((0, 80, "charge"), (9, 0, "pin"), (20, 55_000, "charge")):
                payments.append(payment(f"owner-{i}", rng, at + timedelta(seconds=seconds), cents, kind))
        else:
            payments.append(payment(card, rng, at, rng.randint(500, 20_000)))
    return sorted(payments, key=lambda row: str(row["at"]))


def payment(card: str, rng: random.Random, at: datetime, cents: int, kind: str = "charge") -> dict[str, object]:
    text = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"card": card, "shop": f"shop-{rng.randrange(40)}", "at": text, "cents": cents, "kind": kind}


def write_files(payments: list[dict[str, object]], folder: Path, files: int = 4) -> None:
    """JSON lines, each file put in place complete.

    All payments of a card are in one file: rows of a key keep the order of their file, and files are read side by side.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        lines = [json.dumps(row) for row in payments if crc32(str(row["card"]).encode()) % files == number]
        part = folder / f".part-{number}.json"
        part.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        part.rename(folder / f"payments-{number}.json")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Sample payments for the fraud example.")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--to", type=Path, default=Path("./.headrace/fraud-data"))
    given = parser.parse_args()
    write_files(make_payments(given.rows, given.seed), given.to / "payments")
    print(f"wrote {given.to / 'payments'}")
