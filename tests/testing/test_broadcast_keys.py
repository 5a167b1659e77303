"""A broadcast row and the keys of a step: all of them gone over, none at all, and rows of several levels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.model.order import EpochLimits
from headrace.testing import Harness
from tests.testing.broadcast_limits import FILES, START, TINY, Hit, Job, Rule, Tx


class Keeper(hr.BroadcastProcess[Tx, Rule, Hit, str]):
    spent: hr.ValueState[int]
    by_size: hr.MapState[int, int]
    best: hr.ReducingState[int] = hr.state(reduce=max)
    quiet: hr.Timer
    visited: hr.Counter
    odd: hr.Side[str]

    def on_event(self, event: Tx, ctx: hr.Context[str]) -> None:
        self.spent.set(self.spent.get(0) + event.cents)
        self.by_size[event.cents] = self.by_size.get(event.cents, 0) + 1
        self.best.add(event.cents)

    def on_broadcast(self, event: Rule, ctx: hr.BroadcastContext[str]) -> None:
        def halve(key: str, spent: hr.ValueState[int]) -> Iterator[Hit]:
            self.visited.inc()
            self.odd.emit(key)
            if (left := spent.get(0) // 2) > 0:
                spent.set(left)
                yield Hit(key, event.name, left)
            else:
                spent.clear()

        if event.name == "halve":
            ctx.for_each_key(self.spent, halve)
        if event.name == "forget":
            ctx.for_each_key(self.by_size, lambda key, sizes: sizes.pop(event.limit, None))
        if event.name == "best":
            ctx.for_each_key(self.best, lambda key, best: [Hit(key, "best", best.get() or 0)])
        if event.name == "wake":
            ctx.for_each_key(self.spent, lambda key, spent: None)
            ctx.for_each_key(self.quiet, lambda key, quiet: quiet.clear())

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> None:
        pass


def keeper(store: Path | None = None, **options: Any) -> Job:
    job = Job.__new__(Job)
    job.app = hr.App("limits")
    job.tx = job.app.read("tx", hr.source.items([]), Tx, time=Tx.at)
    job.rules = job.app.read("rules", hr.source.items([]), Rule)
    job.step = job.tx.key_by(Tx.card).connect(job.rules.broadcast()).process(Keeper())
    job.odd = job.step.side(Keeper.odd)
    job.errors = None
    job.h = Harness(job.app, start=START, store=store, **options)
    return job


@pytest.mark.parametrize("limits", [None, TINY])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_for_each_key_visits_every_key_that_has_something(parallelism: int, limits: EpochLimits | None) -> None:
    with keeper(parallelism=parallelism, limits=limits) as job:
        job.epoch([], [Tx(f"k{i}", i) for i in range(1, 50)])
        hits = job.epoch([Rule("halve"), Rule("halve")], [Tx("new", 7)])
        spent = {f"k{i}": i // 4 for i in range(4, 50)}
        once = {f"k{i}": i // 2 for i in range(2, 50)}
        assert sorted((hit.card, hit.cents) for hit in hits) == sorted([*once.items(), *spent.items()])
        assert job.h.counters(job.step)["visited"] == 49 + len(once)
        assert job.odd is not None
        assert len(job.h.take(job.odd)) == 49 + len(once)
        assert {key: job.h.state(job.step, Keeper.spent, key) for key in spent} == spent
        assert job.h.state(job.step, Keeper.spent, "k1") is None
        assert job.h.state(job.step, Keeper.spent, "new") == 7, "rows come behind the rules of their epoch"


def test_for_each_key_reaches_entries_and_reduced_values() -> None:
    with keeper(parallelism=2) as job:
        job.epoch([], [Tx("a", 1), Tx("a", 2), Tx("b", 2), Tx("c", 3)])
        job.epoch([Rule("forget", 2)], [])
        assert job.h.state(job.step, Keeper.by_size, "a") == {1: 1}
        assert job.h.state(job.step, Keeper.by_size, "b") is None
        assert job.h.state(job.step, Keeper.by_size, "c") == {3: 1}
        hits = job.epoch([Rule("best")], [])
        assert sorted(hits, key=repr) == [Hit("a", "best", 2), Hit("b", "best", 2), Hit("c", "best", 3)]


@pytest.mark.parametrize("point", ["outputs_staged", "before_publish", "published"])
def test_what_for_each_key_did_dies_with_its_epoch(tmp_path: Path, point: str) -> None:
    with keeper(tmp_path, parallelism=2, limits=FILES) as job:
        job.epoch([], [Tx("a", 8), Tx("b", 4)])
        job.h.push(job.rules, Rule("halve"))
        job.h.crash(point)
        if job.h.published == 0:
            assert job.h.state(job.step, Keeper.spent, "a") == 8
            job.h.epoch()
        assert job.h.state(job.step, Keeper.spent, "a") == 4
        assert sorted(job.h.take(job.step), key=repr) == [Hit("a", "halve", 4), Hit("b", "halve", 2)]


# --- without a key, and over levels


class Tag(hr.BroadcastProcess[Tx, Rule, Hit]):
    names: hr.BroadcastState[int, str]
    seen: hr.Counter

    def on_broadcast(self, event: Rule, ctx: hr.BroadcastContext) -> None:
        self.names[event.limit or 0] = event.name

    def on_event(self, event: Tx, ctx: hr.Context) -> Iterator[Hit]:
        assert ctx.key is None
        self.seen.inc()
        yield Hit(event.card, self.names.get(event.cents, "?"), event.cents)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_rows_without_a_key_are_spread_and_meet_the_same_rules(parallelism: int) -> None:
    app = hr.App("tags")
    tx = app.read("tx", hr.source.items([]), Tx)
    rules = app.read("rules", hr.source.items([]), Rule)
    tagged = tx.connect(rules.broadcast()).process(Tag())
    with Harness(app, parallelism=parallelism) as h:
        h.push(rules, Rule("one", 1), Rule("two", 2))
        h.push(tx, *(Tx(f"c{i}", i % 4) for i in range(40)))
        h.epoch()
        names = {0: "?", 1: "one", 2: "two", 3: "?"}
        assert sorted(h.take(tagged), key=repr) == sorted(
            (Hit(f"c{i}", names[i % 4], i % 4) for i in range(40)), key=repr
        )
        assert h.counters(tagged) == {"seen": 40}


def test_a_broadcast_stream_may_come_out_of_a_keyed_step_and_cross_a_level() -> None:
    app = hr.App("levels")
    tx = app.read("tx", hr.source.items([]), Tx)
    rules = app.read("rules", hr.source.items([]), Rule)
    largest = tx.key_by(Tx.card).reduce(lambda a, b: a if a.cents > b.cents else b).named("largest")
    limits = largest.map(lambda row: Rule(row.card, row.cents), output=Rule).changes()
    first = tx.key_by(Tx.cents).connect(rules.broadcast()).process(Tag2())
    second = first.key_by(Hit.card).connect(limits.union(rules).broadcast()).process(Tag3())
    with Harness(app, parallelism=3) as h:
        h.push(tx, Tx("a", 5), Tx("b", 3), Tx("a", 9))
        h.push(rules, Rule("all", 1))
        h.epoch()
        assert h.state(second, Tag3.seen) == {"a": 9, "all": 1, "b": 3}
        assert sorted((hit.card, hit.cents) for hit in h.take(second)) == [("a", 5), ("a", 9), ("b", 3)]
        assert {hit.rule for hit in h.take(first)} == {"all"}


class Tag2(hr.BroadcastProcess[Tx, Rule, Hit, int]):
    names: hr.BroadcastState[str, int]

    def on_broadcast(self, event: Rule, ctx: hr.BroadcastContext[int]) -> None:
        self.names[event.name] = event.limit or 0

    def on_event(self, event: Tx, ctx: hr.Context[int]) -> Iterator[Hit]:
        yield Hit(event.card, ",".join(self.names), event.cents)


class Tag3(hr.BroadcastProcess[Hit, Rule, Hit, str]):
    seen: hr.BroadcastState[str, int]

    def on_broadcast(self, event: Rule, ctx: hr.BroadcastContext[str]) -> None:
        self.seen[event.name] = event.limit or 0

    def on_event(self, event: Hit, ctx: hr.Context[str]) -> Iterator[Hit]:
        yield event.replace(rule=",".join(self.seen))
