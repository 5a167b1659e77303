"""Rows are cut into frames by shard and put together again, whatever batches they came in."""

from __future__ import annotations

from collections import defaultdict
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
from headrace.testing.playing import exchange

GROUPS = 512


class Step(hr.Record):
    who: str | None
    n: int
    at: hr.Timestamp


def program(parallelism: int) -> Program:
    """Edge 0 by a key, edge 1 to all shards, edge 2 to the shards in turn."""
    app = hr.App("framing")
    steps = app.read("steps", hr.source.items([]), Step, time=Step.at)
    steps.key_by("who").latest().named("last").queryable()
    return compile_app(app, parallelism=parallelism, key_groups=GROUPS)


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
        for name in ("_SHARD_BYTES", "_LEAST_BYTES", "_FRAME_BYTES", "_WHOLE_BYTES"):
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
        small._cut_all()
    (some,) = arrived(plan, small)[0]
    assert [row.n for row in some.rows.objects] == list(range(20))
    large.add(plan.edges[0], rows_of([Step("a", i, hr.Timestamp(i)) for i in range(framing._WHOLE_ROWS)]))
    (batch,) = large.drain(last=True)
    data = batch.column(1).buffers()[2]
    (whole,) = [each for frame in read_frames(batch) for each in RowGatherer(plan.edges).take(frame)]
    numbers = whole.rows.columns[1].buffers()[1]
    assert data.address <= numbers.address < data.address + data.size
