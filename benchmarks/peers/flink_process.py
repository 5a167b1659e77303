"""PyFlink's keyed process function over the same rows: count and sum per key, one output row per event.

Stands alone: runs in an environment that has `apache-flink` and nothing of ours. Flink's own file source reads the rows
from CSV in the JVM, so that reading is not what is measured; results go to Flink's discarding sink. State is kept in
the hash map backend (the faster one), with a checkpoint every ten seconds.

The function itself writes down how many rows it has seen and when. Steady state begins when all subtasks together have
passed the rows of the start and fill phases, and ends when the first of them has no more input.
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
# The interpreter that thread mode embeds into the JVM knows nothing of virtual environments: it is told where one lies,
# and where this file does, whose function other programs run as well.
os.environ["PYTHONPATH"] = os.pathsep.join((sysconfig.get_path("purelib"), str(Path(__file__).parent)))
# Left alone, a local process mode runs all its workers as threads of this very process, under one interpreter lock.
os.environ["_python_worker_execution_mode"] = "process"  # noqa: SIM112

import numpy as np  # noqa: E402
from py4j.protocol import Py4JJavaError  # noqa: E402
from pyflink.common import Configuration, JobClient, Types  # noqa: E402
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment  # noqa: E402
from pyflink.datastream.connectors.base import Sink  # noqa: E402
from pyflink.datastream.state import ValueStateDescriptor  # noqa: E402
from pyflink.java_gateway import get_gateway  # noqa: E402
from pyflink.table import StreamTableEnvironment  # noqa: E402
from pyflink.version import __version__ as flink_version  # noqa: E402

SAMPLE_ROWS = 1_000
REPORT_S = 5


class CountSum(KeyedProcessFunction):
    def __init__(self, samples: str) -> None:
        self.samples = samples

    def open(self, runtime_context: RuntimeContext) -> None:
        self.seen = 0
        self.checksum = 0
        # The index of the subtask cannot be asked for in thread mode, so each subtask makes up a name.
        self.name = f"{self.samples}/{uuid.uuid4().hex}"
        self.log = open(f"{self.name}.txt", "a", buffering=1)
        self.state = runtime_context.get_state(
            ValueStateDescriptor("count_sum", Types.TUPLE([Types.LONG(), Types.LONG()]))
        )

    def process_element(self, value, ctx):
        count, total = self.state.value() or (0, 0)
        count += 1
        total += value[1]
        self.state.update((count, total))
        self.checksum += count
        self.seen += 1
        if self.seen % SAMPLE_ROWS == 1:
            self.log.write(f"{time.time()} {self.seen}\n")
        yield value[0], count, total

    def close(self) -> None:
        # This is no moment to measure by: after the last row a job waits for its last checkpoint.
        self.log.close()
        Path(f"{self.name}.end").write_text(f"{self.seen} {self.checksum}")


def build(
    options: argparse.Namespace, samples: Path, source: dict[str, str] | None = None
) -> StreamExecutionEnvironment:
    """``source``: further options of the file source."""
    config = Configuration()
    settings = {
        "python.execution-mode": options.mode,
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
        "parallelism.default": str(options.parallelism),
        "state.backend.type": "hashmap",
        "execution.checkpointing.interval": "10 s",
        "execution.checkpointing.dir": (options.work / "checkpoints").as_uri(),
        "taskmanager.memory.process.size": "4g",
        "execution.runtime-mode": "STREAMING",
        "restart-strategy.type": "none",
        **dict(pair.split("=", 1) for pair in options.set),
    }
    for name, value in settings.items():
        config.set_string(name, value)
    env = StreamExecutionEnvironment.get_execution_environment(config)
    tables = StreamTableEnvironment.create(env)
    files = {"connector": "filesystem", "format": "csv", "path": (options.input / "csv").as_uri(), **(source or {})}
    described = ", ".join(f"'{name}' = '{value}'" for name, value in files.items())
    tables.execute_sql(f"CREATE TABLE events (`key` STRING, `value` BIGINT) WITH ({described})")
    row = Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG()])
    counted = (
        tables.to_data_stream(tables.from_path("events"))
        .key_by(lambda event: event[0], key_type=Types.STRING())
        .process(CountSum(str(samples)), output_type=row)
        .uid("count_sum")
    )
    jvm = get_gateway().jvm
    counted.sink_to(Sink(jvm.org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink()))
    return env


class Samples:
    """What the subtasks wrote down: per subtask moments and rows seen, ascending."""

    def __init__(self, folder: Path) -> None:
        parsed = [np.loadtxt(_whole_lines(file), ndmin=2) for file in sorted(folder.glob("*.txt"))]
        self.subtasks = [samples for samples in parsed if samples.size]

    @property
    def began_at(self) -> float:
        return min(samples[0, 0] for samples in self.subtasks)

    def rows_at(self, moments: np.ndarray) -> np.ndarray:
        """Rows that all subtasks had seen together at these moments, interpolated between samples."""
        return sum(np.interp(moments, samples[:, 0], samples[:, 1]) for samples in self.subtasks)

    def steady(self, skip_rows: int) -> tuple[int, float, bool]:
        """Rows and seconds from the moment when `skip_rows` have been seen until the first subtask has no more, and
        whether it came to that moment at all; otherwise the second half of the time is taken."""
        end = min(samples[-1, 0] for samples in self.subtasks)
        moments = np.unique(np.concatenate([samples[:, 0] for samples in self.subtasks]))
        after = moments[(self.rows_at(moments) >= skip_rows) & (moments < end)]
        start = after[0] if after.size else (self.began_at + end) / 2
        seen = self.rows_at(np.array([start, end]))
        return round(float(seen[1] - seen[0])), float(end - start), bool(after.size)


def _whole_lines(file: Path) -> list[str]:
    """A line that is being written at this moment is left out."""
    return [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def run(options: argparse.Namespace) -> dict:
    described = json.loads((options.input / "events.json").read_text())
    skip_rows = sum(epoch["rows"] for epoch in described["epochs"] if epoch["phase"] != "steady")
    total_rows = sum(epoch["rows"] for epoch in described["epochs"])
    samples = options.work / "samples"
    samples.mkdir(parents=True)
    job = build(options, samples).execute_async("keyed_process")
    done = job.get_job_execution_result()
    limited = wait(options, done, samples, total_rows) and cancel(job)
    if not limited:
        done.result()
    seen = Samples(samples)
    ends = [[int(number) for number in file.read_text().split()] for file in samples.glob("*.end")]
    rows, seconds, filled = seen.steady(skip_rows)
    return {
        "version": f"apache-flink {flink_version}",
        "startup_s": seen.began_at - LAUNCHED_AT,
        "steady_rows": rows,
        "steady_s": seconds,
        "filled": filled,
        "rows_out": None if limited else sum(rows for rows, _ in ends),
        "checksum": None if limited else sum(checksum for _, checksum in ends),
    }


def wait(options: argparse.Namespace, done: object, samples: Path, total_rows: int) -> bool:
    """Until the job is done (False) or its time is up (True). Looks rarely: looking costs what is measured."""
    looked = 0.0
    while not done.done():
        time.sleep(0.2)
        if time.time() - looked < REPORT_S:
            continue
        looked = time.time()
        lasts = [lines[-1].split() for lines in map(_whole_lines, samples.glob("*.txt")) if lines]
        print(f"progress: {sum(int(last[1]) for last in lasts):,} of {total_rows:,} rows", flush=True)
        began = min((float(first) for first in map(_first, samples.glob("*.txt")) if first), default=looked)
        if options.limit_s and looked - began > options.limit_s:
            return True
    return False


def cancel(job: JobClient) -> bool:
    """Whether it was still there to be cancelled: the cluster goes with its job, which may end at this very moment."""
    try:
        job.cancel().result()
    except Py4JJavaError:
        return False
    return True


def _first(file: Path) -> str:
    with file.open() as lines:
        return (lines.readline().split() or [""])[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="an empty folder for checkpoints and samples")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--mode", choices=["thread", "process"], required=True)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--limit-s", type=float, default=0, help="stop this long after the first row (0: never)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a further Flink option")
    options = parser.parse_args()
    options.result.write_text(json.dumps(run(options)))


if __name__ == "__main__":
    main()
