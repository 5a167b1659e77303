"""Sample payments and rules.

python examples/rules/make_data.py                             # payments and two rules, in ./.headrace/rules-data
python examples/rules/make_data.py --seed 2                    # more payments, later ones
python examples/rules/make_data.py --rule abroad "home [country = 'NZ'], then away [country != 'NZ'], within 5m"
python examples/rules/make_data.py --rule abroad "…" --at 2024-01-01T00:10:00Z
python examples/rules/make_data.py --withdraw abroad
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

START = datetime(2024, 1, 1, tzinfo=UTC)
CARDS = tuple(f"card-{i}" for i in range(8))
COUNTRIES = ("NZ", "NZ", "NZ", "AU", "FR")
RULES: tuple[dict[str, Any], ...] = (
    {"id": "test-then-spend", "pattern": "small [cents < 100], then large [cents > 50000], within 2m"},
    {
        "id": "burst",
        "pattern": "hit [cents > 1000]{3} consecutive, within 1m, after match past_last",
        "version": 1,
    },
)


def make_payments(rows: int, seed: int = 1) -> list[dict[str, Any]]:
    """Payments in the order of time, one every two seconds; those of the next seed come after those of this one."""
    rng = random.Random(seed)
    payments = []
    for i in range(rows):
        at = (START + timedelta(seconds=2 * ((seed - 1) * rows + i))).isoformat().replace("+00:00", "Z")
        cents = rng.choice((rng.randrange(10, 100), rng.randrange(100, 9_000), rng.randrange(9_000, 90_000)))
        payments.append({"card": rng.choice(CARDS), "at": at, "cents": cents, "country": rng.choice(COUNTRIES)})
    return payments


def write_file(rows: Sequence[Mapping[str, Any]], folder: Path, name: str) -> None:
    """JSON lines in one file, put in place complete."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{name}.json"
    part.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    part.rename(folder / f"{name}.json")
    print(f"wrote {folder / name}.json")


def write_rules(rules: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """A file of rules with a new number: a file is read once, so a changed one would not be seen."""
    write_file(rules, folder, f"rules-{len(list(folder.glob('rules-*.json')))}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Sample payments and rules.")
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rule", nargs=2, metavar=("ID", "PATTERN"))
    parser.add_argument("--at", help="when the rule takes effect, in event time; otherwise as soon as it is read")
    parser.add_argument("--withdraw", metavar="ID")
    parser.add_argument("--to", type=Path, default=Path("./.headrace/rules-data"))
    given = parser.parse_args()
    effect = {"at": given.at} if given.at else {}
    if given.rule:
        write_rules([{"id": given.rule[0], "pattern": given.rule[1], **effect}], given.to / "rules")
    elif given.withdraw:
        write_rules([{"id": given.withdraw, "active": False, **effect}], given.to / "rules")
    else:
        if given.seed == 1:
            write_rules(RULES, given.to / "rules")
        write_file(make_payments(given.rows, given.seed), given.to / "payments", f"payments-{given.seed}")
