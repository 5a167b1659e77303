"""PySpark's own `transformWithState` over the same rows: count and sum per key, one output row per event.

Stands alone: needs `pyspark`, `pyarrow` and `protobuf`, and nothing of ours. State is in RocksDB with changelog
checkpointing; the row form of the API is used (the one Spark advises for many keys); results go to the noop sink. The
settings that make any Python job faster on Spark are the same as in Headrace's own session.

One epoch is one trigger over `--files-per-epoch` files; its time is from one commit to the next, so nothing is left
out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LAUNCHED_AT = time.time()
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

import pyspark  # noqa: E402
from pyspark.sql import Row, SparkSession, functions  # noqa: E402
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle  # noqa: E402

STREAMING = "org.apache.spark.sql.execution.streaming"
SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": f"{STREAMING}.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": f"{STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.shuffle.compress": "false",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class CountSum(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.state = handle.getValueState("count_sum", "count BIGINT, total BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        count, total = self.state.get() or (0, 0)
        for row in rows:
            count += 1
            total += row.value
            yield Row(key=key[0], count=count, total=total)
        self.state.update((count, total))

    def close(self) -> None:
        pass


def start(options: argparse.Namespace) -> SparkSession:
    builder = SparkSession.builder.master(f"local[{options.parallelism}]").appName("tws")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.shuffle.partitions", options.parallelism)
    spark = builder.config("spark.sql.warehouse.dir", str(options.work / "warehouse")).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def start_query(spark: SparkSession, options: argparse.Namespace) -> Any:
    events = (
        spark.readStream.schema("key STRING, value BIGINT")
        .option("maxFilesPerTrigger", options.files_per_epoch)
        .parquet(str(options.input / "parquet"))
    )
    rows, checksum = functions.count(functions.lit(1)), functions.sum("count")
    counted = (
        events.groupBy("key")
        .transformWithState(CountSum(), "key STRING, count BIGINT, total BIGINT", "Append", "None")
        .observe("out", rows.alias("rows"), checksum.alias("checksum"))
    )
    return (
        counted.writeStream.format("noop")
        .option("checkpointLocation", str(options.work / "checkpoint"))
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )


def run(options: argparse.Namespace) -> dict:
    epochs = json.loads((options.input / "events.json").read_text())["epochs"]
    query = start_query(start(options), options)
    done = 0
    while not query.awaitTermination(1):
        for epoch in query.recentProgress[done:]:
            print(f"progress: epoch {epoch['batchId']} of {len(epochs)}", flush=True)
            done += 1
    return result(options, epochs, query.recentProgress)


def result(options: argparse.Namespace, epochs: list[dict], progress: list[Any]) -> dict:
    taken = [epoch["numInputRows"] for epoch in progress]
    if taken != [epoch["rows"] for epoch in epochs]:
        raise SystemExit(f"epochs were to have {[epoch['rows'] for epoch in epochs]} rows and had {taken}")
    commits = options.work / "checkpoint" / "commits"
    committed = [(commits / str(number)).stat().st_mtime for number in range(len(epochs))]
    first = next(number for number, epoch in enumerate(epochs) if epoch["phase"] == "steady")
    steady = committed[first - 1 :]
    observed = [epoch["observedMetrics"]["out"] for epoch in progress]
    return {
        "version": f"pyspark {pyspark.__version__}",
        "startup_s": committed[0] - LAUNCHED_AT,
        "steady_rows": sum(taken[first:]),
        "steady_s": steady[-1] - steady[0],
        "steady_epoch_s": [later - earlier for earlier, later in itertools.pairwise(steady)],
        "rows_out": sum(row["rows"] for row in observed),
        "checksum": sum(row["checksum"] for row in observed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="an empty folder for the checkpoint")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--files-per-epoch", type=int, default=2)
    options = parser.parse_args()
    options.result.write_text(json.dumps(run(options)))


if __name__ == "__main__":
    main()
