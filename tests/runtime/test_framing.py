"""Rows are cut into frames by shard and put together again, whatever batches they came in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.model.batch import Rows
from headrace.model.keys import encode_key, hash_key, key_group, shard_of
from headrace.model.rows import codec_of
from headrace.model.wire import read_frames
from headrace.plan.compile import compile_app
from headrace.plan.physical import Program
from headrace.runtime import framing
from headrace.runtime.framing import FrameCutter, RowGatherer
from headrace.runtime.tasks_here import exchange

GROUPS = 512


class Step(hr.Record):
    who: str | None
    n: int
    at: hr.Timestamp


class Rule(hr.Record):
    n: int


class Match(hr.BroadcastProcess[Step, Rule, Step, str]):
    rules: hr.BroadcastState[int, Rule]

    def on_broadcast(self, event: Rule, ctx: hr.BroadcastContext[str]) -> None:
        self.rules[event.n] = event

    def on_event(self, event: Step, ctx: hr.Context[str]) -> Iterator[Step]:
        yield event


def program(parallelism: int) -> Program:
    """Edges by a column, by a function, of combined rows, to all shards, and to the shards in turn."""
    app = hr.App("framing")
    steps = app.read("steps", hr.source.items([]), Step, time=Step.at)
    rules = app.read("rules", hr.source.items([]), Rule)
    steps.key_by("who").latest().named("by_column").queryable()
    steps.key_by(initial).latest().named("by_function").queryable()
    steps.key_by("n").window(hr.tumbling("1m")).aggregate(steps=hr.count()).named("combined").queryable()
    steps.connect(rules.broadcast()).process(Match()).write(hr.sink.discard())
    return compile_app(app, parallelism=parallelism, key_groups=GROUPS)


def initial(step: Step) -> str:
    return (step.who or "")[:1]


def arrived(plan: Program, cutter: FrameCutter) -> dict[int, list[Any]]:
    """Shard → rows, as its task gets them."""
    found: dict[int, list[Any]] = defaultdict(list)
    for shard, batches in enumerate(exchange(plan, cutter.drain(last=True))):
        gatherer = RowGatherer(plan.edges)
        for batch in batches:
            for frame in read_frames(batch):
                for each in gatherer.take(frame):
                    found[shard].append(each)
        found[shard].extend(gatherer.rest())
    return {shard: each for shard, each in found.items() if each}


def rows_of(steps: list[Step]) -> Rows:
    rows = Rows.of_objects(codec_of(Step), steps)
    return rows.with_times(rows.columns[2].cast(pa.int64()).to_numpy())


@settings(max_examples=60)
@given(
    batches=st.lists(st.lists(st.sampled_from([None, "", "a", "b", "c", "longer key", "é"]), max_size=30), max_size=5),
    parallelism=st.sampled_from([1, 2, 3, 256]),
    bound=st.sampled_from([1, 300, 1 << 20]),
)
def test_each_row_comes_to_the_shard_of_its_key_in_the_order_of_its_task(
    batches: list[list[str | None]], parallelism: int, bound: int
) -> None:
    plan = program(parallelism)
    with pytest.MonkeyPatch.context() as patched:
        for name in ("_SHARD_BYTES", "_LEAST_BYTES", "_FRAME_BYTES", "_CALL_BYTES"):
            patched.setattr(framing, name, bound)
        cutter = FrameCutter(plan, 0, 0)
        steps, expected = 0, defaultdict[int, list[Step]](list)
        for batch in batches:
            made = [Step(who, steps + i, hr.Timestamp(steps + i)) for i, who in enumerate(batch)]
            steps += len(made)
            if made:
                cutter.add(plan.edges[0], rows_of(made))
            for step in made:
                group = key_group(hash_key(encode_key(step.who)), GROUPS)
                expected[shard_of(group, parallelism, GROUPS)].append(step)
        found = arrived(plan, cutter)
    # Of one key the order is that of the task; a shard may see its keys in any.
    assert {shard: [row for each in some for row in each.rows.objects] for shard, some in found.items()} == expected
    for some in found.values():
        for each in some:
            assert each.keys.encoded.to_pylist() == [encode_key(row.who) for row in each.rows.objects]
            assert each.keys.hashes.tolist() == [hash_key(key) for key in each.keys.encoded.to_pylist()]
            assert each.rows.times is not None
            assert each.rows.times.tolist() == [row.at for row in each.rows.objects]


def test_keys_that_a_function_gives_travel_with_their_rows() -> None:
    plan = program(3)
    edge = next(edge for edge in plan.edges if edge.key is not None and edge.key.fn is initial)
    cutter = FrameCutter(plan, 0, 0)
    cutter.add(edge, rows_of([Step(who, i, hr.Timestamp(i)) for i, who in enumerate(["ab", "b", "ac", "b"])]))
    for some in arrived(plan, cutter).values():
        for each in some:
            assert each.keys.encoded.to_pylist() == [encode_key(initial(row)) for row in each.rows.objects]
            assert each.keys.hashes.tolist() == [hash_key(key) for key in each.keys.encoded.to_pylist()]


def test_partial_results_travel_with_the_keys_that_they_were_combined_by() -> None:
    plan = program(3)
    (edge,) = (edge for edge in plan.edges if edge.combined)
    keys = [encode_key(n) for n in range(20)]
    columns = [pa.nulls(20, field.type) for field in edge.codec.schema]
    cutter = FrameCutter(plan, 0, 0)
    cutter.add(edge, Rows.of_columns(edge.codec, [*columns, pa.array(keys, pa.binary())]))
    found = arrived(plan, cutter)
    came = [key for some in found.values() for each in some for key in each.keys.encoded.to_pylist()]
    assert sorted(came) == sorted(keys)
    for shard, some in found.items():
        for each in some:
            groups = [key_group(int(hashed), GROUPS) for hashed in each.keys.hashes]
            assert {shard_of(group, 3, GROUPS) for group in groups} == {shard}


@pytest.mark.parametrize("bound", [1, 1 << 20])
def test_what_is_broadcast_comes_to_all_shards_in_one_order(bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SHARD_BYTES", "_LEAST_BYTES", "_FRAME_BYTES", "_CALL_BYTES"):
        monkeypatch.setattr(framing, name, bound)
    plan = program(4)
    (edge,) = (edge for edge in plan.edges if edge.key is None)
    cutter = FrameCutter(plan, 0, 2)
    for first in (0, 3, 5):
        cutter.add(edge, Rows.of_objects(codec_of(Rule), [Rule(first + i) for i in range(3)]))
    found = arrived(plan, cutter)
    seen = {
        shard: [(key, row.n) for each in some for key, row in zip(each.keys.encoded.to_pylist(), each.rows.objects)]
        for shard, some in found.items()
    }
    assert sorted(seen) == [0, 1, 2, 3]
    assert all(rows == seen[0] for rows in seen.values())
    assert seen[0] == sorted(seen[0]) and [n for _, n in seen[0]] == [0, 1, 2, 3, 4, 5, 5, 6, 7]


def test_rows_without_a_key_go_to_the_shards_in_turn_however_they_are_batched() -> None:
    plan = program(3)
    (edge,) = (edge for edge in plan.edges if edge.by_shard and edge.key is not None)
    steps = [Step("a", i, hr.Timestamp(i)) for i in range(10)]
    outcomes = []
    for cuts in ([10], [1, 9], [4, 4, 2]):
        cutter, first = FrameCutter(plan, 0, 1), 0
        for count in cuts:
            cutter.add(edge, rows_of(steps[first : first + count]))
            first += count
        found = arrived(plan, cutter)
        outcomes.append({shard: [row.n for each in some for row in each.rows.objects] for shard, some in found.items()})
    assert outcomes == [{0: [2, 5, 8], 1: [0, 3, 6, 9], 2: [1, 4, 7]}] * 3


def test_what_goes_to_every_shard_is_written_when_it_is_asked_for() -> None:
    plan = program(256)
    (edge,) = (edge for edge in plan.edges if edge.key is None)
    cutter = FrameCutter(plan, 0, 0)
    cutter.add(edge, Rows.of_objects(codec_of(Rule), [Rule(i) for i in range(50_000)]))
    before = pa.total_allocated_bytes()
    batches = cutter.drain(last=True)
    next(batches)
    assert pa.total_allocated_bytes() - before < 100 * 2**20, "all of it would be more than 200 MiB"


def test_many_shards_do_not_make_a_frame_of_each_batch() -> None:
    plan = program(256)
    cutter = FrameCutter(plan, 0, 0)
    for batch in range(50):
        cutter.add(plan.edges[0], rows_of([Step(f"user {i}", batch, hr.Timestamp(i)) for i in range(1000)]))
    (batch,) = cutter.drain(last=True)
    assert len(list(read_frames(batch))) == len(batch.column(0).unique()) > 200


def test_small_frames_are_put_together_and_large_ones_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "_FRAME_BYTES", 1 << 24)
    plan = program(1)
    small, large = FrameCutter(plan, 0, 0), FrameCutter(plan, 0, 0)
    for i in range(20):
        small.add(plan.edges[0], rows_of([Step("a", i, hr.Timestamp(i))]))
        small._close_backlogs()
    (some,) = arrived(plan, small)[0]
    assert [row.n for row in some.rows.objects] == list(range(20))
    large.add(plan.edges[0], rows_of([Step("a", i, hr.Timestamp(i)) for i in range(framing._CALL_ROWS)]))
    (batch,) = large.drain(last=True)
    data = batch.column(1).buffers()[2]
    (whole,) = [each for frame in read_frames(batch) for each in RowGatherer(plan.edges).take(frame)]
    numbers = whole.rows.columns[1].buffers()[1]
    assert data.address <= numbers.address < data.address + data.size
