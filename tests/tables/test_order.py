"""In what order rows come, and that it does not depend on how they were cut."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.errors import HeadraceError
from tests.tables.playing import build, typed_rows


def played(query: str, *, split: bool) -> list[Any]:
    app, sources, result = build(query)
    taken = []
    with hr.testing.Harness(app, start="2024-01-01T00:00") as h:
        rows = typed_rows("tx")
        # Backwards within an epoch: rows come in no order of their time.
        for part in (rows[:5], rows[5:]) if split else (rows,):
            h.push(sources["tx"], *reversed(part))
            h.epoch(watermark=int(part[-1].ts))
            taken += h.take(result)
        h.drain()
        taken += h.take(result)
    return [tuple(getattr(row, name) for name in row.__struct_fields__) for row in taken]


def test_rows_ordered_by_time_come_in_that_order_under_every_cut() -> None:
    query = "SELECT ts, card FROM tx ORDER BY ts"
    whole = played(query, split=False)
    assert [row[0] for row in whole] == [row.ts for row in typed_rows("tx")]
    assert played(query, split=True) == whole


def test_rows_before_are_those_before_in_time_and_not_in_arrival() -> None:
    query = "SELECT ts, LAG(cents) OVER (ORDER BY ts) AS before FROM tx"
    expected = [None, *(row.cents for row in typed_rows("tx"))][:-1]
    assert [row[1] for row in played(query, split=False)] == expected
    assert [row[1] for row in played(query, split=True)] == expected


REFUSED = {
    "SELECT card FROM tx ORDER BY cents": ("by their event time", "cents"),
    "SELECT card FROM tx ORDER BY ts DESC": ("by their event time", "ts"),
    "SELECT card FROM tx ORDER BY ts LIMIT 0": ("whole number from 1", ""),
    "SELECT card FROM tx ORDER BY ts LIMIT 3 OFFSET 2": ("OFFSET", ""),
    "SELECT card, COUNT(*) AS n FROM tx GROUP BY card ORDER BY n": ("by their event time", "n"),
    "SELECT NTILE(3) OVER (ORDER BY ts) AS n FROM tx": ("NTILE(3) OVER cannot be had", "NTILE"),
    "SELECT RANK() OVER (ORDER BY cents) AS n FROM tx": ("change with every row", ""),
    "SELECT LEAD(cents, 1, 2, 3) OVER (ORDER BY ts) AS n FROM tx": ("one to three arguments", "LEAD"),
    "SELECT LEAD(cents) OVER (ORDER BY ts) AS n, LEAD(cents) OVER (PARTITION BY card ORDER BY ts) AS m FROM tx": (
        "one PARTITION BY and ORDER BY",
        "LEAD(cents) OVER (PARTITION",
    ),
    "SELECT SUM(cents) OVER (PARTITION BY card) AS s FROM tx": ("OVER goes by event time", "SUM"),
    "SELECT SUM(cents) OVER (ORDER BY ts ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS s FROM tx": (
        "a frame has an end",
        "SUM",
    ),
    "SELECT SUM(cents) OVER (ORDER BY ts ROWS BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING) AS s FROM tx": (
        "ends at the current row",
        "SUM",
    ),
    "SELECT SUM(cents) OVER (ORDER BY ts ROWS BETWEEN 1 PRECEDING AND 2 PRECEDING) AS s FROM tx": (
        "ends before it begins",
        "SUM",
    ),
    "SELECT ROW_NUMBER() OVER (PARTITION BY card ORDER BY cents) AS n FROM tx": ("change with every row", ""),
    "SELECT n FROM (SELECT RANK() OVER (ORDER BY cents) AS n FROM tx) AS t WHERE n < 1": ("numbered from 1", ""),
    "SELECT card FROM tx QUALIFY ROW_NUMBER() OVER (ORDER BY cents) <= 0": ("numbered from 1", ""),
    "SELECT SUM(n) OVER (ORDER BY ts) FROM (SELECT ts, COUNT(*) AS n FROM tx GROUP BY ts)": ("by event time", "SUM"),
    "SELECT SUM(cents) OVER w AS s FROM tx": ("no window 'w'", "SUM"),
}


@pytest.mark.parametrize("query", REFUSED)
def test_what_has_no_order_is_refused_at_its_character(query: str) -> None:
    what, marked = REFUSED[query]
    with pytest.raises(HeadraceError) as raised:
        build(query)
    assert what in raised.value.what
    line, mark = raised.value.found.split("\n")
    assert line[len(mark) - 1 - len("  found:    ") :].startswith(marked)
    assert raised.value.expected
