"""A sink that is slower than the source, for minutes, and the memory of every process of the job meanwhile.

    python -m tests.slow_sink --seconds 120

The source has a new epoch of 50,000 rows at any moment; the sink takes a quarter of a second longer for each than it
needs. Nothing may pile up: neither rows that wait, nor what is kept of rows that are out. The last line says it:
``epochs N, rows N, driver A -> B MB, jvm A -> B MB, worker A -> B MB``, with the means of the second and of the last
quarter of the time (the first is warming up). It fails where a kind of process has grown by more than a quarter.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import headrace as hr
from benchmarks.lib.memory import own_memory

PER_EPOCH = 50_000
PAUSE_S = 0.25
WARM_EPOCHS = 5
"""Published before the first look: until then workers are forked, and the JVM loads its classes."""
GROWTH = 1.25
SLACK_BYTES = 24 * 1024 * 1024
"""What a process may grow by in any case: allocators hold on to what they once had."""
HEAP_BYTES = 512 * 1024 * 1024
JVM_BYTES = 2 * HEAP_BYTES
"""A JVM takes its heap little by little, so in a short run it grows: up to its heap, and at most as much beside it."""

Samples = dict[str, list[int]]


class Note(hr.Record):
    n: int
    text: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-slow-") as folder:
        return watch(Path(folder), given.seconds)


def watch(folder: Path, seconds: float) -> int:
    app, taken = hr.App("slow"), []
    notes = hr.source.generator(
        columns=lambda start, stop: {
            "n": range(start, stop),
            "text": [f"{n:0200d}" for n in range(start, stop)],
        },
        rate=None,
        per_epoch=PER_EPOCH,
    )

    def take_slowly(rows: list[Note], epoch: int) -> None:
        taken.append(len(rows))
        time.sleep(PAUSE_S)

    app.read("notes", notes, Note).write(hr.sink.call(take_slowly), name="slow")
    heap = {"driver.memory": f"{HEAP_BYTES >> 20}m"}
    run = app.start(store=folder / "store", master="local[2]", parallelism=2, epoch="10ms", spark=heap)
    samples: Samples = defaultdict(list)
    while run.epoch < WARM_EPOCHS:
        run.wait(0.1)
    started = time.monotonic()
    told = started
    while (now := time.monotonic()) < started + seconds:
        run.wait(0.5)
        for kind, size in own_memory(os.getpid()).items():
            samples[kind].append(size)
        if now - told > 10:
            told = now
            print(f"{now - started:4.0f} s  epoch {run.epoch:4}  {tell({k: v[-1:] for k, v in samples.items()})}")
    run.stop()
    grown = {kind: (quarter(sizes, 1), quarter(sizes, 3)) for kind, sizes in samples.items()}
    figures = ", ".join(f"{kind} {_mb(a)} -> {_mb(b)} MB" for kind, (a, b) in sorted(grown.items()))
    print(f"epochs {len(taken)}, rows {sum(taken):,}, {figures}")
    return any(late > allowed(kind, early) for kind, (early, late) in grown.items())


def allowed(kind: str, early: float) -> float:
    """What a kind of process may have at the end."""
    return JVM_BYTES if kind == "jvm" else max(early * GROWTH, early + SLACK_BYTES)


def quarter(sizes: list[int], number: int) -> float:
    length = max(1, len(sizes) // 4)
    return statistics.fmean(sizes[number * length : (number + 1) * length] or sizes[-1:])


def tell(last: Samples) -> str:
    return ", ".join(f"{kind} {_mb(sizes[0])} MB" for kind, sizes in sorted(last.items()) if sizes)


def _mb(size: float) -> str:
    return f"{size / 2**20:.0f}"


if __name__ == "__main__":
    sys.exit(main())
