"""Stretches of time that become sessions, against the plainest way to find them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.state.panes.fragments import find_hashes, find_sessions

STRETCHES = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(-20, 20), st.integers(1, 9)), min_size=1, max_size=20
)


def plain(stretches: list[tuple[bytes, int, int]]) -> set[tuple[bytes, int, int]]:
    """Bounds of sessions: one stretch after the other meets those that are there."""
    sessions: set[tuple[bytes, int, int]] = set()
    for key, start, end in stretches:
        met = {each for each in sessions if each[0] == key and each[1] <= end and each[2] >= start}
        sessions -= met
        sessions.add((key, min([start, *(each[1] for each in met)]), max([end, *(each[2] for each in met)])))
    return sessions


@given(STRETCHES, st.sampled_from([1, 1 << 54]), st.booleans())
def test_stretches_of_a_key_that_overlap_or_touch_are_one_session(
    drawn: list[tuple[bytes, int, int]], unit: int, collide: bool
) -> None:
    stretches = [(key, start * unit, (start + length) * unit) for key, start, length in drawn]
    hashes = np.array([7 if collide else ord(key) << 40 for key, _, _ in stretches], np.uint64)
    keys = pa.array([key for key, _, _ in stretches], pa.binary())
    starts, ends = (np.array([each[i] for each in stretches], np.int64) for i in (1, 2))
    found = find_sessions(hashes, keys, starts, ends)
    told = set()
    for (key, start, end), number in zip(stretches, found.of_row.tolist()):
        session = (key, int(found.starts[number]), int(found.ends[number]))
        assert session[1] <= start and end <= session[2]
        told.add(session)
    assert told == plain(stretches) and len(found.ends) == len(told)


def test_nothing_is_no_session() -> None:
    none = np.zeros(0, np.int64)
    assert not len(find_sessions(np.zeros(0, np.uint64), pa.array([], pa.binary()), none, none).ends)


@given(st.lists(st.integers(0, 40), max_size=30), st.sets(st.integers(0, 40), max_size=12), st.sampled_from([0, 50]))
def test_hashes_are_found_whether_or_not_others_share_their_last_bits(
    hashes: list[int], wanted: set[int], shift: int
) -> None:
    rows, places = find_hashes(
        np.array(hashes, np.uint64) << np.uint64(shift), np.array(sorted(wanted), np.uint64) << np.uint64(shift)
    )
    assert rows.tolist() == [i for i, hash_ in enumerate(hashes) if hash_ in wanted]
    assert [sorted(wanted)[place] for place in places.tolist()] == [hash_ for hash_ in hashes if hash_ in wanted]
