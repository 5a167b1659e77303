"""Flink SQL over Nexmark's streams: one query. Results go into a folder of files, or into a file of answers.

Stands alone: runs in an environment that has `apache-flink` and nothing of ours. The rows are read from Parquet by
Flink's own file source, one file per subtask, each in the order of time. A first job over the rows of the first epochs
warms the process up, and a second one over the steady rows is timed as a whole by Flink itself. Answers are those of
one job over all rows, folded: what was taken back is gone.

Its file sink writes exactly once, at each checkpoint and at the end: Parquet, and where rows are taken back JSON lines
that say it (`debezium-json`), because its Parquet files cannot.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import sysconfig
import time
from collections import Counter
from pathlib import Path

LAUNCHED_AT = time.time()
os.environ["PYTHONPATH"] = sysconfig.get_path("purelib")

from pyflink.common import Configuration, RowKind  # noqa: E402
from pyflink.datastream import StreamExecutionEnvironment  # noqa: E402
from pyflink.table import StreamTableEnvironment  # noqa: E402
from pyflink.version import __version__ as flink_version  # noqa: E402

COLUMNS = {
    "person": "id BIGINT, name STRING, email_address STRING, credit_card STRING, city STRING, state STRING, "
    "date_time TIMESTAMP(3), extra STRING",
    "auction": "id BIGINT, item_name STRING, description STRING, initial_bid BIGINT, reserve BIGINT, "
    "date_time TIMESTAMP(3), expires TIMESTAMP(3), seller BIGINT, category BIGINT, extra STRING",
    "bid": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, date_time TIMESTAMP(3), "
    "extra STRING",
}
ON_TIME = "WATERMARK FOR date_time AS date_time - INTERVAL '1' SECOND"


def environment(options: argparse.Namespace) -> StreamTableEnvironment:
    config = Configuration()
    settings = {
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
        "pipeline.jars": ";".join(Path(jar).as_uri() for jar in options.jars.split(",")),
        "parallelism.default": str(options.parallelism),
        "state.backend.type": options.backend,
        "execution.checkpointing.interval": "10 s",
        # Otherwise a job whose input has ended waits for one more checkpoint, which is no part of its work.
        "execution.checkpointing.checkpoints-after-tasks-finish.enabled": "false",
        "execution.checkpointing.dir": (options.work / "checkpoints").as_uri(),
        "taskmanager.memory.process.size": "6g",
        "taskmanager.memory.managed.size": "2g" if options.backend == "rocksdb" else "512m",
        "table.local-time-zone": "UTC",
        # What Flink advises for aggregates and joins that update: fewer looks at state, fewer rows downstream.
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "2 s",
        "table.exec.mini-batch.size": "50000",
        "table.optimizer.distinct-agg.split.enabled": "true",
        "execution.runtime-mode": "STREAMING",
        "restart-strategy.type": "none",
    }
    for name, value in settings.items():
        config.set_string(name, value)
    return StreamTableEnvironment.create(StreamExecutionEnvironment.get_execution_environment(config))


def declare(env: StreamTableEnvironment, folder: Path) -> None:
    """The streams of a folder under their names; those of a phase before are forgotten."""
    for name, columns in COLUMNS.items():
        _table(env, name, f"{columns}, {ON_TIME}", folder / name)
    _table(env, "bid_now", f"{COLUMNS['bid']}, proc_time AS PROCTIME()", folder / "bid")
    _table(env, "side", "id BIGINT, note STRING", folder / "side")


def _table(env: StreamTableEnvironment, name: str, columns: str, folder: Path) -> None:
    env.execute_sql(f"DROP TEMPORARY TABLE IF EXISTS `{name}`")
    options = f"'connector' = 'filesystem', 'format' = 'parquet', 'path' = '{folder.as_uri()}'"
    env.execute_sql(f"CREATE TEMPORARY TABLE `{name}` ({columns}) WITH ({options})")


def answers(env: StreamTableEnvironment, text: str) -> list[list]:
    """The rows that hold at the end, each as often as it does."""
    rows: Counter[tuple] = Counter()
    for row in env.execute_sql(text).collect():
        came = row.get_row_kind() in (RowKind.INSERT, RowKind.UPDATE_AFTER)
        rows[tuple(map(_plain, row))] += 1 if came else -1
    return [list(row) for row in rows.elements()]


def _plain(value: object) -> object:
    return value if isinstance(value, int | float | str | None) else str(value)


def run(options: argparse.Namespace) -> dict:
    text = (options.queries / f"{options.query}.sql").read_text()
    env = environment(options)
    version = f"apache-flink {flink_version}"
    if options.answers:
        declare(env, options.input / "steady")
        options.answers.write_text(json.dumps(answers(env, text)))
        return {"version": version}
    for phase in ("warm", "steady"):
        declare(env, options.input / phase)
        form = "debezium-json" if options.changelog else "parquet"
        out = (options.work / f"out-{phase}").as_uri()
        sink = f"'connector' = 'filesystem', 'format' = '{form}', 'path' = '{out}'"
        sink = "'connector' = 'blackhole'" if options.discard else sink
        job = env.execute_sql(f"CREATE TABLE out_{phase} WITH ({sink}) AS {text}").get_job_client()
        took_ms = job.get_job_execution_result().result().get_net_runtime()
        if phase == "warm":
            warm_s = time.time() - LAUNCHED_AT
            print("progress: warm", flush=True)
    return {
        "version": version,
        "startup_s": warm_s,
        "steady_rows": sum(json.loads(options.epochs)[options.warm :]),
        "steady_s": took_ms / 1000,
        "written_bytes": sum(file.stat().st_size for file in (options.work / "out-steady").rglob("part-*")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--query", required=True)
    parser.add_argument("--queries", type=Path, required=True, help="the folder of their texts")
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--epochs", required=True, help="events of each epoch, as a JSON list")
    parser.add_argument("--warm", type=int, required=True, help="epochs before the measured ones")
    parser.add_argument("--jars", required=True, help="the Parquet format, with commas")
    parser.add_argument("--answers", type=Path, help="write the results into this file, and measure nothing")
    parser.add_argument("--changelog", action="store_true", help="rows of the result are taken back")
    parser.add_argument("--discard", action="store_true", help="write the results nowhere")
    parser.add_argument("--work", type=Path, required=True, help="an empty folder for checkpoints")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--backend", choices=["hashmap", "rocksdb"], default="hashmap")
    parser.add_argument("--parallelism", type=int, default=2)
    options = parser.parse_args()
    options.result.write_text(json.dumps(run(options)))


if __name__ == "__main__":
    main()
