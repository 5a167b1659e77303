"""A whole program against plain dictionaries: random rows, epochs, crashes, restarts and numbers of shards.

Rows are commands to one process function that has every kind of state and timer; the model carries the same commands
out on dictionaries. Whatever is cut into which epoch, wherever epochs die, however many shards there are after the next
restart: what the function said, key by key and in order, what went wrong, what was counted, and what is kept at the end
must be the same.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.model import crash
from headrace.model.order import EpochLimits
from headrace.testing import Harness
from tests.effort import examples

KEYS = "abcd"
MAX_LEN = 3
WALL_TTL_US = 30
EVENT_TTL_US = 25

BEFORE = ("offsets_written", "state_opening", "in_function", "outputs_staged", "reports_collected", "before_publish",
          "manifest_written")  # fmt: skip
BEHIND = ("manifest_answer_lost", "published", "released")


class Command(hr.Record):
    key: str
    op: str
    x: int
    y: int
    at: hr.Timestamp


class Seen(hr.Record):
    key: str
    what: str


class Machine(hr.Process[Command, Seen, str]):
    value: hr.ValueState[int]
    brief: hr.ValueState[int] = hr.state(ttl=timedelta(microseconds=WALL_TTL_US))
    items: hr.ListState[int]
    newest: hr.ListState[int] = hr.state(max_len=MAX_LEN)
    map: hr.MapState[int, int]
    aged: hr.MapState[int, int] = hr.state(ttl=hr.ttl(timedelta(microseconds=EVENT_TTL_US), clock="event"))
    least: hr.ReducingState[int] = hr.state(reduce=min)
    timer: hr.Timer
    many: hr.Timers
    wall: hr.WallTimer
    done: hr.Counter

    def on_event(self, event: Command, ctx: hr.Context[str]) -> Iterator[Seen]:
        seen = self.obey(event.op, event.x, event.y)
        crash.reach("in_function", ctx.epoch)
        if event.op == "fail":
            raise ValueError(f"{event.key} {event.x}")
        self.done.inc()
        if seen is not None:
            yield Seen(ctx.key, f"{event.op} {seen}")

    def obey(self, op: str, x: int, y: int) -> Any:
        match op:
            case "set":
                self.value.set(x)
                self.brief.set(y)
            case "unset":
                self.value.clear()
            case "get":
                return [self.value.get(), self.brief.get()]
            case "append":
                self.items.append(x)
                self.newest.extend([x, y])
            case "empty":
                self.items.clear()
            case "list":
                return [list(self.items), len(self.items), list(self.newest)]
            case "put":
                self.map[x] = self.aged[x] = y
            case "drop":
                return self.map.pop(x, None)
            case "wipe":
                self.map.clear()
            case "walk":
                return [list(self.map.items()), x in self.map, list(self.aged.items()), self.aged.get(x)]
            case "add":
                self.least.add(x)
            case "sums":
                return [self.least.get()]
            case "forget":
                self.least.clear()
            case "alarm":
                self.timer.set(hr.Timestamp(10 * x))
                self.wall.set(hr.Timestamp(10 * y))
            case "calm":
                self.timer.clear()
            case "ring":
                self.many.add(hr.Timestamp(10 * x))
                self.many.add(hr.Timestamp(10 * y))
            case "unring":
                self.many.discard(hr.Timestamp(10 * x))
            case "clocks":
                return [self.timer.get(), self.wall.get(), list(self.many)]
            case "fail":
                for each in ("set", "append", "put", "wipe", "ring", "alarm", "add"):
                    self.obey(each, x, y)
        return None

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Seen]:
        yield Seen(ctx.key, f"{timer.name} at {ctx.timestamp}, {self.value.get()}")
        if timer.name == "many" and ctx.timestamp % 30 == 0:
            self.many.add(hr.Timestamp(ctx.timestamp + 10))
            self.value.set(int(ctx.timestamp))


class Model:
    """The same on plain Python objects."""

    def __init__(self) -> None:
        self.keys: dict[str, dict[str, Any]] = {}
        self.said: dict[str, list[str]] = {}
        self.failed = 0
        self.done = 0
        self.watermark: int | None = None
        self.clock = 0

    def key(self, key: str) -> dict[str, Any]:
        fresh: dict[str, Any] = {"value": None, "brief": None, "items": [], "newest": [], "map": {}, "aged": {}}
        return self.keys.setdefault(key, fresh | {"least": None, "timer": None, "many": set(), "wall": None})

    def epoch(self, commands: list[Command], watermark: int, clock: int) -> None:
        self.clock = clock
        for command in commands:
            if command.op == "fail":
                self.failed += 1
            else:
                self.done += 1
                self.obey(command)
        self.watermark = max(watermark, watermark if self.watermark is None else self.watermark)
        self.fire()

    def brief(self, s: dict[str, Any]) -> int | None:
        return s["brief"][0] if s["brief"] is not None and s["brief"][1] > self.clock else None

    def aged(self, s: dict[str, Any]) -> dict[int, int]:
        live = {x: y for x, (y, expires) in s["aged"].items() if self.watermark is None or expires > self.watermark}
        return dict(sorted(live.items()))

    def obey(self, command: Command) -> None:
        s, op, x, y = self.key(command.key), command.op, command.x, command.y
        seen: Any = None
        match op:
            case "set":
                s["value"], s["brief"] = x, (y, self.clock + WALL_TTL_US)
            case "unset":
                s["value"] = None
            case "get":
                seen = [s["value"], self.brief(s)]
            case "append":
                s["items"] = [*s["items"], x]
                s["newest"] = [*s["newest"], x, y][-MAX_LEN:]
            case "empty":
                s["items"] = []
            case "list":
                seen = [s["items"], len(s["items"]), s["newest"]]
            case "put":
                known = command.at if self.watermark is None else max(command.at, self.watermark)
                s["map"][x], s["aged"][x] = y, (y, known + EVENT_TTL_US)
            case "drop":
                seen = s["map"].pop(x, None)
            case "wipe":
                s["map"] = {}
            case "walk":
                aged = self.aged(s)
                seen = [sorted(s["map"].items()), x in s["map"], list(aged.items()), aged.get(x)]
            case "add":
                s["least"] = x if s["least"] is None else min(s["least"], x)
            case "sums":
                seen = [s["least"]]
            case "forget":
                s["least"] = None
            case "alarm":
                s["timer"], s["wall"] = 10 * x, 10 * y
            case "calm":
                s["timer"] = None
            case "ring":
                s["many"] |= {10 * x, 10 * y}
            case "unring":
                s["many"].discard(10 * x)
            case "clocks":
                seen = [s["timer"], s["wall"], sorted(s["many"])]
        if seen is not None:
            self.say(command.key, f"{op} {seen}")

    def say(self, key: str, what: str) -> None:
        self.said.setdefault(key, []).append(what)

    def fire(self) -> None:
        """Per key in the order of times, those of one time as they are declared, until nothing is due."""
        assert self.watermark is not None
        for key, s in self.keys.items():
            while True:
                due = [(s["timer"], 0, "timer")] if s["timer"] is not None and s["timer"] <= self.watermark else []
                due += [(time, 1, "many") for time in s["many"] if time <= self.watermark]
                due += [(s["wall"], 2, "wall")] if s["wall"] is not None and s["wall"] <= self.clock else []
                if not due:
                    break
                time, _, name = min(due)
                s["many"].discard(time) if name == "many" else s.update({name: None})
                self.say(key, f"{name} at {time}, {s['value']}")
                if name == "many" and time % 30 == 0:
                    s["many"].add(time + 10)
                    s["value"] = time

    def states(self) -> dict[str, dict[str, Any]]:
        found = {}
        for key in KEYS:
            s = self.key(key)
            plain = {name: s[name] for name in ("value", "items", "newest", "map", "least", "timer", "wall")}
            found[key] = plain | {"brief": self.brief(s), "aged": self.aged(s), "many": sorted(s["many"])}
        return {key: {name: held or None if held != 0 else 0 for name, held in s.items()} for key, s in found.items()}


class Job:
    """The program on one store, through restarts and changes of the number of shards."""

    def __init__(self, limits: EpochLimits) -> None:
        self.store = tempfile.mkdtemp(prefix="headrace-model-")
        self.limits = limits
        self.said: dict[str, list[str]] = {}
        self.failed = 0
        self.queued: list[Command] = []
        self.clock = 0
        self.open(2)

    def open(self, parallelism: int) -> None:
        app = hr.App("machine")
        self.commands = app.read("commands", hr.source.items([]), Command, time=Command.at)
        self.step = self.commands.key_by(Command.key).process(Machine())
        self.errors = self.step.errors
        start = "1970-01-01T00:00:00"
        self.h = Harness(app, start=start, store=self.store, parallelism=parallelism, limits=self.limits)
        self.h.push(self.commands, *self.queued)

    def reopen(self, parallelism: int) -> None:
        self.take()
        self.h.close()
        self.open(parallelism)

    def push(self, commands: list[Command]) -> None:
        self.queued = commands
        self.h.push(self.commands, *commands)

    def die(self, point: str, clocks: Any) -> None:
        before = self.h.published
        self.h.crash(at=point, **clocks)
        assert self.h.published == before + (point in BEHIND)
        self.queued = [] if point in BEHIND else self.queued

    def finish(self, clocks: Any) -> None:
        self.h.epoch(**clocks)
        self.queued = []

    def take(self) -> None:
        for row in self.h.take(self.step):
            self.said.setdefault(row.key, []).append(row.what)
        self.failed += len(self.h.take(self.errors))

    def states(self) -> dict[str, dict[str, Any]]:
        decls = {name: vars(Machine)[name] for name in Machine.__annotations__ if name != "done"}
        return {key: {name: self.h.state(self.step, decl, key) for name, decl in decls.items()} for key in KEYS}

    def close(self) -> None:
        self.h.close()
        shutil.rmtree(self.store, ignore_errors=True)


class Epoch(NamedTuple):
    commands: list[Command]
    time_step: int
    clock_step: int
    deaths: list[tuple[str, int]]
    """Points where attempts die before the epoch succeeds, and on how many shards it is tried again (0: as before)."""
    end: str
    """How the epoch comes about: in peace, or dying at a point behind its publication."""
    shards: int
    """How many shards there are from now on; 0 leaves them."""


OPS = [
    "set", "unset", "get",
    "append", "empty", "list",
    "put", "drop", "wipe", "walk",
    "add", "sums", "forget",
    "alarm", "calm", "ring", "unring", "clocks",
    "fail",
]  # fmt: skip
small = st.integers(0, 9)
commands = st.builds(Command, st.sampled_from(KEYS), st.sampled_from(OPS), small, small, st.integers(0, 60))
deaths = st.tuples(st.sampled_from(BEFORE), st.sampled_from([0, 0, 1, 3]))
epochs = st.builds(
    Epoch,
    st.lists(commands, max_size=12),
    st.integers(0, 25),
    st.integers(0, 25),
    st.lists(deaths, max_size=2),
    st.sampled_from(["", "", "", *BEHIND]),
    st.sampled_from([0, 0, 1, 2, 3]),
)
limits = st.builds(
    EpochLimits,
    inline_run_bytes=st.sampled_from([0, 16 * 1024]),
    inline_output_bytes=st.sampled_from([0, 32 * 1024]),
    overlay_bytes=st.sampled_from([1, 256 * 1024 * 1024]),
)


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(epochs=st.lists(epochs, min_size=1, max_size=6), limits=limits)
def test_a_program_that_dies_and_moves_equals_dictionaries(epochs: list[Epoch], limits: EpochLimits) -> None:
    job, model = Job(limits), Model()
    watermark = clock = 0
    try:
        for epoch in epochs:
            watermark, clock = watermark + epoch.time_step, clock + epoch.clock_step
            clocks = {"watermark": watermark, "clock": clock}
            job.push(epoch.commands)
            for point, shards in epoch.deaths:
                if point != "in_function" or epoch.commands:
                    job.die(point, clocks)
                    if shards:
                        job.reopen(shards)
            if epoch.end:
                job.die(epoch.end, clocks)
            else:
                job.finish(clocks)
            model.epoch(epoch.commands, watermark, clock)
            if epoch.shards:
                job.reopen(epoch.shards)
        job.take()
        assert job.states() == model.states()
        assert job.said == model.said
        assert job.failed == model.failed
        assert job.h.counters(job.step).get("done", 0) == model.done
    finally:
        job.close()
