"""Rules that every shard has: what programs with a broadcast stream do, whatever the shards, restarts and crashes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import FunctionFailed, ProgramError
from headrace.model import crash
from headrace.model.order import Limits
from headrace.state import layout
from headrace.state.manifest import read_state
from headrace.state.store import LocalStore
from headrace.testing import Harness

START = "2024-01-01T12:00"
FILES = Limits(inline_run_bytes=0, inline_output_bytes=0)
TINY = Limits(inline_run_bytes=0, inline_output_bytes=0, overlay_bytes=1)


class Tx(hr.Record):
    card: str
    cents: int
    at: hr.Timestamp = hr.Timestamp(0)


class Rule(hr.Record):
    name: str
    limit: int | None = None
    """None withdraws the rule."""
    at: hr.Timestamp = hr.Timestamp(0)


class Hit(hr.Record):
    card: str
    rule: str
    cents: int = 0


class Over(hr.BroadcastProcess[Tx, Rule, Hit, str]):
    limits: hr.BroadcastState[str, int]
    changes: hr.BroadcastState[int, str]
    spent: hr.ValueState[int]
    odd: hr.Side[str]
    rules: hr.Counter
    hits: hr.Counter

    def on_broadcast(self, event: Rule, ctx: hr.BroadcastContext[str]) -> Iterator[Hit]:
        crash.reach("in_function", ctx.epoch)
        self.changes[len(self.changes)] = event.name
        self.rules.inc()
        if event.name == "bad":
            raise ValueError("a bad rule")
        if event.limit is None:
            self.limits.pop(event.name, None)
            self.odd.emit(f"without {event.name}")
        else:
            self.limits[event.name] = event.limit
            yield Hit("", event.name, event.limit)

    def on_event(self, event: Tx, ctx: hr.Context[str]) -> Iterator[Hit]:
        self.spent.set(self.spent.get(0) + event.cents)
        for name, limit in self.limits.items():
            if event.cents > limit:
                self.hits.inc()
                yield Hit(ctx.key, name, event.cents)


class Job:
    def __init__(self, store: Path | None = None, *, function: Any = None, name: str | None = None,
                 was: str | None = None, errors: bool = False, **options: Any) -> None:  # fmt: skip
        self.app = hr.App("limits")
        self.tx = self.app.read("tx", hr.source.items([]), Tx)
        self.rules = self.app.read("rules", hr.source.items([]), Rule)
        self.step = self.tx.key_by(Tx.card).connect(self.rules.broadcast()).process(function or Over())
        if name is not None:
            self.step = self.step.named(name, was=was)
        self.odd = self.step.side(Over.odd) if function is None else None
        self.errors = self.step.errors if errors else None
        self.h = Harness(self.app, start=START, store=store, **options)

    def epoch(self, rules: list[Rule], rows: list[Tx]) -> list[Hit]:
        self.h.push(self.tx, *rows)
        self.h.push(self.rules, *rules)
        self.h.epoch()
        return self.h.take(self.step)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.h.close()


def some_tx(count: int = 30) -> list[Tx]:
    return [Tx(f"card-{i % 9}", i) for i in range(count)]


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_rules_of_an_epoch_come_before_its_other_rows(parallelism: int) -> None:
    with Job(parallelism=parallelism) as job:
        hits = job.epoch([Rule("small", 3), Rule("large", 27)], some_tx())
        expected = [Hit("", "small", 3), Hit("", "large", 27)]
        expected += [Hit(tx.card, "small", tx.cents) for tx in some_tx() if tx.cents > 3]
        expected += [Hit(tx.card, "large", tx.cents) for tx in some_tx() if tx.cents > 27]
        assert sorted(hits, key=repr) == sorted(expected, key=repr)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_what_on_broadcast_gives_comes_out_once(parallelism: int) -> None:
    with Job(parallelism=parallelism) as job:
        assert job.epoch([Rule("a", 1), Rule("b"), Rule("c", 2)], []) == [Hit("", "a", 1), Hit("", "c", 2)]
        assert job.odd is not None
        assert job.h.take(job.odd) == ["without b"]
        assert job.h.counters(job.step) == {"rules": 3}


def test_rules_stay_from_epoch_to_epoch_and_can_be_withdrawn() -> None:
    with Job() as job:
        job.epoch([Rule("a", 1), Rule("b", 2)], [])
        assert job.epoch([], [Tx("c", 2)]) == [Hit("c", "a", 2)]
        assert job.epoch([Rule("a")], [Tx("c", 2), Tx("c", 3)]) == [Hit("c", "b", 3)]
        assert job.h.state(job.step, Over.limits) == {"b": 2}
        assert job.h.state(job.step, Over.limits, "b") == 2
        assert job.h.state(job.step, Over.changes) == {0: "a", 1: "b", 2: "a"}
        assert job.h.state(job.step, Over.spent, "c") == 7


def test_all_shards_go_over_rules_in_one_order() -> None:
    names = [f"rule-{i}" for i in range(40)]
    random.Random(5).shuffle(names)
    with Job(parallelism=3) as job:
        job.epoch([Rule(name, 0) for name in names[:20]], [])
        hits = job.epoch([Rule(name, 0) for name in names[20:]], some_tx(9)[1:])
        for card in {tx.card for tx in some_tx(9)[1:]}:
            assert [hit.rule for hit in hits if hit.card == card] == sorted(names)


@pytest.mark.parametrize("limits", [None, FILES, TINY])
def test_broadcast_state_is_the_same_after_restarts_on_any_number_of_shards(
    tmp_path: Path, limits: Limits | None
) -> None:
    for number, parallelism in enumerate((1, 3, 2, 5, 1)):
        with Job(tmp_path, parallelism=parallelism, limits=limits) as job:
            before = {f"rule-{i}": i for i in range(number)}
            assert job.h.state(job.step, Over.limits) == before
            hits = job.epoch([Rule(f"rule-{number}", number)], some_tx(20))
            now = {**before, f"rule-{number}": number}
            expected = [(tx.card, name) for tx in some_tx(20) for name, limit in now.items() if tx.cents > limit]
            assert sorted((hit.card, hit.rule) for hit in hits if hit.card) == sorted(expected)
            job.h.restart()
            assert job.epoch([], [Tx("x", number + 1)]) != []


def test_broadcast_state_is_stored_once(tmp_path: Path) -> None:
    with Job(tmp_path, parallelism=4, limits=FILES) as job:
        job.epoch([Rule("a", 1)], some_tx())
        state = read_state(LocalStore(tmp_path), 0, 0)
    runs = state.runs[layout.broadcast("over")]
    assert [(run.lo, run.hi) for run in runs] == [(0, 128)]
    assert len(state.runs["over"]) == 4, "states by key have a run per shard"


def test_epochs_without_rules_write_nothing_for_them(tmp_path: Path) -> None:
    with Job(tmp_path, limits=FILES) as job:
        job.epoch([Rule("a", 1)], [])
        job.epoch([], some_tx())
        job.epoch([Rule("a", 1)], [])
        state = read_state(LocalStore(tmp_path), 0, 2)
    changes = layout.broadcast("over")
    assert len(state.runs[changes]) == 2, "the first, and the third, which adds to `changes` alone"


def test_a_renamed_step_and_a_renamed_state_keep_their_rules(tmp_path: Path) -> None:
    with Job(tmp_path, parallelism=2) as job:
        job.epoch([Rule("a", 1), Rule("b", 2)], [Tx("c", 5)])

    class Above(hr.BroadcastProcess[Tx, Rule, Hit, str]):
        bounds: hr.BroadcastState[str, int] = hr.state(was="limits")

        def on_broadcast(self, event: Rule, ctx: hr.BroadcastContext[str]) -> None:
            self.bounds[event.name] = event.limit or 0

        def on_event(self, event: Tx, ctx: hr.Context[str]) -> Iterator[Hit]:
            yield from (Hit(ctx.key, name) for name, bound in self.bounds.items() if event.cents > bound)

    for parallelism in (3, 1):
        with Job(tmp_path, function=Above(), name="above", was="over", parallelism=parallelism) as job:
            assert job.epoch([], [Tx("c", 2)]) == [Hit("c", "a")]
            assert job.epoch([Rule("b", 1)], [Tx("c", 2)]) == [Hit("c", "a"), Hit("c", "b")]
            job.epoch([Rule("b", 2)], [])
            assert job.h.state(job.step, Above.bounds) == {"a": 1, "b": 2}


def test_folds_and_sweeps_leave_rules_as_they_are(tmp_path: Path) -> None:
    kept: dict[str, int] = {}
    with Job(tmp_path, parallelism=3, limits=FILES) as job:
        for i in range(30):
            name = f"rule-{i % 11}"
            rule = Rule(name) if i % 4 == 3 else Rule(name, i)
            job.epoch([rule], some_tx(4))
            if rule.limit is None:
                kept.pop(name, None)
            else:
                kept[name] = i
            job.h.maintain()
            assert job.h.state(job.step, Over.limits) == kept
        state = read_state(LocalStore(tmp_path), 0, job.h.published)
        assert len(state.runs[layout.broadcast("over")]) < 12
        assert all((run.lo, run.hi) == (0, 128) for run in state.runs[layout.broadcast("over")])


def test_readers_of_the_store_see_the_mapping(tmp_path: Path) -> None:
    with Job(tmp_path, parallelism=2) as job:
        job.epoch([Rule("a", 1), Rule("b", 2)], [Tx("c", 5)])
        job.epoch([Rule("a", 7)], [])
        store = hr.Store(tmp_path)
        assert dict(store.state("over.limits", int)) == {"a": 7, "b": 2}
        assert store.at(0).state("over.limits", int)["a"] == 1
        assert store.steps() == ["over"]
        kinds = {info.address: info.kind for info in store.states()}
        assert kinds == {"over.limits": "broadcast", "over.changes": "broadcast", "over.spent": "value"}


BEFORE = ("offsets_written", "state_opening", "in_function", "outputs_staged", "reports_collected", "before_publish",
          "manifest_written", "delta_half_written")  # fmt: skip
BEHIND = ("manifest_answer_lost", "published", "released")


@pytest.mark.parametrize("point", [*BEFORE, *BEHIND])
def test_a_crash_at_any_point_changes_nothing(tmp_path: Path, point: str) -> None:
    with Job(tmp_path, parallelism=2, limits=FILES) as job:
        hits = job.epoch([Rule("a", 10), Rule("b", 20)], some_tx())
        job.h.push(job.tx, *some_tx())
        job.h.push(job.rules, Rule("a", 5), Rule("b"))
        job.h.crash(point)
        job.h.epoch()
        hits += job.h.take(job.step)
        assert job.h.state(job.step, Over.limits) == {"a": 5}
        assert job.h.counters(job.step)["rules"] == 4
    expected = [Hit("", "a", 10), Hit("", "b", 20), Hit("", "a", 5)]
    expected += [Hit(tx.card, "a", tx.cents) for tx in some_tx() for limit in (10, 5) if tx.cents > limit]
    expected += [Hit(tx.card, "b", tx.cents) for tx in some_tx() if tx.cents > 20]
    assert sorted(hits, key=repr) == sorted(expected, key=repr)


# -- what is refused ------------------------------------------------------------------------------------------------


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


# -- going over keys ------------------------------------------------------------------------------------------------


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
def test_for_each_key_visits_every_key_that_has_something(parallelism: int, limits: Limits | None) -> None:
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


# -- without a key, and what is refused while building -------------------------------------------------------------


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


def test_rules_without_time_never_hold_the_watermark() -> None:
    app = hr.App("limits")
    tx = app.read("tx", hr.source.items([]), Tx, time=Tx.at)
    rules = app.read("rules", hr.source.items([]), Rule)

    class Late(hr.BroadcastProcess[Tx, Rule, Hit, str]):
        limits: hr.BroadcastState[str, int]
        due: hr.Timer

        def on_event(self, event: Tx, ctx: hr.Context[str]) -> None:
            self.due.set(event.at + hr.seconds(1))

        def on_broadcast(self, event: Rule, ctx: hr.BroadcastContext[str]) -> None:
            self.limits[event.name] = 1

        def on_timer(self, timer: hr.Timer, ctx: hr.Context[str]) -> Iterator[Hit]:
            yield Hit(ctx.key, ",".join(self.limits))

    step = tx.key_by(Tx.card).connect(rules.broadcast()).process(Late())
    late = step.late
    with Harness(app, start=START) as h:
        h.push(tx, Tx("a", 1, h.at("12:00:00")), Tx("b", 1, h.at("12:00:10")))
        h.push(rules, Rule("x"))
        h.epoch()
        assert h.take(step) == [Hit("a", "x")]
        h.push(tx, Tx("c", 1, h.at("12:00:01")))
        h.epoch()
        assert h.take(late) == [Tx("c", 1, h.at("12:00:01"))]


def test_a_broadcast_stream_may_come_out_of_a_keyed_step_and_cross_a_level() -> None:
    app = hr.App("levels")
    tx = app.read("tx", hr.source.items([]), Tx)
    rules = app.read("rules", hr.source.items([]), Rule)
    largest = tx.key_by(Tx.card).reduce(lambda a, b: a if a.cents > b.cents else b).named("largest")
    limits = largest.map(lambda row: Rule(row.card, row.cents), output=Rule)
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


def streams() -> tuple[hr.Stream[Tx], hr.Stream[Rule]]:
    app = hr.App("limits")
    return app.read("tx", hr.source.items([]), Tx), app.read("rules", hr.source.items([]), Rule)


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
    with pytest.raises(ProgramError, match="Other takes other rows"):
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


def test_explain_tells_where_rows_go() -> None:
    tx, rules = streams()
    tx.key_by(Tx.card).connect(rules.broadcast()).process(Over()).show()
    told = tx.app.explain()
    assert "to every shard" in told
    assert "limits: broadcast of str → int" in told
