"""From a source to the Python task that owns the key: frames beside the rows of a plain Spark plan.

    python benchmarks/exchange.py                       Parquet, JSON and Kafka; 2 to 256 shards; 1 000 and 1M keys
    python benchmarks/exchange.py --only parquet --quick

Both ways read the same rows in the same session, epoch by epoch, and count them in the task that owns the key; every
row has to arrive once. Only the Spark job of an epoch is measured, and no operator, state or publishing is part of it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.lib.children import ChildFailed, run_child
from benchmarks.lib.events import key_names
from benchmarks.lib.figures import count_text, quantile, rate_text, ratio_text
from benchmarks.lib.kafka_topics import BenchmarkBroker, fill
from benchmarks.lib.progress import say
from benchmarks.lib.results import Bar, bars_table, emit, table

KEYS = (1_000, 1_000_000)
SOURCES = ("parquet", "json", "kafka")
BARS = {"frames_vs_rows": Bar(at_least=2.5), "p256_of_p2": Bar(at_least=0.5)}
FILES = 2
"""Of an epoch: one per core."""
ROWS = {"parquet": 4_000_000, "json": 1_000_000, "kafka": 1_000_000}
"""Of an epoch. 256 shards are 256 Python tasks, which only many rows are worth."""
SHARDS = {"parquet": "2,16,64,256", "json": "2,256", "kafka": "2,256"}
WARM_UP, MEASURED = 2, 3


def main() -> None:
    options = parse()
    rows: list[dict] = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        for source in options.only:
            for keys in options.keys:
                say(f"{source}, {count_text(keys)} keys: starting")
                rows += measure(source, keys, Path(folder) / f"{source}-{keys}", options)
    emit(report(rows), as_json=options.json)


def measure(source: str, keys: int, work: Path, options: argparse.Namespace) -> list[dict]:
    work.mkdir()
    size = ROWS[source] // (10 if options.quick else 1)
    arguments = ["--source", source, "--parallelism", options.shards or SHARDS[source], "--warm-up", str(WARM_UP)]
    label = f"{source}, {count_text(keys)} keys"
    if source == "kafka":
        say("starting a broker")
        with BenchmarkBroker(work / "broker") as broker:
            topic = broker.new_topic("events")
            fill(broker, topic, events=size * (WARM_UP + MEASURED), keys=keys)
            arguments += ["--topic", topic, "--brokers", broker.bootstrap, "--per-epoch", str(size)]
            found = run_child("exchange.py", arguments, work=work / "run", label=label)
    else:
        write_files(work / "input", source, keys, size)
        arguments += ["--input", str(work / "input"), "--files", str(FILES)]
        found = run_child("exchange.py", arguments, work=work / "run", label=label)
    check(label, found["found"], size * (WARM_UP + MEASURED))
    return [{"source": source, "keys": keys, "version": found["version"], **each} for each in found["found"]]


def write_files(folder: Path, source: str, keys: int, rows: int) -> None:
    """The files of all epochs; they hold the same rows, so each is written once and linked."""
    rng = np.random.default_rng(7)
    folder.mkdir()
    for part in range(FILES):
        ids = rng.integers(0, keys, rows // FILES)
        batch = pa.table({"key": key_names(ids), "value": pa.array(rng.integers(0, 100, len(ids)))})
        first = folder / f"0-{part}.{source}"
        if source == "parquet":
            pq.write_table(batch, first)
        else:
            names, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
            lines = (f'{{"key":"{name}","value":{value}}}\n' for name, value in zip(names, values, strict=True))
            first.write_text("".join(lines))
        for epoch in range(1, WARM_UP + MEASURED):
            os.link(first, folder / f"{epoch}-{part}.{source}")


def check(label: str, found: list[dict], rows: int) -> None:
    totals = {each["total"] for each in found}
    if any(each["rows"] != rows for each in found) or len(totals) != 1:
        raise ChildFailed(
            f"{label}: {rows:,} rows were to arrive each time, and {[each['rows'] for each in found]} did"
        )


def report(rows: list[dict]) -> dict:
    rate = {(row["source"], row["keys"], row["parallelism"], row["way"]): row["rows_per_s"] for row in rows}
    ratios = {}
    pairs = {"frames_vs_rows": ((2, "frames"), (2, "rows")), "p256_of_p2": ((256, "frames"), (2, "frames"))}
    for name, (ours, other) in pairs.items():
        found = [rate.get(("parquet", keys, *ours)) for keys in KEYS]
        against = [rate.get(("parquet", keys, *other)) for keys in KEYS]
        shares = [a / b for a, b in zip(found, against, strict=True) if a and b]
        if shares:
            ratios[name] = round(min(shares), 2)
    tables = [
        speed_table(
            f"{source}, {count_text(keys)} keys", [r for r in rows if (r["source"], r["keys"]) == (source, keys)]
        )
        for source, keys in dict.fromkeys((row["source"], row["keys"]) for row in rows)
    ]
    if ratios:
        tables.append(bars_table(ratios, BARS, "Ratios, Parquet; the smaller one of both numbers of keys"))
    sizes = ", ".join(f"{name} {count_text(size)}" for name, size in ROWS.items())
    notes = [
        f"Rows of an epoch: {sizes}; {MEASURED} epochs measured after {WARM_UP}; 2 cores; {rows[0]['version']}.",
        "Rows: Spark decodes, hashes and shuffles rows, and hands them to Python in Arrow batches.",
    ]
    return {"benchmark": "exchange", "rows": rows, "ratios": ratios, "tables": tables, "notes": notes}


def speed_table(title: str, rows: list[dict]) -> dict:
    by_shards: dict[int, dict[str, dict]] = {}
    for row in rows:
        by_shards.setdefault(row["parallelism"], {})[row["way"]] = row
    lines = []
    for shards, ways in by_shards.items():
        frames, plain = ways["frames"], ways["rows"]
        lines.append(
            [
                str(shards),
                rate_text(frames["rows_per_s"]),
                rate_text(plain["rows_per_s"]),
                ratio_text(frames["rows_per_s"] / plain["rows_per_s"]),
                f"{quantile(frames['took_s'], 0.5):.2f}",
            ]
        )
    return table(title, ["shards", "frames, rows/s", "rows, rows/s", "frames are", "epoch p50, s"], lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object with rows and ratios instead of tables")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows: rough figures, soon")
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=SOURCES, help="sources: parquet,json,kafka"
    )
    parser.add_argument("--keys", type=int, choices=KEYS, nargs="+", default=KEYS, help="one number of keys only")
    parser.add_argument("--shards", help="numbers of shards, with commas")
    return parser.parse_args()


if __name__ == "__main__":
    main()
