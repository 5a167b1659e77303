"""Impressions per key and window: as a job alone, with state that others may read, or flushing into Redis.

One epoch takes `--files-per-epoch` files; its time is from one published manifest to the next. What is flushed are the
windows that changed, every second; results of closed windows go to the discarding sink otherwise.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path

LAUNCHED_AT = time.time()

from published import Published  # noqa: E402
from redis_sink import RedisSink  # noqa: E402

import headrace as hr  # noqa: E402


class Event(hr.Record):
    key: str
    at: hr.Timestamp
    value: int


class Impressions(hr.Record):
    key: str
    window_start: hr.Timestamp
    n: int


def impressions(options: argparse.Namespace, sink: hr.Sink) -> hr.App:
    app = hr.App("impressions")
    folder = options.input / "events" / "parquet"
    source = hr.source.files(folder, format="parquet", max_files_per_epoch=options.files_per_epoch)
    events = app.read("events", source, Event, time=Event.at, out_of_order="1s")
    flushed = options.how.startswith("redis")
    windows = events.key_by(Event.key).window(hr.tumbling("10s"), fire=hr.early("1s") if flushed else None)
    per_key = windows.aggregate(Impressions, n=hr.count()).named("per_key")
    if options.how == "serve":
        per_key = per_key.queryable()
    per_key.write(sink)
    return app


def run(options: argparse.Namespace) -> dict:
    epochs = json.loads((options.input / "events.json").read_text())["epochs"]
    sink: hr.Sink = hr.sink.discard()
    if options.how.startswith("redis"):
        sink = RedisSink(options.redis_port, direct=options.how == "redis-direct")
    app = impressions(options, sink)
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
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--how", choices=["alone", "serve", "redis-staged", "redis-direct"], required=True)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="an empty folder")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--redis-port", type=int, default=6379)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--files-per-epoch", type=int, default=2)
    options = parser.parse_args()
    options.result.write_text(json.dumps(run(options)))


if __name__ == "__main__":
    main()
