from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.aggregates.rules import BESIDE, LATEST, LEAST, MAX, MIN, SINCE, SUM, merge_field
from headrace.errors import CorruptFile, FunctionFailed, StoreError
from headrace.model.keys import encode_key
from headrace.model.report import RunRef
from headrace.state.fold import fold_runs
from headrace.state.format import PANES, TableData, hash_bounds
from headrace.state.lookup import Layers
from headrace.state.panes.lookup import PaneRange, distinct_panes, find_pieces
from headrace.state.panes.table import compact_rows, fit_rows, merge_rows, pane_schema, sort_hashes
from headrace.state.run import StateRun, encode_run, open_run
from headrace.state.shard import EVENT_DUE, WALL_DUE
from tests.effort import examples
from tests.state.rundata import GROUPS, small_batches, toy_hash

KEYS = [b"key %d" % i for i in range(12)]
SCHEMA = pane_schema(
    [
        merge_field("n.count", pa.int64(), SUM),
        merge_field("low.min", pa.int64(), MIN),
        merge_field("high.max", pa.float64(), MAX),
        merge_field("last.last_time", pa.int64(), LATEST),
        merge_field("last.value", pa.string(), BESIDE, of="last.last_time"),
        merge_field("name.min", pa.string(), LEAST),
    ],
    lasts_us=10,
)


class Partial(NamedTuple):
    pane: int
    key: bytes
    n: int = 1
    low: int | None = None
    high: float | None = None
    at: int | None = None
    name: str | None = None


PARTIALS = st.lists(
    st.builds(
        Partial,
        st.integers(0, 5).map(lambda i: i * 10),
        st.sampled_from(KEYS),
        st.integers(-5, 5),
        st.none() | st.integers(-(2**62), 2**62),
        st.none() | st.floats(allow_nan=True, allow_infinity=True),
        st.none() | st.integers(0, 3),
        st.none() | st.sampled_from(["", "a", "b", "ß"]),
    ),
    max_size=30,
)


def batch_of(partials: Sequence[Partial]) -> pa.RecordBatch:
    columns = [
        pa.array([p.pane for p in partials], pa.int64()),
        pa.array([toy_hash(p.key) for p in partials], pa.uint64()),
        pa.array([p.key for p in partials], pa.binary()),
        pa.array([p.n for p in partials], pa.int64()),
        pa.array([p.low for p in partials], pa.int64()),
        pa.array([p.high for p in partials], pa.float64()),
        pa.array([p.at for p in partials], pa.int64()),
        pa.array([None if p.at is None else f"{p.n} at {p.at}" for p in partials], pa.string()),
        pa.array([p.name for p in partials], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def run_of(partials: Sequence[Partial], *, lo: int = 0, hi: int = GROUPS, epoch: int = 0) -> tuple[RunRef, StateRun]:
    low, high = hash_bounds(lo, hi, GROUPS)
    mine = [p for p in partials if low <= toy_hash(p.key) <= high]
    data = encode_run([TableData("value", PANES, batch_of(mine))], lo=lo, hi=hi, groups=GROUPS)
    return RunRef(epoch=epoch, lo=lo, hi=hi, rows=len(mine), size_bytes=len(data), crc=0), open_run(data)


def plain(partials: Iterable[Partial]) -> dict[tuple[int, bytes], tuple[object, ...]]:
    """What partials come to, one by one; the oldest first."""
    merged: dict[tuple[int, bytes], tuple[object, ...]] = {}
    for place in {(p.pane, p.key) for p in partials}:
        mine = [p for p in partials if (p.pane, p.key) == place]
        lows = [p.low for p in mine if p.low is not None]
        highs = [p.high for p in mine if p.high is not None]
        timed = [p for p in mine if p.at is not None]
        last = max(reversed(timed), key=lambda p: p.at or 0) if timed else None
        names = [p.name for p in mine if p.name is not None]
        high = None if not highs else float("nan") if any(h != h for h in highs) else max(highs)
        merged[place] = (
            sum(p.n for p in mine),
            min(lows, default=None),
            repr(high),
            None if last is None else f"{last.n} at {last.at}",
            min(names, default=None),
        )
    return merged


def told(batches: Iterable[pa.RecordBatch]) -> dict[tuple[int, bytes], tuple[object, ...]]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    found = {
        (row["pane"], row["key"]): (
            row["n.count"],
            row["low.min"],
            repr(None if row["high.max"] is None else row["high.max"] + 0.0),
            None if row["last.last_time"] is None else row["last.value"],
            row["name.min"],
        )
        for row in rows
    }
    assert len(found) == len(rows), "a slice and key stands twice"
    return found


def same(found: dict[tuple[int, bytes], tuple[object, ...]], partials: Sequence[Partial]) -> bool:
    clean = [p._replace(high=None if p.high is None else p.high + 0.0) for p in partials]
    return found == plain(clean)


@given(PARTIALS)
def test_merged_rows_are_what_merging_one_by_one_gives(partials: list[Partial]) -> None:
    merged = merge_rows(batch_of(partials))
    places = [(row["pane"], row["hash"], row["key"]) for row in merged.to_pylist()]
    assert places == sorted(set(places))
    assert same(told([merged]), partials)


@settings(max_examples=examples(30))
@given(st.lists(PARTIALS, min_size=1, max_size=4), st.data())
def test_runs_folds_and_readers_agree_on_what_all_partials_come_to(
    epochs: list[list[Partial]], data: st.DataObject
) -> None:
    with small_batches(data.draw(st.integers(1, 7))):
        runs = [run_of(partials, epoch=i) for i, partials in enumerate(epochs)]
        runs.reverse()
        everything = [p for partials in epochs for p in partials]
        assert same(told(Layers(runs, lo=0, hi=GROUPS, groups=GROUPS).scan("value")), everything)
        count = data.draw(st.integers(1, len(runs)))
        folded = fold_runs(runs[:count], lo=0, hi=GROUPS, groups=GROUPS, drop_tombstones=False).to_buffer()
        ref = RunRef(epoch=9, lo=0, hi=GROUPS, rows=0, size_bytes=len(folded), crc=0)
        layers = Layers([(ref, open_run(folded)), *runs[count:]], lo=0, hi=GROUPS, groups=GROUPS)
        assert same(told(layers.scan("value")), everything)


@settings(max_examples=examples(30))
@given(st.lists(PARTIALS, min_size=1, max_size=3), st.integers(0, GROUPS - 1), st.integers(1, GROUPS))
def test_a_reader_sees_the_slices_and_keys_of_its_range_only(epochs: list[list[Partial]], lo: int, width: int) -> None:
    hi = min(GROUPS, lo + width)
    low, high = hash_bounds(lo, hi, GROUPS)
    with small_batches(4):
        runs = [run_of(partials, epoch=i) for i, partials in enumerate(epochs)][::-1]
        views = Layers(runs, lo=lo, hi=hi, groups=GROUPS).views("value")
        mine = [p for partials in epochs for p in partials if low <= toy_hash(p.key) <= high and 10 <= p.pane < 40]
        span = PaneRange(10, 40)
        pieces = find_pieces(views, span)
        merged = [merge_rows(pa.concat_batches([piece.rows for piece in pieces]))] if pieces else []
        assert same(told(merged), mine)
        assert set(distinct_panes(views, span).tolist()) >= {p.pane for p in mine}
        for key in KEYS:
            there = {p.pane for p in mine if p.key == key}
            wanted = np.array([toy_hash(key)], np.uint64)
            rows = [row for piece in pieces for row in piece.only(wanted).select(["pane", "key"]).to_pylist()]
            found = {row["pane"] for row in rows if row["key"] == key}
            assert found == there


def test_slices_that_are_over_are_dropped_by_folds_and_not_before() -> None:
    runs = [run_of([Partial(0, b"a"), Partial(10, b"a"), Partial(20, b"b")])]

    def panes(now: int) -> list[int]:
        folded = fold_runs(
            runs, lo=0, hi=GROUPS, groups=GROUPS, drop_tombstones=True, fired={EVENT_DUE: now, WALL_DUE: 10**6}
        )
        run = open_run(folded.to_buffer())
        table = run.tables.get("value")
        return [] if table is None else sorted(table.block(0).batch.column("pane").to_pylist())

    assert panes(9) == [0, 10, 20]
    assert panes(10) == [10, 20]
    assert panes(29) == [20]
    assert panes(30) == []


def test_a_sum_that_leaves_64_bits_is_an_error_and_one_that_comes_back_is_not() -> None:
    big = 2**62
    schema = pane_schema([merge_field("total.sum", pa.int64(), SUM)], lasts_us=1)

    def total(values: list[int]) -> int:
        count = len(values)
        columns = [
            pa.array([0] * count, pa.int64()), pa.array([1] * count, pa.uint64()),
            pa.array([encode_key("k")] * count, pa.binary()), pa.array(values, pa.int64()),
        ]  # fmt: skip
        merged = merge_rows(pa.RecordBatch.from_arrays(columns, schema=schema))
        found: int = merged.column("total.sum")[0].as_py()
        return found

    assert total([big, big, -big, -big, 7]) == 7
    assert total([big, big - 1]) == 2**63 - 1
    assert total([-big, -big]) == -(2**63)
    with pytest.raises(FunctionFailed, match="'total' leaves 64 bits"):
        total([big, big])


@given(st.lists(st.lists(st.tuples(st.sampled_from(KEYS[:2]), st.sampled_from([1, -1])), max_size=8), max_size=5))
def test_what_is_stored_of_sums_that_do_not_fit_comes_to_the_same_however_it_was_folded(
    epochs: list[list[tuple[bytes, int]]],
) -> None:
    rows = [(key, sign, at) for at, epoch in enumerate(epochs) for key, sign in epoch]
    partials = [[Partial(0, key, sign * 2**62, at=at) for key, sign in epoch] for at, epoch in enumerate(epochs)]
    with small_batches(1):
        runs = [run_of(each, epoch=at) for at, each in enumerate(partials) if each][::-1]
        if not runs:
            return
        for count in (len(runs), 2):
            folded = fold_runs(runs[:count], lo=0, hi=GROUPS, groups=GROUPS, drop_tombstones=False).to_buffer()
            size = RunRef(epoch=9, lo=0, hi=GROUPS, rows=1, size_bytes=len(folded), crc=0)
            runs = [(size, open_run(folded)), *runs[count:]]
        pieces = find_pieces(Layers(runs, lo=0, hi=GROUPS, groups=GROUPS).views("value"), PaneRange(0, 99))
    stored = pa.concat_batches([piece.rows for piece in pieces]).to_pylist()
    for key in KEYS[:2]:
        mine = [row for row in stored if row["key"] == key]
        assert sum(row["n.count"] for row in mine) == sum(sign for each, sign, _ in rows if each == key) * 2**62
        times = [row["last.last_time"] for row in mine]
        assert times == sorted(times), "older rows come before newer ones"
        totals = {}
        for each, sign, at in rows:
            if each == key:
                totals[at] = sign
        if mine:
            assert mine[-1]["last.value"] == f"{totals[times[-1]] * 2**62} at {times[-1]}"


def test_rows_whose_sum_fits_are_one_however_many_do_not() -> None:
    a, b = encode_key("a"), encode_key("b")
    rows = [Partial(0, a, 2**62), Partial(0, b, 1), Partial(0, a, 2**62), Partial(0, b, 2)]
    stored = compact_rows(batch_of(rows))
    assert sorted((row["key"], row["n.count"]) for row in stored.to_pylist()) == [
        (a, 2**62), (a, 2**62), (b, 3)
    ]  # fmt: skip
    with pytest.raises(FunctionFailed, match="the sum 'n' leaves 64 bits") as refused:
        merge_rows(stored)
    assert refused.value.found == "key a"


def test_rows_marked_before_the_newest_mark_no_longer_count() -> None:
    schema = pane_schema(
        [merge_field("!mark.since", pa.int64(), SINCE), merge_field("n.count", pa.int64(), SUM)], lasts_us=1
    )
    rows = [(b"a", 1, 10), (b"a", 2, 5), (b"b", 1, 3), (b"a", 2, 1), (b"b", 1, 4)]
    columns = [
        pa.array([0] * 5, pa.int64()), pa.array([1] * 5, pa.uint64()), pa.array([r[0] for r in rows], pa.binary()),
        pa.array([r[1] for r in rows], pa.int64()), pa.array([r[2] for r in rows], pa.int64()),
    ]  # fmt: skip
    merged = merge_rows(pa.RecordBatch.from_arrays(columns, schema=schema)).to_pylist()
    assert [(row["key"], row["!mark.since"], row["n.count"]) for row in merged] == [(b"a", 2, 6), (b"b", 1, 7)]


def test_an_aggregate_that_older_rows_do_not_have_has_seen_nothing_in_them() -> None:
    older = pane_schema([merge_field("n.count", pa.int64(), SUM)], lasts_us=1)
    newer = pane_schema(
        [merge_field("n.count", pa.float64(), SUM), merge_field("most.max", pa.int64(), MAX)], lasts_us=1
    )
    rows = pa.RecordBatch.from_arrays(
        [pa.array([0]), pa.array([1], pa.uint64()), pa.array([b"k"], pa.binary()), pa.array([3])], schema=older
    )
    assert fit_rows(rows, newer).to_pylist() == [{"pane": 0, "hash": 1, "key": b"k", "n.count": 3.0, "most.max": None}]
    text = pane_schema([merge_field("n.count", pa.binary(16), MAX)], lasts_us=1)
    with pytest.raises(StoreError, match="'n' was stored with another type"):
        fit_rows(rows, text)


@given(st.lists(st.integers(0, 2**64 - 1)), st.integers(0, 3))
def test_hashes_are_sorted_stably_whatever_they_are(hashes: list[int], kind: int) -> None:
    drawn = np.array(hashes, np.uint64)
    few = np.array([0, 1, 2**32, 2**32 + 1, 2**48, 2**64 - 1], np.uint64)
    wide = np.concatenate([drawn, np.tile(few, 1000), drawn]) if kind else drawn
    assert sort_hashes(wide).tolist() == np.argsort(wide, kind="stable").tolist()


def test_a_damaged_batch_is_never_read() -> None:
    rows = batch_of([Partial(0, b"a"), Partial(10, b"b")])
    data = bytearray(encode_run([TableData("value", PANES, rows)], lo=0, hi=GROUPS, groups=GROUPS))
    entry = open_run(bytes(data)).tables["value"].entries[0]
    data[entry.offset + entry.length - 8] ^= 1
    run = open_run(bytes(data))
    with pytest.raises(CorruptFile, match="checksum"):
        run.tables["value"].block(0)


def test_the_footer_tells_where_slices_lie() -> None:
    with small_batches(2):
        _, run = run_of([Partial(10 * (i // 3), key) for i, key in enumerate(KEYS)])
    entries = run.tables["value"].entries
    firsts = [run.tables["value"].block(i).batch.to_pylist()[0] for i in range(len(entries))]
    assert [(entry.first, entry.first_hash) for entry in entries] == [(row["pane"], row["hash"]) for row in firsts]
    assert [entry.last for entry in entries] == [
        run.tables["value"].block(i).batch.to_pylist()[-1]["pane"] for i in range(len(entries))
    ]


def test_a_row_of_another_shard_is_refused() -> None:
    wide = batch_of([Partial(0, key) for key in KEYS])
    with pytest.raises(StoreError, match="does not belong to this shard"):
        encode_run([TableData("value", PANES, wide)], lo=0, hi=1, groups=GROUPS)
