"""Flink SQL over the same rows: aggregates of windows or an interval join, without any Python.

Stands alone: runs in an environment that has `apache-flink` and nothing of ours. The rows are read from CSV by Flink's
own file source, one file per subtask, each in the order of time; results go to the blackhole connector. There are no
epochs to look at, so a first job over the rows of the start and fill phases warms the process up and proves by totals
that the query is the same as everybody's, and a second one over the steady rows is timed as a whole by Flink itself.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import sysconfig
import time
from pathlib import Path

LAUNCHED_AT = time.time()
os.environ["PYTHONPATH"] = sysconfig.get_path("purelib")

from pyflink.common import Configuration  # noqa: E402
from pyflink.datastream import StreamExecutionEnvironment  # noqa: E402
from pyflink.table import StreamTableEnvironment  # noqa: E402
from pyflink.version import __version__ as flink_version  # noqa: E402

WINDOWS = """
SELECT window_start, `key`, COUNT(*) AS n, SUM(`value`) AS total, MAX(`value`) AS most
FROM TABLE(TUMBLE(TABLE {events}, DESCRIPTOR(`at`), INTERVAL '10' SECONDS))
GROUP BY window_start, window_end, `key`
"""
SESSIONS = """
SELECT window_start, `key`, COUNT(*) AS n, SUM(`value`) AS total, MAX(`value`) AS most
FROM TABLE(SESSION(TABLE {events} PARTITION BY `key`, DESCRIPTOR(`at`), INTERVAL '5' SECONDS))
GROUP BY window_start, window_end, `key`
"""
DISTINCT = """
SELECT window_start, `key`, COUNT(*) AS n, COUNT(DISTINCT `value`) AS total, CAST(0 AS BIGINT) AS most
FROM TABLE(TUMBLE(TABLE {events}, DESCRIPTOR(`at`), INTERVAL '10' SECONDS))
GROUP BY window_start, window_end, `key`
"""
JOIN = """
SELECT l.`key` AS `key`, CAST(l.`at` AS TIMESTAMP(3)) AS left_at, CAST(r.`at` AS TIMESTAMP(3)) AS right_at,
    l.`value` AS n, r.`value` AS total
FROM {left} l JOIN {right} r
ON l.`key` = r.`key` AND r.`at` BETWEEN l.`at` AND l.`at` + INTERVAL '10' SECOND
"""

MATCHES = """
SELECT `key`, n, total FROM {{events}} MATCH_RECOGNIZE (PARTITION BY `key` ORDER BY `at`
    MEASURES FIRST(A.`value`) AS n, LAST({last}.`value`) AS total ONE ROW PER MATCH {clause}) AS m
"""
SEQUENCE = MATCHES.format(
    last="B",
    clause="""AFTER MATCH SKIP TO NEXT ROW PATTERN (A X*? B) WITHIN INTERVAL '10' SECOND
    DEFINE A AS A.`value` < 10, B AS B.`value` > 90""",
)
REPEATED = MATCHES.format(
    last="C",
    clause="""AFTER MATCH SKIP PAST LAST ROW PATTERN (A B+ C) WITHIN INTERVAL '10' SECOND
    DEFINE A AS A.`value` < 30, B AS B.`value` BETWEEN 30 AND 60, C AS C.`value` > 60""",
)
ABSENCE = MATCHES.format(
    last="C",
    clause="""AFTER MATCH SKIP TO NEXT ROW PATTERN (A N*? C)
    DEFINE A AS A.`value` < 10, N AS N.`value` <= 90, C AS C.`at` >= A.`at` + INTERVAL '5' SECOND""",
)

PATTERNS = {"sequence": SEQUENCE, "repeated": REPEATED, "absence": ABSENCE}
QUERIES = {"windows": WINDOWS, "sessions": SESSIONS, "distinct": DISTINCT, "join": JOIN, **PATTERNS}


def tables(options: argparse.Namespace) -> StreamTableEnvironment:
    config = Configuration()
    settings = {
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
        "parallelism.default": str(options.parallelism),
        "state.backend.type": options.backend,
        "state.backend.incremental": "true",
        "execution.checkpointing.interval": "10 s",
        # Otherwise a job whose input has ended waits for one more checkpoint, which is no part of its work.
        "execution.checkpointing.checkpoints-after-tasks-finish.enabled": "false",
        "execution.checkpointing.dir": (options.work / "checkpoints").as_uri(),
        "taskmanager.memory.process.size": "6g",
        "taskmanager.memory.managed.size": "2g" if options.backend == "rocksdb" else "512m",
        "table.local-time-zone": "UTC",
        # Only for the totals of the warm-up: otherwise every result would send a new total to the client.
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "5 s",
        "table.exec.mini-batch.size": "500000",
        "execution.runtime-mode": "STREAMING",
        "restart-strategy.type": "none",
        **dict(pair.split("=", 1) for pair in options.set),
    }
    for name, value in settings.items():
        config.set_string(name, value)
    return StreamTableEnvironment.create(StreamExecutionEnvironment.get_execution_environment(config))


def declare(env: StreamTableEnvironment, options: argparse.Namespace, phase: str) -> dict[str, str]:
    """A table for each stream of a phase; stream → name of its table."""
    streams = json.loads((options.input / "events.json").read_text())["streams"]
    names = {}
    for stream in streams:
        names[stream] = f"{stream}_{phase}"
        path = (options.input / stream / f"csv-{phase}").as_uri()
        env.execute_sql(
            f"CREATE TABLE {names[stream]} (`key` STRING, `at` TIMESTAMP(3), `value` BIGINT, "
            "WATERMARK FOR `at` AS `at` - INTERVAL '1' SECOND) "
            f"WITH ('connector' = 'filesystem', 'format' = 'csv', 'path' = '{path}')"
        )
    return names


def query(options: argparse.Namespace, names: dict[str, str]) -> str:
    return QUERIES[options.query].format(**names)


def run(options: argparse.Namespace) -> dict:
    env = tables(options)
    warm = query(options, declare(env, options, "warm"))
    checksum = "SUM(total)" if options.query == "join" else "SUM(n)"
    rows_out, total = 0, 0
    # A bounded stream of totals: the last row holds them all.
    for row in env.execute_sql(f"SELECT COUNT(*), {checksum} FROM ({warm})").collect():
        rows_out, total = int(row[0]), int(row[1] or 0)
    print(f"progress: warm, {rows_out:,} results", flush=True)
    warm_s = time.time() - LAUNCHED_AT
    steady = query(options, declare(env, options, "steady"))
    columns = "window_start TIMESTAMP(3), `key` STRING, n BIGINT, total BIGINT, most BIGINT"
    if options.query == "join":
        columns = "`key` STRING, left_at TIMESTAMP(3), right_at TIMESTAMP(3), n BIGINT, total BIGINT"
    if options.query in PATTERNS:
        columns = "`key` STRING, n BIGINT, total BIGINT"
    env.execute_sql(f"CREATE TABLE nowhere ({columns}) WITH ('connector' = 'blackhole')")
    job = env.execute_sql(f"INSERT INTO nowhere {steady}").get_job_client()
    took_ms = job.get_job_execution_result().result().get_net_runtime()
    epochs = json.loads((options.input / "events.json").read_text())["epochs"]
    return {
        "version": f"apache-flink {flink_version}",
        "startup_s": warm_s,
        "steady_rows": sum(epoch["rows"] for epoch in epochs if epoch["phase"] == "steady"),
        "steady_s": took_ms / 1000,
        "warm_rows_out": rows_out,
        "warm_checksum": total,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--query", choices=list(QUERIES), required=True)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="an empty folder for checkpoints")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--backend", choices=["hashmap", "rocksdb"], required=True)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a further Flink option")
    options = parser.parse_args()
    options.result.write_text(json.dumps(run(options)))


if __name__ == "__main__":
    main()
