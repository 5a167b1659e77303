"""A policy for epochs under a load that changes a hundredfold: does the latency hold, and what do epochs cost?

    python benchmarks/epoch_policy.py            adaptive epochs beside fixed intervals
    python benchmarks/epoch_policy.py --quick --json

Rows come at 200 and at 20,000 per second in turn. A row has waited from the moment it was due until the manifest of its
epoch was there; of each epoch the oldest row counts.
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

LATENCY_S = 1.0
SPEND = 0.2
ADAPTIVE = f"adaptive(latency={LATENCY_S:g}s, spend={SPEND:.0%})"
LOW, HIGH = 200, 20_000
BARS = {"latency_p99_of_asked": Bar(at_most=1.0), "share_of_spend": Bar(at_most=1.05)}


def main() -> None:
    options = parse()
    rows = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        for number, epoch in enumerate((ADAPTIVE, *options.fixed)):
            rows += measure(epoch, Path(folder) / str(number), options)
    emit(report(rows, options), as_json=options.json)


def measure(epoch: str, work: Path, options: argparse.Namespace) -> list[dict]:
    say(f"{epoch}: starting")
    arguments = ["--epoch", epoch, "--low", str(LOW), "--high", str(HIGH), "--warm-up", str(options.warm_up)]
    arguments += ["--phase", str(options.phase), "--phases", str(options.phases)]
    found = run_child("headrace_paced.py", arguments, work=work, label=epoch)
    rows = []
    for high in (0, 1):
        phases = [each for each in found["phases"] if each["phase"] % 2 == high]
        waited, own, period = ([value for each in phases for value in each[name]] for name in _MEASURED)
        rows.append({
            "version": found["version"], "epoch": epoch, "rows_per_s": HIGH if high else LOW, "epochs": len(waited),
            "p50_s": quantile(waited, 0.5), "p99_s": quantile(waited, 0.99), "max_s": max(waited, default=0.0),
            "period_p50_s": quantile(period, 0.5), "share": sum(own) / sum(period) if period else 0.0,
        })  # fmt: skip
        say(f"{epoch}, {rows[-1]['rows_per_s']:,} rows/s: p99 {rows[-1]['p99_s']:.2f} s, share {rows[-1]['share']:.0%}")
    return rows


_MEASURED = ("waited_s", "own_s", "period_s")


def report(rows: list[dict], options: argparse.Namespace) -> dict:
    adaptive = [row for row in rows if row["epoch"] == ADAPTIVE]
    ratios = {
        "latency_p99_of_asked": round(max(row["p99_s"] for row in adaptive) / LATENCY_S, 3),
        "share_of_spend": round(max(row["share"] for row in adaptive) / SPEND, 3),
    }
    return {
        "benchmark": "epoch_policy",
        "rows": rows,
        "ratios": ratios,
        "tables": [
            policy_table(rows),
            bars_table(ratios, BARS, "Adaptive epochs, the worse of both loads ÷ what was asked"),
        ],
        "notes": [
            f"{LOW:,} and {HIGH:,} rows per second in turn, {options.phase:g} s each, {options.phases} phases behind a "
            f"warm-up of {options.warm_up:g} s; 2 shards on 2 cores; {rows[0]['version']}.",
            "`own cost` is the share of the time that epochs cost by themselves: planning, opening, writing, "
            "publishing, release.",
        ],
    }


def policy_table(rows: list[dict]) -> dict:
    lines = [
        [
            row["epoch"], f"{row['rows_per_s']:,}", str(row["epochs"]), f"{row['period_p50_s'] * 1000:.0f}",
            f"{row['share']:.0%}", f"{row['p50_s'] * 1000:.0f}", f"{row['p99_s'] * 1000:.0f}",
            f"{row['max_s'] * 1000:.0f}",
        ]
        for row in rows
    ]  # fmt: skip
    columns = ["epoch", "rows/s", "epochs", "period, ms", "own cost", "p50, ms", "p99, ms", "longest, ms"]
    return table("How long the oldest row of an epoch waited", columns, lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object with rows and ratios instead of tables")
    parser.add_argument("--quick", action="store_true", help="shorter phases: rough figures, soon")
    parser.add_argument("--fixed", type=lambda text: text.split(","), default=["100ms", "500ms", "2s"])
    options = parser.parse_args()
    options.warm_up, options.phase, options.phases = (25.0, 8.0, 2) if options.quick else (40.0, 30.0, 6)
    return options


if __name__ == "__main__":
    main()
