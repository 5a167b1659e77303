"""Tables of whole rows: written sorted, found by key and time, folded by what their own metadata says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import StoreError
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.report import RunRef
from headrace.model.rows import codec_of
from headrace.state.fold import fold_runs
from headrace.state.format import ROWS, TableData
from headrace.state.lookup import Layers
from headrace.state.rows.find import KeyTimes
from headrace.state.rows.format import rows_schema, sort_kept
from headrace.state.rows.table import RowTable
from headrace.state.run import StateRun, encode_run, open_run

GROUPS = 16


class Click(hr.Record):
    user: str
    n: int = 0


class Wider(hr.Record):
    user: str
    n: int = 0
    colour: str = "blue"


class Texts(hr.Record):
    user: str
    n: str = ""


Row = tuple[str, int, int]
"""Key, time, number."""
OpenedRun = tuple[RunRef, StateRun]


def hash_of(key: str) -> int:
    # Two letters share a hash, so that keys have to be told apart by their bytes.
    return (ord(key[0]) // 2) << 57


class Store:
    """Runs of a table, epoch by epoch."""

    def __init__(self, kind: Any = Click, **options: Any) -> None:
        self.kind = kind
        self.options = options
        self.runs: list[OpenedRun] = []
        self.epoch = 0

    def table(self, layers: Layers) -> RowTable:
        return RowTable(lambda: layers, "rows", codec_of(self.kind), (), epoch=self.epoch, **self.options)

    def layers(self) -> Layers:
        return Layers(self.runs, lo=0, hi=GROUPS, groups=GROUPS)

    def add(self, rows: Sequence[Row], expires: Sequence[int] | None = None) -> None:
        table = self.table(self.layers())
        fill(table, self.kind, rows, expires)
        changes = table.changes()
        assert changes is not None
        self.write(encode_run([changes], lo=0, hi=GROUPS, groups=GROUPS))

    def write(self, data: pa.Buffer) -> None:
        ref = RunRef(epoch=self.epoch, lo=0, hi=GROUPS, rows=0, size_bytes=len(data), crc=0)
        self.runs.insert(0, (ref, open_run(data)))
        self.epoch += 1

    def fold(self, count: int | None = None, **fired: int) -> None:
        some = self.runs[:count]
        clocks = {f"!{clock}": time for clock, time in fired.items()}
        folded = fold_runs(some, lo=0, hi=GROUPS, groups=GROUPS, drop_tombstones=True, fired=clocks)
        data = folded.to_buffer()
        ref = RunRef(epoch=self.epoch, lo=0, hi=GROUPS, rows=0, size_bytes=len(data), crc=0)
        self.runs[:count] = [(ref, open_run(data))] if folded.rows else []

    def find(self, asked: Sequence[tuple[str, int, int]], **options: Any) -> list[list[tuple[int, Any]]]:
        """(time, row) of each key asked for, in the order they are found."""
        found = self.table(self.layers()).find(wanted(asked), **options)
        rows = codec_of(self.kind).to_objects([found.column(i) for i in range(len(codec_of(self.kind).schema))])
        out: list[list[tuple[int, Any]]] = [[] for _ in asked]
        for code, at, row in zip(found.codes.tolist(), found.at.tolist(), rows, strict=True):
            out[code].append((at, row))
        return out

    def rows(self) -> list[tuple[str, int, int]]:
        """Everything the runs hold, in the order of a scan."""
        return [
            (user, at, n)
            for batch in self.layers().scan("rows")
            for user, at, n in zip(batch["=user"].to_pylist(), batch["at"].to_pylist(), batch["=n"].to_pylist())
        ]


def fill(table: RowTable, kind: Any, rows: Sequence[Row], expires: Sequence[int] | None = None) -> None:
    hashes = np.array([hash_of(key) for key, _, _ in rows], np.uint64)
    keys = pa.array([key.encode() for key, _, _ in rows], pa.binary())
    columns = codec_of(kind).to_arrays([kind(key, n if kind is not Texts else str(n)) for key, _, n in rows])
    limits = None if expires is None else np.array(expires, np.int64)
    table.add(hashes, keys, np.array([at for _, at, _ in rows], np.int64), columns, expires=limits)


def wanted(asked: Sequence[tuple[str, int, int]]) -> KeyTimes:
    keys = [key for key, _, _ in asked]
    return KeyTimes(
        np.array([hash_of(key) for key in keys], np.uint64),
        pa.array([key.encode() for key in keys], pa.binary()),
        np.array([low for _, low, _ in asked], np.int64),
        np.array([high for _, _, high in asked], np.int64),
    )


KEYS = "abcd"
ROWS_OF_EPOCHS = st.lists(
    st.lists(st.tuples(st.sampled_from(KEYS), st.integers(-5, 5), st.just(0)), min_size=1, max_size=12),
    min_size=1,
    max_size=4,
)


@given(
    ROWS_OF_EPOCHS, st.lists(st.tuples(st.integers(-7, 7), st.integers(-7, 7)), min_size=4, max_size=4), st.booleans()
)
def test_a_search_finds_what_a_loop_finds(epochs: list[list[Row]], bounds: list[tuple[int, int]], folded: bool) -> None:
    store = Store()
    everything: list[Row] = []
    for rows in epochs:
        numbered = [(key, at, len(everything) + i) for i, (key, at, _) in enumerate(rows)]
        everything += numbered
        store.add(numbered)
    if folded:
        store.fold()
    asked = [(key, min(pair), max(pair)) for key, pair in zip(KEYS, bounds, strict=True)]
    for (key, low, high), found in zip(asked, store.find(asked), strict=True):
        mine = [(at, Click(key, n)) for each, at, n in everything if each == key and low <= at <= high]
        assert sorted(found, key=repr) == sorted(mine, key=repr)
        if folded:
            assert found == sorted(mine, key=lambda row: (row[0], row[1].n))


@given(ROWS_OF_EPOCHS, st.integers(-6, 6))
def test_looking_back_finds_the_last_row_at_or_before_a_time(epochs: list[list[Row]], time: int) -> None:
    store = Store()
    for rows in epochs:
        store.add(rows)
    for key, found in zip(KEYS, store.find([(key, time, time) for key in KEYS], back=True), strict=True):
        before = [at for rows in epochs for each, at, _ in rows if each == key and at <= time]
        assert max((at for at, _ in found if at <= time), default=None) == max(before, default=None)


def test_rows_are_sorted_by_key_and_time_and_arrival() -> None:
    store = Store()
    store.add([("b", 3, 0), ("a", 5, 1), ("b", 3, 2), ("a", 1, 3), ("c", 0, 4)])
    store.add([("a", 4, 5), ("b", 9, 6)])
    assert store.rows() == [
        ("a", 1, 3), ("a", 4, 5), ("a", 5, 1), ("b", 3, 0), ("b", 3, 2), ("b", 9, 6), ("c", 0, 4),
    ]  # fmt: skip


def test_rows_of_this_epoch_are_not_among_those_of_earlier_ones() -> None:
    store = Store()
    store.add([("a", 1, 1)])
    layers = store.layers()
    table = store.table(layers)
    fill(table, Click, [("a", 2, 2)])
    changes = table.changes()
    assert changes is not None
    data = encode_run([changes], lo=0, hi=GROUPS, groups=GROUPS)
    layers.prepend(RunRef(epoch=1, lo=0, hi=GROUPS, rows=1, size_bytes=len(data), crc=0), open_run(data))
    table.clear()
    fill(table, Click, [("a", 3, 3)])
    everywhere = wanted([("a", MIN_TIME, MAX_TIME)])
    assert table.find(everywhere).at.tolist() == [1]
    assert table.find(everywhere, buffered=True).at.tolist() == [1, 3]
    assert table.find(everywhere, fresh=True, buffered=True).at.tolist() == [1, 2, 3]
    assert table.fresh_between(0, 2**64 - 1).column("at").to_pylist() == [2]


def test_a_fold_leaves_out_what_has_expired_by_the_tables_own_clock() -> None:
    for clock in ("event", "wall"):
        store = Store(clock=f"!{clock}")
        store.add([("a", 1, 1), ("a", 2, 2), ("b", 3, 3)], expires=[10, 11, 20])
        store.fold(**{clock: 10, "event" if clock == "wall" else "wall": 1000})
        assert [row[2] for row in store.rows()] == [2, 3]
        store.fold(**{clock: 20})
        assert not store.runs


def test_a_fold_keeps_the_newest_row_at_or_before_the_watermark_and_all_behind_it() -> None:
    store = Store(keeps="newest")
    store.add([("a", 1, 1), ("a", 3, 2), ("b", 9, 3)])
    store.add([("a", 2, 4), ("a", 7, 5), ("b", 1, 6)])
    store.fold(event=5)
    assert store.rows() == [("a", 3, 2), ("a", 7, 5), ("b", 1, 6), ("b", 9, 3)]
    store.fold(event=7)
    assert store.rows() == [("a", 7, 5), ("b", 1, 6), ("b", 9, 3)]


def test_a_fold_keeps_the_latest_row_of_each_key() -> None:
    store = Store(keeps="latest")
    store.add([("a", 1, 1), ("a", 3, 2), ("b", 9, 3)])
    store.add([("a", 3, 4), ("b", 1, 6)])
    store.fold()
    assert store.rows() == [("a", 3, 4), ("b", 9, 3)]


def test_a_field_that_was_added_has_its_default_in_older_rows() -> None:
    store = Store()
    store.add([("a", 1, 1)])
    store.kind = Wider
    store.add([("a", 2, 2)])
    everything = [("a", MIN_TIME, MAX_TIME)]
    for _ in range(2):
        assert store.find(everything) == [[(1, Wider("a", 1, "blue")), (2, Wider("a", 2, "blue"))]]
        assert store.table(store.layers()).find(wanted(everything)).column(2).to_pylist() == ["blue", "blue"]
        store.fold()


def test_a_field_may_change_its_type_as_far_as_values_can() -> None:
    store = Store()
    store.add([("a", 1, 1)])
    store.kind = Texts
    store.add([("a", 2, 2)])
    everything = [("a", MIN_TIME, MAX_TIME)]
    for _ in range(2):
        assert store.find(everything) == [[(1, Texts("a", "1")), (2, Texts("a", "2"))]]
        store.fold()
    store = Store(Texts)
    store.add([("a", 1, 1)])
    store.kind = Click
    assert store.find(everything) == [[(1, Click("a", 1))]]
    table = pa.array(["x"])
    schema = rows_schema(codec_of(Texts).schema)
    columns = [
        pa.array([hash_of("a")], pa.uint64()),
        pa.array([b"a"]),
        pa.array([5]),
        pa.array([9 << 32]),
        table,
        table,
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    store.write(encode_run([TableData("rows", ROWS, batch)], lo=0, hi=GROUPS, groups=GROUPS))
    with pytest.raises(StoreError, match="cannot become what the program declares now"):
        store.find(everything)


def test_one_row_that_came_twice_is_a_defect() -> None:
    schema = rows_schema(())
    columns = [pa.array([1, 1], pa.uint64()), pa.array([b"a", b"a"]), pa.array([5, 5]), pa.array([7, 7])]
    with pytest.raises(StoreError, match="two rows came at once"):
        sort_kept(pa.RecordBatch.from_arrays(columns, schema=schema))
