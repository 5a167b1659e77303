"""Every state of a published epoch as a table, by its name in SQL: which kind of table a state is, is decided here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from headrace.model.job import GIVEN, ROW
from headrace.read.common_type import CommonType
from headrace.read.entries import EntryReader
from headrace.read.values import AggregateReader, ValueReader
from headrace.read.windows import SlicedReader, WindowReader
from headrace.snapshots.entries import EntryTable
from headrace.snapshots.table import StateTable, TableName, WalkedTable
from headrace.snapshots.values import AggregateTable, ValueTable, tells_results
from headrace.snapshots.windows import ArchiveTable, WindowTable

if TYPE_CHECKING:
    from headrace.model.job import DeclaredState
    from headrace.read.reader import Reader
    from headrace.read.snapshot import Snapshot

Tables = Mapping[TableName, StateTable]
_ONE_VALUE: Final = (ROW, GIVEN, "value", "reducing", "aggregating", "broadcast")
"""Kinds of states whose type in the manifest is that of the value of a key."""


def open_tables(
    snapshot: Snapshot, may_read: Callable[[str], bool] = lambda address: True
) -> dict[TableName, StateTable]:
    """The tables of an epoch. ``may_read``: whether a state is shown, by its address."""
    tables = {}
    for address in snapshot.addresses:
        if may_read(address):
            table = open_table(snapshot, address)
            tables[table.name] = table
            reader = table.reader
            if isinstance(reader, WindowReader) and reader.archived is not None:
                archive = ArchiveTable(reader, reader.archived, table.declared)
                tables.setdefault(archive.name, archive)
    return tables


def open_table(snapshot: Snapshot, address: str) -> StateTable:
    """A state as a table; values of older types are read as the newest."""
    _, _, declared = snapshot.declared(address)
    common = CommonType(declared) if declared is not None and declared.formers and declared.type is not None else None
    reader = snapshot.table(address) if common is None else snapshot.table_as(address, common)
    assert reader is not None
    return _kind_of(reader, declared)(reader, declared)


def _kind_of(reader: Reader, declared: DeclaredState | None) -> type[StateTable]:
    if isinstance(reader, SlicedReader) and reader.views:
        return WindowTable
    if declared is None:
        return WalkedTable
    match reader:
        case AggregateReader() if tells_results(declared):
            return AggregateTable
        case ValueReader() if type(reader) is ValueReader and declared.type is not None and declared.kind in _ONE_VALUE:
            return ValueTable
        case EntryReader() if reader.kind == "timers" or _has_items(declared):
            return EntryTable
    return WalkedTable


def _has_items(declared: DeclaredState) -> bool:
    return declared.type is not None and declared.type.items is not None
