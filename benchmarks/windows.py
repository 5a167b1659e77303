"""Count, sum and max per key in windows of 10 s of event time: Headrace beside Spark, Flink SQL and PyFlink.

    python benchmarks/windows.py                     4M events, 100 and 1M keys, all peers
    python benchmarks/windows.py --only headrace,spark --quick
    python benchmarks/windows.py --json              one JSON object with `rows` and `ratios`

Every peer is a process of its own, one after the other, over the same rows. Each proves by the number of its results
that it computed the same windows.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.lib.comparison import Peer, best, measure, speed_table, wrong
from benchmarks.lib.environments import FLINK
from benchmarks.lib.figures import count_text
from benchmarks.lib.progress import say
from benchmarks.lib.results import Bar, bars_table, emit
from benchmarks.lib.timed_events import OUT_OF_ORDER_S, TimedEvents, read_columns, write_timed_events

KEYS = (100, 1_000_000)
WINDOW_US = 10_000_000
BARS = {
    "vs_spark_100": Bar(at_least=1.0, goal=1.5),
    "vs_spark_1m": Bar(at_least=3, goal=10),
    "vs_flinksql_1m": Bar(at_least=2, goal=4),
    "early_firing": Bar(at_least=0.7),
}

PEERS = (
    Peer("headrace", "Headrace", "headrace", "headrace_timed.py", arguments=("--program", "windows")),
    Peer("early", "Headrace, early results every second", "early", "headrace_timed.py",
         arguments=("--program", "windows-early")),
    Peer("spark", "Structured Streaming, RocksDB", "spark", "spark_sql.py", arguments=("--query", "windows")),
    Peer("flinksql-hashmap", "Flink SQL, hash map", "flinksql", "flink_sql.py", FLINK,
         ("--query", "windows", "--backend", "hashmap")),
    Peer("flinksql-rocksdb", "Flink SQL, RocksDB", "flinksql-rocksdb", "flink_sql.py", FLINK,
         ("--query", "windows", "--backend", "rocksdb")),
    Peer("pyflink", "PyFlink window API, thread mode", "pyflink", "flink_windows.py", FLINK),
)  # fmt: skip


def main() -> None:
    options = parse()
    peers = [peer for peer in PEERS if not options.only or peer.name in options.only]
    rows = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        for keys in options.keys:
            say(f"writing {count_text(options.events)} events over {count_text(keys)} keys")
            events = write_timed_events(
                Path(folder) / f"events-{keys}",
                keys=keys,
                events=options.events,
                per_epoch=options.per_epoch,
                rows_per_second=options.per_epoch // 5,
            )
            wanted = expected(events)
            for peer in peers:
                row = measure(peer, events.folder, keys, Path(folder) / f"{peer.name}-{keys}")
                rows.append(wrong(row, check(peer, row, wanted)))
    emit(report(rows, options), as_json=options.json)
    if any(row["error"] for row in rows):
        raise SystemExit(1)


def expected(events: TimedEvents) -> dict[str, int]:
    """How many windows there are in all, and how many the last watermark has closed."""
    import numpy as np

    found, latest = [], 0
    for table in read_columns(events, "events", ("start", "fill", "steady")):
        times = table.column("at").cast("int64").to_numpy()
        latest = max(latest, int(times.max()))
        ids = table.column("key").to_numpy()
        _, codes = np.unique(ids, return_inverse=True)
        names = np.array([int(name[5:]) for name in ids[np.unique(codes, return_index=True)[1]]], dtype=np.int64)
        found.append(np.unique((times // WINDOW_US) * 10_000_000 + names[codes]))
    every = np.unique(np.concatenate(found))
    ends = (every // 10_000_000 + 1) * WINDOW_US
    return {"closed": int((ends - 1 <= latest - OUT_OF_ORDER_S * 1_000_000 - 1).sum()), "all": len(every)}


def check(peer: Peer, row: dict, wanted: dict[str, int]) -> str:
    """Why a peer's results are wrong; empty where they are right or where it cannot tell."""
    if row["error"] or row.get("rows_out") is None:
        return ""
    if peer.name == "headrace" and row["rows_out"] != wanted["closed"]:
        return f"{wanted['closed']:,} windows were closed, and {row['rows_out']:,} results came out"
    if peer.name == "early" and row["rows_out"] < wanted["closed"]:
        return f"{wanted['closed']:,} windows were closed, and only {row['rows_out']:,} results came out"
    if peer.name == "spark" and not wanted["closed"] * 0.6 <= row["rows_out"] <= wanted["closed"]:
        # Spark's watermark is one epoch behind, so the last windows stay open.
        return f"about {wanted['closed']:,} results were to come out, and {row['rows_out']:,} did"
    return ""


def report(rows: list[dict], options: argparse.Namespace) -> dict:
    ratios = derive_ratios(rows)
    tables = [
        speed_table([row for row in rows if row["keys"] == keys], f"{count_text(keys)} keys") for keys in options.keys
    ]
    if ratios:
        tables.append(bars_table(ratios, BARS, "Ratios, steady state"))
    versions = sorted({row["version"] for row in rows if row.get("version")})
    notes = [
        f"{options.events:,} events, {options.per_epoch:,} per epoch where a peer has epochs, two epochs to a window; "
        f"event time out of order by half a second; 2 cores; {', '.join(versions)}.",
        "Steady state: from commit to commit (Headrace, Spark); a second, whole job in a warm process (Flink SQL);"
        " as counted in the function itself (PyFlink).",
        "early_firing is the smaller of the ratios at both numbers of keys.",
    ]
    return {"benchmark": "windows", "rows": rows, "ratios": ratios, "tables": tables, "notes": notes}


def derive_ratios(rows: list[dict]) -> dict[str, float]:
    ratios, early = {}, []
    for keys in KEYS:
        ours = best(rows, "headrace", keys)
        for family in ("spark", "flinksql", "pyflink"):
            theirs = best(rows, family, keys)
            if ours and theirs:
                ratios[f"vs_{family}_{count_text(keys)}"] = round(ours / theirs, 2)
        eager = best(rows, "early", keys)
        if ours and eager:
            early.append(eager / ours)
    if early:
        ratios["early_firing"] = round(min(early), 2)
    return {name.replace("_1M", "_1m"): ratio for name, ratio in ratios.items()}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object with rows and ratios instead of tables")
    parser.add_argument("--only", type=lambda text: text.split(","), help="peers: " + ", ".join(p.name for p in PEERS))
    parser.add_argument("--keys", type=int, choices=KEYS, nargs="+", default=KEYS, help="one number of keys only")
    parser.add_argument("--quick", action="store_true", help="1M events: rough figures, soon")
    options = parser.parse_args()
    options.events, options.per_epoch = (1_000_000, 250_000) if options.quick else (4_000_000, 500_000)
    if unknown := set(options.only or ()) - {peer.name for peer in PEERS}:
        parser.error(f"no peer {', '.join(sorted(unknown))}; there are {', '.join(peer.name for peer in PEERS)}")
    return options


if __name__ == "__main__":
    main()
