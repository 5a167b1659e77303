"""Headrace over the same rows: count and sum per key, one output row per event.

One epoch takes `--files-per-epoch` files; its time is from one published manifest to the next by the clock of the file
system, so nothing that an epoch costs is left out, and no figure is Headrace's own. Results go to the discarding sink.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path

LAUNCHED_AT = time.time()

from headrace_program import counting  # noqa: E402
from published import Published  # noqa: E402

import headrace as hr  # noqa: E402


def run(options: argparse.Namespace) -> dict:
    epochs = json.loads((options.input / "events.json").read_text())["epochs"]
    sink = hr.sink.discard()
    app = counting(options.input / "parquet", options.files_per_epoch, sink)
    published = Published(options.store, len(epochs))
    published.start()
    app.run(
        until="caught_up",
        store=str(options.store),
        parallelism=options.parallelism,
        master=f"local[{options.parallelism}]",
        plain=True,
    )
    times = published.finish()
    if options.again:
        return {"startup_s": times[0] - LAUNCHED_AT}
    if len(times) < len(epochs):
        raise SystemExit(f"{len(epochs)} epochs were to be published, {len(times)} were")
    first = next(n for n, epoch in enumerate(epochs) if epoch["phase"] == "steady")
    steady = times[first - 1 : len(epochs)]
    return {
        "version": f"headrace {hr.__version__}",
        "startup_s": times[0] - LAUNCHED_AT,
        "steady_rows": sum(epoch["rows"] for epoch in epochs[first:]),
        "steady_s": steady[-1] - steady[0],
        "steady_epoch_s": [later - earlier for earlier, later in itertools.pairwise(steady)],
        "rows_out": sink.count,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="an empty folder")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--again", action="store_true", help="a second start: measure the time to its first epoch only")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--files-per-epoch", type=int, default=2)
    options = parser.parse_args()
    options.result.write_text(json.dumps(run(options)))


if __name__ == "__main__":
    main()
