"""Plain Structured Streaming from Kafka to Kafka: count and sum per key in Python's `transformWithState`.

Stands alone: needs `pyspark`, `pyarrow` and `protobuf`, and nothing of ours. JSON is read and written in the JVM; state
is in RocksDB with changelog checkpointing. Spark's Kafka sink is at least once: there is no other in it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

import pyspark
from pyspark.sql import Row, SparkSession, functions
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from tws import SETTINGS


class CountSum(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.state = handle.getValueState("count_sum", "count BIGINT, total BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        count, total = self.state.get() or (0, 0)
        for row in rows:
            count += 1
            total += row.value
            yield Row(key=key[0], count=count, total=total, at=row.at)
        self.state.update((count, total))

    def close(self) -> None:
        pass


def start(options: argparse.Namespace) -> SparkSession:
    builder = SparkSession.builder.master("local[2]").appName("spark_kafka").config("spark.jars", options.jars)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.shuffle.partitions", 2)
    spark = builder.config("spark.sql.warehouse.dir", str(options.work / "warehouse")).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def start_query(spark: SparkSession, options: argparse.Namespace) -> Any:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", options.brokers)
    reader = reader.option("subscribe", options.source).option("startingOffsets", "earliest")
    if options.per_epoch:
        reader = reader.option("maxOffsetsPerTrigger", options.per_epoch)
    event = functions.from_json(functions.col("value").cast("string"), "key STRING, value BIGINT, at BIGINT")
    counted = (
        reader.load()
        .select(event.alias("event"))
        .select("event.*")
        .groupBy("key")
        .transformWithState(CountSum(), "key STRING, count BIGINT, total BIGINT, at BIGINT", "Append", "None")
    )
    writer = (
        counted.select(functions.to_json(functions.struct("key", "count", "total", "at")).alias("value"))
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", options.brokers)
        .option("topic", options.sink)
        .option("checkpointLocation", str(options.work / "checkpoint"))
        .outputMode("append")
    )
    # Without a trigger the next batch begins when the last has ended: the soonest there is.
    return (writer.trigger(availableNow=True) if options.until == "caught_up" else writer).start()


def run(options: argparse.Namespace) -> dict:
    query = start_query(start(options), options)
    while not query.awaitTermination(0.2):
        if (options.work / "stop").exists():
            query.stop()
            break
    return {"version": f"pyspark {pyspark.__version__}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--brokers", required=True)
    parser.add_argument("--source", required=True, help="topic to read")
    parser.add_argument("--sink", required=True, help="topic to write")
    parser.add_argument("--until", choices=["caught_up", "stopped"], required=True)
    parser.add_argument("--per-epoch", type=int, default=None)
    parser.add_argument("--jars", required=True, help="of the connector, with commas between them")
    parser.add_argument("--work", type=Path, required=True, help="an empty folder")
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()
    options.result.write_text(json.dumps(run(options)))


if __name__ == "__main__":
    main()
