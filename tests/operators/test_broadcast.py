"""A step with a broadcast input: whatever comes when, rules first and in one order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.model.batch import Keys, Rows
from headrace.model.keys import encode_key, hash_key
from headrace.model.rows import codec_of
from headrace.model.wire import order_keys
from headrace.operators.broadcast import BroadcastOperator
from headrace.operators.holding import QueuedRows
from headrace.testing import EpochInput, verify_operator, verify_step
from headrace.testing.rig import OperatorRig, everywhere, row_time, values


class Row(hr.Record):
    key: str
    n: int
    at: hr.Timestamp = hr.Timestamp(0)


class Rule(hr.Record):
    name: str
    n: int
    at: hr.Timestamp = hr.Timestamp(0)


class Out(hr.Record):
    key: str
    what: str


class Function(hr.BroadcastProcess[Row, Rule, Out, str]):
    rules: hr.BroadcastState[str, int]
    total: hr.ValueState[int]
    recent: hr.ListState[int] = hr.state(max_len=4)
    due: hr.Timer
    seen: hr.Counter
    odd: hr.Side[Out]

    def on_event(self, event: Row, ctx: hr.Context[str]) -> Iterator[Out]:
        if event.n == 13:
            raise ValueError("thirteen")
        self.seen.inc()
        self.total.set(self.total.get(0) + event.n)
        self.recent.append(event.n)
        self.due.set(hr.Timestamp(event.at + 50))
        yield Out(ctx.key, f"{self.total.get()} {dict(self.rules)}")

    def on_broadcast(self, event: Rule, ctx: hr.BroadcastContext[str]) -> Iterator[Out]:
        if event.n == 13:
            self.rules[event.name] = -1
            raise ValueError("thirteen")
        self.seen.inc()
        self.rules[event.name] = event.n + len(self.rules)
        self.odd.emit(Out("", event.name))
        if event.name == "each":
            ctx.for_each_key(self.total, lambda key, total: self.bump(key, total, event.n))
        if event.name == "less":
            ctx.for_each_key(self.recent, lambda key, recent: recent.replace(list(recent)[1:]))
        yield Out("", f"{event.name} {ctx.timestamp}")

    def bump(self, key: str, total: hr.ValueState[int], n: int) -> Iterator[Out]:
        total.set(total.get(0) + n)
        self.odd.emit(Out(key, "bumped"))
        yield Out(key, f"bumped to {total.get()}")

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Out]:
        yield Out(ctx.key, f"due {list(self.recent)} {sorted(self.rules)}")


def make(**options: Any) -> BroadcastOperator:
    decls = tuple(vars(Function)[name] for name in Function.__annotations__)
    return BroadcastOperator("step", Function(), decls, codec_of(Out), key_type=str, **options)


def some_epochs(seed: int, *, failing: bool) -> list[EpochInput]:
    rand = random.Random(seed)
    numbers = [1, 2, 3, 13] if failing else [1, 2, 3]
    epochs = []
    for number in range(5):
        at = hr.Timestamp(100 * number)
        parts: list[tuple[int, list[Any]]] = []
        for _ in range(rand.randrange(1, 5)):
            if rand.random() < 0.6:
                parts.append((0, [Row(rand.choice("abc"), rand.choice(numbers), hr.Timestamp(at + rand.randrange(100)))
                                  for _ in range(rand.randrange(6))]))  # fmt: skip
            else:
                parts.append((1, [Rule(rand.choice(["x", "y", "each", "less"]), rand.choice(numbers), at)
                                  for _ in range(rand.randrange(3))]))  # fmt: skip
        epochs.append(EpochInput(parts, watermark=at))
    return [*epochs, EpochInput([(0, [Row("a", 1, hr.Timestamp(600))]), (1, [Rule("each", 1)])], watermark=10_000)]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("failing", [False, True])
def test_however_the_engine_runs_it_each_epoch_gives_the_same(seed: int, failing: bool) -> None:
    verify_operator(
        make,
        some_epochs(seed, failing=failing),
        row_type=(Row, Rule),
        key=(lambda row: row.key, everywhere),
        time=(row_time, row_time),
        outlets=["side:odd", *(["errors"] if failing else [])],
        seed=seed,
    )


def test_a_step_of_a_program_can_be_verified() -> None:
    app = hr.App("verified")
    rows = app.read("rows", hr.source.items([]), Row, time=Row.at)
    rules = app.read("rules", hr.source.items([]), Rule)
    step = rows.key_by(Row.key).connect(rules.broadcast()).process(Function())
    verify_step(step, some_epochs(9, failing=False))


class Plain(hr.BroadcastProcess[Row, Rule, Out]):
    rules: hr.BroadcastState[str, int]
    seen: hr.Counter

    def on_event(self, event: Row, ctx: hr.Context) -> Iterator[Out]:
        self.seen.inc()
        if event.n == 13:
            raise ValueError("thirteen")
        yield Out(event.key, f"{event.n} {dict(self.rules)}")

    def on_broadcast(self, event: Rule, ctx: hr.BroadcastContext) -> None:
        self.rules[event.name] = event.n


def test_a_step_without_a_key_can_be_verified() -> None:
    app = hr.App("verified")
    rows = app.read("rows", hr.source.items([]), Row, time=Row.at)
    rules = app.read("rules", hr.source.items([]), Rule)
    step = rows.connect(rules.broadcast()).process(Plain())
    assert step.errors is not None
    verify_step(step, some_epochs(3, failing=True)[:-1])


def test_rules_are_applied_in_the_order_of_their_keys_not_as_they_came() -> None:
    rig = OperatorRig(make(), (Row, Rule), (lambda row: row.key, everywhere), time=row_time)
    rules = [Rule(name, 1) for name in "abcdefgh"]
    expected = values(rig.epoch((1, rules)))
    operator = make()
    said: list[Any] = []
    rig = OperatorRig(operator, (Row, Rule), (lambda row: row.key, everywhere), time=row_time)
    plain = operator.process

    def shuffled(port: int, rows: Rows, keys: Keys | None) -> None:
        assert keys is not None
        order = np.random.default_rng(3).permutation(len(rows))
        for start in range(0, len(rows), 3):
            plain(port, rows.take(order[start : start + 3]), keys.take(order[start : start + 3]))

    operator.process = shuffled  # type: ignore[method-assign]
    said = values(rig.epoch((1, rules)))
    assert said == expected


def keyed(rows: list[Row]) -> tuple[Rows, Keys]:
    codec = codec_of(Row)
    encoded = [encode_key(row.key) for row in rows]
    hashes = np.array([hash_key(key) for key in encoded], np.uint64)
    times = np.array([row.at for row in rows], np.int64)
    return Rows.of_columns(codec, codec.to_arrays(rows), times), Keys(hashes, pa.array(encoded, pa.binary()))


@pytest.mark.parametrize(("limit_bytes", "spilled"), [(1 << 30, False), (1, True), (500, True)])
def test_a_backlog_gives_rows_back_as_they_came(limit_bytes: int, spilled: bool) -> None:
    backlog = QueuedRows(limit_bytes)
    rows = [Row(f"k{i % 3}", i, hr.Timestamp(i)) for i in range(40)]
    for start in range(0, 40, 7):
        backlog.add(*keyed(rows[start : start + 7]))
    assert backlog.spilled is spilled
    drained = list(backlog.drain())
    assert [row for batch, _ in drained for row in batch.objects] == rows
    assert [int(at) for batch, _ in drained if batch.times is not None for at in batch.times] == list(range(40))
    assert [key for _, keys in drained for key in keys.encoded.to_pylist()] == [encode_key(row.key) for row in rows]
    assert list(backlog.drain()) == []


def test_order_keys_sort_by_level_task_and_place() -> None:
    batches = [order_keys(level, task, first, 300) for level in (0, 1) for task in (0, 2, 300) for first in (0, 300)]
    keys = [key for batch in batches for key in batch.to_pylist()]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
