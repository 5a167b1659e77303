"""A live answer on a terminal: the table that its changes make, drawn a few times a second; what changed stands out.

An answer with a key is a table of the newest row of each key; one whose rows are taken back, of those that are left;
any other shows the newest rows. A person sees as many rows as the screen has lines. What is kept is bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from headrace.cli.shell.printing import OP, cell_text, cells_of, rich_table
from headrace.cli.shell.session import Changes, LiveAnswer
from headrace.connectors.console.bands import BandedTable
from headrace.model.amounts import count_of

KEPT_ROWS: Final = 100_000
"""Of a table with more rows than these the oldest are no longer shown."""
_AROUND: Final = 6
"""Lines of the screen that are no rows: the header, the status, the prompt."""

Cells = tuple[Any, ...]


class LiveTable:
    """The rows that hold now, and which of them the last look changed."""

    def __init__(self, schema: pa.Schema, key: Sequence[str] | None) -> None:
        self.schema = schema
        self._key = None if key is None else [schema.names.index(name) for name in key]
        self._rows: OrderedDict[Any, tuple[Cells, int]] = OrderedDict()
        """Key, or the row itself, or a number → the row, and how often it is there."""
        self.changed: dict[Any, str] = {}
        """What the last changes touched → ``+`` where it is new, ``~`` where it replaced another."""
        self._number = 0

    def __len__(self) -> int:
        return len(self._rows)

    def apply(self, changes: Changes) -> None:
        """Takes changes in, in their order."""
        if not changes.rows.num_rows:
            return
        self.changed = {}
        if changes.signs is None and self._key is None:
            for cells in cells_of(changes.rows.slice(max(0, changes.rows.num_rows - KEPT_ROWS))):
                self._number += 1
                self._put(self._number, cells)
        else:
            signs = changes.signs or ["+U"] * changes.rows.num_rows
            for sign, cells in zip(signs, cells_of(changes.rows), strict=True):
                self._apply_one(sign, cells)
        while len(self._rows) > KEPT_ROWS:
            self._rows.popitem(last=False)

    def _apply_one(self, sign: str, cells: Cells) -> None:
        if self._key is not None:
            key = _hashable(tuple(cells[place] for place in self._key))
            if sign == "-D":
                self._rows.pop(key, None)
                self.changed.pop(key, None)
            elif sign != "-U":
                self._put(key, cells)
            return
        key = _hashable(cells)
        _, count = self._rows.get(key, (cells, 0))
        count += -1 if sign.startswith("-") else 1
        if count > 0:
            self.changed[key] = "+" if sign == "+I" else "~"
            self._rows[key] = (cells, count)
        else:
            self._rows.pop(key, None)
            self.changed.pop(key, None)

    def _put(self, key: Any, cells: Cells) -> None:
        self.changed[key] = "~" if key in self._rows else "+"
        self._rows[key] = (cells, 1)

    def newest(self, most: int) -> list[tuple[str, Cells]]:
        """The rows to be shown, each behind what the last changes did to it: those that changed are among them."""
        keys = list(self._rows)
        if len(keys) > most:
            changed = [key for key in keys if key in self.changed][-most:]
            chosen = {*changed, *[key for key in reversed(keys) if key not in self.changed][: most - len(changed)]}
            keys = [key for key in keys if key in chosen]
        return [
            (self.changed.get(key, ""), cells) for key in keys for cells, count in [self._rows[key]]
            for _ in range(min(count, most))
        ]  # fmt: skip


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((name, _hashable(each)) for name, each in value.items())
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


_STYLES: Final = {"+": "bold green", "~": "bold yellow", "": ""}


class LiveView:
    """Draws a live answer until it ends, or until Ctrl-C."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def follow(self, answer: LiveAnswer) -> None:
        table = LiveTable(answer.schema, answer.key)
        with Live(console=self._console, auto_refresh=False, vertical_overflow="crop") as live:
            for changes in answer.changes():
                table.apply(changes)
                live.update(self.frame(table, answer.status()), refresh=True)

    def frame(self, table: LiveTable, status: str) -> RenderableType:
        """The table and what is known of the run."""
        most = max(3, self._console.height - _AROUND)
        rows = table.newest(most)
        drawn = rich_table(table.schema)
        for mark, cells in rows:
            drawn.add_row(*(Text(cell_text(cell)) for cell in cells), style=_STYLES[mark])
        shown = count_of(len(table), "row")
        if len(rows) < len(table):
            shown = f"{len(rows)} of {shown}"
        return Group(BandedTable(drawn, most_lines=most), Text(f"{shown} · {status} · Ctrl-C ends it", "dim"), Text(""))


class ChangelogView:
    """Prints the changes of a live answer, each in the colour of what it does."""

    _SIGNS: Final = {"+I": "green", "+U": "yellow", "-U": "dim", "-D": "red"}

    def __init__(self, console: Console) -> None:
        self._console = console

    def follow(self, answer: LiveAnswer) -> None:
        names = [OP, *answer.schema.names]
        self._console.print(Text("  ".join(names), "bold"))
        for changes in answer.changes():
            signs = changes.signs or ["+I" if answer.key is None else "+U"] * changes.rows.num_rows
            for sign, cells in zip(signs, cells_of(changes.rows), strict=True):
                line = "  ".join([sign, *map(cell_text, cells)])
                self._console.print(Text(line, self._SIGNS[sign]), soft_wrap=True)
        self._console.print(Text(answer.status(), "dim"))
