"""The record of an export, ``export.json``: of which epoch it is, and what lies in which files. It is written last."""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.errors import CorruptFile, StoreError
from headrace.model.job import DeclaredState
from headrace.state.checked import check_format
from headrace.transfer.folder import ExportFolder

RECORD: Final = "export.json"
FORMAT: Final = 1
RESULTS: Final = "results"
"""What readers see: values, entries, windows with their results."""
EXACT: Final = "exact"
"""Every table of every step as it is stored: nothing is lost, and `headrace bootstrap` makes the same state of it."""


class ExportedTable(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One state, or in an exact export one table."""

    state: str
    """Its address, ``step.state`` or ``step``."""
    step: str
    table: str
    kind: str
    """``value``, ``map``, ``list``, ``timers`` or ``windows``; in an exact export the kind of the table."""
    rows: int
    files: list[str]
    """Paths below the folder, in the order of the keys' hashes."""
    columns: dict[str, str]
    """Name → type, in the words of Arrow."""
    broadcast: bool = False


class ExportRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """All of an export."""

    format: int = FORMAT
    form: str
    """``results`` or ``exact``."""
    file_format: str
    app: str
    store: str
    """Where the store was then."""
    timeline: int
    epoch: int
    published: str
    """When the epoch was published, as ISO text."""
    clock_us: int
    next_due_us: int | None = None
    """When the job wanted to be woken next on the wall clock."""
    key_groups: int
    watermarks: dict[str, int] = {}
    """Step → how far event time had come, in µs."""
    offsets: dict[str, str] = {}
    """Source → how far it was read, in the words of the source."""
    tables: list[ExportedTable]
    declared: dict[str, dict[str, DeclaredState]] = {}
    """Step → state → what the program declared."""

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)


def write_export(folder: ExportFolder, record: ExportRecord) -> None:
    folder.write(RECORD, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")


def read_export(folder: ExportFolder) -> ExportRecord:
    """The record of a whole export."""
    if RECORD not in folder.list():
        raise StoreError(
            "there is no export here",
            where=folder.url,
            expected=f"a folder with {RECORD}, as headrace export writes it",
            next_move="give the folder of a whole export; one that was interrupted has none: export again",
        )
    try:
        record = msgspec.json.decode(folder.read(RECORD), type=ExportRecord)
    except msgspec.DecodeError as error:
        raise CorruptFile(
            "the record of an export cannot be read", where=f"{folder.url}/{RECORD}", found=str(error),
            next_move="export again",
        ) from error  # fmt: skip
    check_format(record.format, FORMAT, "the export was written", f"{folder.url}/{RECORD}")
    return record
