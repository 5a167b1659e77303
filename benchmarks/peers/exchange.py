"""The exchange alone: rows from a source to the Python task that owns their key, as frames or as Spark's rows.

Frames: the engine's own parts, without operators and state: what a source hands to its chain, the chain's decoding,
keys and cutting, the exchange, and the gathering behind it. Rows: Spark reads, hashes and shuffles rows and hands them
to Python in Arrow batches. Both ways count rows and add up a number in the task that owns the key. Each epoch is a
micro-batch; its time is that of the Spark job alone.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exchange_tasks import COUNTED, count_rows, cut, gather
from headrace_program import Event

import headrace as hr
from headrace.model.order import EpochLimits
from headrace.model.wire import WIRE_DDL
from headrace.plan.compile import compile_app
from headrace.plan.ship import dump_program
from headrace.spark import query
from headrace.spark.executor import Ship
from headrace.spark.session import make_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.plan.physical import Program


def program(options: argparse.Namespace, parallelism: int) -> Program:
    if options.source == "kafka":
        source = hr.source.kafka(options.topic, brokers=options.brokers, max_per_epoch=options.per_epoch)
    else:
        source = hr.source.files(str(options.input), format=options.source, max_files_per_epoch=options.files)
    app = hr.App("exchange")
    app.read("events", source, Event).key_by(Event.key).latest().named("last").queryable()
    return compile_app(app, parallelism=parallelism, key_groups=1024)


def frames_plan(session: SparkSession, options: argparse.Namespace, parallelism: int) -> DataFrame:
    plan = program(options, parallelism)
    packed = dump_program(plan)
    given = query._chain(session, plan, 0, Ship("", session.sparkContext.broadcast(b""), "", EpochLimits()), {})
    frames = given.mapInArrow(partial(cut, packed), WIRE_DDL)
    return frames.repartitionById(parallelism, "shard").mapInArrow(partial(gather, packed), COUNTED)


def rows_plan(session: SparkSession, options: argparse.Namespace, parallelism: int) -> DataFrame:
    reader: Any = session.readStream.name("events")
    if options.source == "kafka":
        reader = reader.format("kafka").option("kafka.bootstrap.servers", options.brokers)
        reader = reader.option("subscribe", options.topic).option("startingOffsets", "earliest")
        frame = reader.option("maxOffsetsPerTrigger", options.per_epoch).load()
        parsed = frame.selectExpr("from_json(CAST(value AS STRING), 'key STRING, value BIGINT') AS row")
        frame = parsed.selectExpr("row.key AS key", "row.value AS value")
    else:
        reader = reader.format(options.source).schema("key STRING, value BIGINT")
        frame = reader.option("maxFilesPerTrigger", options.files).load(str(options.input))
    shard = f"CAST(shiftrightunsigned(xxhash64(key), 54) * {parallelism} DIV 1024 AS INT)"
    from pyspark.sql.functions import expr

    return frame.repartitionById(parallelism, expr(shard)).mapInArrow(count_rows, COUNTED)


def measure(session: SparkSession, options: argparse.Namespace, way: str, parallelism: int) -> dict:
    """Seconds of each epoch's job, and what came through."""
    epochs: list[dict] = []

    def on_batch(frame: DataFrame, epoch: int) -> None:
        began = time.perf_counter()
        counted = frame.collect()
        took = time.perf_counter() - began
        rows, total = sum(row[0] for row in counted), sum(row[1] for row in counted)
        epochs.append({"took_s": took, "rows": rows, "total": total})
        print(f"progress: {way}, {parallelism} shards: epoch {epoch}, {rows:,} rows in {took:.2f} s", flush=True)

    plan = (frames_plan if way == "frames" else rows_plan)(session, options, parallelism)
    folder = options.work / f"{way}-{parallelism}"
    running = plan.writeStream.foreachBatch(on_batch).option("checkpointLocation", str(folder))
    running.trigger(availableNow=True).start().awaitTermination()
    measured = epochs[options.warm_up :]
    return {
        "way": way,
        "parallelism": parallelism,
        "rows": sum(epoch["rows"] for epoch in epochs),
        "total": sum(epoch["total"] for epoch in epochs),
        "took_s": [epoch["took_s"] for epoch in measured],
        "rows_per_s": sum(epoch["rows"] for epoch in measured) / sum(epoch["took_s"] for epoch in measured),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="an empty folder")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--source", choices=["parquet", "json", "kafka"], required=True)
    parser.add_argument("--input", type=Path, help="a folder of files")
    parser.add_argument("--topic")
    parser.add_argument("--brokers")
    parser.add_argument("--files", type=int, default=2, help="files of an epoch")
    parser.add_argument("--per-epoch", type=int, default=1_000_000, help="messages of an epoch")
    parser.add_argument("--parallelism", type=lambda text: [int(n) for n in text.split(",")], required=True)
    parser.add_argument("--ways", type=lambda text: text.split(","), default=["frames", "rows"])
    parser.add_argument("--warm-up", type=int, default=2, help="epochs that are not measured")
    options = parser.parse_args()
    connectors = ["kafka"] if options.source == "kafka" else []
    session = make_session("exchange", "local[2]", {}, connectors)
    query.quiet_the_bridge()
    found = [measure(session, options, way, n) for n in options.parallelism for way in options.ways]
    options.result.write_text(json.dumps({"version": f"headrace {hr.__version__}", "found": found}))
    session.stop()


if __name__ == "__main__":
    main()
