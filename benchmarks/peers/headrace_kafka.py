"""Headrace from Kafka to Kafka, exactly once: count and sum per key, JSON in, JSON out.

Ends when the topic is read (`--until caught_up`), or when a file `stop` lies in its folder.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import headrace as hr


class Event(hr.Record):
    key: str
    value: int
    at: int


class Counted(hr.Record):
    key: str
    count: int
    total: int
    at: int


class Totals(hr.Record):
    count: int
    total: int


NOTHING = Totals(0, 0)


class CountSum(hr.Process[Event, Counted, str]):
    totals: hr.ValueState[Totals]

    def on_event(self, event: Event, ctx: hr.Context[str]) -> Iterator[Counted]:
        before = self.totals.get(NOTHING)
        after = Totals(before.count + 1, before.total + event.value)
        self.totals.set(after)
        yield Counted(event.key, after.count, after.total, event.at)


def build(options: argparse.Namespace) -> hr.App:
    app = hr.App("end_to_end")
    source = hr.source.kafka(options.source, brokers=options.brokers, max_per_epoch=options.per_epoch)
    counted = app.read("events", source, Event).key_by(Event.key).process(CountSum())
    counted.write(hr.sink.kafka(options.sink, brokers=options.brokers))
    return app


def run(options: argparse.Namespace) -> dict:
    settings = {"store": str(options.work / "store"), "parallelism": 2, "master": "local[2]", "plain": True}
    if options.until == "stopped":
        settings["epoch"] = options.epoch
    running = build(options).start(until=options.until, **settings)
    while not running.wait(0.1):
        if (options.work / "stop").exists():
            running.stop()
    return {"version": f"headrace {hr.__version__}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--brokers", required=True)
    parser.add_argument("--source", required=True, help="topic to read")
    parser.add_argument("--sink", required=True, help="topic to write")
    parser.add_argument("--until", choices=["caught_up", "stopped"], required=True)
    parser.add_argument("--per-epoch", type=int, default=None)
    parser.add_argument("--epoch", default="50ms")
    parser.add_argument("--jars", default="", help="not used: Headrace finds its own")
    parser.add_argument("--work", type=Path, required=True, help="an empty folder")
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()
    options.result.write_text(json.dumps(run(options)))


if __name__ == "__main__":
    main()
