"""Single keys found in runs: the same answers as the lookup of tasks gives, over any runs."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.model.keys import encode_key, hash_key
from headrace.read import finding
from headrace.read.finding import FILTERED_ROWS, Finder, index_of
from headrace.state import encode
from headrace.state.format import VALUE, TableData, hash_bounds
from headrace.state.run import encode_run, open_run
from headrace.state.view import TableView
from tests.effort import examples

GROUPS = 16
Rows = dict[int, bytes | None]


def view_of(rows: Rows, hashes: dict[int, int] | None = None, lo: int = 0, hi: int = GROUPS) -> TableView:
    """A run of keys and values; None is a tombstone. ``hashes`` stand in for the real ones."""
    keys = [encode_key(key) for key in rows]
    found = [(hashes or {}).get(key, hash_key(encode_key(key))) for key in rows]
    table = pa.table(
        {
            "hash": pa.array(found, pa.uint64()),
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(list(rows.values()), pa.binary()),
        }
    )
    run = open_run(encode_run([TableData("t", VALUE, table)], lo=0, hi=GROUPS, groups=GROUPS))
    return TableView(run.tables["t"], *hash_bounds(lo, hi, GROUPS))


RUNS = st.lists(
    st.dictionaries(st.integers(0, 40), st.one_of(st.none(), st.binary(min_size=1, max_size=4)), min_size=1), max_size=5
)


@settings(max_examples=examples(30))
@given(
    RUNS,
    st.lists(st.tuples(st.integers(0, GROUPS - 1), st.integers(1, GROUPS)), min_size=5, max_size=5),
    st.sampled_from([0, 3, FILTERED_ROWS]),
)
def test_the_newest_run_that_speaks_for_a_key_decides(
    runs: list[Rows], ranges: list[tuple[int, int]], filtered_rows: int
) -> None:
    views = []
    for rows, (lo, size) in zip(runs, ranges):
        views.append(view_of(rows, lo=lo, hi=min(GROUPS, lo + size)))
    with pytest.MonkeyPatch.context() as patch:
        # Runs with more rows have no filter: all, some or none of them.
        patch.setattr(finding, "FILTERED_ROWS", filtered_rows)
        finder = Finder(views, GROUPS)
    for key in range(42):
        encoded = encode_key(key)
        hash_ = hash_key(encoded)
        mine = [rows for rows, view in zip(runs, views) if view.low <= hash_ <= view.high]
        expected = next((rows[key] for rows in mine if key in rows), None)
        assert finder.raw(encoded) == expected
        assert finder.raw_at(encoded, None) == expected


def test_many_keys_over_many_batches() -> None:
    keys = random.Random(7).sample(range(10**9), 120_000)
    finder = Finder([view_of({key: b"%d" % key for key in keys})], GROUPS)
    assert all(finder.raw(encode_key(key)) == b"%d" % key for key in keys[:3000])
    assert finder.raw(encode_key(-1)) is None


@pytest.mark.parametrize("hash_", [0, 2**63, 2**64 - 1])
def test_keys_that_share_a_hash_are_told_apart_also_across_batches(hash_: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "BATCH_ROWS", 3)
    keys = list(range(11))
    view = view_of({key: b"%d" % key for key in keys}, dict.fromkeys(keys, hash_))
    index = index_of(view.table)
    for key in keys:
        assert index.value(hash_, encode_key(key)) == b"%d" % key
        assert index.find(hash_, encode_key(key)) is not None
    assert index.value(hash_, encode_key(99)) is None


def test_a_run_too_large_for_a_filter_is_searched_all_the_same() -> None:
    count = FILTERED_ROWS + 1
    keys = pa.array([encode_key(i) for i in range(count)], pa.binary())
    hashes = np.array([hash_key(key) for key in keys.to_pylist()], np.uint64)
    table = pa.table({"hash": hashes, "key": keys, "value": keys})
    run = open_run(encode_run([TableData("t", VALUE, table)], lo=0, hi=GROUPS, groups=GROUPS))
    finder = Finder([TableView(run.tables["t"], *hash_bounds(0, GROUPS, GROUPS))], GROUPS)
    assert finder.raw(encode_key(12_345)) == encode_key(12_345)
    assert finder.raw(encode_key(count)) is None


def test_an_index_serves_every_snapshot_that_has_the_run(tmp_path: Path) -> None:
    view = view_of({1: b"x"})
    assert index_of(view.table) is index_of(view.table)
