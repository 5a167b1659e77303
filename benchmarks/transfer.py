"""State from and to files: how long an export, a bootstrap and a rewrite take, key by key.

    python benchmarks/transfer.py                a million keys
    python benchmarks/transfer.py --quick        fewer; --long: ten million

Numbers and Records by text keys, made by a bootstrap from Parquet, exported in both forms, begun again from both, and
rewritten for more key groups. No JVM takes part.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import headrace as hr
from benchmarks.lib.progress import say
from benchmarks.lib.results import Bar, bars_table, emit, table

MINUTES_FOR_10M = 5.0
BARS = {"minutes_for_10m_keys": Bar(at_most=MINUTES_FOR_10M)}
_BATCH = 500_000


class Hit(hr.Record):
    page: str
    n: int
    paid: float
    at: hr.Timestamp


class Count(hr.Process[Hit, str, str]):
    total: hr.ValueState[int]

    def on_event(self, event: Hit, ctx: hr.Context[str]) -> None:
        self.total.set(self.total.get(0) + event.n)


def program() -> hr.App:
    app = hr.App("transfer")
    hits = app.read("hits", hr.source.items([]), Hit)
    hits.key_by(Hit.page).process(Count()).named("count").show()
    hits.key_by(Hit.page).latest().named("last").show()
    return app


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        rows = measure(Path(folder), options.keys)
    emit(report(rows, options.keys), as_json=options.json)


def measure(work: Path, keys: int) -> list[dict]:
    app = program()
    write_history(work / "history.parquet", keys)
    rows = []

    def step(what: str, count: int, run: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        made = run()
        took = time.perf_counter() - began
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        rows.append({"what": what, "keys": count, "seconds": took, "keys_per_s": count / took, "peak_mb": peak_mb})
        say(f"{what}: {took:.1f} s, {count / took:,.0f} keys/s, {peak_mb:,.0f} MB at most so far")
        return made

    history = str(work / "history.parquet")
    step("bootstrap of Records", keys, lambda: hr.bootstrap(app, work / "store", {"last": history}))
    opened = hr.Store(work / "store")
    step("export of Records", keys, lambda: opened.export(work / "results"))
    step("exact export", keys, lambda: opened.export(work / "exact", exact=True))
    step("bootstrap of an exact export", keys, lambda: hr.bootstrap(app, work / "again", export=work / "exact"))
    write_numbers(work / "numbers.parquet", keys)
    step("bootstrap of numbers", keys,
         lambda: hr.bootstrap(app, work / "counts", {"count.total": work / "numbers.parquet"}))  # fmt: skip
    step("export of numbers", keys, lambda: hr.Store(work / "counts").export(work / "numbers"))
    step("rewrite for 512 key groups", keys, lambda: rewrite(work / "store", work / "wider"))
    return rows


def rewrite(store: Path, target: Path) -> None:
    from headrace.read.store import files_of, job_state_of
    from headrace.state.store import open_store
    from headrace.transfer.rewriting import rewrite_store

    opened = hr.Store(store)
    rewrite_store(files_of(opened), job_state_of(opened), open_store(target), key_groups=512)


def batches(keys: int) -> Iterator[tuple[np.ndarray, pa.Array]]:
    for start in range(0, keys, _BATCH):
        numbers = np.arange(start, min(start + _BATCH, keys))
        yield numbers, pa.array([f"page-{number:09d}" for number in numbers.tolist()])


def write_history(path: Path, keys: int) -> None:
    schema = pa.schema(
        [("page", pa.string()), ("n", pa.int64()), ("paid", pa.float64()), ("at", pa.timestamp("us", "UTC"))]
    )
    with pq.ParquetWriter(path, schema) as writer:
        for numbers, pages in batches(keys):
            times = pa.array(numbers + 1_700_000_000_000_000).cast(pa.timestamp("us", "UTC"))
            writer.write_table(pa.table([pages, pa.array(numbers), pa.array(numbers / 7), times], schema=schema))


def write_numbers(path: Path, keys: int) -> None:
    schema = pa.schema([("key", pa.string()), ("value", pa.int64())])
    with pq.ParquetWriter(path, schema) as writer:
        for numbers, pages in batches(keys):
            writer.write_table(pa.table([pages, pa.array(numbers)], schema=schema))


def report(rows: list[dict], keys: int) -> dict:
    slowest = max(row["seconds"] / row["keys"] for row in rows)
    ratios = {"minutes_for_10m_keys": round(slowest * 10e6 / 60, 2)}
    lines = [
        [row["what"], f"{row['seconds']:.1f}", f"{row['keys_per_s']:,.0f}", f"{row['peak_mb']:,.0f}"] for row in rows
    ]
    return {
        "benchmark": "transfer",
        "rows": rows,
        "ratios": ratios,
        "tables": [
            table(f"{keys:,} keys from and to files", ["what", "seconds", "keys/s", "peak so far, MB"], lines),
            bars_table(ratios, BARS, "The slowest of them, at its rate"),
        ],
        "notes": ["One process, Parquet on a local disk; Records have a text, a number, a float and a time."],
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object with rows and ratios instead of tables")
    parser.add_argument("--quick", action="store_true", help="100,000 keys: rough figures, soon")
    parser.add_argument("--long", action="store_true", help="ten million keys")
    options = parser.parse_args()
    options.keys = 100_000 if options.quick else 10_000_000 if options.long else 1_000_000
    return options


if __name__ == "__main__":
    main()
