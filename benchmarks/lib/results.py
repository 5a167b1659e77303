"""What a benchmark hands on: one object with `rows` and `ratios`, tables for people, and both on demand.

A result is a dictionary: `benchmark` (its name), `rows` (a list of flat objects), `ratios` (name → number), `tables`
(title, columns, rows of text) and `notes` (sentences). The tables are made from the rows by the benchmark itself; this
module only prints them, as text or as Markdown.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

_PLAIN_WIDTH = 120


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, Any]:
    return {"title": title, "columns": list(columns), "rows": [list(row) for row in rows]}


def emit(result: dict[str, Any], *, as_json: bool) -> None:
    """The result on standard output: one JSON object, or its tables."""
    if as_json:
        json.dump(result, sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")
    else:
        show(result)


def show(result: dict[str, Any]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PLAIN_WIDTH)
    for each in result["tables"]:
        shown = Table(title=each["title"], title_justify="left", title_style="bold", header_style="bold")
        for number, column in enumerate(each["columns"]):
            shown.add_column(column, justify="left" if number == 0 else "right")
        for row in each["rows"]:
            shown.add_row(*row)
        console.print(shown)
    for note in result["notes"]:
        console.print(note, style="dim")


def markdown(result: dict[str, Any]) -> str:
    """The tables and notes of a result, for a page."""
    blocks = []
    for each in result["tables"]:
        lines = [f"**{each['title']}**", "", _line(each["columns"])]
        lines.append("|---|" + "---:|" * (len(each["columns"]) - 1))
        lines += [_line(row) for row in each["rows"]]
        blocks.append("\n".join(lines))
    blocks += [f"- {note}" for note in result["notes"]]
    joined = "\n\n".join(blocks)
    return joined.replace("\n\n- ", "\n- ").replace("|\n- ", "|\n\n- ")


@dataclass(frozen=True)
class Bar:
    """What a ratio has to reach, and the goal behind it: from below, or (`at_most`) from above."""

    at_least: float | None = None
    goal: float | None = None
    at_most: float | None = None

    def judge(self, ratio: float) -> str:
        if self.at_most is not None:
            return "reached" if ratio <= self.at_most else "missed"
        assert self.at_least is not None
        if self.goal is not None and ratio >= self.goal:
            return "goal reached"
        return "reached" if ratio >= self.at_least else "missed"

    @property
    def text(self) -> str:
        return f"≥ {self.at_least:g}" if self.at_most is None else f"≤ {self.at_most:g}"


def bars_table(ratios: dict[str, float], bars: dict[str, Bar], title: str) -> dict[str, Any]:
    """Ratios beside their bars."""
    rows = [
        [name, f"{ratios[name]:.2f}", bar.text, "–" if bar.goal is None else f"≥ {bar.goal:g}", bar.judge(ratios[name])]
        for name, bar in bars.items()
        if name in ratios
    ]
    return table(title, ["ratio", "measured", "bar", "goal", ""], rows)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
