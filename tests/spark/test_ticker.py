"""When the ticker moves its offset, and how many partitions an epoch then has. Needs pyspark, but no JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from headrace.model.order import Tick
from headrace.spark.ticker import TickerSource
from headrace.state import layout
from headrace.state.store import LocalStore

PAST, FUTURE = 0, 1 << 60


def reader(folder: Path, tick: Tick, *, bounded: bool) -> Any:
    LocalStore(folder, durable=False).write(layout.TICK, msgspec.json.encode(tick))
    made: Any = TickerSource({"store": str(folder)}).streamReader(None)
    if bounded:
        made.prepareForTriggerAvailableNow()
    return made


@pytest.mark.parametrize(
    ("tick", "bounded", "start", "moved"),
    [
        (Tick(5), False, {"seq": 0}, None),
        (Tick(5, due_us=PAST), False, {"seq": 4}, {"seq": 5}),
        (Tick(5, due_us=FUTURE), False, {"seq": 4}, None),
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
    tmp_path: Path, tick: Tick, bounded: bool, start: dict[str, Any], moved: dict[str, Any] | None
) -> None:
    made = reader(tmp_path, tick, bounded=bounded)
    assert made.latestOffset(start, ReadAllAvailable()) == (start if moved is None else moved)


def test_a_bounded_run_is_woken_once_by_what_was_due_when_it_began(tmp_path: Path) -> None:
    made = reader(tmp_path, Tick(5, due_us=PAST), bounded=True)
    assert made.latestOffset({"seq": 4}, ReadAllAvailable()) == {"seq": 5}
    LocalStore(tmp_path, durable=False).write(layout.TICK, msgspec.json.encode(Tick(6, due_us=PAST)))
    assert made.latestOffset({"seq": 5}, ReadAllAvailable()) == {"seq": 5}


def test_an_epoch_has_a_partition_for_each_share_of_what_waits_in_loops(tmp_path: Path) -> None:
    made = reader(tmp_path, Tick(5, loops=3), bounded=False)
    shares = made.partitions({"seq": 4}, {"seq": 5, "loops": 3})
    assert [row for share in shares for row in made.read(share)] == [(0, 3), (1, 3), (2, 3)]
    assert made.partitions({"seq": 5, "loops": 3}, {"seq": 6}) == []
