"""Aggregates that are harder to keep in columns: sessions, and counts of different values. Beside Spark and Flink SQL.

    python benchmarks/sessions.py                    2M events each, all peers
    python benchmarks/sessions.py --only headrace,spark --quick
    python benchmarks/sessions.py --json             one JSON object with `rows` and `ratios`

Sessions: count, sum and maximum of rows that come within 5 s of each other, 100k keys. Different values: how many there
are per key in windows of 10 s, 10k keys. Every peer is a process of its own, one after the other, over the same rows,
and proves by the number of its results that it found the same sessions and windows.
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
from benchmarks.lib.timed_events import OUT_OF_ORDER_S, TimedEvents, read_columns, write_timed_events

GAP_US = 5_000_000
WINDOW_US = 10_000_000
QUERIES = {"sessions": 100_000, "distinct": 10_000}
"""Query → number of keys."""
TITLES = {"sessions": "Sessions with a gap of 5 s", "distinct": "Different values in windows of 10 s"}
BARS = {f"{query}_vs_{family}": Bar(at_least=1.0) for query in QUERIES for family in ("spark", "flinksql")}

PEERS = (
    Peer("headrace", "Headrace", "headrace", "headrace_timed.py"),
    Peer("spark", "Structured Streaming, RocksDB", "spark", "spark_sql.py"),
    Peer("flinksql-hashmap", "Flink SQL, hash map", "flinksql", "flink_sql.py", FLINK, ("--backend", "hashmap")),
    Peer("flinksql-rocksdb", "Flink SQL, RocksDB", "flinksql-rocksdb", "flink_sql.py", FLINK, ("--backend", "rocksdb")),
)


def main() -> None:
    options = parse()
    peers = [peer for peer in PEERS if not options.only or peer.name in options.only]
    rows = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        for query in options.query:
            keys = QUERIES[query]
            say(f"writing {count_text(options.events)} events over {count_text(keys)} keys")
            events = write_timed_events(
                Path(folder) / f"events-{query}",
                keys=keys,
                events=options.events,
                per_epoch=options.per_epoch,
                rows_per_second=options.per_epoch // 10,
            )
            every = ("start", "fill", "steady")
            # Flink's warm-up ends with its input, so all that is open closes.
            wanted = {"closed": closed(events, query, every)[0], "warm": closed(events, query, every[:2])[1]}
            for peer in peers:
                flag = "--program" if peer.family == "headrace" else "--query"
                asked = Peer(peer.name, peer.label, peer.family, peer.program, peer.environment,
                             (*peer.arguments, flag, query))  # fmt: skip
                row = measure(asked, events.folder, keys, Path(folder) / f"{peer.name}-{query}")
                rows.append({"query": query, **wrong(row, check(row, wanted))})
    emit(report(rows, options), as_json=options.json)
    if any(row["error"] for row in rows):
        raise SystemExit(1)


def closed(events: TimedEvents, query: str, phases: tuple[str, ...]) -> tuple[int, int]:
    """How many sessions or windows the last watermark has closed, and how many there are in all."""
    times, names = [], []
    for table in read_columns(events, "events", phases):
        times.append(table.column("at").cast("int64").to_numpy())
        names.append(np.array([int(name[5:]) for name in table.column("key").to_pylist()], dtype=np.int64))
    at, ids = np.concatenate(times), np.concatenate(names)
    reached = int(at.max()) - OUT_OF_ORDER_S * 1_000_000 - 1
    if query == "distinct":
        found = np.unique((at // WINDOW_US) * 10_000_000 + ids)
        ends = (found // 10_000_000 + 1) * WINDOW_US
    else:
        order = np.lexsort((at, ids))
        at, ids = at[order], ids[order]
        last = np.append((ids[1:] != ids[:-1]) | (at[1:] - at[:-1] > GAP_US), True)
        ends = at[last] + GAP_US
    return int((ends - 1 <= reached).sum()), len(ends)


def check(row: dict, wanted: dict[str, int]) -> str:
    """Why a peer's results are wrong; empty where they are right or where it cannot tell."""
    if row["error"]:
        return ""
    if row["family"] == "headrace" and row["rows_out"] != wanted["closed"]:
        return f"{wanted['closed']:,} were closed, and {row['rows_out']:,} results came out"
    if row["family"] == "spark" and not wanted["closed"] * 0.6 <= row["rows_out"] <= wanted["closed"]:
        # Spark's watermark is one epoch behind, so the last ones stay open.
        return f"about {wanted['closed']:,} results were to come out, and {row['rows_out']:,} did"
    if row.get("warm_rows_out") is not None and row["warm_rows_out"] != wanted["warm"]:
        return f"{wanted['warm']:,} are in the first rows, and {row['warm_rows_out']:,} results came out"
    return ""


def report(rows: list[dict], options: argparse.Namespace) -> dict:
    tables, ratios = [], {}
    for query in options.query:
        mine, keys = [row for row in rows if row["query"] == query], QUERIES[query]
        tables.append(speed_table(mine, f"{TITLES[query]}, {count_text(keys)} keys"))
        ours = best(mine, "headrace", keys)
        for family in ("spark", "flinksql"):
            theirs = best(mine, family, keys)
            if ours and theirs:
                ratios[f"{query}_vs_{family}"] = round(ours / theirs, 2)
    if ratios:
        tables.append(bars_table(ratios, BARS, "Headrace ÷ peer, steady state"))
    versions = sorted({row["version"] for row in rows if row.get("version")})
    notes = [
        f"{options.events:,} events, {options.per_epoch:,} per epoch where a peer has epochs; event time out of order "
        f"by half a second; 2 cores; {', '.join(versions)}.",
        "Steady state: from commit to commit (Headrace, Spark); a second, whole job in a warm process (Flink SQL).",
        "Different values: exact in Headrace and Flink; Spark cannot count them exactly in a stream, so it estimates "
        "(`approx_count_distinct`).",
    ]
    return {"benchmark": "sessions", "rows": rows, "ratios": ratios, "tables": tables, "notes": notes}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object with rows and ratios instead of tables")
    parser.add_argument("--only", type=lambda text: text.split(","), help="peers: " + ", ".join(p.name for p in PEERS))
    parser.add_argument("--query", choices=list(QUERIES), nargs="+", default=list(QUERIES), help="one of them only")
    parser.add_argument("--quick", action="store_true", help="500k events: rough figures, soon")
    options = parser.parse_args()
    options.events, options.per_epoch = (500_000, 125_000) if options.quick else (2_000_000, 250_000)
    if unknown := set(options.only or ()) - {peer.name for peer in PEERS}:
        parser.error(f"no peer {', '.join(sorted(unknown))}; there are {', '.join(peer.name for peer in PEERS)}")
    return options


if __name__ == "__main__":
    main()
