"""Savepoints: the time to take one, its size, and the time until a job that starts from it gives its first result.

    python benchmarks/savepoints.py              1M keys, Headrace beside PyFlink over RocksDB
    python benchmarks/savepoints.py --long       10M keys
    python benchmarks/savepoints.py --quick      100 000 keys

Both jobs count and sum per key, keep running while savepoints are taken, and are started again with three shards
instead of two. What Headrace copies is self-contained, as Flink's savepoints are; its pin, which copies nothing, and
Flink's incremental checkpoint stand beside.

What counts of a start: a new engine is one that has run no job. Spark's session has answered one query of its own and
has no Python workers; Flink's cluster is up, in the JVM that has planned the job, and has no interpreter for functions.
Headrace's time begins with the call that starts the job, so it includes the planning, which Flink's client does before
its time begins: with the cluster's word that it initializes the job. Headrace's time ends with a published epoch,
Flink's with the first row that its function handles. A used engine has run the same job before, from nothing to a first
result.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.lib.children import run_child
from benchmarks.lib.environments import FLINK, python_of
from benchmarks.lib.events import Events, add_epoch, key_names, write_events
from benchmarks.lib.figures import count_text, mib_text
from benchmarks.lib.progress import say
from benchmarks.lib.results import Bar, bars_table, emit, table

PER_EPOCH = 250_000
STEADY = 500_000
SHARDS_AFTER = 3
ENGINES = ("new", "used")
BARS = {"savepoint_vs_flink": Bar(at_least=2, goal=5), "restore_vs_flink": Bar(at_least=2, goal=5)}


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        root = Path(folder)
        say(f"writing events over {count_text(options.keys)} keys")
        events = write_events(root / "events", keys=options.keys, events=STEADY, per_epoch=PER_EPOCH, csv=True)
        rows = [measure_headrace(root, events), *measure_flink(root, events)]
    emit(report(rows, options), as_json=options.json)


def measure_headrace(root: Path, events: Events) -> dict:
    arguments = ["--input", str(events.folder), "--savepoints", str(root / "headrace")]
    found = run_child("headrace_savepoints.py", arguments, work=root / "headrace-taken", label="headrace")
    add_epoch(events)
    # Who starts from a copy makes it a store of its own, so the second start has another one.
    copies = dict(zip(ENGINES, (found["copy"]["path"], f"{found['copy']['path']}-again")))
    shutil.copytree(copies["new"], copies["used"])
    back = {}
    for engine, copy in copies.items():
        again = [*arguments, *restoring(copy, engine)]
        work, label = root / f"headrace-{engine}", f"headrace, restored by a {engine} engine"
        back[engine] = run_child("headrace_savepoints.py", again, work=work, label=label)["restore_s"]
    return {
        "peer": "headrace",
        "label": "Headrace, self-contained copy",
        "version": found["version"],
        "taken_s": found["copy"]["seconds"],
        "bytes": found["copy"]["bytes"],
        "restore_s": back,
        "beside": f"the pin alone: {found['pin_s'] * 1000:.0f} ms",
    }


def restoring(path: str, engine: str) -> list[str]:
    """The arguments of a start from a savepoint."""
    warm = ["--warm"] if engine == "used" else []
    return ["--restore", path, "--parallelism", str(SHARDS_AFTER), *warm]


def measure_flink(root: Path, events: Events) -> list[dict]:
    python = python_of(FLINK)
    arguments = ["--input", str(events.folder), "--savepoints", str(root / "flink")]
    found = run_child("flink_savepoints.py", arguments, work=root / "flink-taken", label="flink", python=python)
    write_more(events)
    rows = []
    for form in ("native", "canonical"):
        back = {}
        for engine in ENGINES:
            again = [*arguments, *restoring(found[form]["path"], engine)]
            work, label = root / f"flink-{form}-{engine}", f"flink, {form} restored by a {engine} engine"
            back[engine] = run_child("flink_savepoints.py", again, work=work, label=label, python=python)["restore_s"]
        rows.append(
            {
                "peer": f"pyflink-{form}",
                "label": f"PyFlink, RocksDB, {form} savepoint",
                "version": found["version"],
                "taken_s": found[form]["seconds"],
                "bytes": found[form]["bytes"],
                "restore_s": back,
                "beside": f"an incremental checkpoint: {found['checkpoint_s'] * 1000:.0f} ms",
            }
        )
    return rows


def write_more(events: Events) -> None:
    """A few rows more, so that a restored job of Flink's has something to give a result of."""
    ids = pa.array(range(min(events.keys, 1_000))).to_numpy()
    rows = pa.table({"key": key_names(ids), "value": pa.array([1] * len(ids))})
    options = pa_csv.WriteOptions(include_header=False, quoting_style="none")
    pa_csv.write_csv(rows, events.folder / "csv" / f"e{len(events.epochs):05d}-0.csv", options)


def report(rows: list[dict], options: argparse.Namespace) -> dict:
    ours, *theirs = rows
    # Against the better of both forms each time.
    ratios = {
        "savepoint_vs_flink": round(min(row["taken_s"] for row in theirs) / ours["taken_s"], 2),
        "restore_vs_flink": restore_ratio(rows, "new"),
    }
    lines = [
        [
            row["label"],
            f"{row['taken_s']:.2f}",
            mib_text(row["bytes"]),
            *(f"{row['restore_s'][engine]:.2f}" for engine in ENGINES),
            row["beside"],
        ]
        for row in rows
    ]
    columns = ["", "taken, s", "size", *(f"first result, {engine} engine, s" for engine in ENGINES), "beside it"]
    return {
        "benchmark": "savepoints",
        "quick": options.quick,
        "rows": rows,
        "ratios": ratios,
        "tables": [
            table(f"Savepoints of {count_text(options.keys)} keys", columns, lines),
            bars_table(ratios, BARS, "Savepoints: ratios"),
        ],
        "notes": [
            "First result: from a started engine (Spark's session is up; Flink's cluster has taken the job, planned by "
            f"its client) to the first published epoch, or the first row, with {SHARDS_AFTER} shards, not 2. A new "
            "engine has run nothing before, a used one the same job, from nothing.",
            f"On used engines Flink's time is {restore_ratio(rows, 'used')} of ours; the bar is for new ones.",
            "Ratios are against the better form of Flink's savepoints, each time.",
        ],
    }


def restore_ratio(rows: list[dict], engine: str) -> float:
    ours, *theirs = rows
    return round(min(row["restore_s"][engine] for row in theirs) / ours["restore_s"][engine], 2)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--long", action="store_true", help="10M keys")
    parser.add_argument("--quick", action="store_true", help="100 000 keys")
    parser.add_argument("--keys", type=int)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.keys = options.keys or (10_000_000 if options.long else 100_000 if options.quick else 1_000_000)
    return options


if __name__ == "__main__":
    main()
