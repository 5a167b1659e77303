"""What stops an epoch where more rows are taken out than had come."""

from __future__ import annotations

from typing import Any

from headrace.errors import EpochFailed
from headrace.model.amounts import count_of
from headrace.model.key_text import key_phrase


def below_zero(step: str, rows: int, key: Any) -> EpochFailed:
    """``rows``: so many more went than had come."""
    return EpochFailed(
        f"more rows were taken out of the step {step!r} than had come",
        where=f"step {step}",
        expected="every row that goes to have come before",
        found=f"{count_of(rows, 'row')} less than none for {key_phrase(key)}",
        next_move="where the step began anew while the steps before it went on, let those begin anew, too: --drop; "
        "otherwise look for a function before it that says different things of equal rows",
    )
