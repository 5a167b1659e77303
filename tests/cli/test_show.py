"""Tables of commands on terminals of every width: whatever is shown is whole."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from headrace.cli.show import make_table, print_table

COLUMNS = ("step", "shard", "rows in", "rows out", "took ms", "watermark")
ROWS = (
    ("count_views", "0", "1,234,567", "89,012", "5,404.3", "2024-01-01T12:01:54.999Z"),
    ("count_views", "1", "7", "8", "0.1", "2024-01-01T12:01:55Z"),
)


def printed(width: int, *, terminal: bool = True) -> list[str]:
    table = make_table(*COLUMNS, left=("step", "watermark"))
    for row in ROWS:
        table.add_row(*row)
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None, highlight=False)
    print_table(console, "steps", table, names=2)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [50, 60, 80, 120, 240])
def test_no_number_is_cut_and_no_column_left_out_however_narrow_the_terminal(width: int) -> None:
    lines = printed(width)
    words = {word for line in lines for word in line.split()}
    assert words >= {cell for row in ROWS for cell in row}
    assert all(len(line) <= width for line in lines)
    text = "\n".join(lines)
    assert all(re.search(rf"\b{name}\b", text) for name in COLUMNS)


def test_each_band_says_what_its_rows_are_of() -> None:
    lines = [line for line in printed(60) if line.strip() and "─" not in line][1:]
    heads = [line for line in lines if "shard" in line]
    assert len(heads) == 2 and all(line.split()[:2] == ["step", "shard"] for line in heads)
    rows = [line.split()[:2] for line in lines if "shard" not in line]
    assert rows == [["count_views", "0"], ["count_views", "1"]] * 2


def test_a_table_that_fits_is_one() -> None:
    assert sum("shard" in line for line in printed(120)) == 1
