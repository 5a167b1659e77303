"""Native Structured Streaming over the same rows: aggregates of windows or an interval join, without any Python.

Stands alone: needs `pyspark` and nothing of ours. State is in RocksDB with changelog checkpointing; results go to the
noop sink. One epoch is one trigger over `--files-per-epoch` files; its time is from one commit to the next.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

LAUNCHED_AT = time.time()
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

import pyspark  # noqa: E402
from pyspark.sql import DataFrame, SparkSession, functions  # noqa: E402

STREAMING = "org.apache.spark.sql.execution.streaming"
SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": f"{STREAMING}.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": f"{STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.shuffle.compress": "false",
    "spark.driver.memory": "4g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def session(options: argparse.Namespace) -> SparkSession:
    builder = SparkSession.builder.master(f"local[{options.parallelism}]").appName("spark_sql")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.shuffle.partitions", options.parallelism)
    spark = builder.config("spark.sql.warehouse.dir", str(options.work / "warehouse")).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def read(spark: SparkSession, options: argparse.Namespace, stream: str) -> DataFrame:
    return (
        spark.readStream.schema("key STRING, at TIMESTAMP, value BIGINT")
        .option("maxFilesPerTrigger", options.files_per_epoch)
        .parquet(str(options.input / stream / "parquet"))
        .withWatermark("at", "1 second")
    )


def windows(spark: SparkSession, options: argparse.Namespace) -> DataFrame:
    events = read(spark, options, "events")
    counted = functions.count(functions.lit(1)).alias("n")
    session = options.query == "sessions"
    window = functions.session_window("at", "5 seconds") if session else functions.window("at", "10 seconds")
    aggregates = [functions.sum("value").alias("total"), functions.max("value").alias("most")]
    if options.query == "distinct":
        aggregates = [functions.approx_count_distinct("value").alias("different")]
    made = events.groupBy(window, "key").agg(counted, *aggregates)
    rows = functions.count(functions.lit(1)).alias("rows")
    return made.observe("out", rows, functions.sum("n").alias("checksum"))


def join(spark: SparkSession, options: argparse.Namespace) -> DataFrame:
    left = read(spark, options, "left").select("key", functions.col("at").alias("left_at"), "value")
    right = read(spark, options, "right").selectExpr("key AS other", "at AS right_at", "value AS other_value")
    near = functions.expr("key = other AND right_at >= left_at AND right_at <= left_at + INTERVAL 10 SECONDS")
    made = left.join(right, near)
    rows = functions.count(functions.lit(1)).alias("rows")
    return made.observe("out", rows, functions.sum("other_value").alias("checksum"))


def run(options: argparse.Namespace) -> dict:
    epochs = json.loads((options.input / "events.json").read_text())["epochs"]
    frame = (join if options.query == "join" else windows)(session(options), options)
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(options.work / "checkpoint"))
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    done = 0
    while not query.awaitTermination(1):
        for epoch in query.recentProgress[done:]:
            print(f"progress: epoch {epoch['batchId']} of {len(epochs)}", flush=True)
            done += 1
    return result(options, epochs, query.recentProgress)


def result(options: argparse.Namespace, epochs: list[dict], progress: list[Any]) -> dict:
    taken = [epoch["numInputRows"] for epoch in progress if epoch["numInputRows"]]
    if taken != [epoch["rows"] for epoch in epochs]:
        raise SystemExit(f"epochs were to have {[epoch['rows'] for epoch in epochs]} rows and had {taken}")
    commits = options.work / "checkpoint" / "commits"
    committed = [(commits / str(number)).stat().st_mtime for number in range(len(epochs))]
    first = next(number for number, epoch in enumerate(epochs) if epoch["phase"] == "steady")
    steady = committed[first - 1 : len(epochs)]
    observed = [epoch["observedMetrics"]["out"] for epoch in progress if "out" in epoch["observedMetrics"]]
    return {
        "version": f"pyspark {pyspark.__version__}",
        "startup_s": committed[0] - LAUNCHED_AT,
        "steady_rows": sum(taken[first:]),
        "steady_s": steady[-1] - steady[0],
        "steady_epoch_s": [later - earlier for earlier, later in itertools.pairwise(steady)],
        "rows_out": sum(row["rows"] or 0 for row in observed),
        "checksum": sum(row["checksum"] or 0 for row in observed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--query", choices=["windows", "sessions", "distinct", "join"], required=True)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="an empty folder for the checkpoint")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--files-per-epoch", type=int, default=2)
    options = parser.parse_args()
    options.result.write_text(json.dumps(run(options)))


if __name__ == "__main__":
    main()
