"""Broadcast rows that fail, differ from shard to shard or are misused: refused in words, running or while building."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import headrace as hr
from headrace.errors import FunctionFailed, ProgramError
from tests.testing.broadcast_limits import Hit, Job, Over, Rule, Tx, streams


class Careless(hr.BroadcastProcess[Tx, Rule, Hit, str]):
    limits: hr.BroadcastState[str, int]
    last: hr.ValueState[int]
    soon: hr.WallTimer

    def on_event(self, event: Tx, ctx: hr.Context[str]) -> None:
        self.limits[event.card] = 1

    def on_broadcast(self, event: Rule, ctx: hr.BroadcastContext[str]) -> None:
        if event.name == "value":
            self.last.set(1)
        if event.name == "timer":
            self.soon.set(ctx.now)
        if event.name == "key":
            self.limits[ctx.key] = 1
        if event.name == "inside":
            ctx.for_each_key(self.last, lambda key, last: self.limits.clear())

    def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> None:
        pass


@pytest.mark.parametrize(
    ("rules", "rows", "said"),
    [
        ([], [Tx("a", 1)], "'limits' can be changed in on_broadcast only"),
        ([Rule("value")], [], "last belongs to a key, and on_broadcast has none"),
        ([Rule("timer")], [], "soon belongs to a key, and on_broadcast has none"),
        ([Rule("key")], [], "on_broadcast has no key"),
    ],
)
def test_what_belongs_elsewhere_is_refused_in_words(rules: list[Rule], rows: list[Tx], said: str) -> None:
    with Job(function=Careless()) as job, pytest.raises(FunctionFailed, match=said):
        job.epoch(rules, rows)


def test_a_failing_rule_stops_the_job_and_names_it() -> None:
    with Job() as job, pytest.raises(FunctionFailed) as caught:
        job.epoch([Rule("bad", 3)], [])
    assert "a bad rule" in str(caught.value)
    assert '"name":"bad"' in str(caught.value)


def test_where_errors_are_read_a_failing_rule_goes_there_once_and_is_undone() -> None:
    with Job(errors=True, parallelism=3) as job:
        job.epoch([Rule("a", 1), Rule("bad", 2), Rule("b", 3)], [])
        assert job.errors is not None
        failed = job.h.take(job.errors)
        assert [row.error for row in failed] == ["ValueError: a bad rule"]
        assert job.h.state(job.step, Over.changes) == {0: "a", 1: "b"}


class Dice(hr.BroadcastProcess[Tx, Rule, Hit, str]):
    chosen: hr.BroadcastState[str, int]

    def __init__(self) -> None:
        self.calls = 0

    def on_event(self, event: Tx, ctx: hr.Context[str]) -> None:
        pass

    def on_broadcast(self, event: Rule, ctx: hr.BroadcastContext[str]) -> Iterator[Hit]:
        self.calls += 1
        if event.name == "rows":
            yield Hit("", "", self.calls)
        else:
            self.chosen[event.name] = self.calls


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("state", "broadcast state 'chosen' is not the same on every shard"),
        ("rows", "rows that on_broadcast gave are not"),
    ],
)
def test_an_epoch_in_which_shards_differ_is_not_published(rule: str, said: str) -> None:
    with Job(function=Dice(), parallelism=2) as job:
        with pytest.raises(FunctionFailed, match=said) as caught:
            job.epoch([Rule(rule)], [])
        assert "deterministic" in caught.value.expected
        assert "step dice" in caught.value.where
        assert job.h.published == -1
    with Job(function=Dice(), parallelism=1) as job:
        job.epoch([Rule(rule)], [])
        assert job.h.published == 0, "one shard cannot differ from others"


def test_values_in_any_inner_order_are_the_same_value() -> None:
    class Bags(hr.BroadcastProcess[Tx, Rule, Hit, str]):
        bags: hr.BroadcastState[str, dict[str, int]]

        def __init__(self) -> None:
            self.calls = 0

        def on_event(self, event: Tx, ctx: hr.Context[str]) -> None:
            pass

        def on_broadcast(self, event: Rule, ctx: hr.BroadcastContext[str]) -> None:
            self.calls += 1
            names = ["a", "b"] if self.calls % 2 else ["b", "a"]
            self.bags[event.name] = dict.fromkeys(names, 1)

    with Job(function=Bags(), parallelism=2) as job:
        job.epoch([Rule("x")], [])
        assert job.h.state(job.step, Bags.bags, "x") == {"a": 1, "b": 1}


# --- while building


def test_state_by_key_needs_a_key() -> None:
    tx, rules = streams()
    with pytest.raises(ProgramError, match="Over keeps state by key, and this stream has none") as caught:
        tx.connect(rules.broadcast()).process(Over())
    assert "spent" in caught.value.found


@pytest.mark.parametrize("keyed", [True, False])
def test_connect_takes_what_is_broadcast(keyed: bool) -> None:
    tx, rules = streams()
    stream: Any = tx.key_by(Tx.card) if keyed else tx
    with pytest.raises(ProgramError, match="connect takes"):
        stream.connect(rules)


def test_mistakes_in_the_class_are_named() -> None:
    tx, rules = streams()
    connected: Any = tx.key_by(Tx.card).connect(rules.broadcast())

    class NoRules(hr.BroadcastProcess[Tx, Rule, Hit, str]):
        def on_event(self, event: Tx, ctx: hr.Context[str]) -> None: ...

    class Other(hr.BroadcastProcess[Tx, Hit, Hit, str]):
        def on_event(self, event: Tx, ctx: hr.Context[str]) -> None: ...
        def on_broadcast(self, event: Hit, ctx: hr.BroadcastContext[str]) -> None: ...

    class Plain(hr.Process[Tx, Hit, str]):
        def on_event(self, event: Tx, ctx: hr.Context[str]) -> None: ...

    with pytest.raises(ProgramError, match="NoRules has no on_broadcast"):
        connected.process(NoRules())
    with pytest.raises(ProgramError, match="Other takes rows of another type"):
        connected.process(Other())
    with pytest.raises(ProgramError, match="an instance of a class derived from hr.BroadcastProcess"):
        connected.process(Plain())
    with pytest.raises(ProgramError, match="takes an instance of Over"):
        connected.process(Over)


def test_a_broadcast_state_is_for_functions_with_broadcast_rows() -> None:
    tx, _ = streams()

    class Wrong(hr.Process[Tx, Hit, str]):
        limits: hr.BroadcastState[str, int]

        def on_event(self, event: Tx, ctx: hr.Context[str]) -> None: ...

    with pytest.raises(ProgramError, match="Wrong.limits is a broadcast state"):
        tx.key_by(Tx.card).process(Wrong())
