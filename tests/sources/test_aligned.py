"""Sources that wait for each other: what is planned, split by split or whole, and that every row is read."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructType

from headrace.connectors.aligned import plain_position, plan_next, whole_splits
from headrace.connectors.source_contract import Offset, Split, SplitReader
from headrace.model.watermarks import (
    WAITED,
    SourceHold,
    TimedSource,
    TimeState,
    WaitingOrder,
    derive_time,
    derive_waiting,
)
from headrace.plan.ship import dump_program
from headrace.spark.python_source import ReadOptions, _PythonReader, reader_options
from headrace.state import layout
from headrace.state.store import open_store

S = 1_000_000


class Parts(SplitReader):
    """Splits of event times in seconds; an epoch brings `step` rows of each split that may go on."""

    def __init__(self, parts: dict[str, list[int]], step: int = 1, *, holds: bool = True) -> None:
        self.parts = parts
        self.step = step
        self.holds = holds
        self.held: frozenset[str] = frozenset()

    def initial(self) -> Offset:
        return dict.fromkeys(self.parts, 0)

    def hold(self, splits: frozenset[str]) -> bool:
        if self.holds:
            self.held = splits
        return self.holds

    def latest(self, start: Offset, limit: int | None) -> Offset:
        assert WAITED not in start
        return {
            name: start[name] if name in self.held else min(len(rows), start[name] + self.step)
            for name, rows in self.parts.items()
        }

    def splits(self, start: Offset, end: Offset) -> list[Split]:
        assert WAITED not in start
        assert WAITED not in end
        return [
            Split(name, {"i": start[name]}, {"i": end[name]}) for name in self.parts if start[name] < end[name]
        ]  # fmt: skip

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        rows = self.parts[split.id][split.start["i"] : split.end["i"]]
        yield pa.RecordBatch.from_pydict({"at": rows})


def test_splits_that_are_told_to_wait_stay_and_the_others_go_on() -> None:
    reader = Parts({"p": [1, 2], "q": [1, 2]})
    hold = SourceHold(("p",))
    assert plan_next(reader, {"p": 0, "q": 0}, None, hold, bounded=False) == {"p": 0, "q": 1}
    assert plan_next(reader, {"p": 0, "q": 1}, None, None, bounded=False) == {"p": 1, "q": 2}, "and are let go again"


def test_a_source_that_cannot_hold_splits_waits_only_as_a_whole() -> None:
    reader = Parts({"p": [1, 2], "q": [1, 2]}, holds=False)
    start = {"p": 0, "q": 0}
    assert plan_next(reader, start, None, SourceHold(("p",)), bounded=False) == {"p": 1, "q": 1}
    assert plan_next(reader, start, None, SourceHold(("p", "q"), whole=True), bounded=False) == start


def test_where_input_ends_a_position_that_waits_still_changes() -> None:
    reader = Parts({"p": [1, 2]}, holds=False)
    hold = SourceHold(("p",), whole=True)
    once = plan_next(reader, {"p": 1}, None, hold, bounded=True)
    twice = plan_next(reader, once, None, hold, bounded=True)
    assert once != twice
    assert plain_position(once) == plain_position(twice) == {"p": 1}
    assert plan_next(reader, twice, None, None, bounded=True) == {"p": 2}


def test_a_source_at_its_end_keeps_the_position_it_has_so_that_the_run_can_end() -> None:
    reader = Parts({"p": [1]})
    end = {"p": 1, WAITED: 3}
    assert plan_next(reader, end, None, None, bounded=True) == end


def test_slices_of_a_split_come_together_in_their_order() -> None:
    slices = [Split("b", {"i": 0}, {"i": 1}), Split("a", {"i": 0}, {"i": 1}), Split("a", {"i": 1}, {"i": 2})]
    assert whole_splits(slices) == [tuple(slices[1:]), (slices[0],)]


def play(readers: dict[str, Parts], timed: list[TimedSource]) -> tuple[dict[str, list[int]], int]:
    """Reads everything as a run that ends with its input does; returns the rows and the largest drift that was met."""
    starts = {name: reader.initial() for name, reader in readers.items()}
    time, order = TimeState(), WaitingOrder()
    rows: dict[str, list[int]] = {name: [] for name in readers}
    furthest = 0
    for clock in range(10_000):
        ends = {
            name: plan_next(reader, starts[name], None, order.hurried.get(name), bounded=True)
            for name, reader in readers.items()
        }
        if ends == starts:
            return rows, furthest
        marks: dict[str, dict[str, int]] = {}
        for name, reader in readers.items():
            for split in reader.splits(plain_position(starts[name]), plain_position(ends[name])):
                for batch in reader.read(split):
                    ats = batch.column("at").to_pylist()
                    rows[name] += ats
                    marks.setdefault(name, {})[split.id] = max(ats) * S
        starts = ends
        time = derive_time(time, marks, sources=timed, steps={}, clock_us=clock, final=False)
        order = derive_waiting(time, timed, clock)
        reached = [each.watermark for each in time.sources.values() if each.splits]
        furthest = max(furthest, max(reached) - min(reached))
    raise AssertionError("the run does not end")


def test_the_faster_source_never_runs_away_as_long_as_the_slower_one_has_rows() -> None:
    readers = {"fast": Parts({"": list(range(0, 1000, 20))}), "slow": Parts({"": list(range(1000))})}
    timed = [TimedSource(name, align="g", max_drift_us=60 * S) for name in readers]
    rows, furthest = play(readers, timed)
    assert rows == {"fast": list(range(0, 1000, 20)), "slow": list(range(1000))}
    assert furthest <= 80 * S, "a drift of 60, and what one epoch brings"


@settings(deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_whoever_waits_everything_is_read_once_and_the_run_ends(seed: int, holds: bool) -> None:
    rng = random.Random(seed)

    def parts() -> dict[str, list[int]]:
        names = rng.choice([[""], ["p"], ["p", "q"], ["p", "q", "r"]])
        return {name: [rng.randrange(500) for _ in range(rng.randrange(12))] for name in names}

    readers = {name: Parts(parts(), rng.randrange(1, 4), holds=holds) for name in "abc"[: rng.randrange(1, 4)]}
    timed = [TimedSource(name, align="g", max_drift_us=rng.randrange(1, 100) * S) for name in readers]
    rows, _ = play(readers, timed)
    assert {name: sorted(found) for name, found in rows.items()} == {
        name: sorted(at for part in reader.parts.values() for at in part) for name, reader in readers.items()
    }


# --- as Spark calls it


def spark_reader(reader: Parts, **use: Any) -> _PythonReader:
    options = reader_options(reader, "at BIGINT", ReadOptions("fast", **use))
    schema = StructType().add("at", LongType()).add("__split", StringType()).add("__bad", StringType())
    return _PythonReader(options["reader"], msgspec.json.decode(options["use"], type=ReadOptions), schema)


def test_the_reader_beside_the_driver_reads_in_the_store_whether_it_waits(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "s"))
    reader = spark_reader(Parts({"p": [1, 2, 3]}, holds=False), waits_in=store.url)
    limit: Any = None
    assert reader.latestOffset({"p": 0}, limit) == {"p": 1}, "nobody has said anything yet"
    order = WaitingOrder(paced={"fast": SourceHold(("p",), whole=True)})
    store.write(layout.WAITING, msgspec.json.encode(order))
    assert reader.latestOffset({"p": 1}, limit) == {"p": 1}
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset({"p": 1}, limit) == {"p": 2}, "where input ends, nobody is waited for here"
    store.write(layout.WAITING, msgspec.json.encode(WaitingOrder(hurried=order.paced)))
    waited = reader.latestOffset({"p": 2}, limit)
    assert waited == {"p": 2, WAITED: 1}
    assert reader.partitions({"p": 2}, waited) == []
    assert dump_program(reader)


@pytest.mark.parametrize(("whole", "tasks"), [(False, 3), (True, 2)])
def test_a_generator_gets_all_rows_of_a_split_in_one_task(whole: bool, tasks: int) -> None:
    class Sliced(Parts):
        def splits(self, start: Offset, end: Offset) -> list[Split]:
            return [Split("p", {"i": 0}, {"i": 1}), Split("q", {"i": 0}, {"i": 1}), Split("p", {"i": 1}, {"i": 2})]

    reader = spark_reader(Sliced({"p": [1, 2], "q": [3]}), whole_splits=whole)
    partitions = reader.partitions({}, {})
    assert len(partitions) == tasks
    rows = [batch.to_pylist() for batch in reader.read(partitions[0])]
    expected = [{"at": at, "__split": "p", "__bad": None} for at in (1, 2)][: 2 if whole else 1]
    assert [row for batch in rows for row in batch] == expected
