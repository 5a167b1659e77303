"""`source.generator`: row i depends on the seed and on i alone."""

from __future__ import annotations

import random

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import source
from headrace.connectors.program.sources import BLOCK_ROWS, ColumnMaker, GeneratorReader, RowMaker
from headrace.connectors.source_contract import EPOCH_ROWS_AT_MOST, SplitReader
from headrace.errors import FunctionFailed, ProgramError
from headrace.model.record import Record
from headrace.model.rows import codec_of
from headrace.model.time import Timestamp
from headrace.testing.sources import verify_source


class View(Record):
    tweet: str
    at: Timestamp
    n: int


SCHEMA = codec_of(View).schema


def make_view(i: int, rng: random.Random) -> View:
    # A varying number of draws, so that a row that began elsewhere in the random sequence would differ.
    draws = [rng.randrange(1000) for _ in range(1 + i % 3)]
    return View(f"t{draws[-1]}", Timestamp(i * 1000), int(rng.gauss(100, 20)))


PINNED = [("t743", 107), ("t538", 85), ("t429", 119)]
"""What seed 1 makes. A change here changes every generated stream, so a resumed job would go on with other rows."""


def make_columns(start: int, stop: int) -> dict[str, object]:
    i = np.arange(start, stop)
    return {"n": i % 7, "at": i * 1000, "tweet": pa.array((i % 10).astype(str))}


def views(start: int, stop: int, seed: int = 1) -> list[View]:
    return RowMaker(make_view, View, seed).rows(start, stop)


def read_batch(reader: SplitReader, start: int, stop: int) -> pa.Table:
    splits = reader.splits({"i": start}, {"i": stop})
    return pa.Table.from_batches([batch for split in splits for batch in reader.read(split)], SCHEMA)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def paced(rate: float | None, clock: Clock, total: int | None = None, per_epoch: int | None = None) -> GeneratorReader:
    maker = RowMaker(make_view, View, 1)
    return GeneratorReader(maker, rate=rate, total=total, per_epoch=per_epoch, partitions=1, clock=clock)


def test_rows_keep_every_promise_of_a_source() -> None:
    made = lambda: source.generator(make_view, total=50, partitions=3).reader(codec_of(View))  # noqa: E731
    assert verify_source(made, SCHEMA, epochs=20) == 50


def test_columns_keep_every_promise_of_a_source() -> None:
    made = lambda: source.generator(columns=make_columns, total=50).reader(codec_of(View))  # noqa: E731
    assert verify_source(made, SCHEMA, epochs=20) == 50


def test_an_endless_generator_keeps_every_promise_of_a_source() -> None:
    made = lambda: source.generator(make_view, rate=20).reader(codec_of(View))  # noqa: E731
    assert verify_source(made, SCHEMA, epochs=5) >= 20


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3 * BLOCK_ROWS), st.integers(0, 3 * BLOCK_ROWS))
def test_any_range_is_the_same_part_of_the_whole(a: int, b: int) -> None:
    start, stop = min(a, b), max(a, b)
    assert views(start, stop) == views(0, 3 * BLOCK_ROWS)[start:stop]


def test_another_seed_gives_other_rows() -> None:
    assert views(0, 100, seed=1) != views(0, 100, seed=2)
    assert views(0, 100, seed=1) != views(0, 100, seed=-1)


def test_a_seed_means_the_same_rows_for_ever() -> None:
    assert [(v.tweet, v.n) for v in views(0, 3)] == PINNED


def test_blocks_do_not_repeat_each_other() -> None:
    first, second = views(0, BLOCK_ROWS), views(BLOCK_ROWS, 2 * BLOCK_ROWS)
    assert [v.n for v in first] != [v.n for v in second]


def test_pace_is_measured_from_the_start_of_the_reader() -> None:
    clock = Clock()
    reader = paced(100, clock)
    assert reader.latest({"i": 5000}, None) == {"i": 5000}
    clock.now += 0.5
    assert reader.latest({"i": 5000}, None) == {"i": 5050}
    clock.now += 1
    assert reader.latest({"i": 5050}, None) == {"i": 5150}


def test_downtime_makes_no_burst() -> None:
    clock = Clock()
    paced(100, clock).latest({"i": 0}, None)
    clock.now += 3600
    restarted = paced(100, clock)
    assert restarted.latest({"i": 40}, None) == {"i": 40}
    clock.now += 1
    assert restarted.latest({"i": 40}, None) == {"i": 140}


def test_a_slow_consumer_catches_up_and_never_goes_back() -> None:
    clock = Clock()
    reader = paced(100, clock)
    reader.latest({"i": 0}, None)
    clock.now += 10
    assert reader.latest({"i": 0}, 300) == {"i": 300}
    assert reader.latest({"i": 2000}, None) == {"i": 2000}


def test_total_and_per_epoch_bound_what_is_due() -> None:
    clock = Clock()
    assert paced(None, clock, total=10).latest({"i": 0}, None) == {"i": 10}
    assert paced(None, clock, per_epoch=4).latest({"i": 3}, None) == {"i": 7}
    assert paced(None, clock, total=10).latest({"i": 10}, None) == {"i": 10}


def test_reading_what_is_there_now_does_not_wait_for_the_pace() -> None:
    reader = paced(1, Clock(), total=10, per_epoch=4)
    reader.available_now()
    ends = [0]
    while (end := reader.latest({"i": ends[-1]}, None)["i"]) != ends[-1]:
        ends.append(end)
    assert ends == [0, 4, 8, 10]


def test_an_endless_generator_has_an_end_for_a_run_that_catches_up() -> None:
    reader = paced(50, Clock())
    reader.available_now()
    assert reader.latest({"i": 7}, None) == {"i": 57}
    assert reader.latest({"i": 57}, None) == {"i": 57}


def test_a_reader_is_cheap_to_send() -> None:
    reader = source.generator(make_view, total=10_000_000).reader(codec_of(View))
    assert len(cloudpickle.dumps(reader)) < 4000


def test_columns_are_put_in_order_and_cast_to_the_fields_types() -> None:
    reader = source.generator(columns=make_columns).reader(codec_of(View))
    table = read_batch(reader, 5, 8)
    assert table.schema.equals(SCHEMA)
    assert codec_of(View).to_objects([c.combine_chunks() for c in table.columns])[0] == View("5", Timestamp(5000), 5)


def test_columns_may_be_numpy_datetimes_and_dictionaries() -> None:
    def columns(start: int, stop: int) -> dict[str, object]:
        i = np.arange(start, stop)
        return {
            "tweet": pa.array(["a"] * len(i)).dictionary_encode(),
            "at": (i * 1000).astype("M8[ms]"),
            "n": i.astype(np.int32),
        }

    table = read_batch(source.generator(columns=columns).reader(codec_of(View)), 1, 3)
    rows = codec_of(View).to_objects([c.combine_chunks() for c in table.columns])
    assert rows == [View("a", Timestamp(1_000_000), 1), View("a", Timestamp(2_000_000), 2)]


def test_a_function_that_raises_is_named_with_the_row() -> None:
    def broken(i: int, rng: random.Random) -> View:
        return View("a", Timestamp(0), 1 // (i - 3))

    with pytest.raises(FunctionFailed) as failed:
        RowMaker(broken, View, 1).rows(0, 10)
    assert "row number 3" in str(failed.value) and "test_generator.py" in str(failed.value)


def test_rows_of_another_type_are_named() -> None:
    with pytest.raises(FunctionFailed, match="do not fit") as failed:
        list(RowMaker(lambda i, rng: i, View, 1).batches(0, 3))
    assert "View" in str(failed.value)


@pytest.mark.parametrize(
    "made", [{"tweet": ["a"]}, {"tweet": ["a", "b"], "at": [1, 2], "n": [1, 2]}, {"tweet": [1], "at": [1], "n": ["x"]}]
)
def test_columns_that_do_not_fit_are_named(made: dict[str, object]) -> None:
    with pytest.raises(FunctionFailed, match="do not fit"):
        list(ColumnMaker(lambda start, stop: made, SCHEMA).batches(0, 1))


def test_one_function_is_needed_not_two_and_not_none() -> None:
    with pytest.raises(ProgramError, match="one function"):
        source.generator()
    with pytest.raises(ProgramError, match="one function"):
        source.generator(make_view, columns=make_columns)


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(ProgramError, match="rate cannot be 0"):
        source.generator(make_view, rate=0)


def test_it_is_bounded_exactly_when_it_has_a_total() -> None:
    assert source.generator(make_view, total=5).bounded
    assert not source.generator(make_view).bounded


def test_after_a_stall_an_epoch_takes_a_bounded_part_of_what_was_missed() -> None:
    now = [0.0]
    maker = RowMaker(make_view, View, 1)
    reader = GeneratorReader(maker, rate=50_000, total=None, per_epoch=None, partitions=1, clock=lambda: now[0])
    at = reader.latest({"i": 0}, None)
    now[0] = 3600.0
    ends = []
    while (end := reader.latest(at, None)) != at:
        ends.append(end["i"] - at["i"])
        at = end
    assert max(ends) == EPOCH_ROWS_AT_MOST
    assert sum(ends) == 3600 * 50_000
