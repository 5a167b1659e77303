"""The overlay of a task: what is fetched, what is flushed, how memory stays bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import EpochFailed
from headrace.model.keys import encode_key, hash_encoded
from headrace.model.report import RunRef
from headrace.model.values import value_codec
from headrace.state.format import TableData
from headrace.state.lookup import Layers
from headrace.state.overlay import changed_slots
from headrace.state.run import encode_run, open_run
from headrace.state.shard import EVENT_DUE, ShardState, distinct_keys
from headrace.state.subs import TIME_SUB

GROUPS = 8
TEXT = value_codec(str)
NUMBER = value_codec(int)


class Counting(Layers):
    """Layers that note how many keys they are asked for at once."""

    asked: list[tuple[str, int]]

    def get_many(self, table: str, hashes: Any, keys: Any) -> Any:
        self.asked.append((table, len(keys)))
        return super().get_many(table, hashes, keys)


class Shard:
    """A ShardState over the runs of the epochs before."""

    def __init__(self, runs: Sequence[tuple[RunRef, Any]] = (), limit: int = 1 << 40) -> None:
        self.layers = Counting(list(runs), lo=0, hi=GROUPS, groups=GROUPS)
        self.layers.asked = []
        self.spilled: list[Sequence[TableData]] = []
        self.state = ShardState(
            self.layers, lo=0, hi=GROUPS, groups=GROUPS, spill=self.spill, overlay_limit_bytes=limit
        )  # fmt: skip

    def spill(self, tables: Sequence[TableData]) -> None:
        self.spilled.append(tables)
        self.layers.prepend(*run_of(tables))

    def enter(self, *keys: str, by_slot: bool = False) -> list[int]:
        slots: list[int] = self.state.enter(*needles(*keys), by_slot=by_slot).tolist()
        return slots


def needles(*keys: str) -> tuple[Any, pa.BinaryArray]:
    encoded = pa.array([encode_key(key) for key in keys], pa.binary())
    return hash_encoded(encoded), encoded


def run_of(tables: Sequence[TableData]) -> tuple[RunRef, Any]:
    data = encode_run(tables, lo=0, hi=GROUPS, groups=GROUPS)
    return RunRef(epoch=0, lo=0, hi=GROUPS, rows=0, size_bytes=len(data), crc=0), open_run(data)


def stored(**values: str) -> list[tuple[RunRef, Any]]:
    shard = Shard()
    column = shard.state.values("v", TEXT)
    for slot, value in zip(shard.enter(*values), values.values()):
        column.put(slot, value)
    return [run_of(shard.state.flush())]


def test_a_slot_is_given_once_and_known_again() -> None:
    shard = Shard()
    shard.state.values("v", TEXT)
    assert shard.enter("a", "b") == [0, 1]
    assert shard.enter("c", "a", "d", "b") == [2, 0, 3, 1]
    assert shard.enter("b") == [1]
    assert shard.state.name(3) == encode_key("d")


def test_distinct_keys_go_by_bytes_not_by_hash() -> None:
    keys = pa.array([b"sa", b"sb", b"sa", b"sc"], pa.binary())
    found = distinct_keys(np.array([7, 7, 7, 9], np.uint64), keys)
    assert found.keys.to_pylist() == [b"sa", b"sb", b"sc"]
    assert found.codes.tolist() == [0, 1, 0, 2] and found.hashes.tolist() == [7, 7, 9]


def test_the_first_question_of_a_batch_fetches_all_of_it_at_once() -> None:
    shard = Shard(stored(a="1", b="2"))
    column = shard.state.values("v", TEXT)
    slots = shard.enter("a", "b", "c")
    assert [column.get(slot) for slot in slots] == ["1", "2", None]
    assert shard.layers.asked == [("v", 3)]
    shard.enter("a", "b")
    assert [column.get(slot) for slot in slots] == ["1", "2", None]
    assert shard.layers.asked == [("v", 3)]


def test_writing_needs_no_fetch_and_is_not_overwritten_by_one() -> None:
    shard = Shard(stored(a="1", b="2"))
    column = shard.state.values("v", TEXT)
    a, b = shard.enter("a", "b")
    column.put(a, "new")
    assert shard.layers.asked == []
    assert column.get(b) == "2" and column.get(a) == "new"


def test_keys_met_before_but_never_asked_for_are_fetched_together() -> None:
    shard = Shard(stored(a="1", b="2", c="3"))
    column = shard.state.values("v", TEXT)
    shard.enter("a", "b", "c")
    slots = shard.enter("c", "b", "x")
    assert [column.get(slot) for slot in slots] == ["3", "2", None]
    assert shard.layers.asked == [("v", 1), ("v", 2)]  # What is new, then what is not.


def test_only_changes_are_flushed_and_a_flush_empties() -> None:
    shard = Shard(stored(a="1", b="2"))
    column = shard.state.values("v", TEXT)
    a, b, c = shard.enter("a", "b", "c")
    assert column.get(a) == "1"
    column.put(b, None)
    column.put(c, "3")
    [table] = shard.state.flush()
    assert (table.name, table.kind, table.batch.num_rows) == ("v", "value", 2)
    assert table.batch.column("value").to_pylist() == [None, TEXT.encode("3")]
    assert "expires" not in table.batch.column_names
    assert shard.state.flush() == []


def test_an_overlay_that_is_too_large_is_spilled_and_read_back() -> None:
    shard = Shard(limit=200_000)
    column = shard.state.values("v", TEXT)
    peak = 0
    for batch in range(40):
        keys = [f"k{(batch * 37 + i) % 900}" for i in range(100)]
        for slot in shard.enter(*keys):
            column.put(slot, (column.get(slot) or "") + f"{batch}" * 20)
        peak = max(peak, shard.state.weigh())
        shard.state.relieve(len(keys))
    assert shard.state.spills == len(shard.spilled) > 2
    assert peak < 400_000
    [slot] = shard.enter("k5")
    assert column.get(slot) == "".join(f"{batch}" * 20 for batch in range(40) if (5 - batch * 37) % 900 < 100)


def test_what_is_small_is_not_spilled() -> None:
    shard = Shard(limit=10_000_000)
    column = shard.state.values("v", TEXT)
    for batch in range(20):
        for slot in shard.enter(*[f"k{batch}-{i}" for i in range(100)]):
            column.put(slot, "x")
        assert not shard.state.relieve(100)
    assert shard.spilled == []


def test_reading_alone_is_given_up_without_writing() -> None:
    shard = Shard(stored(a="1"), limit=1)
    column = shard.state.values("v", TEXT)
    assert column.get(shard.enter("a")[0]) == "1"
    assert shard.state.relieve(1)
    assert shard.spilled == [] and shard.state.flush() == []


def test_each_changed_key_is_told_once_spilled_or_not() -> None:
    for limit in (1, 1 << 40):
        shard = Shard(limit=limit)
        column = shard.state.values("v", TEXT, track=True)
        for keys in (["a", "b"], ["b", "c"], ["a"]):
            for slot in shard.enter(*keys):
                column.put(slot, (column.get(slot) or "") + "x")
            shard.state.relieve(len(keys))
        told = {}
        for slots in shard.state.changed(column):
            for slot in slots.tolist():
                assert shard.state.name(slot) not in told
                told[shard.state.name(slot)] = column.get(slot)
        assert told == {encode_key("a"): "xx", encode_key("b"): "xx", encode_key("c"): "x"}


def test_a_key_of_another_shard_is_refused() -> None:
    state = ShardState(
        Layers([], lo=0, hi=1, groups=GROUPS), lo=0, hi=1, groups=GROUPS, spill=print, overlay_limit_bytes=1
    )  # fmt: skip
    hashes, keys = needles(*[f"k{i}" for i in range(50)])
    mine = hashes < np.uint64(2**61)
    state.enter(hashes[mine], keys.filter(pa.array(mine)))
    with pytest.raises(EpochFailed, match="does not own its key"):
        state.enter(hashes[~mine], keys.filter(pa.array(~mine)))


def test_due_tells_stored_and_fresh_times_in_order_and_spilled_ones_of_the_past() -> None:
    shard = Shard()
    one = shard.state.values("one", NUMBER)
    many = shard.state.entries("many", value_codec(None), TIME_SUB)
    shard.state.indexes.add_timer(EVENT_DUE, one)
    shard.state.indexes.add_timer(EVENT_DUE, many)
    a, b = shard.enter("a", "b")
    one.put(a, 30)
    many.put(b, 5, None)
    shard.state.spill()
    [c] = shard.enter("c")
    one.put(c, 20)
    due = shard.state.indexes.due(EVENT_DUE, 10, 25)
    assert list(zip(due.times.tolist(), due.keys.to_pylist())) == [(5, encode_key("b")), (20, encode_key("c"))]
    assert shard.state.indexes.next_due(EVENT_DUE, 20) == 30
    assert shard.state.indexes.next_due(EVENT_DUE, 30) is None
    names = {table.name: table.batch.num_rows for table in shard.state.flush()}
    assert names == {"one": 1, EVENT_DUE: 1}


def test_nothing_stored_is_due_when_a_clock_went_back() -> None:
    before = Shard()
    one = before.state.values("one", NUMBER)
    before.state.indexes.add_timer(EVENT_DUE, one)
    one.put(before.enter("a")[0], 30)
    shard = Shard([run_of(before.state.flush())])
    assert len(shard.state.indexes.due(EVENT_DUE, 100, 20).times) == 0
    assert shard.state.indexes.due(EVENT_DUE, 20, 30).times.tolist() == [30]


def test_changed_slots_do_not_keep_a_column_from_growing() -> None:
    dirty = bytearray(b"\x00\x01\x01")
    found = changed_slots(dirty)
    dirty.extend(b"\x01")
    assert found.tolist() == [1, 2]
