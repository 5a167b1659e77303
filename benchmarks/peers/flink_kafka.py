"""PyFlink from Kafka to Kafka, exactly once: count and sum per key in a Python process function, JSON in, JSON out.

Stands alone: runs in an environment that has `apache-flink` and nothing of ours. JSON is read and written in the JVM;
the sink is Flink's own with exactly-once delivery, whose transactions are committed with checkpoints. So what a reader
of committed messages has to wait for is the next checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import sysconfig
import time
from pathlib import Path

# The interpreter that thread mode embeds into the JVM knows nothing of virtual environments: it is told where one lies.
os.environ["PYTHONPATH"] = sysconfig.get_path("purelib")
# Left alone, a local process mode runs all its workers as threads of this very process, under one interpreter lock.
os.environ["_python_worker_execution_mode"] = "process"  # noqa: SIM112

from pyflink.common import Configuration, Row, Types, WatermarkStrategy
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.connectors.base import DeliveryGuarantee
from pyflink.datastream.connectors.kafka import (
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from pyflink.datastream.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.version import __version__ as flink_version

EVENT = Types.ROW_NAMED(["key", "value", "at"], [Types.STRING(), Types.LONG(), Types.LONG()])
COUNTED = Types.ROW_NAMED(["key", "count", "total", "at"], [Types.STRING(), Types.LONG(), Types.LONG(), Types.LONG()])


class CountSum(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.state = runtime_context.get_state(
            ValueStateDescriptor("count_sum", Types.TUPLE([Types.LONG(), Types.LONG()]))
        )

    def process_element(self, value, ctx):
        count, total = self.state.value() or (0, 0)
        count += 1
        total += value[1]
        self.state.update((count, total))
        yield Row(value[0], count, total, value[2])


def build(options: argparse.Namespace) -> StreamExecutionEnvironment:
    config = Configuration()
    settings = {
        "python.execution-mode": options.mode,
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
        "parallelism.default": "2",
        "pipeline.jars": ";".join(Path(jar).as_uri() for jar in options.jars.split(",")),
        "state.backend.type": "hashmap",
        "execution.checkpointing.interval": options.checkpoints,
        "execution.checkpointing.dir": (options.work / "checkpoints").as_uri(),
        "taskmanager.memory.process.size": "4g",
        "execution.runtime-mode": "STREAMING",
        "restart-strategy.type": "none",
        **dict(pair.split("=", 1) for pair in options.set),
    }
    for name, value in settings.items():
        config.set_string(name, value)
    env = StreamExecutionEnvironment.get_execution_environment(config)
    counted = (
        env.from_source(source(options), WatermarkStrategy.no_watermarks(), "events")
        .key_by(lambda event: event[0], key_type=Types.STRING())
        .process(CountSum(), output_type=COUNTED)
    )
    counted.sink_to(sink(options))
    return env


def source(options: argparse.Namespace) -> KafkaSource:
    decode = JsonRowDeserializationSchema.builder().type_info(EVENT).build()
    builder = (
        KafkaSource.builder()
        .set_bootstrap_servers(options.brokers)
        .set_topics(options.source)
        .set_group_id("end_to_end")
        .set_starting_offsets(KafkaOffsetsInitializer.earliest())
        .set_value_only_deserializer(decode)
    )
    if options.until == "caught_up":
        builder = builder.set_bounded(KafkaOffsetsInitializer.latest())
    return builder.build()


def sink(options: argparse.Namespace) -> KafkaSink:
    encode = JsonRowSerializationSchema.builder().with_type_info(COUNTED).build()
    records = KafkaRecordSerializationSchema.builder().set_topic(options.sink).set_value_serialization_schema(encode)
    return (
        KafkaSink.builder()
        .set_bootstrap_servers(options.brokers)
        .set_record_serializer(records.build())
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix("end_to_end")
        .set_property("transaction.timeout.ms", "600000")
        .build()
    )


def run(options: argparse.Namespace) -> dict:
    job = build(options).execute_async("end_to_end")
    done = job.get_job_execution_result()
    while not done.done():
        time.sleep(0.1)
        if (options.work / "stop").exists():
            job.cancel().result()
            break
    else:
        done.result()
    return {"version": f"apache-flink {flink_version}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--brokers", required=True)
    parser.add_argument("--source", required=True, help="topic to read")
    parser.add_argument("--sink", required=True, help="topic to write")
    parser.add_argument("--until", choices=["caught_up", "stopped"], required=True)
    parser.add_argument("--mode", choices=["thread", "process"], required=True)
    parser.add_argument("--checkpoints", required=True, help="how often: 5 s")
    parser.add_argument("--jars", required=True, help="of the connector, with commas between them")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a further Flink option")
    parser.add_argument("--work", type=Path, required=True, help="an empty folder")
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()
    options.result.write_text(json.dumps(run(options)))


if __name__ == "__main__":
    main()
