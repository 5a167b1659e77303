"""Savepoints of PyFlink over RocksDB: how long they take, how large they are, how fast a job starts from one.

Stands alone: runs in an environment that has `apache-flink` and nothing of ours. The job is that of `flink_process.py`
with a source that goes on looking for files, so that it runs while savepoints are taken. Flink's own REST interface
triggers them and tells their times and sizes; with `--restore` the job starts from a savepoint and is measured from the
moment when the cluster has taken it to its first result. With `--warm` the same process has run the job before, from
nothing and to its first result: classes are loaded then, code is compiled, and the interpreter that runs the function
is there.
"""

from __future__ import annotations

import argparse
import json
import socket
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

# First: it tells the interpreter that Flink embeds where to look.
from flink_process import JobClient, Samples, build, cancel, flink_version, _whole_lines  # isort: skip

POLL_S = 0.05
DONE_POLL_S = 0.01
"""How often a savepoint that is being taken is asked for: what is measured is a little longer than that."""
LOOK_S = 0.5
MONITOR = "20 ms"
"""How often the source looks for new files. A restored job looks for the first time after so long, so a longer interval
would be measured instead of the start."""


class Cluster:
    """Flink's REST interface of one job."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.job = ""

    def find_job(self) -> dict:
        """The description of the only job; waits until the cluster has taken it."""
        while True:
            try:
                jobs = self.get("/jobs/overview")["jobs"]
            except OSError:
                jobs = []
            if jobs:
                self.job = jobs[0]["jid"]
                return self.get(f"/jobs/{self.job}")
            time.sleep(POLL_S)

    def get(self, path: str) -> dict:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as answer:
            return json.load(answer)

    def post(self, path: str, body: dict) -> dict:
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def operate(self, kind: str, body: dict) -> tuple[float, dict]:
        """Triggers a savepoint or checkpoint; the seconds until it is done, and what it says of itself."""
        began = time.perf_counter()
        trigger = self.post(f"/jobs/{self.job}/{kind}", body)["request-id"]
        while True:
            answer = self.get(f"/jobs/{self.job}/{kind}/{trigger}")
            if answer["status"]["id"] == "COMPLETED":
                taken = time.perf_counter() - began
                if "failure-cause" in answer["operation"]:
                    raise SystemExit(f"{kind}: {answer['operation']['failure-cause']}")
                return taken, answer["operation"]
            time.sleep(DONE_POLL_S)


def run(options: argparse.Namespace) -> dict:
    if options.warm:
        job, _, done = start(options, options.work / "before")
        wait_for_rows(options.work / "before", 1, done)
        cancel(job)
    settings = [f"execution.state-recovery.path={options.restore}"] if options.restore else []
    samples = options.work / "samples"
    job, cluster, done = start(options, samples, settings)
    described = cluster.find_job()
    found = restored(samples, done, described) if options.restore else measured(cluster, samples, done, options)
    cancel(job)
    return {"version": f"apache-flink {flink_version}", **found}


def start(
    options: argparse.Namespace, samples: Path, settings: Sequence[str] = ()
) -> tuple[JobClient, Cluster, object]:
    """The job on a cluster of its own, that cluster, and what says when the job has ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ours = [
        "state.backend.type=rocksdb",
        "execution.checkpointing.incremental=true",
        "execution.checkpointing.interval=1 h",
        f"rest.port={port}",
        f"rest.bind-port={port}",
    ]
    samples.mkdir(parents=True)
    described = argparse.Namespace(**{**vars(options), "set": [*options.set, *ours, *settings]})
    job = build(described, samples, source={"source.monitor-interval": MONITOR}).execute_async("savepoints")
    return job, Cluster(port), job.get_job_execution_result()


def restored(samples: Path, done: object, described: dict) -> dict:
    """Seconds from the moment when the cluster had taken the job to its first result."""
    wait_for_rows(samples, 1, done)
    return {"restore_s": Samples(samples).began_at - described["timestamps"]["INITIALIZING"] / 1000}


def measured(cluster: Cluster, samples: Path, done: object, options: argparse.Namespace) -> dict:
    total = sum(epoch["rows"] for epoch in json.loads((options.input / "events.json").read_text())["epochs"])
    wait_for_rows(samples, total, done)
    found = {}
    # The first checkpoint takes along what is in memory; the second has a small change to write, as each of a job has.
    for name in ("first_checkpoint", "checkpoint"):
        found[f"{name}_s"], _ = cluster.operate("checkpoints", {"checkpointType": "CONFIGURED"})
    for form in ("NATIVE", "CANONICAL"):
        folder = options.savepoints / form.lower()
        seconds, operation = cluster.operate("savepoints", {"target-directory": folder.as_uri(), "formatType": form})
        path = Path(operation["location"].removeprefix("file:"))
        found[form.lower()] = {
            "seconds": seconds,
            "bytes": sum(file.stat().st_size for file in path.rglob("*") if file.is_file()),
            "path": str(path),
        }
    return found


def wait_for_rows(samples: Path, rows: int, done: object) -> None:
    """Until the subtasks have seen so many rows; the last thousand of each are not written down."""
    said = 0.0
    while True:
        if done.done():
            # A job that goes on for ever has failed: this raises what it failed with.
            done.result()
        lasts = [lines[-1].split() for lines in map(_whole_lines, samples.glob("*.txt")) if lines]
        seen = sum(int(last[1]) for last in lasts)
        if seen > max(0, rows - 1_000 * max(1, len(lasts))):
            return
        if time.time() - said > 5:
            said = time.time()
            print(f"progress: {seen:,} of {rows:,} rows", flush=True)
        time.sleep(LOOK_S if rows > 1 else POLL_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="an empty folder for checkpoints and samples")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--savepoints", type=Path, required=True, help="where savepoints go")
    parser.add_argument("--restore", help="a savepoint to start from")
    parser.add_argument("--warm", action="store_true", help="have run the job in this process before")
    parser.add_argument("--mode", choices=["thread", "process"], default="thread")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a further Flink option")
    options = parser.parse_args()
    options.result.write_text(json.dumps(run(options)))


if __name__ == "__main__":
    main()
