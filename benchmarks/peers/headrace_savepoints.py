"""Savepoints of Headrace: how long the pin and a self-contained copy take, how large one is, how fast one starts.

The job is that of `headrace_process.py` and runs while savepoints are taken. With `--restore` a job starts from a copy,
in a session that is there already, and is measured from the call to its first published epoch. With `--warm` that
session has run the job before, from nothing and to its first published epoch.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from headrace_program import counting
from published import Published

import headrace as hr
from headrace.spark.session import make_session
from headrace.state.copying import copy_savepoint
from headrace.state.savepoints import create_savepoint
from headrace.state.store import open_store

POLL_S = 0.1


def measured(options: argparse.Namespace) -> dict:
    epochs = json.loads((options.input / "events.json").read_text())["epochs"]
    app = counting(options.input / "parquet", options.files_per_epoch, hr.sink.discard())
    store = options.work / "store"
    running = app.start(until="stopped", store=str(store), parallelism=2, master="local[2]", plain=True)
    said = -1
    while running.epoch < len(epochs) - 1:
        running.wait(POLL_S)
        if running.epoch > said:
            said = running.epoch
            print(f"progress: epoch {said} of {len(epochs)}", flush=True)
    files = open_store(str(store))
    began = time.perf_counter()
    savepoint = create_savepoint(files)
    pinned = time.perf_counter()
    report = copy_savepoint(files, savepoint, open_store(str(options.savepoints / "copy")))
    copied = time.perf_counter()
    running.stop()
    return {
        "pin_s": pinned - began,
        "copy": {
            "seconds": copied - pinned,
            "bytes": sum(file.stat().st_size for file in (options.savepoints / "copy").rglob("*") if file.is_file()),
            "path": report.url,
        },
    }


def restored(options: argparse.Namespace) -> dict:
    app = counting(options.input / "parquet", options.files_per_epoch, hr.sink.discard())
    session = make_session("counting", f"local[{options.parallelism}]", {})
    # The session is up when it has run something; Python workers are not, as Flink's are not.
    session.range(1).count()
    if options.warm:
        settings = {"store": str(options.work / "before"), "parallelism": options.parallelism, "spark": session}
        before = app.start(until="stopped", plain=True, **settings)
        while before.epoch < 0:
            before.wait(POLL_S)
        before.stop()
    published = Published(Path(options.restore), 1)
    published.start()
    began = time.time()
    app.run(until="caught_up", spark=session, store=options.restore, parallelism=options.parallelism, plain=True)
    return {"restore_s": published.finish()[0] - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="an empty folder")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--savepoints", type=Path, required=True, help="where the copy goes")
    parser.add_argument("--restore", help="a copy to start from")
    parser.add_argument("--warm", action="store_true", help="have run the job in this session before")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--files-per-epoch", type=int, default=2)
    options = parser.parse_args()
    found = restored(options) if options.restore else measured(options)
    options.result.write_text(json.dumps({"version": f"headrace {hr.__version__}", **found}))


if __name__ == "__main__":
    main()
