"""The floor of an epoch: 1 000 events per second, how long a whole epoch takes and where the time goes.

    python benchmarks/epoch_floor.py            one, two and three keyed steps
    python benchmarks/epoch_floor.py --quick --json

Epochs follow one another without a pause; a whole epoch is the time from one published manifest to the next.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.lib.children import run_child
from benchmarks.lib.figures import quantile
from benchmarks.lib.progress import say
from benchmarks.lib.results import Bar, bars_table, emit, table

RATE = 1_000
BAR_MS = 150
BARS = {"p50_of_bar_1_step": Bar(at_most=1.0)}


def main() -> None:
    options = parse()
    rows = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        for steps in options.steps:
            rows.append(measure(steps, Path(folder) / f"steps-{steps}", options))
    emit(report(rows), as_json=options.json)


def measure(steps: int, work: Path, options: argparse.Namespace) -> dict:
    label = f"{steps} keyed step{'s' if steps > 1 else ''}"
    say(f"{label}: starting")
    arguments = ["--steps", str(steps), "--rate", str(RATE), "--epochs", str(options.epochs)]
    found = run_child("headrace_trickle.py", [*arguments, "--warm-up", str(options.warm_up)], work=work, label=label)
    took = found.pop("epoch_ms")
    row = {
        **found,
        "epochs": len(took),
        "p50_ms": quantile(took, 0.5),
        "p99_ms": quantile(took, 0.99),
        "max_ms": max(took),
    }
    say(f"{label}: p50 {row['p50_ms']:.0f} ms, p99 {row['p99_ms']:.0f} ms")
    return row


def report(rows: list[dict]) -> dict:
    ratios = {}
    for row in rows:
        ratios[f"p50_of_bar_{row['steps']}_step{'s' if row['steps'] > 1 else ''}"] = round(row["p50_ms"] / BAR_MS, 3)
    tables = [floor_table(rows), parts_table(rows)]
    if set(BARS) & set(ratios):
        tables.append(bars_table(ratios, BARS, f"p50 of an epoch ÷ {BAR_MS} ms"))
    return {
        "benchmark": "epoch_floor",
        "rows": rows,
        "ratios": ratios,
        "tables": tables,
        "notes": [
            f"{RATE:,} events per second, generated; 2 shards on 2 cores; epochs one after the other without a pause; "
            f"{rows[0]['version']}.",
            "Tasks of one level run side by side, and a level waits for the one before it, so the parts of tasks do "
            "not add up to those of the driver; `wait` is waiting for input.",
        ],
    }


def floor_table(rows: list[dict]) -> dict:
    lines = [
        [
            str(row["steps"]),
            str(row["epochs"]),
            f"{row['rows_per_epoch']:.0f}",
            f"{row['p50_ms']:.0f}",
            f"{row['p99_ms']:.0f}",
            f"{row['max_ms']:.0f}",
        ]
        for row in rows
    ]
    columns = ["keyed steps", "epochs", "rows per epoch", "p50, ms", "p99, ms", "longest, ms"]
    return table(f"A whole epoch at {RATE:,} events per second", columns, lines)


def parts_table(rows: list[dict]) -> dict:
    names = list(dict.fromkeys(name for row in reversed(rows) for name in row["parts_ms"]))
    lines = [[name, *(_ms(row["parts_ms"].get(name)) for row in rows)] for name in names]
    columns = ["median, ms", *(f"{row['steps']} step{'s' if row['steps'] > 1 else ''}" for row in rows)]
    return table("Where the time goes", columns, lines)


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object with rows and ratios instead of tables")
    parser.add_argument("--quick", action="store_true", help="fewer epochs: rough figures, soon")
    parser.add_argument("--steps", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2, 3])
    options = parser.parse_args()
    options.epochs, options.warm_up = (60, 20) if options.quick else (400, 100)
    return options


if __name__ == "__main__":
    main()
