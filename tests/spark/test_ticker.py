"""When the ticker moves its offset, and how many partitions an epoch then has: Spark's questions, asked of it alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.model.order import Tick
from headrace.spark.ticker import Ticker

pytestmark = pytest.mark.spark

PAST, FUTURE = 0, 1 << 60


class Stream:
    """The ticker as a running query sees it."""

    def __init__(self, spark: Any, tick: Tick | None, *, bounded: bool) -> None:
        self.ticker = Ticker(spark)
        if tick is not None:
            self.ticker.set(tick)
        self.java = self.ticker.java.newScanBuilder(None).build().toMicroBatchStream("")
        if bounded:
            self.java.prepareForTriggerAvailableNow()

    def after(self, start: dict[str, Any]) -> dict[str, Any]:
        return json.loads(self.java.latestOffset(self.offset(start), None).json())

    def offset(self, position: dict[str, Any]) -> Any:
        return self.java.deserializeOffset(json.dumps(position))


@pytest.mark.parametrize(
    ("tick", "bounded", "start", "moved"),
    [
        (None, False, {"seq": 4}, None),
        (Tick(5), False, {"seq": 0}, None),
        (Tick(5, due_us=PAST), False, {"seq": 4}, {"seq": 5}),
        (Tick(5, due_us=FUTURE), False, {"seq": 4}, None),
        (Tick(5, due_us=PAST), False, {"seq": 5}, None),
        (Tick(5, due_us=PAST), True, {"seq": 4}, {"seq": 5}),
        (Tick(5, due_us=FUTURE), True, {"seq": 4}, None),
        (Tick(5, loops=3), False, {"seq": 4}, {"seq": 5, "loops": 3}),
        (Tick(5, loops=3), True, {"seq": 4}, {"seq": 5, "loops": 3}),
        (Tick(5, loops=3), True, {"seq": 5, "loops": 3}, None),
        (Tick(6, due_us=PAST), False, {"seq": 5, "loops": 3}, {"seq": 6}),
        (Tick(5, final=True), True, {"seq": 4}, {"seq": 5, "final": True}),
        (Tick(5, final=True), True, {"seq": 5, "final": True}, None),
        (Tick(6, final=True), True, {"seq": 5, "final": True}, None),
        (Tick(6, final=True, loops=2), True, {"seq": 5, "final": True}, {"seq": 6, "final": True, "loops": 2}),
    ],
)
def test_the_offset_moves_when_an_epoch_is_due_without_input(
    spark: Any, tick: Tick | None, bounded: bool, start: dict[str, Any], moved: dict[str, Any] | None
) -> None:
    assert Stream(spark, tick, bounded=bounded).after(start) == (start if moved is None else moved)


def test_a_bounded_run_is_woken_once_by_what_was_due_when_it_began(spark: Any) -> None:
    stream = Stream(spark, Tick(5, due_us=PAST), bounded=True)
    assert stream.after({"seq": 4}) == {"seq": 5}
    stream.ticker.set(Tick(6, due_us=PAST))
    assert stream.after({"seq": 5}) == {"seq": 5}


def test_an_epoch_has_a_partition_for_each_share_of_what_waits_in_loops(spark: Any) -> None:
    stream = Stream(spark, Tick(5, loops=3), bounded=False)

    def shares(start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int]]:
        partitions = stream.java.planInputPartitions(stream.offset(start), stream.offset(end))
        return [(row.getInt(0), row.getInt(1)) for partition in partitions for row in partition.records()]

    assert shares({"seq": 4}, {"seq": 5, "loops": 3}) == [(0, 3), (1, 3), (2, 3)]
    assert shares({"seq": 5, "loops": 3}, {"seq": 6}) == []


@pytest.mark.parametrize("position", [{"seq": 0}, {"seq": 7, "final": True}, {"seq": 2**40, "final": True, "loops": 2}])
def test_an_offset_is_written_as_stores_have_it(spark: Any, position: dict[str, Any]) -> None:
    """Byte for byte: what a rewind holds back is compared with what stands in older manifests."""
    stream = Stream(spark, None, bounded=False)
    assert stream.offset(position).json() == json.dumps(position)
    compact = stream.java.deserializeOffset(json.dumps(position, separators=(",", ":")))
    assert compact.equals(stream.offset(position))


def test_an_offset_without_its_number_is_refused(spark: Any) -> None:
    stream = Stream(spark, None, bounded=False)
    with pytest.raises(Exception, match="an offset of the ticker without its number"):
        stream.offset({"rows": 5})
