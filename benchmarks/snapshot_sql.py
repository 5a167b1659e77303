"""SQL over state beside the real Postgres with the same rows: single keys, and a GROUP BY over all of them.

    python benchmarks/snapshot_sql.py              1M keys: results of aggregates, and values that are Records
    python benchmarks/snapshot_sql.py --quick --json

Both are asked over Postgres' protocol, in turns: single keys by `pgbench` with prepared statements, scans by psycopg.
Before the clock runs each has been asked the same, so Postgres has its rows in memory and Headrace its columns; what
the first scan of an epoch takes stands beside it. Both answers are compared.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psycopg

import headrace as hr
from benchmarks.lib.figures import count_text, rate_text
from benchmarks.lib.headrace_server import HeadraceServer
from benchmarks.lib.postgres_peer import PostgresServer, pgbench
from benchmarks.lib.progress import say
from benchmarks.lib.results import Bar, bars_table, emit, table
from headrace.testing import Harness

KEYS = 1_000_000
REGIONS = 50
CLIENTS = 4
PART = 100_000
TABLES = {"totals": ("totals", "id"), "values": ("keeper.account", "key")}
"""What is measured → its table, and the column of its key."""
LABELS = {"totals": "results of aggregates", "values": "values (Records)"}
BARS = {"point": Bar(at_least=0.3, goal=0.6), "scan_groupby": Bar(at_least=2.0, goal=5.0)}


class Sale(hr.Record):
    id: int
    region: str
    cents: int


class Account(hr.Record):
    region: str
    sales: int
    cents: int


class Keeper(hr.Process[Sale, Sale, int]):
    account: hr.ValueState[Account]

    def on_event(self, event: Sale, ctx: hr.Context[int]) -> None:
        self.account.set(Account(event.region, 1, event.cents))


def main() -> None:
    options = parse()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder, PostgresServer() as postgres:
        store = Path(folder) / "store"
        say(f"making the state of {count_text(options.keys)} keys")
        make_store(store, options.keys)
        say("loading the same rows into Postgres")
        load(postgres.dsn, options.keys)
        with HeadraceServer(store, pg_port=0) as server:
            ours = f"host=127.0.0.1 port={server.pg_port} user=bench dbname=sales"
            for name in TABLES:
                rows += measure_scan(name, ours, postgres.dsn, options)
                rows += measure_points(name, server.pg_port, postgres.port, Path(folder), options)
    emit(report(rows, options), as_json=options.json)


# --- the rows


def sales(keys: int) -> Iterator[Sale]:
    return (Sale(number, f"region-{number * 7919 % REGIONS:02d}", number * 31 % 10_007) for number in range(keys))


def make_store(path: Path, keys: int) -> None:
    app = hr.App("sales")
    source = app.read("sales", hr.source.items([]), Sale)
    keyed = source.key_by(Sale.id)
    totals = keyed.aggregate(region=hr.max("region"), sales=hr.count(), cents=hr.sum("cents"))
    totals.named("totals").queryable()
    keyed.process(Keeper()).named("keeper").queryable()
    with Harness(app, parallelism=2, store=path) as harness:
        held: list[Sale] = []
        for sale in sales(keys):
            held.append(sale)
            if len(held) == PART:
                harness.push(source, *held)
                harness.epoch()
                held = []
        if held:
            harness.push(source, *held)
            harness.epoch()


def load(dsn: str, keys: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA keeper")
        for name, (where, key) in TABLES.items():
            connection.execute(
                f"CREATE UNLOGGED TABLE {where} ({key} BIGINT PRIMARY KEY, region TEXT, sales BIGINT, cents BIGINT)"
            )
            with connection.cursor().copy(f"COPY {where} FROM STDIN") as copy:
                for sale in sales(keys):
                    copy.write_row((sale.id, sale.region, 1, sale.cents))
            connection.execute(f"VACUUM ANALYZE {where}")
            say(f"Postgres holds {name}")


# --- measuring


def measure_scan(name: str, ours: str, theirs: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    where, _ = TABLES[name]
    query = f"SELECT region, count(*) AS n, sum(cents) AS cents FROM {where} GROUP BY region ORDER BY region"
    with psycopg.connect(ours, autocommit=True) as mine, psycopg.connect(theirs, autocommit=True) as peer:
        first_s, answer = timed(mine, query)
        if answer != timed(peer, query)[1]:
            raise SystemExit(f"{name}: Headrace and Postgres do not answer the same")
        times: dict[str, list[float]] = {"headrace": [], "postgres": []}
        for _ in range(options.rounds):
            for who, connection in (("headrace", mine), ("postgres", peer)):
                times[who].append(timed(connection, query)[0])
    rows = [
        {"question": "scan_groupby", "table": name, "peer": who, "ms": 1e3 * median(each)}
        for who, each in times.items()
    ]
    rows.append({"question": "first_scan", "table": name, "peer": "headrace", "ms": 1e3 * first_s})
    for row in rows:
        say(f"{row['question']} of {name}: {row['peer']} {row['ms']:.1f} ms")
    return rows


def timed(connection: psycopg.Connection[Any], query: str) -> tuple[float, list[Any]]:
    began = time.perf_counter()
    answer = connection.execute(query).fetchall()
    return time.perf_counter() - began, answer


def measure_points(
    name: str, ours: int, theirs: int, folder: Path, options: argparse.Namespace
) -> list[dict[str, Any]]:
    where, key = TABLES[name]
    script = folder / f"{name}.sql"
    script.write_text(
        f"\\set id random(0, {options.keys - 1})\nSELECT region, sales, cents FROM {where} WHERE {key} = :id;\n"
    )
    rates: dict[str, list[float]] = {"headrace": [], "postgres": []}
    for _ in range(options.rounds):
        for who, port, database in (("headrace", ours, "sales"), ("postgres", theirs, "postgres")):
            rates[who].append(pgbench(port, database, script, clients=CLIENTS, seconds=options.seconds))
    rows = [{"question": "point", "table": name, "peer": who, "per_s": median(each)} for who, each in rates.items()]
    for row in rows:
        say(f"single keys of {name}: {row['peer']} {rate_text(row['per_s'])}/s")
    return rows


# --- telling


def report(rows: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    found = {(row["question"], row["table"], row["peer"]): row for row in rows}
    ratios = {}
    lines = []
    for name, label in LABELS.items():
        suffix = "" if name == "totals" else f"_{name}"
        mine, peer = (found["point", name, who]["per_s"] for who in ("headrace", "postgres"))
        ratios[f"point{suffix}"] = round(mine / peer, 2)
        lines.append([f"single keys, {label}", f"{rate_text(mine)}/s", f"{rate_text(peer)}/s", f"{mine / peer:.2f}"])
        mine, peer = (found["scan_groupby", name, who]["ms"] for who in ("headrace", "postgres"))
        ratios[f"scan_groupby{suffix}"] = round(peer / mine, 2)
        lines.append([f"GROUP BY over all, {label}", f"{mine:.1f} ms", f"{peer:.1f} ms", f"{peer / mine:.2f}"])
        first = found["first_scan", name, "headrace"]["ms"]
        lines.append([f"the first such scan, {label}", f"{first:.0f} ms", "", ""])
    tables = [
        table(f"{count_text(options.keys)} keys over Postgres' protocol", ["", "Headrace", "Postgres", "ratio"], lines),
        bars_table(ratios, BARS, "Headrace ÷ Postgres, typed tables"),
    ]
    notes = [
        f"Single keys: pgbench, {CLIENTS} clients, prepared statements, on the same cores as the server. Postgres has "
        "a process for each client, Headrace one for all.",
        "Scans: the median over one connection, after a first one. Headrace keeps the columns that a scan has read in "
        "memory until their step changes; the first scan decodes them.",
        "Postgres: 1 GB of shared buffers, two workers for a query, an index on the key, nothing synced.",
    ]
    return {"benchmark": "snapshot_sql", "rows": rows, "ratios": ratios, "tables": tables, "notes": notes}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object with rows and ratios instead of tables")
    parser.add_argument("--quick", action="store_true", help="fewer keys and rounds: rough figures, soon")
    options = parser.parse_args()
    options.keys, options.rounds, options.seconds = (100_000, 3, 2) if options.quick else (KEYS, 7, 5)
    return options


if __name__ == "__main__":
    main()
