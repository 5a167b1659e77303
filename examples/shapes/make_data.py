"""Sample shapes and rules.

python examples/shapes/make_data.py                            # shapes and two rules, in ./.headrace/shapes-data
python examples/shapes/make_data.py --seed 2                   # more shapes, later ones
python examples/shapes/make_data.py --rule pair star star      # a rule, new or changed: name, first, then
python examples/shapes/make_data.py --withdraw pair
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

START = datetime(2024, 1, 1, tzinfo=UTC)
COLORS = ("red", "green", "blue", "yellow")
KINDS = ("box", "disc", "star")
RULES = ({"name": "pair", "first": "box", "then": "disc"}, {"name": "stars", "first": "star", "then": "star"})


def make_shapes(rows: int, seed: int = 1) -> list[dict[str, str]]:
    """Shapes in the order of time, one a second; those of the next seed come after those of this one."""
    rng = random.Random(seed)
    shapes = []
    for i in range(rows):
        at = (START + timedelta(seconds=(seed - 1) * rows + i)).isoformat().replace("+00:00", "Z")
        shapes.append({"color": rng.choice(COLORS), "kind": rng.choice(KINDS), "at": at})
    return shapes


def write_file(rows: Sequence[Mapping[str, str]], folder: Path, name: str) -> None:
    """JSON lines in one file, put in place complete, so that the shapes of a color keep their order."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{name}.json"
    part.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    part.rename(folder / f"{name}.json")
    print(f"wrote {folder / name}.json")


def write_rules(rules: Sequence[Mapping[str, str]], folder: Path) -> None:
    """A file of rules with a new number: a file is read once, so a changed one would not be seen."""
    write_file(rules, folder, f"rules-{len(list(folder.glob('rules-*.json')))}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Sample shapes and rules.")
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rule", nargs=3, metavar=("NAME", "FIRST", "THEN"))
    parser.add_argument("--withdraw", metavar="NAME")
    parser.add_argument("--to", type=Path, default=Path("./.headrace/shapes-data"))
    given = parser.parse_args()
    if given.rule:
        write_rules([dict(zip(("name", "first", "then"), given.rule, strict=True))], given.to / "rules")
    elif given.withdraw:
        write_rules([{"name": given.withdraw}], given.to / "rules")
    else:
        if given.seed == 1:
            write_rules(RULES, given.to / "rules")
        write_file(make_shapes(given.rows, given.seed), given.to / "shapes", f"shapes-{given.seed}")
