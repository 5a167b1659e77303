"""How commands show tables and values: the same look everywhere, and whole lines where nobody is looking.

On a terminal tables fit its width: one that is too wide is shown in bands. In a pipe or a log there is no width to fit.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.connectors.console.bands import BandedTable
from headrace.model.ids import MAX_TIME, MIN_TIME
from headrace.model.keys import key_text
from headrace.model.time import format_time

if TYPE_CHECKING:
    from headrace.upgrade.lines import Upgrade

PIPE_WIDTH: Final = 240


def make_console(*, stderr: bool = False) -> Console:
    """Standard output for people, or standard error."""
    console = Console(highlight=False, stderr=stderr)
    return console if console.is_terminal else Console(highlight=False, stderr=stderr, width=PIPE_WIDTH)


def make_table(*columns: str, left: Iterable[str] = ()) -> Table:
    """A table whose columns are numbers, except those named in ``left``."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    words = set(left)
    for name in columns:
        table.add_column(name, justify="left" if name in words else "right", overflow="fold", no_wrap=name not in words)
    return table


def print_table(console: Console, title: str, table: Table, *, names: int = 1) -> None:
    """A table under its title, which may be wider than the table.

    ``names``: so many of its first columns say what a row is of; each band begins with them.
    """
    console.print(Text(title, "bold"))
    console.print(BandedTable(table, names=names))


def print_plan(upgrade: Upgrade, *, stderr: bool = False) -> None:
    """What a program does to a store: a table with a line for everything."""
    from headrace.upgrade.text import opening, remarks

    table = make_table("", "name", "becomes", "remarks", left=("", "name", "becomes", "remarks"))
    for line in upgrade.lines:
        style = {"refused": "bold red", "dropped": "yellow"}.get(line.fate, "" if line.changes else "dim")
        table.add_row(line.part, line.name, line.fate, remarks(line), style=style)
    print_table(make_console(stderr=stderr), opening(upgrade), table, names=3)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(_finite(plain(value)), ensure_ascii=False, indent=2))


def print_json_line(value: Any) -> None:
    """One JSON document on one line, for streams of them."""
    print(json.dumps(_finite(plain(value)), ensure_ascii=False), flush=True)


def plain(value: Any) -> Any:
    """A value as JSON can say it: records are objects, bytes base64, keys of maps text."""
    if isinstance(value, Mapping):
        return {key_text(name): plain(each) for name, each in value.items()}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    return msgspec.to_builtins(value, str_keys=True)


def _finite(value: Any) -> Any:
    """The value with null for floats that JSON has no word for, as servers answer it."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def value_text(value: Any) -> str:
    """A value on one line for people: text as it is, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)


def json_time(time_us: int | None) -> str | None:
    """A point in time for machines: ISO text, null before the first, "end" for the end of time."""
    if time_us is None or time_us <= MIN_TIME:
        return None
    return "end" if time_us >= MAX_TIME else format_time(time_us)


def ms_text(took_us: int | None) -> str:
    return "–" if took_us is None else f"{took_us / 1000:,.1f}"
