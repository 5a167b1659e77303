"""Rules that every shard has: what programs with a broadcast stream do, whatever the shards, restarts and crashes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace as hr
from headrace.model.order import EpochLimits
from headrace.state import layout
from headrace.state.manifest import read_state
from headrace.state.store import LocalStore
from headrace.testing import Harness
from tests.testing.broadcast_limits import FILES, START, TINY, Hit, Job, Over, Rule, Tx, some_tx, streams


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
    tmp_path: Path, limits: EpochLimits | None
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
        given_up = ["over.changes", "over.spent"]
        with Job(tmp_path, function=Above(), name="above", was="over", parallelism=parallelism, drop=given_up) as job:
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


def test_explain_tells_where_rows_go() -> None:
    tx, rules = streams()
    tx.key_by(Tx.card).connect(rules.broadcast()).process(Over()).show()
    told = tx.app.explain()
    assert "to every shard" in told
    assert "limits: broadcast of str → int" in told
