"""Every kind of state, timers and TTL against plain dictionaries, over random epochs, batches, crashes and spills.

Rows are commands to one process function; the model carries the same commands out on dictionaries. What both observe,
key by key, must be the same, whatever is cut into which batch or epoch, however often an epoch is tried again, and
however little memory there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.dataflow.functions import declarations
from headrace.model.rows import codec_of
from headrace.operators.process import ProcessOperator
from headrace.state import cells
from tests.effort import examples
from tests.operators.rig import Rig

MAX_LEN = 3


class Command(hr.Record):
    key: str
    op: str
    x: int
    y: int
    at: hr.Timestamp


class Seen(hr.Record):
    key: str
    what: str


class Sum(hr.Aggregator[int, list[int], str]):
    """Keeps what was added, so that order shows."""

    def zero(self) -> list[int]:
        return []

    def add(self, acc: list[int], x: int) -> list[int]:
        return [*acc, x]

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        return a + b

    def result(self, acc: list[int]) -> str:
        return f"added {acc}"


class Everything(hr.Process[Command, Seen, str]):
    value: hr.ValueState[int]
    items: hr.ListState[int]
    newest: hr.ListState[int] = hr.state(max_len=MAX_LEN)
    map: hr.MapState[int, int]
    least: hr.ReducingState[int] = hr.state(reduce=min)
    added: hr.AggregatingState[int, str] = hr.state(aggregator=Sum())
    timer: hr.Timer
    many: hr.Timers
    wall: hr.WallTimer

    def on_event(self, event: Command, ctx: hr.Context[str]) -> Iterator[Seen]:
        seen = self.obey(event.op, event.x, event.y)
        if seen is not None:
            yield Seen(ctx.key, f"{event.op} {seen}")
        if event.op == "fail":
            raise ValueError(event.op)

    def obey(self, op: str, x: int, y: int) -> Any:
        match op:
            case "get":
                return self.value.get()
            case "set":
                self.value.set(x)
            case "unset":
                self.value.clear()
            case "append":
                self.items.append(x)
                self.newest.append(x)
            case "extend":
                self.items.extend([x, y])
                self.newest.extend([x, y, x, y])
            case "replace":
                self.items.replace([x, y])
            case "empty":
                self.items.clear()
                self.newest.clear()
            case "list":
                return [list(self.items), len(self.items), list(self.newest), len(self.newest)]
            case "put":
                self.map[x] = y
            case "drop":
                return self.map.pop(x, None)
            case "look":
                return [x in self.map, self.map.get(x)]
            case "walk":
                return [list(self.map.items()), list(self.map), len(self.map), list(self.map.values())]
            case "wipe":
                self.map.clear()
            case "add":
                self.least.add(x)
                self.added.add(x)
            case "sums":
                return [self.least.get(), self.added.get()]
            case "forget":
                self.least.clear()
                self.added.clear()
            case "alarm":
                self.timer.set(hr.Timestamp(10 * x))
                self.wall.set(hr.Timestamp(10 * y))
            case "calm":
                self.timer.clear()
            case "ring":
                self.many.add(hr.Timestamp(10 * x))
            case "unring":
                self.many.discard(hr.Timestamp(10 * x))
            case "clocks":
                return [self.timer.get(), self.wall.get(), list(self.many), hr.Timestamp(10 * x) in self.many]
            case "fail":
                for each in ("set", "append", "put", "drop", "walk", "wipe", "ring", "alarm", "extend", "list", "add"):
                    self.obey(each, x, y)
        return None

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Seen]:
        yield Seen(ctx.key, f"{timer.name} at {ctx.timestamp}")
        if timer.name == "many" and int(ctx.timestamp) % 30 == 0:
            self.many.add(hr.Timestamp(int(ctx.timestamp) + 10))
            self.value.set(int(ctx.timestamp))


class Model:
    """The same on plain Python objects."""

    def __init__(self) -> None:
        self.keys: dict[str, dict[str, Any]] = {}
        self.seen: dict[str, list[str]] = {}

    def key(self, key: str) -> dict[str, Any]:
        fresh = {"value": None, "items": [], "newest": [], "map": {}, "least": None, "added": None}
        return self.keys.setdefault(key, fresh | {"timer": None, "many": set(), "wall": None})

    def obey(self, command: Command) -> None:
        s, op, x, y = self.key(command.key), command.op, command.x, command.y
        seen: Any = None
        match op:
            case "get":
                seen = s["value"]
            case "set":
                s["value"] = x
            case "unset":
                s["value"] = None
            case "append":
                s["items"] = [*s["items"], x]
                s["newest"] = [*s["newest"], x][-MAX_LEN:]
            case "extend":
                s["items"] = [*s["items"], x, y]
                s["newest"] = [*s["newest"], x, y, x, y][-MAX_LEN:]
            case "replace":
                s["items"] = [x, y]
            case "empty":
                s["items"], s["newest"] = [], []
            case "list":
                seen = [s["items"], len(s["items"]), s["newest"], len(s["newest"])]
            case "put":
                s["map"][x] = y
            case "drop":
                seen = s["map"].pop(x, None)
            case "look":
                seen = [x in s["map"], s["map"].get(x)]
            case "walk":
                ordered = sorted(s["map"].items())
                seen = [ordered, [k for k, _ in ordered], len(ordered), [v for _, v in ordered]]
            case "wipe":
                s["map"] = {}
            case "add":
                s["least"] = x if s["least"] is None else min(s["least"], x)
                s["added"] = [*(s["added"] or []), x]
            case "sums":
                seen = [s["least"], None if s["added"] is None else f"added {s['added']}"]
            case "forget":
                s["least"], s["added"] = None, None
            case "alarm":
                s["timer"], s["wall"] = 10 * x, 10 * y
            case "calm":
                s["timer"] = None
            case "ring":
                s["many"].add(10 * x)
            case "unring":
                s["many"].discard(10 * x)
            case "clocks":
                seen = [s["timer"], s["wall"], sorted(s["many"]), 10 * x in s["many"]]
        if seen is not None:
            self.note(command.key, f"{op} {seen}")

    def note(self, key: str, what: str) -> None:
        self.seen.setdefault(key, []).append(what)

    def fire(self, watermark: int, clock: int) -> None:
        for key, s in self.keys.items():
            while True:
                due = [(s["timer"], 0, "timer")] if s["timer"] is not None and s["timer"] <= watermark else []
                due += [(time, 1, "many") for time in s["many"] if time <= watermark]
                due += [(s["wall"], 2, "wall")] if s["wall"] is not None and s["wall"] <= clock else []
                if not due:
                    break
                time, _, name = min(due)
                if name == "many":
                    s["many"].discard(time)
                else:
                    s[name] = None
                self.note(key, f"{name} at {time}")
                if name == "many" and time % 30 == 0:
                    s["many"].add(time + 10)
                    s["value"] = time

    def take(self) -> dict[str, list[str]]:
        seen, self.seen = self.seen, {}
        return seen


OPS = [
    "get", "set", "unset",
    "append", "extend", "replace", "empty", "list",
    "put", "drop", "look", "walk", "wipe",
    "add", "sums", "forget",
    "alarm", "calm", "ring", "unring", "clocks",
]  # fmt: skip

small = st.integers(0, 9)


def batches_of(rows: Any, size: int) -> Any:
    return st.lists(st.lists(rows, max_size=size), max_size=3)


commands = st.builds(Command, st.sampled_from("abc"), st.sampled_from([*OPS, "fail"]), small, small, small)
epochs = st.lists(
    st.tuples(batches_of(commands, 12), st.integers(0, 25), st.integers(0, 25), st.booleans()),
    min_size=1,
    max_size=6,
)  # fmt: skip


def observed(rig: Rig) -> dict[str, list[str]]:
    seen: dict[str, list[str]] = {}
    for row in rig.out.get("main", []):
        seen.setdefault(row.value.key, []).append(row.value.what)
    return seen


@settings(max_examples=examples(60))
@given(
    epochs=epochs,
    limit=st.sampled_from([1, 20_000, 1 << 40]),
    small_entries=st.sampled_from([0, 2, 64]),
    window=st.sampled_from([1, 2, 8192]),
    collide=st.booleans(),
)
def test_state_and_timers_equal_a_dictionary(
    epochs: Any, limit: int, small_entries: int, window: int, collide: bool
) -> None:
    function = Everything()
    operator = ProcessOperator("step", function, declarations(Everything), codec_of(Seen), key_type=str)
    options: Any = {"hash_of": lambda key: 7 << 60} if collide else {}
    rig = Rig(
        operator, codec_of(Command), lambda row: row.key, overlay_limit_bytes=limit, outlets=["errors"], **options
    )
    model = Model()
    watermark = clock = 0
    with patch.object(cells, "SMALL_ENTRIES", small_entries), patch.object(cells, "WINDOW_KEYS", window):
        for batches, time_step, clock_step, crash in epochs:
            watermark, clock = watermark + time_step, clock + clock_step
            if crash:
                rig.attempt(*batches, watermark=watermark, clock=clock)
            rig.epoch(*batches, watermark=watermark, clock=clock)
            for batch in batches:
                for command in batch:
                    if command.op != "fail":
                        model.obey(command)
            model.fire(watermark, clock)
            assert observed(rig) == model.take()
            assert len(rig.out.get("errors", [])) == sum(command.op == "fail" for batch in batches for command in batch)


# --- TTL


class Living(hr.Process[Command, Seen, str]):
    """One state of each kind with a TTL; which one is put in by the test."""

    value: hr.ValueState[int]
    items: hr.ListState[int]
    map: hr.MapState[int, int]
    least: hr.ReducingState[int] = hr.state(reduce=min)

    def on_event(self, event: Command, ctx: hr.Context[str]) -> Iterator[Seen]:
        match event.op:
            case "set":
                self.value.set(event.x)
                self.items.append(event.x)
                self.map[event.x] = event.y
                self.least.add(event.x)
            case "unset":
                self.value.clear()
                self.items.clear()
                self.map.pop(event.x, None)
                self.least.clear()
            case "get":
                yield Seen(ctx.key, f"{self.value.get()} {self.map.get(event.x)} {self.least.get()}")
            case "walk":
                yield Seen(ctx.key, f"{list(self.items)} {list(self.map.items())}")


class Aged:
    """A value and when it expires."""

    def __init__(self, ttl: hr.types.TTL) -> None:
        self.ttl = ttl
        self.entries: dict[Any, tuple[int, int]] = {}
        self.order: list[Any] = []

    def base(self, now: int, row: int) -> int:
        return max(now, row) if self.ttl.clock == "event" else now

    def write(self, name: Any, value: int, now: int, row: int) -> None:
        old = self.entries.get(name)
        keep = self.ttl.refresh == "create" and old is not None and old[1] > now
        self.entries[name] = (value, old[1] if keep and old is not None else self.base(now, row) + self.ttl.span_us)

    def read(self, name: Any, now: int, row: int) -> int | None:
        entry = self.entries.get(name)
        if entry is None or (entry[1] <= now and self.ttl.expired == "hide"):
            return None
        if self.ttl.refresh == "read" and entry[1] > now:
            self.entries[name] = (entry[0], self.base(now, row) + self.ttl.span_us)
        return entry[0]

    def walk(self, now: int, row: int) -> list[tuple[Any, int]]:
        return [(name, value) for name in sorted(self.entries) if (value := self.read(name, now, row)) is not None]


class LivingModel:
    def __init__(self, ttl: hr.types.TTL) -> None:
        self.value, self.items, self.map, self.least = Aged(ttl), Aged(ttl), Aged(ttl), Aged(ttl)
        self.next = 0

    def obey(self, op: str, x: int, y: int, now: int, row: int) -> str | None:
        match op:
            case "set":
                self.value.write(0, x, now, row)
                self.items.write(self.next, x, now, row)
                self.next += 1
                self.map.write(x, y, now, row)
                before = self.least.read(0, now, row)
                self.least.write(0, x if before is None else min(before, x), now, row)
            case "unset":
                for state in (self.value, self.items, self.least):
                    state.entries.clear()
                self.map.read(x, now, row)
                self.map.entries.pop(x, None)
            case "get":
                return f"{self.value.read(0, now, row)} {self.map.read(x, now, row)} {self.least.read(0, now, row)}"
            case "walk":
                return f"{[value for _, value in self.items.walk(now, row)]} {self.map.walk(now, row)}"
        return None


living = st.builds(
    Command, st.sampled_from("ab"), st.sampled_from(["set", "get", "walk", "unset"]), st.integers(0, 3), small, small
)


@settings(max_examples=examples(60))
@given(
    epochs=st.lists(
        st.tuples(st.lists(st.lists(living, max_size=8), max_size=2), st.integers(0, 6), st.booleans()), max_size=6
    ),
    limit=st.sampled_from([1, 1 << 40]),
    small_entries=st.sampled_from([0, 64]),
    span=st.integers(1, 12),
    clock=st.sampled_from(["event", "wall"]),
    refresh=st.sampled_from(["create", "write", "read"]),
    expired=st.sampled_from(["hide", "show"]),
)
def test_time_to_live_equals_a_dictionary_with_deadlines(
    epochs: Any, limit: int, small_entries: int, span: int, clock: Any, refresh: Any, expired: Any
) -> None:
    ttl = hr.types.TTL(span, clock, refresh, expired)
    decls = [replace(decl, ttl=ttl) for decl in declarations(Living)]
    operator = ProcessOperator("step", Living(), decls, codec_of(Seen), key_type=str)
    rig = Rig(operator, codec_of(Command), lambda row: row.key, overlay_limit_bytes=limit)
    models: dict[str, LivingModel] = {}
    wall = rig.watermark = 100
    with patch.object(cells, "SMALL_ENTRIES", small_entries):
        for batches, step, crash in epochs:
            wall += step
            shifted = [[command.replace(at=command.at + rig.watermark) for command in batch] for batch in batches]
            now = rig.watermark if clock == "event" else wall
            if crash:
                rig.attempt(*shifted, watermark=rig.watermark + step, clock=wall)
            rig.epoch(*shifted, watermark=rig.watermark + step, clock=wall)
            seen: dict[str, list[str]] = {}
            for batch in shifted:
                for command in batch:
                    model = models.setdefault(command.key, LivingModel(ttl))
                    said = model.obey(command.op, command.x, command.y, now, int(command.at))
                    if said is not None:
                        seen.setdefault(command.key, []).append(said)
            assert observed(rig) == seen
