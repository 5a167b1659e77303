from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.job import DeclaredState
from headrace.model.keys import encode_key, hash_encoded, key_group
from headrace.state.format import TableData, hash_bounds
from headrace.state.run import describe_run, encode_run, open_run
from tests.state.rundata import (
    GROUPS,
    Cell,
    due_table,
    entries_table,
    layers_of,
    make_run,
    needles,
    small_batches,
    toy_hash,
    value_table,
)

KEYS = [b"", *(b"key %d" % i for i in range(25)), b"\xff" * 300]


def value_of(cell: Cell) -> Cell:
    return (None, None) if cell[0] is None else cell


CELLS = st.one_of(st.just((None, None)), st.tuples(st.binary(max_size=5), st.none() | st.integers(0, 9)))
DELTAS = st.lists(st.dictionaries(st.sampled_from(KEYS), CELLS), max_size=5)


@given(deltas=DELTAS, batch_rows=st.integers(1, 9), order=st.permutations(KEYS), few=st.sampled_from([0, 1000]))
def test_lookups_over_runs_agree_with_a_dictionary(
    deltas: list[dict[bytes, Cell]], batch_rows: int, order: list[bytes], few: int
) -> None:
    with small_batches(batch_rows, few):
        runs = [make_run([value_table(delta)], epoch) for epoch, delta in enumerate(deltas)]
        layers = layers_of(runs[::-1])
        model: dict[bytes, Cell] = {}
        for delta in deltas:
            model |= delta
        wanted = [value_of(model.get(key, (None, None))) for key in order]
        values, expires = layers.get_many("v", *needles(order))
        assert values.to_pylist() == [value for value, _ in wanted]
        if expires is None:
            assert all(expiry is None for _, expiry in wanted)
        else:
            found = zip(values.to_pylist(), expires.to_pylist())
            assert [value_of(cell) for cell in found] == wanted
        assert [layers.get("v", toy_hash(key), key) for key in order] == wanted
        live = {key: cell for key, cell in model.items() if cell[0] is not None}
        scanned = [row for batch in layers.scan("v") for row in batch.to_pylist()]
        assert [(row["hash"], row["key"]) for row in scanned] == sorted((toy_hash(key), key) for key in live)
        assert {row["key"]: (row["value"], row.get("expires")) for row in scanned} == live
        unexpired = {key for key, (_, expiry) in live.items() if expiry is None or expiry > 4}
        assert {key for batch in layers.scan("v", now_us=4) for key in batch.column("key").to_pylist()} == unexpired


SUBS = [b"", b"a", b"b", b"c", b"dd"]
CHANGES = st.lists(
    st.dictionaries(
        st.sampled_from(KEYS[:12]),
        st.tuples(st.booleans(), st.dictionaries(st.sampled_from(SUBS), CELLS)),
    ),
    max_size=5,
)
"""Per epoch and key: whether the map was cleared first, and what was put or deleted after that."""


def entries_rows(delta: dict[bytes, tuple[bool, dict[bytes, Cell]]]) -> dict[tuple[bytes, bytes | None], Cell]:
    rows: dict[tuple[bytes, bytes | None], Cell] = {}
    for key, (cleared, puts) in delta.items():
        if cleared:
            rows[key, None] = (None, None)
        rows |= {(key, sub): cell for sub, cell in puts.items()}
    return rows


def apply_entries(model: dict[bytes, dict[bytes, Cell]], delta: dict[bytes, tuple[bool, dict[bytes, Cell]]]) -> None:
    for key, (cleared, puts) in delta.items():
        entries = {} if cleared else dict(model.get(key, {}))
        entries |= puts
        model[key] = {sub: entries[sub] for sub in sorted(entries) if entries[sub][0] is not None}


@given(deltas=CHANGES, batch_rows=st.integers(1, 9), order=st.permutations(KEYS[:14]))
def test_maps_over_runs_agree_with_a_dictionary_of_dictionaries(
    deltas: list[dict[bytes, tuple[bool, dict[bytes, Cell]]]], batch_rows: int, order: list[bytes]
) -> None:
    with small_batches(batch_rows):
        runs = [make_run([entries_table(entries_rows(delta))], epoch) for epoch, delta in enumerate(deltas)]
        layers = layers_of(runs[::-1])
        model: dict[bytes, dict[bytes, Cell]] = {}
        for delta in deltas:
            apply_entries(model, delta)
        maps = layers.entries_many("m", *needles(order), limit=1000)
        assert maps == [model.get(key, {}) for key in order]
        assert [list(found or ()) for found in maps] == [sorted(model.get(key, {})) for key in order]
        for key in order:
            wanted = model.get(key, {})
            assert list(layers.entries("m", toy_hash(key), key)) == [(sub, *cell) for sub, cell in wanted.items()]
            for sub in SUBS:
                assert layers.entry("m", toy_hash(key), key, sub) == wanted.get(sub, (None, None))
        scanned = [row for batch in layers.scan("m") for row in batch.to_pylist()]
        assert [(row["hash"], row["key"], row["sub"], row["value"]) for row in scanned] == sorted(
            (toy_hash(key), key, sub, cell[0]) for key, entries in model.items() for sub, cell in entries.items()
        )
        for key, found in zip(order, layers.entries_many("m", *needles(order), limit=3)):
            assert found is None or found == model.get(key, {})
            assert found is not None or len(deltas) * len(SUBS) > 3


def test_maps_with_more_rows_than_the_limit_are_left_to_the_caller() -> None:
    big = {(b"big", b"%03d" % i): (b"v", None) for i in range(20)}
    with small_batches(6):
        run = make_run([entries_table({**big, (b"small", b"1"): (b"v", None)})], 0)
    layers = layers_of([run])
    assert layers.entries_many("m", *needles([b"small", b"big", b"none"]), limit=19) == [
        {b"1": (b"v", None)},
        None,
        {},
    ]
    assert len(list(layers.entries("m", toy_hash(b"big"), b"big"))) == 20


def test_a_map_over_many_batches_is_walked_in_order() -> None:
    rows = {(b"k", b"%06d" % i): (b"%d" % i, None) for i in range(5000)}
    with small_batches(700):
        old = make_run([entries_table(rows)], 0)
        new = make_run([entries_table({(b"k", b"%06d" % i): (None, None) for i in range(0, 5000, 2)})], 1)
    walked = list(layers_of([new, old]).entries("m", toy_hash(b"k"), b"k"))
    assert [sub for sub, _, _ in walked] == [b"%06d" % i for i in range(1, 5000, 2)]


DUE_ROWS = st.lists(st.tuples(st.integers(-5, 15), st.sampled_from(KEYS), st.integers(0, 2)), max_size=20)


@given(
    runs=st.lists(DUE_ROWS, max_size=4),
    batch_rows=st.integers(1, 5),
    after=st.integers(-7, 16),
    length=st.integers(0, 20),
    lo=st.integers(0, GROUPS - 1),
    width=st.integers(1, GROUPS),
)
def test_due_rows_are_those_between_the_times_and_in_the_shard(
    runs: list[list[tuple[int, bytes, int]]], batch_rows: int, after: int, length: int, lo: int, width: int
) -> None:
    hi = min(GROUPS, lo + width)
    with small_batches(batch_rows):
        layers = layers_of([make_run([due_table(rows)], epoch) for epoch, rows in enumerate(runs)], lo, hi)
        mine = [row for rows in runs for row in rows if lo <= key_group(toy_hash(row[1]), GROUPS) < hi]
        found = [
            (row["time"], row["key"], row["timer"]) for row in layers.due("!event", after, after + length).to_pylist()
        ]
        # One run holds a row once; several runs may hold the same.
        once = [row for rows in runs for row in set(rows) if row in mine]
        assert sorted(found) == sorted(row for row in once if after < row[0] <= after + length)
        assert layers.next_due("!event", after) == min((row[0] for row in mine if row[0] > after), default=None)
        scanned = [
            (row["time"], row["hash"], row["key"], row["timer"])
            for batch in layers.scan("!event")
            for row in batch.to_pylist()
        ]
        assert scanned == sorted({(time, toy_hash(key), key, timer) for time, key, timer in mine})


def test_absent_tables_are_empty() -> None:
    layers = layers_of([make_run([value_table({b"a": (b"1", None)})], 0)])
    assert layers.get_many("other", *needles([b"a", b"b"]))[0].to_pylist() == [None, None]
    assert layers.entries_many("other", *needles([b"a"]), limit=5) == [{}]
    assert layers.due("other", 0, 10).num_rows == 0
    assert layers.next_due("other", 0) is None
    assert list(layers.scan("other")) == []
    assert layers.get_many("v", *needles([]))[0].to_pylist() == []


def test_rows_outside_a_references_range_are_not_state() -> None:
    """After a fold of the lower half the old file still holds what the fold has deleted."""
    with small_batches(3):
        ref, run = make_run([value_table(dict.fromkeys(KEYS, (b"old", None)))], 0)
        half = describe_run(encode_run([], lo=0, hi=GROUPS, groups=GROUPS), epoch=0, lo=4, hi=GROUPS)
        layers = layers_of([(half, run)])
        found = layers.get_many("v", *needles(KEYS))[0].to_pylist()
    upper = [key_group(toy_hash(key), GROUPS) >= 4 for key in KEYS]
    assert found == [b"old" if is_upper else None for is_upper in upper]
    assert [layers.get("v", toy_hash(key), key)[0] for key in KEYS] == found
    assert ref.lo == 0


def test_a_spilled_run_hides_what_was_there() -> None:
    layers = layers_of([make_run([value_table({b"a": (b"old", None)})], 0)])
    layers.prepend(*make_run([value_table({b"a": (b"new", None)})], 1))
    assert layers.get("v", toy_hash(b"a"), b"a") == (b"new", None)


def test_a_renamed_table_is_found_under_both_names() -> None:
    old = make_run([value_table({b"a": (b"1", None), b"b": (b"2", None)}, "was")], 0)
    both = make_run([value_table({b"a": (b"3", None)}, "now"), value_table({b"a": (b"0", None)}, "was")], 1)
    from headrace.state.lookup import Layers

    layers = Layers([both, old], lo=0, hi=GROUPS, groups=GROUPS, states={"now": DeclaredState("value", was=("was",))})
    assert layers.tables == {"now": "value"}
    assert layers.get_many("now", *needles([b"a", b"b"]))[0].to_pylist() == [b"3", b"2"]


@pytest.mark.parametrize("count", [10, 3000])
def test_real_keys_are_found_by_their_real_hashes(count: int) -> None:
    keys = pa.array([encode_key(f"user {i}") for i in range(3000)], pa.binary())
    values = pa.array([b"%d" % i for i in range(3000)], pa.binary())
    hashes = hash_encoded(keys)
    data = encode_run(
        [TableData("v", "value", pa.table({"hash": hashes, "key": keys, "value": values}))], lo=0, hi=128, groups=128
    )
    from headrace.state.lookup import Layers

    layers = Layers([(describe_run(data, epoch=0), open_run(data))], lo=0, hi=128, groups=128)
    some = np.random.default_rng(5).permutation(3000)[:count]
    found, _ = layers.get_many("v", hashes[some], keys.take(pa.array(some)))
    assert found.to_pylist() == [b"%d" % i for i in some]


def test_hash_bounds_are_those_of_the_key_groups() -> None:
    for group in range(GROUPS):
        low, high = hash_bounds(group, group + 1, GROUPS)
        assert key_group(low, GROUPS) == key_group(high, GROUPS) == group
