"""Headrace over the same rows with event time: aggregates of windows of several kinds, or an interval join.

One epoch takes `--files-per-epoch` files; its time is from one published manifest to the next. Results go to the
discarding sink.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path

LAUNCHED_AT = time.time()

from published import Published  # noqa: E402

import headrace as hr  # noqa: E402


class Event(hr.Record):
    key: str
    at: hr.Timestamp
    value: int


class Pair(hr.Record):
    key: str
    left_at: hr.Timestamp
    right_at: hr.Timestamp
    value: int


def read(app: hr.App, options: argparse.Namespace, stream: str) -> hr.Stream[Event]:
    source = hr.source.files(
        options.input / stream / "parquet", format="parquet", max_files_per_epoch=options.files_per_epoch
    )
    return app.read(stream, source, Event, time=Event.at, out_of_order="1s")


def windows(options: argparse.Namespace, sink: hr.Sink) -> hr.App:
    window = hr.session("5s") if options.program == "sessions" else hr.tumbling("10s")
    fire = hr.early("1s") if options.program == "windows-early" else None
    aggregates = {"n": hr.count(), "total": hr.sum(Event.value), "most": hr.max(Event.value)}
    if options.program == "distinct":
        aggregates = {"n": hr.count(), "different": hr.count_distinct(Event.value)}
    app = hr.App(options.program.replace("-", "_"))
    events = read(app, options, "events").key_by(Event.key)
    events.window(window, fire=fire).aggregate(**aggregates).named("per_key").write(sink)
    return app


def join(options: argparse.Namespace, sink: hr.Sink) -> hr.App:
    app = hr.App("join")
    left, right = read(app, options, "left"), read(app, options, "right")
    pairs = left.key_by(Event.key).join(right.key_by(Event.key), within=("0s", "10s"))
    made = pairs.select(Pair, key="left.key", left_at="left.at", right_at="right.at", value="right.value")
    made.named("pairs").write(sink)
    return app


PROGRAMS = {**dict.fromkeys(("windows", "windows-early", "sessions", "distinct"), windows), "join": join}


def run(options: argparse.Namespace) -> dict:
    epochs = json.loads((options.input / "events.json").read_text())["epochs"]
    sink = hr.sink.discard()
    app = PROGRAMS[options.program](options, sink)
    store = options.work / "store"
    published = Published(store, len(epochs))
    published.start()
    app.run(
        until="caught_up",
        store=str(store),
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
        "rows_out": sink.count,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", choices=list(PROGRAMS), required=True)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="an empty folder")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--files-per-epoch", type=int, default=2)
    options = parser.parse_args()
    options.result.write_text(json.dumps(run(options)))


if __name__ == "__main__":
    main()
