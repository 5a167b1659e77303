"""Rows in the order of several numbers, by numbers that are packed where there is room."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.aggregates.numbers import order_by

NUMBERS = st.integers(-3, 3) | st.integers(-(2**40), 2**40) | st.sampled_from([-(2**63), 2**63 - 1])


@given(st.integers(1, 3).flatmap(lambda width: st.lists(st.tuples(*[NUMBERS] * width), max_size=20)))
def test_the_order_is_stable_and_that_of_tuples(rows: list[tuple[int, ...]]) -> None:
    if not rows:
        assert not len(order_by(np.zeros(0, np.int64)))
        return
    found = order_by(*(np.array(column, np.int64) for column in zip(*rows)))
    assert found.tolist() == sorted(range(len(rows)), key=rows.__getitem__)
