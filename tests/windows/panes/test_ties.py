"""Of rows that are equal in what they are compared by, the first to come counts: in columns and row by row alike."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from tests.effort import examples


class Bid(hr.Record):
    item: str
    at: hr.Timestamp
    cents: int
    who: str


class Rows(hr.Aggregator[Bid, int, int]):
    """Makes a step one whose windows are kept row by row."""

    def zero(self) -> int:
        return 0

    def add(self, acc: int, x: Bid) -> int:
        return acc + 1

    def merge(self, a: int, b: int) -> int:
        return a + b

    def result(self, acc: int) -> int:
        return acc


WINDOWS = {
    "tumbling": hr.tumbling("20us"),
    "sliding": hr.sliding("20us", every="5us"),
    "cumulating": hr.cumulating("20us", every="5us"),
}
BY: dict[str, Any] = {"best": hr.max("who", by="cents"), "least": hr.min("who", by="cents")}


def results(window: Any, epochs: list[list[Bid]], **more: Any) -> dict[tuple[int, int], tuple[str, str]]:
    """What the windows come to, by their bounds."""
    app = hr.App("ties")
    bids = app.read("bids", hr.source.items([]), Bid, time=Bid.at)
    step = bids.key_by(Bid.item).window(window).aggregate(**BY, **more).named("step")
    step.show()
    with hr.testing.Harness(app, start="1970-01-01", parallelism=1) as h:
        for rows in epochs:
            h.push(bids, *rows)
            h.epoch(watermark=-100)
        h.drain()
        return {(int(row.window_start), int(row.window_end)): (row.best, row.least) for row in h.take(step)}


@pytest.mark.parametrize("kind", WINDOWS)
def test_the_first_to_come_counts_also_where_its_time_is_later(kind: str) -> None:
    came = [Bid("a", hr.Timestamp(at), 5, f"number {n}") for n, at in enumerate((17, 3, 12))]
    for epochs in ([came], [[row] for row in came]):
        found = results(WINDOWS[kind], epochs)
        assert found[0, 20] == ("number 0", "number 0")


@pytest.mark.parametrize("kind", WINDOWS)
@given(epochs=st.lists(st.lists(st.tuples(st.integers(0, 39), st.integers(0, 2)), max_size=6), max_size=3))
@settings(max_examples=examples(15))
def test_columns_and_rows_choose_the_same(kind: str, epochs: list[list[tuple[int, int]]]) -> None:
    number = iter(range(1000))
    bids = [[Bid("a", hr.Timestamp(at), cents, str(next(number))) for at, cents in rows] for rows in epochs]
    assert results(WINDOWS[kind], bids) == results(WINDOWS[kind], bids, rows=Rows())
