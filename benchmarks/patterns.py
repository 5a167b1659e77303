"""Three patterns per key: a sequence with a time, one or more with skip past last, absence: Headrace beside Flink SQL.

    python benchmarks/patterns.py                     1M events, 1k and 100k keys
    python benchmarks/patterns.py --only headrace --quick
    python benchmarks/patterns.py --json              one JSON object with `rows` and `ratios`

Headrace runs each in Python (`hr.pattern`) and in SQL (`MATCH_RECOGNIZE`), Flink the same SQL. All peers must find the
same number of matches in the first rows, as far as they mean the same: the absence of a row has no words in
MATCH_RECOGNIZE, so there it is a later row of the key that proves it.
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
from benchmarks.lib.timed_events import write_timed_events

KEYS = (1_000, 100_000)
QUERIES = ("sequence", "repeated", "absence")
BARS = {
    name: Bar(at_least=1.0, goal=3.0)
    for name in ("vs_flinksql_1k", "sql_vs_flinksql_1k", "vs_flinksql_100k", "sql_vs_flinksql_100k")
}

PEERS = (
    Peer("headrace", "Headrace, Python", "headrace", "headrace_patterns.py"),
    Peer("headrace-sql", "Headrace, SQL", "headrace-sql", "headrace_patterns.py"),
    Peer("flinksql-hashmap", "Flink SQL, hash map", "flinksql", "flink_sql.py", FLINK, ("--backend", "hashmap")),
    Peer("flinksql-rocksdb", "Flink SQL, RocksDB", "flinksql-rocksdb", "flink_sql.py", FLINK, ("--backend", "rocksdb")),
)


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
            for query in options.query:
                mine = []
                for peer in peers:
                    work = Path(folder) / f"{peer.name}-{query}-{keys}"
                    mine.append({"query": query, **measure(asked(peer, query), events.folder, keys, work)})
                rows += [wrong(row, check(row, mine)) for row in mine]
    emit(report(rows, options), as_json=options.json)
    if any(row["error"] for row in rows):
        raise SystemExit(1)


def asked(peer: Peer, query: str) -> Peer:
    """A peer that runs one of the patterns."""
    flag = "--program" if peer.family.startswith("headrace") else "--query"
    name = f"{query}-sql" if peer.family == "headrace-sql" else query
    return Peer(peer.name, peer.label, peer.family, peer.program, peer.environment, (*peer.arguments, flag, name))


def check(row: dict, rows: list[dict]) -> str:
    """Why a peer's results are wrong; empty where they are right or where it cannot tell."""
    if row["error"] or row.get("rows_out") is None:
        return ""
    other = next((each for each in rows if each["peer"] == "headrace-sql" and each is not row), None)
    if other is None or other["error"] or row["query"] == "absence" or row["rows_out"] == other["rows_out"]:
        return ""
    return f"{row['rows_out']:,} matches in Python, {other['rows_out']:,} in SQL"


def report(rows: list[dict], options: argparse.Namespace) -> dict:
    tables, ratios = [], {}
    for keys in options.keys:
        least: dict[str, list[float]] = {}
        for query in options.query:
            mine = [row for row in rows if row["query"] == query and row["keys"] == keys]
            tables.append(speed_table(mine, f"{query}, {count_text(keys)} keys"))
            theirs = best(mine, "flinksql", keys)
            for family in ("headrace", "headrace-sql"):
                ours = best(mine, family, keys)
                if ours and theirs:
                    least.setdefault(family, []).append(ours / theirs)
        for family, found in least.items():
            name = f"{'sql_' if family.endswith('sql') else ''}vs_flinksql_{count_text(keys)}"
            ratios[name] = round(min(found), 2)
    if ratios:
        tables.append(bars_table(ratios, BARS, "Headrace ÷ Flink SQL, steady state, the least of the three"))
    versions = sorted({row["version"] for row in rows if row.get("version")})
    notes = [
        f"{options.events:,} events, {options.per_epoch:,} per epoch where a peer has epochs; event time out of order "
        f"by half a second; 2 cores; {', '.join(versions)}.",
        "Steady state: from commit to commit (Headrace); a second, whole job in a warm process (Flink SQL).",
    ]
    return {"benchmark": "patterns", "rows": rows, "ratios": ratios, "tables": tables, "notes": notes}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object with rows and ratios instead of tables")
    parser.add_argument("--only", type=lambda text: text.split(","), help="peers: " + ", ".join(p.name for p in PEERS))
    parser.add_argument("--keys", type=int, choices=KEYS, nargs="+", default=KEYS, help="one number of keys only")
    parser.add_argument("--query", choices=QUERIES, nargs="+", default=list(QUERIES), help="one of them only")
    parser.add_argument("--quick", action="store_true", help="400k events: rough figures, soon")
    options = parser.parse_args()
    options.events, options.per_epoch = (400_000, 100_000) if options.quick else (1_000_000, 250_000)
    if unknown := set(options.only or ()) - {peer.name for peer in PEERS}:
        parser.error(f"no peer {', '.join(sorted(unknown))}; there are {', '.join(peer.name for peer in PEERS)}")
    return options


if __name__ == "__main__":
    main()
