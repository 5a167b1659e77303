"""The harness tells why a row did not advance a match."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.errors import ProgramError


class Tx(hr.Record):
    card: str
    at: hr.Timestamp
    cents: int
    kind: str = "charge"


SMALL = hr.pattern("small", "cents < 100")


def reasons(
    pattern: hr.EventPattern, *rows: tuple[int, int] | tuple[int, int, str]
) -> list[tuple[int, Any, list[str]]]:
    """Of each row its second, the stages that took it, and why others did not."""
    app = hr.App("shop")
    tx = app.read("tx", hr.source.items([]), Tx, time=Tx.at)
    matches = tx.key_by(Tx.card).match(pattern).named("fraud")
    with hr.testing.Harness(app, start="2024-01-01T12:00") as h:
        start = h.at("12:00")
        h.push(tx, *(Tx("a", start + hr.seconds(row[0]), *row[1:]) for row in rows), Tx("b", start, 1))
        h.epoch(watermark="12:10")
        told = h.why(matches, "a")
    return [
        ((int(each.at) - int(start)) // 1_000_000, each.took, [str(reason) for reason in each.reasons]) for each in told
    ]


SINCE = "of the match since 2024-01-01T12:00:00Z"


@pytest.mark.parametrize(
    ("pattern", "rows", "last"),
    [
        (
            SMALL.then("large", "cents > 50000"),
            [(0, 50), (10, 600)],
            [f"large {SINCE}: cents > 50000 is not true (cents = 600)", "small: cents < 100 is not true (cents = 600)"],
        ),
        (
            SMALL.then("large", "cents > 100 * small.cents"),
            [(0, 50), (10, 600)],
            [
                f"large {SINCE}: cents > 100 * small.cents is not true (cents = 600, small.cents = 50)",
                "small: cents < 100 is not true (cents = 600)",
            ],
        ),
        (
            SMALL.next("large", "cents > 50000"),
            [(0, 50), (10, 600)],
            [
                f"large {SINCE}: cents > 50000 is not true (cents = 600); it has to follow at once (next) — so the "
                "match ended",
                "small: cents < 100 is not true (cents = 600)",
            ],
        ),
        (
            SMALL.not_then("pin", "kind = 'pin'").then("large", "cents > 50000"),
            [(0, 50), (10, 600, "pin")],
            [
                f"large {SINCE}: pin must not come before it: kind = 'pin' is true (kind = 'pin') — so the match ended",
                "small: cents < 100 is not true (cents = 600)",
            ],
        ),
        (
            SMALL.not_next("pin", "kind = 'pin'").then("large", "cents > 50000"),
            [(0, 50), (10, 60_000, "pin")],
            [
                f"large {SINCE}: pin must not come next: kind = 'pin' is true (kind = 'pin') — so the match ended",
                "small: cents < 100 is not true (cents = 60000)",
            ],
        ),
        (
            SMALL.then("large", "cents > 50000").within("1m"),
            [(0, 50), (70, 60_000)],
            [
                f"large {SINCE}: its time was over at 2024-01-01T12:01:00Z: within 1m",
                "small: cents < 100 is not true (cents = 60000)",
            ],
        ),
        (
            SMALL.one_or_more().then("large", "cents > 50000", within="5s"),
            [(0, 50), (7, 60_000)],
            [
                f"small {SINCE}: cents < 100 is not true (cents = 60000)",
                f"large {SINCE}: it came 7s behind the row before, within 5s is wanted",
                "small: cents < 100 is not true (cents = 60000)",
            ],
        ),
        (
            SMALL.one_or_more().until("kind = 'end'").then("large", "cents > 50000"),
            [(0, 50), (7, 60, "end")],
            [
                f"small {SINCE}: the loop ends here: kind = 'end' is true (kind = 'end')",
                f"large {SINCE}: cents > 50000 is not true (cents = 60)",
                "small: the loop ends here: kind = 'end' is true (kind = 'end')",
            ],
        ),
    ],
)
def test_of_each_stage_that_waited_it_tells_what_stood_against_the_row(
    pattern: hr.EventPattern, rows: Any, last: list[str]
) -> None:
    assert reasons(pattern, *rows)[-1] == (rows[-1][0], (), last)


def test_it_tells_which_stages_took_a_row() -> None:
    told = reasons(SMALL.then("next_one", "cents < 100"), (5, 1), (6, 2))
    assert [each[:2] for each in told] == [(5, ("small",)), (6, ("next_one", "small"))]


def test_rows_that_are_late_or_wait_are_told_with_that() -> None:
    app = hr.App("shop")
    tx = app.read("tx", hr.source.items([]), Tx, time=Tx.at)
    matches = tx.key_by(Tx.card).match(SMALL.then("large", "cents > 50000")).named("fraud")
    found = matches.select(jump="large.cents - small.cents")
    with hr.testing.Harness(app, start="2024-01-01") as h:
        h.push(tx, Tx("a", h.at("12:00:20"), 50))
        h.epoch(watermark="12:00:30")
        h.push(tx, Tx("a", h.at("12:00:10"), 60_000), Tx("a", h.at("12:00:50"), 60_000))
        h.crash(at="before_publish")
        h.epoch(watermark="12:00:40")
        assert [(each.took, [reason.reason for reason in each.reasons]) for each in h.why(found, "a")] == [
            ((), ["it came late: the watermark had passed it"]),
            (("small",), []),
            ((), ["it waits until the watermark has passed it"]),
        ]
        assert h.why(matches, "b") == []
        with pytest.raises(ProgramError, match="rows of a pattern"):
            h.why(tx, "a")


def test_by_the_wall_clock_rows_are_told_at_the_time_of_their_epoch() -> None:
    app = hr.App("shop")
    tx = app.read("tx", hr.source.items([]), Tx)
    matches = tx.key_by(Tx.card).match(SMALL.then("large", "cents > 50000").within("1m"), clock="wall").named("fraud")
    matches.select(card="small.card").show()
    with hr.testing.Harness(app, start="2024-01-01T12:00:00") as h:
        h.push(tx, Tx("a", 5, 50))  # type: ignore[arg-type]
        h.epoch(clock="12:00:10")
        h.push(tx, Tx("a", 6, 60_000))  # type: ignore[arg-type]
        h.epoch(clock="12:01:20")
        told = h.why(matches, "a")
        assert [(each.at, each.took) for each in told] == [(h.at("12:00:10"), ("small",)), (h.at("12:01:20"), ())]
        assert "its time was over at 2024-01-01T12:01:10Z" in str(told[1])
