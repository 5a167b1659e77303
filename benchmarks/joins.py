"""An interval join of two streams by key, right within 10 s behind left: Headrace beside Spark and Flink SQL.

    python benchmarks/joins.py                       2M events, 100k keys, all peers
    python benchmarks/joins.py --only headrace,spark --quick
    python benchmarks/joins.py --json                one JSON object with `rows` and `ratios`

Every peer is a process of its own, one after the other, over the same rows. Each proves by the number of its results
that it found the same pairs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.lib.comparison import Peer, best, measure, speed_table, wrong
from benchmarks.lib.environments import FLINK
from benchmarks.lib.figures import count_text
from benchmarks.lib.progress import say
from benchmarks.lib.results import Bar, bars_table, emit
from benchmarks.lib.timed_events import TimedEvents, read_columns, write_timed_events

KEYS = 100_000
WITHIN_US = 10_000_000
BARS = {"vs_spark": Bar(at_least=1.0), "vs_flinksql": Bar(at_least=1.0)}

PEERS = (
    Peer("headrace", "Headrace", "headrace", "headrace_timed.py", arguments=("--program", "join")),
    Peer("spark", "Structured Streaming, RocksDB", "spark", "spark_sql.py", arguments=("--query", "join")),
    Peer("flinksql-hashmap", "Flink SQL, hash map", "flinksql", "flink_sql.py", FLINK,
         ("--query", "join", "--backend", "hashmap")),
    Peer("flinksql-rocksdb", "Flink SQL, RocksDB", "flinksql-rocksdb", "flink_sql.py", FLINK,
         ("--query", "join", "--backend", "rocksdb")),
)  # fmt: skip


def main() -> None:
    options = parse()
    peers = [peer for peer in PEERS if not options.only or peer.name in options.only]
    rows = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        say(f"writing {count_text(options.events)} events over {count_text(KEYS)} keys")
        events = write_timed_events(
            Path(folder) / "events",
            keys=KEYS,
            events=options.events,
            per_epoch=options.per_epoch,
            rows_per_second=options.per_epoch // 10,
            streams=("left", "right"),
        )
        every, warm = count_pairs(events, ("start", "fill", "steady")), count_pairs(events, ("start", "fill"))
        for peer in peers:
            row = measure(peer, events.folder, KEYS, Path(folder) / peer.name)
            rows.append(wrong(row, check(row, every, warm)))
    emit(report(rows, options), as_json=options.json)
    if any(row["error"] for row in rows):
        raise SystemExit(1)


def count_pairs(events: TimedEvents, phases: tuple[str, ...]) -> int:
    """How many pairs there are, by sorting: key and time in one number."""
    span = 1 << 44
    sides = []
    for stream in ("left", "right"):
        parts = []
        for table in read_columns(events, stream, phases):
            times = table.column("at").cast("int64").to_numpy() - 1_700_000_000_000_000
            ids = np.array([int(name[5:]) for name in table.column("key").to_pylist()], dtype=np.int64)
            parts.append(ids * span + times)
        sides.append(np.concatenate(parts))
    left, right = sides[0], np.sort(sides[1])
    return int((np.searchsorted(right, left + WITHIN_US, "right") - np.searchsorted(right, left, "left")).sum())


def check(row: dict, every: int, warm: int) -> str:
    if row["error"]:
        return ""
    if row.get("rows_out") is not None and row["rows_out"] != every:
        return f"there are {every:,} pairs, and {row['rows_out']:,} came out"
    if row.get("warm_rows_out") is not None and row["warm_rows_out"] != warm:
        return f"there are {warm:,} pairs among the first rows, and {row['warm_rows_out']:,} came out"
    return ""


def report(rows: list[dict], options: argparse.Namespace) -> dict:
    ratios = {}
    ours = best(rows, "headrace", KEYS)
    for family in ("spark", "flinksql"):
        theirs = best(rows, family, KEYS)
        if ours and theirs:
            ratios[f"vs_{family}"] = round(ours / theirs, 2)
    tables = [speed_table(rows, f"{count_text(KEYS)} keys")]
    if ratios:
        tables.append(bars_table(ratios, BARS, "Headrace ÷ peer, steady state"))
    versions = sorted({row["version"] for row in rows if row.get("version")})
    notes = [
        f"{options.events:,} events, half on each side, {options.per_epoch:,} per epoch where a peer has epochs; event "
        f"time out of order by half a second; 2 cores; {', '.join(versions)}.",
        "Steady state: from commit to commit (Headrace, Spark); a second, whole job in a warm process (Flink SQL).",
    ]
    return {"benchmark": "joins", "rows": rows, "ratios": ratios, "tables": tables, "notes": notes}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object with rows and ratios instead of tables")
    parser.add_argument("--only", type=lambda text: text.split(","), help="peers: " + ", ".join(p.name for p in PEERS))
    parser.add_argument("--quick", action="store_true", help="500k events: rough figures, soon")
    options = parser.parse_args()
    options.events, options.per_epoch = (500_000, 125_000) if options.quick else (2_000_000, 250_000)
    if unknown := set(options.only or ()) - {peer.name for peer in PEERS}:
        parser.error(f"no peer {', '.join(sorted(unknown))}; there are {', '.join(peer.name for peer in PEERS)}")
    return options


if __name__ == "__main__":
    main()
