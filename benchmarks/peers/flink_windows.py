"""PyFlink's window API over the same rows: count, sum and max per key in 10 s windows, aggregated in Python.

Stands alone: runs in an environment that has `apache-flink` and nothing of ours. Rows are read by Flink's own file
source and get their event time in the JVM; the aggregate function is Python, in thread mode, and writes down how many
rows it has seen and when. It is stopped after `--limit-s`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import sysconfig
import time
import uuid
from pathlib import Path

LAUNCHED_AT = time.time()
os.environ["PYTHONPATH"] = sysconfig.get_path("purelib")

from py4j.protocol import Py4JJavaError  # noqa: E402
from pyflink.common import Configuration, Time, Types  # noqa: E402
from pyflink.datastream import AggregateFunction, StreamExecutionEnvironment  # noqa: E402
from pyflink.datastream.connectors.base import Sink  # noqa: E402
from pyflink.datastream.window import TumblingEventTimeWindows  # noqa: E402
from pyflink.java_gateway import get_gateway  # noqa: E402
from pyflink.table import StreamTableEnvironment  # noqa: E402
from pyflink.version import __version__ as flink_version  # noqa: E402

SAMPLE_ROWS = 1_000


class CountSumMax(AggregateFunction):
    def __init__(self, samples: str) -> None:
        self.samples = samples
        self.log = None
        self.seen = 0

    def create_accumulator(self):
        return 0, 0, 0

    def add(self, value, accumulator):
        if self.log is None:
            self.log = open(f"{self.samples}/{uuid.uuid4().hex}.txt", "a", buffering=1)
        self.seen += 1
        if self.seen % SAMPLE_ROWS == 1:
            self.log.write(f"{time.time()} {self.seen}\n")
        n, total, most = accumulator
        return n + 1, total + value[2], max(most, value[2])

    def get_result(self, accumulator):
        return accumulator

    def merge(self, a, b):
        return a[0] + b[0], a[1] + b[1], max(a[2], b[2])


def build(options: argparse.Namespace, samples: Path) -> StreamExecutionEnvironment:
    config = Configuration()
    settings = {
        "python.execution-mode": "thread",
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
        "parallelism.default": str(options.parallelism),
        "state.backend.type": "hashmap",
        "execution.checkpointing.interval": "10 s",
        "execution.checkpointing.dir": (options.work / "checkpoints").as_uri(),
        "taskmanager.memory.process.size": "4g",
        "table.local-time-zone": "UTC",
        "execution.runtime-mode": "STREAMING",
        "restart-strategy.type": "none",
    }
    for name, value in settings.items():
        config.set_string(name, value)
    env = StreamExecutionEnvironment.get_execution_environment(config)
    tables = StreamTableEnvironment.create(env)
    tables.execute_sql(
        "CREATE TABLE events (`key` STRING, `at` TIMESTAMP(3), `value` BIGINT, "
        "WATERMARK FOR `at` AS `at` - INTERVAL '1' SECOND) WITH ('connector' = 'filesystem', 'format' = 'csv', "
        f"'path' = '{(options.input / 'events' / 'csv-steady').as_uri()}')"
    )
    row = Types.TUPLE([Types.LONG(), Types.LONG(), Types.LONG()])
    made = (
        tables.to_data_stream(tables.from_path("events"))
        .key_by(lambda event: event[0], key_type=Types.STRING())
        .window(TumblingEventTimeWindows.of(Time.seconds(10)))
        .aggregate(CountSumMax(str(samples)), accumulator_type=row, output_type=row)
    )
    jvm = get_gateway().jvm
    made.sink_to(Sink(jvm.org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink()))
    return env


def run(options: argparse.Namespace) -> dict:
    samples = options.work / "samples"
    samples.mkdir(parents=True)
    job = build(options, samples).execute_async("windows")
    done = job.get_job_execution_result()
    began, looks = None, 0
    while not done.done():
        time.sleep(1)
        seen = lasts(samples)
        looks += 1
        if looks % 5 == 0:
            print(f"progress: {sum(rows for _, _, rows, _ in seen):,} rows", flush=True)
        if seen and began is None:
            began = time.time()
        if began is not None and time.time() - began > options.limit_s:
            try:
                job.cancel().result()
            except Py4JJavaError:
                break
            break
    seen = lasts(samples)
    start = min(first for first, _, _, _ in seen)
    end = min(last for _, last, _, _ in seen)
    # The first quarter of the time warms the process up.
    middle = start + (end - start) / 4
    rows = sum(after(samples, name, middle, end) for _, _, _, name in seen)
    return {
        "version": f"apache-flink {flink_version}",
        "startup_s": start - LAUNCHED_AT,
        "steady_rows": rows,
        "steady_s": end - middle,
    }


def lasts(samples: Path) -> list[tuple[float, float, int, str]]:
    """Per subtask: the moments of its first and last sample, rows seen, and its name."""
    found = []
    for file in samples.glob("*.txt"):
        lines = [line.split() for line in file.read_text().splitlines() if line.count(" ") == 1]
        if len(lines) > 1:
            found.append((float(lines[0][0]), float(lines[-1][0]), int(lines[-1][1]), file.name))
    return found


def after(samples: Path, name: str, start: float, end: float) -> int:
    """Rows a subtask saw between two moments."""
    lines = [line.split() for line in (samples / name).read_text().splitlines() if line.count(" ") == 1]
    counts = [int(rows) for moment, rows in lines if start <= float(moment) <= end]
    return counts[-1] - counts[0] if counts else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="an empty folder for checkpoints and samples")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--limit-s", type=float, default=45)
    options = parser.parse_args()
    options.result.write_text(json.dumps(run(options)))


if __name__ == "__main__":
    main()
