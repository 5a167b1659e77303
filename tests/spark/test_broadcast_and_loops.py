"""Broadcast state and feedback loops on real Spark, through restarts with other numbers of shards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.read.store import manifest_of

pytestmark = pytest.mark.spark


class Tx(hr.Record):
    card: str
    cents: int


class Rule(hr.Record):
    name: str
    limit: int


class Hit(hr.Record):
    card: str
    rule: str
    spent: int


class Over(hr.BroadcastProcess[Tx, Rule, Hit, str]):
    limits: hr.BroadcastState[str, int]
    spent: hr.ValueState[int]

    def on_broadcast(self, event: Rule, ctx: hr.BroadcastContext[str]) -> Iterator[Hit]:
        self.limits[event.name] = event.limit
        if event.name == "reset":
            ctx.for_each_key(self.spent, lambda key, spent: [Hit(key, "reset", spent.get(0))])
            ctx.for_each_key(self.spent, lambda key, spent: spent.clear())
        yield Hit("", event.name, event.limit)

    def on_event(self, event: Tx, ctx: hr.Context[str]) -> Iterator[Hit]:
        self.spent.set(spent := self.spent.get(0) + event.cents)
        for name, limit in self.limits.items():
            if event.cents > limit:
                yield Hit(ctx.key, name, spent)


def limits_app(tx: list[Tx], rules: list[Rule], sink: Any) -> hr.App:
    app = hr.App("limits")
    rows = app.read("tx", hr.source.items(tx), Tx)
    changes = app.read("rules", hr.source.items(rules), Rule)
    rows.key_by(Tx.card).connect(changes.broadcast()).process(Over()).write(sink)
    return app


def run(app: hr.App, spark: Any, store: Path, parallelism: int, until: Any = "caught_up") -> None:
    app.start(until=until, spark=spark, store=str(store), parallelism=parallelism, epoch="100ms").wait()


def as_text(hits: list[Hit]) -> list[str]:
    return sorted(f"{hit.card} {hit.rule} {hit.spent}" for hit in hits)


def test_broadcast_rules_are_the_same_on_every_shard(spark: Any, store_path: Path) -> None:
    sink = hr.sink.collect()
    tx = [Tx(f"c{i}", i) for i in range(20)]
    rules = [Rule("large", 15), Rule("huge", 18)]
    run(limits_app(tx, rules, sink), spark, store_path, 2)
    expected = [Hit("", "large", 15), Hit("", "huge", 18)]
    expected += [Hit(f"c{i}", "large", i) for i in range(16, 20)] + [Hit("c19", "huge", 19)]
    assert as_text(sink.rows) == as_text(expected)

    more = [*tx, *(Tx(f"c{i}", 100) for i in range(3))]
    sink.clear()
    run(limits_app(more, [*rules, Rule("reset", 1000)], sink), spark, store_path, 3)
    expected = [Hit("", "reset", 1000), *(Hit(f"c{i}", "reset", i) for i in range(20))]
    expected += [Hit(f"c{i}", rule, 100) for i in range(3) for rule in ("large", "huge")]
    assert as_text(sink.rows) == as_text(expected)
    assert dict(hr.Store(str(store_path)).state("over.limits", int)) == {"large": 15, "huge": 18, "reset": 1000}


class Job(hr.Record):
    name: str
    left: int
    at: hr.Timestamp
    rounds: int = 0


class Work(hr.Process[Job, Job, str]):
    seen: hr.ValueState[int]
    end: hr.Timer

    def on_event(self, event: Job, ctx: hr.Context[str]) -> Iterator[Job]:
        self.seen.set(self.seen.get(0) + 1)
        self.end.set(hr.Timestamp(10**17))
        yield event.replace(left=event.left - 1, rounds=event.rounds + 1)

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Job]:
        if not ctx.key.startswith("end"):
            yield Job(f"end {ctx.key}", 2, ctx.timestamp)


def jobs_app(jobs: list[Job], sink: Any) -> hr.App:
    app = hr.App("jobs")
    source = app.read("jobs", hr.source.items(jobs, per_epoch=4), Job, time=Job.at)
    again = app.loop("again", Job)
    worked = source.union(again).key_by(Job.name).process(Work())
    worked.where("left > 0").feed(again)
    worked.where("left <= 0").write(sink)
    return app


def test_rows_of_a_loop_go_round_until_they_are_done(spark: Any, store_path: Path) -> None:
    jobs = [Job(f"j{i}", i % 5 + 1, hr.Timestamp(i)) for i in range(12)]
    sink = hr.sink.collect()
    run(jobs_app(jobs[:7], sink), spark, store_path, 2)
    done = sorted((job.name, job.rounds) for job in sink.rows)
    assert done == sorted((job.name, job.left) for job in jobs[:7]), "a run that caught up left nothing in the loop"

    sink.clear()
    run(jobs_app(jobs, sink), spark, store_path, 3, until="drained")
    done = sorted((job.name, job.rounds) for job in sink.rows)
    at_the_end = [(f"end {job.name}", 2) for job in jobs]
    assert done == sorted([*((job.name, job.left) for job in jobs[7:]), *at_the_end])
    manifest = manifest_of(hr.Store(str(store_path)))
    assert (manifest.final, manifest.ending, manifest.loops) == (True, False, {})
