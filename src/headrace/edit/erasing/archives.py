"""The archive of closed windows without the rows of a key: its files are put in the place of the old ones, one by one.

An archive is a folder outside of the store, but the job's own: servers answer from it. Files of the archive stay where
they are and keep their names, also those in which nothing is left, because the rows of an epoch are known by its files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.connectors.files.archive import read_archived, write_sorted
from headrace.connectors.files.folder import Folder, open_folder
from headrace.edit.erasing.keys import KeyMatch
from headrace.errors import StoreError
from headrace.model.archive import HASH, MARKER, Archive
from headrace.model.keys import NULL_KEY, encode_columns
from headrace.model.part_names import WAITING

_ENDINGS = (".parquet", f".parquet{WAITING}")


def erase_archived(archive: Archive, match: KeyMatch) -> int:
    """Takes rows out of an archive; answers how many. Raises StoreError where it cannot be reached."""
    folder = open_folder(archive.path)
    gone = 0
    try:
        # A folder that is not there would look empty.
        folder.read(MARKER)
        for name in _files_of(folder):
            gone += _erase_file(folder, name, archive, match)
        folder.settle()
    except OSError as error:
        raise _unreachable(archive, error) from error
    return gone


def count_archived(archive: Archive, match: KeyMatch) -> int:
    """How many rows of an archive are of such a key."""
    folder = open_folder(archive.path)
    try:
        return sum(int(_rows_of(read_archived(folder.read(name)), archive, match).sum()) for name in _files_of(folder))
    except OSError as error:
        raise _unreachable(archive, error) from error


def _files_of(folder: Folder) -> Iterator[str]:
    return (each.name for each in folder.list("", below=True) if each.name.endswith(_ENDINGS))


def _erase_file(folder: Folder, name: str, archive: Archive, match: KeyMatch) -> int:
    table = read_archived(folder.read(name))
    mask = _rows_of(table, archive, match)
    if not mask.any():
        return 0
    with folder.making() as made:
        write_sorted(table.filter(pa.array(~mask)), str(made))
        folder.swap(made, name)
    return int(mask.sum())


def _rows_of(table: pa.Table, archive: Archive, match: KeyMatch) -> Any:
    columns = archive.key_in(table.schema.names)
    if HASH not in table.schema.names or columns is None:
        return np.zeros(table.num_rows, bool)
    if not columns:
        keys = pa.array([NULL_KEY] * table.num_rows, pa.binary())
    else:
        keys = encode_columns([table.column(name) for name in columns])
    hashes = table.column(HASH).to_numpy().view(np.uint64)
    return match.rows_of(pa.RecordBatch.from_arrays([pa.array(hashes), keys], names=["hash", "key"]))


def _unreachable(archive: Archive, error: OSError) -> StoreError:
    return StoreError(
        "the archive of closed windows cannot be reached",
        where=archive.path,
        expected="the folder that the job writes it to",
        found=f"{type(error).__name__}: {error}",
        next_move="give the same command on a machine that reaches it, or bring it back",
    )
