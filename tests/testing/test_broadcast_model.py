"""Broadcast and loops against plain Python: random rows, epochs, crashes, restarts and numbers of shards.

The models know nothing of shards. Of a broadcast program: the rules of an epoch in order, then its other rows. Of a
loop: what was fed in one epoch comes in the next.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.model.order import EpochLimits
from headrace.testing import Harness
from tests.effort import examples

KEYS = "abcd"
START = "1970-01-01T00:00:00"
BEFORE = (
    "offsets_written",
    "state_opening",
    "outputs_staged",
    "reports_collected",
    "before_publish",
    "manifest_written",
)
BEHIND = ("manifest_answer_lost", "published", "released")


class Event(hr.Record):
    key: str
    x: int


class Order(hr.Record):
    op: str
    name: str
    x: int


class Said(hr.Record):
    key: str
    what: str


class Machine(hr.BroadcastProcess[Event, Order, Said, str]):
    limits: hr.BroadcastState[str, int]
    log: hr.BroadcastState[int, str]
    total: hr.ValueState[int]
    marks: hr.MapState[int, int]
    counted: hr.Counter

    def on_event(self, event: Event, ctx: hr.Context[str]) -> Iterator[Said]:
        self.total.set(total := self.total.get(0) + event.x)
        self.marks[event.x] = self.marks.get(event.x, 0) + 1
        self.counted.inc()
        yield Said(ctx.key, f"{total} {[name for name, limit in self.limits.items() if event.x > limit]}")

    def on_broadcast(self, event: Order, ctx: hr.BroadcastContext[str]) -> Iterator[Said]:
        self.log[len(self.log)] = event.op
        self.counted.inc()

        def add(key: str, total: hr.ValueState[int]) -> Iterator[Said]:
            self.counted.inc()
            total.set(total.get(0) + event.x)
            yield Said(key, f"added {total.get()}")

        def wipe(key: str, marks: hr.MapState[int, int]) -> list[Said]:
            gone = marks.pop(event.x, None)
            return [] if gone is None else [Said(key, f"wiped {gone}")]

        match event.op:
            case "set":
                self.limits[event.name] = event.x
            case "drop":
                self.limits.pop(event.name, None)
            case "clear":
                self.limits.clear()
            case "add":
                ctx.for_each_key(self.total, add)
            case "wipe":
                ctx.for_each_key(self.marks, wipe)
            case "forget":
                ctx.for_each_key(self.total, lambda key, total: total.clear())
            case "say":
                yield Said("", f"{list(self.limits.items())}")


class Model:
    def __init__(self) -> None:
        self.limits: dict[str, int] = {}
        self.log: list[str] = []
        self.total: dict[str, int] = {}
        self.marks: dict[str, dict[int, int]] = {}
        self.said: dict[str, list[str]] = {}
        self.counted = 0

    def say(self, key: str, what: str) -> None:
        self.said.setdefault(key, []).append(what)

    def epoch(self, orders: list[Order], events: list[Event]) -> None:
        for order in orders:
            self.obey(order)
        for event in events:
            self.counted += 1
            total = self.total[event.key] = self.total.get(event.key, 0) + event.x
            marks = self.marks.setdefault(event.key, {})
            marks[event.x] = marks.get(event.x, 0) + 1
            self.say(event.key, f"{total} {[name for name in sorted(self.limits) if event.x > self.limits[name]]}")

    def obey(self, order: Order) -> None:
        self.log.append(order.op)
        self.counted += 1
        match order.op:
            case "set":
                self.limits[order.name] = order.x
            case "drop":
                self.limits.pop(order.name, None)
            case "clear":
                self.limits.clear()
            case "add":
                for key in self.total:
                    self.counted += 1
                    self.total[key] += order.x
                    self.say(key, f"added {self.total[key]}")
            case "wipe":
                for key, marks in self.marks.items():
                    if order.x in marks:
                        self.say(key, f"wiped {marks.pop(order.x)}")
            case "forget":
                self.total.clear()
            case "say":
                self.say("", f"{sorted(self.limits.items())}")


class Epoch(NamedTuple):
    first: list[Any]
    second: list[Any]
    events: list[Any]
    deaths: list[tuple[str, int]]
    """Points where attempts die before the epoch succeeds, and on how many shards it is tried again (0: as before)."""
    end: str
    """How the epoch comes about: in peace, or dying at a point behind its publication."""
    shards: int
    """How many shards there are from now on; 0 leaves them."""
    maintained: bool


def epochs_of(first: Any, second: Any, events: Any) -> Any:
    return st.builds(
        Epoch,
        st.lists(first, max_size=4),
        st.just([]) if second is None else st.lists(second, max_size=3),
        st.lists(events, max_size=8),
        st.lists(st.tuples(st.sampled_from(BEFORE), st.sampled_from([0, 0, 1, 3])), max_size=1),
        st.sampled_from(["", "", "", *BEHIND]),
        st.sampled_from([0, 0, 1, 2, 3]),
        st.booleans(),
    )


limits = st.builds(
    EpochLimits,
    inline_run_bytes=st.sampled_from([0, 16 * 1024]),
    inline_output_bytes=st.sampled_from([0, 32 * 1024]),
    overlay_bytes=st.sampled_from([1, 256 * 1024 * 1024]),
)
unhurried = settings(
    max_examples=examples(20), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


class Played:
    """A program on one store, through deaths, restarts and changes of the number of shards."""

    def __init__(self, limits: EpochLimits) -> None:
        self.store = tempfile.mkdtemp(prefix="headrace-model-")
        self.limits = limits
        self.queued: dict[str, list[Any]] = {}
        self.open(2)

    def build(self) -> tuple[hr.App, dict[str, hr.Stream[Any]]]:
        """The program, and its sources by name."""
        raise NotImplementedError

    def take(self) -> None:
        raise NotImplementedError

    def open(self, parallelism: int) -> None:
        app, self.sources = self.build()
        self.h = Harness(app, start=START, store=self.store, parallelism=parallelism, limits=self.limits)
        self.push(self.queued)

    def push(self, rows: dict[str, list[Any]]) -> None:
        self.queued = rows
        for name, mine in rows.items():
            self.h.push(self.sources[name], *mine)

    def reopen(self, parallelism: int) -> None:
        self.take()
        self.h.close()
        self.open(parallelism)

    def play(self, epoch: Epoch, rows: dict[str, list[Any]]) -> None:
        self.push(rows)
        for point, shards in epoch.deaths:
            self.h.crash(point)
            if shards:
                self.reopen(shards)
        if epoch.end:
            self.h.crash(epoch.end)
        else:
            self.h.epoch()
        self.queued = {}
        if epoch.maintained:
            self.h.maintain()
        if epoch.shards:
            self.reopen(epoch.shards)

    def close(self) -> None:
        self.h.close()
        shutil.rmtree(self.store, ignore_errors=True)


class PlayedMachine(Played):
    def __init__(self, limits: EpochLimits) -> None:
        self.said: dict[str, list[str]] = {}
        super().__init__(limits)

    def build(self) -> tuple[hr.App, dict[str, hr.Stream[Any]]]:
        app = hr.App("machine")
        first = app.read("first", hr.source.items([]), Order)
        events = app.read("events", hr.source.items([]), Event)
        second = app.read("second", hr.source.items([]), Order)
        orders = first.union(second.map(lambda order: order, output=Order))
        self.step = events.key_by(Event.key).connect(orders.broadcast()).process(Machine())
        return app, {"first": first, "second": second, "events": events}

    def take(self) -> None:
        for row in self.h.take(self.step):
            self.said.setdefault(row.key, []).append(row.what)


small = st.integers(0, 5)
ORDERS = ["set", "set", "drop", "clear", "add", "wipe", "forget", "say"]
orders = st.builds(Order, st.sampled_from(ORDERS), st.sampled_from("pqr"), small)
events = st.builds(Event, st.sampled_from(KEYS), small)


@unhurried
@given(epochs=st.lists(epochs_of(orders, orders, events), min_size=1, max_size=6), limits=limits)
def test_broadcast_on_any_shards_equals_rules_first_on_one(epochs: list[Epoch], limits: EpochLimits) -> None:
    played, model = PlayedMachine(limits), Model()
    try:
        for epoch in epochs:
            played.play(epoch, {"first": epoch.first, "second": epoch.second, "events": epoch.events})
            model.epoch([*epoch.first, *epoch.second], epoch.events)
        played.take()
        h, step = played.h, played.step
        assert played.said == model.said
        assert h.state(step, Machine.limits) == model.limits
        assert h.state(step, Machine.log) == dict(enumerate(model.log))
        assert {key: h.state(step, Machine.total, key) for key in KEYS} == {key: model.total.get(key) for key in KEYS}
        kept = {key: model.marks.get(key) or None for key in KEYS}
        assert {key: h.state(step, Machine.marks, key) for key in KEYS} == kept
        assert h.counters(step).get("counted", 0) == model.counted
    finally:
        played.close()


class Task(hr.Record):
    key: str
    left: int
    fan: int
    at: hr.Timestamp


class Seen(hr.Record):
    key: str
    left: int
    at: int
    epoch: int


class Spread(hr.Process[Task, Task, str]):
    count: hr.ValueState[int]
    seen: hr.Side[Seen]

    def on_event(self, event: Task, ctx: hr.Context[str]) -> Iterator[Task]:
        self.count.set(self.count.get(0) + 1)
        self.seen.emit(Seen(event.key, event.left, int(ctx.timestamp), ctx.epoch))
        yield from following(event)


def following(task: Task) -> list[Task]:
    """What becomes of a task: one with less to do, and some more under other keys."""
    if task.left <= 0:
        return []
    other = KEYS[(KEYS.index(task.key) + 1) % len(KEYS)]
    rest = task.replace(left=task.left - 1)
    return [rest] + [rest.replace(key=other, fan=task.fan - 1)] * (task.fan > 0)


class PlayedLoop(Played):
    def __init__(self, limits: EpochLimits) -> None:
        self.seen: Counter[Seen] = Counter()
        super().__init__(limits)

    def build(self) -> tuple[hr.App, dict[str, hr.Stream[Any]]]:
        app = hr.App("loop")
        first = app.read("first", hr.source.items([]), Task, time=Task.at)
        events = app.read("events", hr.source.items([]), Task, time=Task.at)
        again = app.loop("again", Task)
        tasks = first.union(events, again.map(lambda task: task, output=Task))
        self.step = tasks.key_by(Task.key).process(Spread())
        self.step.feed(again)
        self.seen_rows = self.step.side(Spread.seen)
        return app, {"first": first, "events": events}

    def take(self) -> None:
        self.seen.update(self.h.take(self.seen_rows))


tasks = st.builds(Task, st.sampled_from(KEYS), st.integers(0, 3), st.integers(0, 2), st.integers(0, 60))


@unhurried
@given(epochs=st.lists(epochs_of(tasks, None, tasks), min_size=1, max_size=6), limits=limits)
def test_a_loop_through_any_deaths_equals_rows_that_come_an_epoch_later(
    epochs: list[Epoch], limits: EpochLimits
) -> None:
    played = PlayedLoop(limits)
    expected: Counter[Seen] = Counter()
    counts: Counter[str] = Counter()
    fed: list[Task] = []
    number = 0
    try:
        for epoch in epochs:
            played.play(epoch, {"first": epoch.first, "events": epoch.events})
        while number < len(epochs) or fed:
            mine = [*epochs[number].first, *epochs[number].events] if number < len(epochs) else []
            if number >= len(epochs):
                played.h.epoch()
            here = [*mine, *fed]
            expected.update(Seen(task.key, task.left, int(task.at), number) for task in here)
            counts.update(task.key for task in here)
            fed = [task for each in here for task in following(each)]
            number += 1
        played.take()
        assert played.seen == expected
        assert {key: played.h.state(played.step, Spread.count, key) or 0 for key in KEYS} == {
            k: counts[k] for k in KEYS
        }
        played.h.drain()
        played.take()
        assert played.seen == expected, "nothing is left in the loop"
    finally:
        played.close()
