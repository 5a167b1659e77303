"""Answers as text: tables for people, JSON lines and CSV for machines.

Machines get every row. People get the first of them, and are told that there are more.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal, TextIO

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.cli.shell.session import Changes, LiveAnswer, ShellAnswer
from headrace.cli.show import make_console, make_table, plain, print_json_line, value_text
from headrace.connectors.console.bands import BandedTable
from headrace.connectors.text import iso_text
from headrace.model.amounts import count_of

OutputFormat = Literal["table", "json", "csv"]
FORMATS: Final[tuple[OutputFormat, ...]] = ("table", "json", "csv")
SHOWN_ROWS: Final = 1000
OP: Final = "op"
"""The column that says what a row of a changelog is."""
NULL: Final = "NULL"


def cells_of(batch: pa.RecordBatch | pa.Table) -> Iterator[tuple[Any, ...]]:
    """The rows of a batch as plain values, times as ISO text."""
    columns = []
    for column in batch.columns:
        values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        columns.append((iso_text(values) if pa.types.is_timestamp(values.type) else values).to_pylist())
    return zip(*columns, strict=True) if columns else iter([()] * batch.num_rows)


def cell_text(value: Any) -> str:
    """A value for people."""
    return NULL if value is None else value_text(value)


def numeric_columns(schema: pa.Schema) -> set[str]:
    kinds = pa.types
    tests = (kinds.is_integer, kinds.is_floating, kinds.is_decimal)
    return {field.name for field in schema if any(test(field.type) for test in tests)}


def rich_table(schema: pa.Schema, *, before: Sequence[str] = ()) -> Table:
    """An empty table with the columns of a schema, behind others that hold words."""
    words = {*before, *(name for name in schema.names if name not in numeric_columns(schema))}
    return make_table(*before, *schema.names, left=words)


class Printer:
    """Writes answers to standard output in one format."""

    def __init__(self, format: OutputFormat, *, console: Console | None = None, out: TextIO | None = None) -> None:
        self.format = format
        self.console = console or make_console()
        self._out = out or sys.stdout

    def show(self, answer: ShellAnswer) -> None:
        """A whole answer."""
        if answer.schema is None:
            self.say(answer.message)
        elif self.format == "table":
            self._show_table(answer)
        else:
            self._header(answer.schema.names)
            for batch in answer.batches:
                self._lines(batch.schema.names, cells_of(batch))
            if answer.message:
                self.say(answer.message)

    def say(self, text: str) -> None:
        """Words for people; machines read rows alone, so these go to standard error then."""
        if not text:
            return
        if self.format == "table":
            self.console.print(Text(text), soft_wrap=True)
        else:
            print(text, file=sys.stderr)

    def _show_table(self, answer: ShellAnswer) -> None:
        assert answer.schema is not None
        table, rows, more = rich_table(answer.schema), 0, False
        for batch in answer.batches:
            for cells in cells_of(batch.slice(0, SHOWN_ROWS - rows)):
                table.add_row(*(Text(cell_text(cell)) for cell in cells))
            rows += batch.num_rows
            more = rows > SHOWN_ROWS
            if more:
                break
        self.console.print(BandedTable(table))
        left = f"the first {SHOWN_ROWS} rows; LIMIT them, or take all by --format csv or json"
        self.console.print(Text(left if more else count_of(rows, "row"), "dim"))
        if answer.message:
            self.console.print(Text(answer.message), soft_wrap=True)

    def follow(self, answer: LiveAnswer) -> None:
        """The changes of a live answer, a line each, as they come; until it ends."""
        signed = answer.key is not None or answer.as_changelog
        began = False
        for changes in answer.changes():
            signed = signed or changes.signs is not None
            if not began and (changes.rows.num_rows or self.format != "csv"):
                self._header([OP, *answer.schema.names] if signed else answer.schema.names)
                began = True
            self._follow_rows(changes, answer.schema.names, signed)
        if not began:
            self._header([OP, *answer.schema.names] if signed else answer.schema.names)

    def _follow_rows(self, changes: Changes, names: Sequence[str], signed: bool) -> None:
        rows: Iterable[tuple[Any, ...]] = cells_of(changes.rows)
        if signed:
            signs = changes.signs or ["+I"] * changes.rows.num_rows
            rows = ((sign, *cells) for sign, cells in zip(signs, rows, strict=True))
            names = [OP, *names]
        self._lines(names, rows)

    def _header(self, names: Sequence[str]) -> None:
        if self.format == "csv":
            csv.writer(self._out, lineterminator="\n").writerow(names)
        elif self.format == "table":
            print("\t".join(names), file=self._out)

    def _lines(self, names: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> None:
        if self.format == "csv":
            writer = csv.writer(self._out, lineterminator="\n")
            writer.writerows([["" if cell is None else value_text(cell) for cell in row] for row in rows])
        elif self.format == "json":
            for row in rows:
                print_json_line(dict(zip(names, map(plain, row), strict=True)))
        else:
            for row in rows:
                print("\t".join(map(cell_text, row)), file=self._out)
        self._out.flush()
