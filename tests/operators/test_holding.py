"""Rows that wait in a task come back by key and time, however many there are."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.model.batch import Keys, Rows
from headrace.model.rows import codec_of
from headrace.operators import holding
from headrace.operators.holding import HeldRows


class Tap(hr.Record):
    user: str
    n: int
    at: hr.Timestamp


TAPS = codec_of(Tap)


def tap(user: str, at: int, n: int = 0) -> Tap:
    return Tap(user, n, hr.Timestamp(at))


def keyed(rows: Sequence[Tap], hash_of: Any = None) -> tuple[Rows, Keys]:
    times = np.array([int(row.at) for row in rows], dtype=np.int64)
    hashes = np.array([(hash_of or (lambda user: ord(user[0])))(row.user) for row in rows], dtype=np.uint64)
    keys = pa.array([row.user.encode() for row in rows], pa.binary())
    return Rows.of_columns(TAPS, TAPS.to_arrays(rows), times), Keys(hashes, keys)


def drained(held: HeldRows) -> list[Tap]:
    return [row for rows, _ in held.drain() for row in rows.objects]


def test_what_does_not_fit_lies_in_files_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    held = HeldRows(limit_bytes=200)
    for i in range(20):
        held.add(*keyed([tap("ab"[i % 2], 100 - i, i)]))
    assert held.files > 2
    assert list(tmp_path.iterdir()) == []
    assert [row.n for row in drained(held)] == [*range(18, -1, -2), *range(19, 0, -2)]
    assert held.files == 0 and drained(held) == []


@given(
    batches=st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4)), max_size=9), max_size=9),
    limit=st.sampled_from([1, 150, 600, 1 << 30]),
    chunk=st.sampled_from([1, 2, 3, 1000]),
    one_hash=st.booleans(),
)
def test_rows_come_back_sorted_and_stable_through_any_number_of_files(
    batches: list[list[tuple[str, int]]], limit: int, chunk: int, one_hash: bool
) -> None:
    before, holding._CHUNK_ROWS = holding._CHUNK_ROWS, chunk  # type: ignore[misc]
    try:
        held = HeldRows(limit)
        rows: list[Tap] = []
        for batch in batches:
            fresh = [tap(user, at, len(rows) + i) for i, (user, at) in enumerate(batch)]
            rows += fresh
            held.add(*keyed(fresh, (lambda user: 7) if one_hash else None))
        found = drained(held)
    finally:
        holding._CHUNK_ROWS = before  # type: ignore[misc]
    assert len(found) == len(rows)
    for user in "abc":
        mine = [row for row in rows if row.user == user]
        assert [row.n for row in found if row.user == user] == [row.n for row in sorted(mine, key=lambda row: row.at)]
    if not one_hash:
        assert [row.user for row in found] == sorted(row.user for row in found)


def test_rows_without_time_belong_to_its_beginning() -> None:
    held = HeldRows()
    held.add(*keyed([tap("a", 5)]))
    rows, keys = keyed([tap("a", 0, 1)])
    held.add(Rows.of_columns(TAPS, rows.columns), keys)
    assert [row.n for row in drained(held)] == [1, 0]
