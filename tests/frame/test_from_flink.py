"""What Flink has and somebody may miss: every row of its features is answered on the page for those who know it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "from-flink.md"
ROWS = {"D": 18, "T": 10, "W": 16, "F": 11, "V": 10, "R": 8}
"""Functions, time, windows, checkpoints, savepoints, and backends with recovery and sinks; numbered from 1."""


@pytest.mark.parametrize("letter", ROWS)
def test_no_row_is_left_out(letter: str) -> None:
    firsts = (line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("|"))
    answered = {found for first in firsts for found in re.findall(r"\b[A-Z]\d+\b", first)}
    assert [f"{letter}{n}" for n in range(1, ROWS[letter] + 1) if f"{letter}{n}" not in answered] == []
