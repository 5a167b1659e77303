"""Headrace under a trickle: how long a whole epoch takes when there is hardly anything to do, and where the time goes.

Epochs follow one another without a pause, so the time from one published manifest to the next, by the clock of the file
system, is a whole epoch with everything it costs. The parts come from what each manifest says of itself. This is the
only place that knows the words of a manifest.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

from headrace_program import trickle

import headrace as hr
from headrace.read.store import Store, newest_manifests
from headrace.state.manifest import Manifest

KEYS = 10_000


def run(options: argparse.Namespace) -> dict:
    sink = hr.sink.discard()
    app = trickle(options.steps, options.rate, KEYS, sink)
    folder = options.work / "store"
    running = app.start(
        until="stopped",
        store=str(folder),
        parallelism=2,
        master="local[2]",
        epoch="1ms",
        retain=1_000_000,
        plain=True,
    )
    wait(running, options)
    running.stop()
    return result(folder, options)


def wait(running: Any, options: argparse.Namespace) -> None:
    """Until enough epochs were published after those that warm up."""
    shown = 0
    while running.epoch < options.warm_up + options.epochs:
        time.sleep(0.5)
        running.wait(0)
        if running.epoch >= shown + 50:
            shown = running.epoch
            print(f"progress: epoch {shown} of {options.warm_up + options.epochs}", flush=True)


def result(folder: Path, options: argparse.Namespace) -> dict:
    files = sorted(folder.glob("manifests/*/*.json"))
    # Manifests are made as temporary files and then linked: the moment of writing is their modification time.
    published = {int(file.stem): file.stat().st_mtime for file in files}
    manifests = {manifest.epoch: manifest for manifest in newest_manifests(Store(folder))}
    pairs = [
        (manifests[later], (published[later] - published[earlier]) * 1000)
        for earlier, later in itertools.pairwise(sorted(published))
        if later > options.warm_up
    ]
    return {
        "version": f"headrace {hr.__version__}",
        "steps": options.steps,
        "epoch_ms": [took for _, took in pairs],
        "rows_per_epoch": median(rows_read(manifest) for manifest, _ in pairs),
        "parts_ms": parts_ms(pairs),
    }


def rows_read(manifest: Manifest) -> int:
    """Rows that came into the first keyed step."""
    return sum(counts.get("rows_in", 0) for task in manifest.tasks for counts in [task.steps.get("count_sum", {})])


def parts_ms(pairs: list[tuple[Manifest, float]]) -> dict[str, float]:
    """Medians: what the driver did in an epoch, what is left for Spark between two of them, and what tasks did."""
    parts: dict[str, list[float]] = {}
    for manifest, took in pairs:
        driver = {name: us / 1000 for name, us in manifest.took_us.items() if name != "between"}
        for name, ms in driver.items():
            parts.setdefault(f"driver: {name}", []).append(ms)
        parts.setdefault("Spark between epochs, publishing, release", []).append(max(0.0, took - sum(driver.values())))
        for task in manifest.tasks:
            for name, us in task.times_us.items():
                parts.setdefault(f"task level {task.level}: {name}", []).append(us / 1000)
    return {name: median(values) for name, values in parts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="an empty folder for the store")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--steps", type=int, choices=[1, 2, 3], required=True)
    parser.add_argument("--rate", type=float, default=1000)
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--warm-up", type=int, default=100, help="epochs before anything is measured")
    options = parser.parse_args()
    options.result.write_text(json.dumps(run(options)))


if __name__ == "__main__":
    main()
